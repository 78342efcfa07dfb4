"""One mirror with tables of all modes, a writer that never rests, and whatever may happen to them: the stateful test
behind tests/acceptance/test_mode_properties.py.

The oracle is in the database itself. Each table has a model, which gets each change in the same transaction, whoever
makes it: the writer, an ingest, or a load. So what a read across the cut-line has to find is the model in the read's
own snapshot, and what the lake has to hold at a frontier is the model as of that position of the WAL.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psycopg

from mirror_pump.errors import MirrorPumpError, TableError
from mirror_pump.ops.register.unregistration import abort_restore
from mirror_pump.ops.restore.restoration import RestoreStep
from mirror_pump.ops.resync.format_upgrade import upgrade
from mirror_pump.ops.retain.retention import change_retention, resume
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.maintenance import Maintained
from tests.support.mode_inputs import ModeInputs
from tests.support.mode_pumps import ModePumps
from tests.support.mode_reads import ModeReads
from tests.support.mode_tables import ModeKind, ModeTable
from tests.support.mode_trail import ModeTrail
from tests.support.mode_writer import ModeWriter, OldTransaction
from tests.support.model_history import ModelHistory
from tests.support.pipeline import in_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTLE = 120.0
"""Seconds in which everything that is due has to be done when nobody disturbs."""
_OVERTAKEN = ("another commit interfered", "changed before its sweep")
"""What maintenance leaves to its next pass, because the pump was faster."""


class ModeWorld:
    """One database with its mirror. A context manager. `found` counts what happened."""

    def __init__(
        self,
        database: Database,
        directory: Path,
        chance: random.Random,
        found: Counter[str],
        spark: SparkSession | None = None,
    ) -> None:
        self._database = database
        self._chance = chance
        self._found = found
        self._closing = ExitStack()
        threads = ThreadTaskRunner(2)
        self._closing.callback(threads.close)
        gate = GatedCopies(threads)
        self._trail = ModeTrail(database)
        lake = directory / "lake"
        lake.mkdir()
        self.mirror = Mirror.create(
            database, lake.as_uri(), gate, retention_interval=0.1, reconnect_backoff_max=0.3, copy_chunk_bytes=8192
        )
        self._maintained = None if spark is None else Maintained(self.mirror, spark)
        history = ModelHistory(database, f"oracle_{os.urandom(4).hex()}")
        # Each draws for itself: how often one is asked depends on the time, and the others draw the same again.
        of_pumps, of_writer, of_reads, of_inputs, of_old = (random.Random(chance.getrandbits(32)) for _ in range(5))
        self._pumps = ModePumps(self.mirror, gate, of_pumps, found, self._trail)
        self._tables = [ModeTable.of(self.mirror, kind, 90, history) for kind in ModeKind]
        self._writer = ModeWriter(database, self._tables, of_writer, found)
        duckdb = self._closing.enter_context(duckdb_connection())
        self._reads = ModeReads(self._tables, history, duckdb, self._writer.turn, of_reads, found)
        self._inputs = ModeInputs(
            self.mirror, directory, of_inputs, found, self._trail, self._disturb, self._reads.release_all
        )
        connection = self._closing.enter_context(database.connect(autocommit=False))
        self._old = OldTransaction(connection, of_old, found)
        self._order = random.Random(chance.getrandbits(32))
        self._versions = random.Random(chance.getrandbits(32))
        for table in self._tables:
            table.format_version = self._versions.choice([2, 3])
        self._line = self._bounded.line

    def __enter__(self) -> Self:
        for table in self._tables:
            table.register()
        self._pumps.start()
        self.mirror.await_live(*(f"public.{kind}" for kind in ModeKind if kind.streams))
        return self

    def __exit__(self, *_: object) -> None:
        with self._closing:
            self._pumps.abandon()

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Does something, and reads, for as long as that says. Then everything settles, and is compared."""
        try:
            with in_thread(self._writer.run, "writer") as writer:
                # `terminate` has to know which backend to spare.
                await_true(lambda: self._writer.pid, 60, "the writer connects")
                # A slow machine may not even have begun.
                while goes_on() or not self._found["transactions"]:
                    assert writer.is_alive(), "the writer has ended"
                    self._act()
            self.settle()
        except BaseException as error:
            self._trail.show(error)
            raise

    def _act(self) -> None:
        actions = self._actions()
        action = self._order.choices(list(actions), list(actions.values()))[0]
        name = action.__name__.strip("_")
        self._trail.note(name)
        action()
        self._found[name] += 1
        if self._versions.random() < 0.15:
            self._upgrade(self._versions.choice(self._tables))
        self._require_sound()
        for _ in range(2):
            self._reads.some(led=self._pumps.leads)

    def _upgrade(self, table: ModeTable) -> None:
        """Its lake table gets format version 3, if it is registered, and is not being copied again."""
        self._trail.note(f"upgrade {table.name}")
        with suppress(TableError):
            self._found["upgrades"] += upgrade(self.mirror.settings, f"public.{table.name}", 3, confirmed=True)

    def _actions(self) -> dict[Callable[[], None], int]:
        """What may happen, and how often."""
        pumps = self._pumps
        actions: dict[Callable[[], None], int] = {
            self._grow: 5, self._ingest: 4, self._killed_ingest: 1, self._load: 4, self._load_again: 1,
            self._add_column: 1, self._truncate: 1, self._rewrite: 1, self._change_policy: 2, self._restore: 1,
            self._reads.pin: 2, self._reads.release: 3, self._begin_old: 1, self._end_old: 2, self._kill: 1,
            self._terminate: 1, pumps.restart: 1, pumps.plant: 2, pumps.fail_tasks: 1, pumps.hold_copies: 1,
            pumps.copy_on: 3, pumps.wait: 3,
        }  # fmt: skip
        if self._maintained is not None:
            actions[self._maintain] = 1
        return actions

    # What happens.

    @property
    def _bounded(self) -> ModeTable:
        (found,) = (table for table in self._tables if table.kind is ModeKind.BOUNDED)
        return found

    def _any(self, *kinds: ModeKind) -> ModeTable:
        found = self._chance.choice([table for table in self._tables if not kinds or table.kind in kinds])
        self._trail.note(f"  of {found.name}")
        return found

    def _grow(self) -> None:
        with contextlib.suppress(psycopg.errors.LockNotAvailable):
            self._any().grow(self._chance.choice((20, 90)))

    def _ingest(self) -> None:
        self._inputs.ingest(self._any())

    def _killed_ingest(self) -> None:
        self._inputs.killed_ingest(self._any())

    def _load(self) -> None:
        self._inputs.load(self._any())

    def _load_again(self) -> None:
        self._inputs.load_again(self._any())

    def _add_column(self) -> None:
        table = self._any()
        if table.further < 3:
            self._alter(table, lambda connection: table.add_column(connection, self._chance), table.column_added)

    def _truncate(self) -> None:
        table = self._any()
        with contextlib.suppress(psycopg.errors.UndefinedTable):
            self._alter(table, lambda connection: table.truncate(connection, self._chance))

    def _alter(
        self, table: ModeTable, change: Callable[[Any], None], changed: Callable[[], None] = lambda: None
    ) -> None:
        """A command that wants the table for itself, unless somebody else has it."""
        with self._database.session(autocommit=False) as connection:
            connection.execute("SET LOCAL lock_timeout = '1s'")
            try:
                change(connection)
                connection.commit()
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                connection.rollback()
                return
        changed()
        self._found[f"altered {table.name}"] += 1

    def _rewrite(self) -> None:
        """VACUUM FULL of a partition, which no transaction may contain."""
        table = self._any()
        with (
            self._database.session() as connection,
            contextlib.suppress(psycopg.errors.UndefinedTable, psycopg.errors.LockNotAvailable),
        ):
            connection.execute("SET lock_timeout = '500ms'")
            number = self._chance.randrange(table.partitions)
            connection.execute(f"VACUUM FULL {table.prefix}{number}".encode())
            self._found["rewritten"] += 1

    def _change_policy(self) -> None:
        table = self._any(ModeKind.SHED, ModeKind.AGED, ModeKind.KEPT, ModeKind.BOUNDED, ModeKind.BOUNDED)
        if table.kind is ModeKind.BOUNDED and self._chance.random() < 0.6:
            chosen = self._chance.choice((None, "60", "150", "150", "400"))
            change_retention(self.mirror.settings, table.name, "lake_retention", chosen)
        else:
            chosen = self._chance.choice((None, "0", "100", "100", "250"))
            change_retention(self.mirror.settings, table.name, table.kind.lag_key, chosen)

    def _restore(self) -> None:
        """All rows come back into the heap, and the table is registered again."""
        table = self._any(ModeKind.SHED, ModeKind.AGED, ModeKind.BOUNDED)
        self._reads.release_all(table)

        def report(step: RestoreStep, _: str) -> None:
            self._trail.note(f"  {step}")

        try:
            self.mirror.unregister(table.name, drop_lake=True, restore_heap=True, report=report)
        except MirrorPumpError as error:
            self._trail.note(f"  refused: {error}")
            self._found[f"refused: restore: {error}"[:140]] += 1
            abort_restore(self.mirror.settings, table.name)
            return
        table.assert_heap(whole=True)
        self._inputs.forget(table)
        table.register()
        if table is self._bounded:
            self._line = table.line
        if table.kind.streams:
            self._pumps.copy_all()
            self._pumps.await_live(table.name)

    def _maintain(self) -> None:
        """Spark compacts and expires whatever it may, at once."""
        assert self._maintained is not None
        name = f"public.{self._any().name}"
        self._maintained.policy(name, snapshot_retention_hours=0, snapshot_min_retained=1)
        result = self._maintained.maintain(name)
        self._found["maintained"] += bool(result.done)
        for error in result.errors:
            assert any(known in error for known in _OVERTAKEN), f"maintenance of {name}: {error}"
            self._found["maintenance overtaken"] += 1

    def _disturb(self) -> None:
        """An ingest has begun to look for keys."""
        if self._chance.random() < 0.3:
            self._grow()
        if self._chance.random() < 0.5:
            self._reads.by_protocol()

    def _begin_old(self) -> None:
        self._old.begin()

    def _end_old(self) -> None:
        self._old.end(self._any())

    def _kill(self) -> None:
        self._pumps.kill((self._grow, self._load, self._reads.by_protocol, self._reads.main))

    def _terminate(self) -> None:
        self._pumps.terminate((self._old.pid, self._writer.pid))

    def _require_sound(self) -> None:
        """Fails if a pump has ended by an error, a table has failed, a proof found a difference, or the retention line
        moved back."""
        self._pumps.require_alive()
        stopped = self._database.rows(
            "SELECT s.table_name, s.retention_stopped, m.error"
            "  FROM modak.status s JOIN modak.mirror_tables m USING (table_id)"
            " WHERE s.retention_stopped IS NOT NULL OR m.state = 'failed'"
        )
        assert not stopped, stopped
        line = self._bounded.line
        assert line >= self._line, "the retention line moved back"
        self._found["retention lines"] += line > self._line
        self._line = line

    # The end.

    def settle(self) -> None:
        """Nothing disturbs any more: all that is due is done, and everything is exact."""
        self._end_old()
        for table in self._tables:
            self._reads.release_all(table)
        self._pumps.calm()
        self._pumps.stop()
        for table in self._tables:
            table.grow()
            if table.kind.lag_key is not None:
                change_retention(self.mirror.settings, table.name, table.kind.lag_key, "100")
        change_retention(self.mirror.settings, ModeKind.BOUNDED, "lake_retention", "150")
        self._pumps.start(fold_age=0.05)
        resume(self.mirror.settings, ())
        for what, condition in self._settled():
            try:
                await_true(condition, _SETTLE, what)
                self._require_sound()
            except AssertionError:
                self._pumps.require_alive()
                raise
        self.mirror.await_frontier(seconds=_SETTLE)
        self._reads.everything()
        self.mirror.assert_sound()
        self._found["partitions that left"] += sum(
            len(table.leaving().get(state, ())) for table in self._tables for state in ("tiered", "dropped")
        )
        self._pumps.stop()
        self._found["tables verified"] += assert_verified(self._database)

    def _settled(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """What has to come, with its name."""
        streams = [table for table in self._tables if table.kind.streams]
        yield (
            "the tables are live",
            lambda: all(self.mirror.state(f"public.{table.name}") == "live" for table in streams),
        )
        for table in self._tables:
            if table.kind is not ModeKind.PLAIN:
                yield f"what is due of {table.name} leaves", partial(_is_quiet, table)
        yield (
            "the last line",
            lambda: self._database.rows("SELECT modak.due_retention_line(%s)", (self._bounded.table_id,)) == [(None,)],
        )
        yield (
            "corrections are folded, or expire",
            lambda: self._database.rows("SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL") == [(0,)],
        )


def _is_quiet(table: ModeTable) -> bool:
    """All partitions but the newest two have left."""
    states = table.leaving()
    last = "tiered" if table.kind is ModeKind.KEPT else "dropped"
    return set(states) <= {"hot", last} and len(states.get("hot", ())) == 2
