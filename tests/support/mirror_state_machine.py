"""The state machine of the property test: random transactions, batch cuts, restarts, faults, registrations, pauses.

Every published frontier is checked: each live table, as DuckDB reads it at that frontier, is compared with the model's
content at that frontier. The pump runs all the time in its own thread; the steps only disturb it.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.errors import CommitConflict, ConnectionLost, TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import format_lsn
from mirror_pump.ops.resync.format_upgrade import upgrade
from mirror_pump.ops.resync.pausing import pause, resume
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.relations.column_choices import ColumnChoices
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import (
    Mirror,
    Row,
    RunningPump,
    Steps,
    assert_same,
    await_true,
    lake_rows,
    normalised,
    paced,
)
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.history_oracle import CommitLog, History
from tests.support.key_index_checks import check_indexes
from tests.support.table_wishes import parse_choices
from tests.support.workload import SHAPES, Act, Ending, RowOperation, Writer, random_operations

SIDE = "w.side"
"""A table that a second session writes to, in transactions that stay open while others commit."""

TABLES = (*(shape.name for shape in SHAPES), SIDE)

OPTIONS = st.fixed_dictionaries(
    {
        "segment_bytes": st.sampled_from([1, 300, 4000, 1 << 20]),
        "batch_bytes": st.sampled_from([1, 2000, 50_000, 1 << 24]),
        "limits": st.sampled_from([0.0, 0.02, 0.2]).map(paced),
        "copy_chunk_bytes": st.sampled_from([8192, 24_000]),
        "copy_workers": st.sampled_from([1, 3]),
        "convert_age": st.sampled_from([0.0, 0.0, 0.3]),
        # For all tables, for one or two at a time, for none.
        "index_memory": st.sampled_from([1 << 30, 1 << 30, 3 << 20, 0]),
        "merge_bytes": st.sampled_from([1 << 25, 1 << 25, 4000, 0]),
    }
)

FAULTS = (
    Step.RECEIVED,
    Step.WRITTEN,
    Step.STAGED,
    Step.PUBLISHED,
    Step.ACKNOWLEDGED,
    Step.COPY_PLANNED,
    Step.CHUNKS_PUBLISHED,
    Step.LIVE,
    Step.CONVERTING,
    Step.POSITIONS_WRITTEN,
    Step.CONVERTED,
    Step.INDEX_BUILDING,
    Step.INDEX_READY,
    Step.MERGING,
    Step.MERGE_WRITTEN,
    Step.MERGED,
)

_DIVIDING = ("smallint", "int", "bigint", "text", "varchar", "date", "timestamp", "timestamptz")
"""Types of columns by which lake tables are partitioned and sorted."""

_SETTLE = 60.0
"""Seconds in which the mirror has to catch up when nobody writes."""

_LIVE = """
SELECT t.schema_name || '.' || t.table_name, c.replicated_lsn, c.lake_props ->> 'metadata_location'
  FROM modak.cutline c JOIN modak.tables t USING (table_id) JOIN modak.mirror_tables m USING (table_id)
 WHERE m.state = 'live'
"""


class MirrorMachine(RuleBasedStateMachine):
    """One example: a new database with a mirror, disturbed and checked. `server` is set by the test."""

    server: ClassVar[EmbeddedPostgres]
    published: ClassVar[int] = 0
    """(frontier, table) pairs compared so far, in all examples: a test that compares nothing must not pass."""
    conversions: ClassVar[int] = 0
    """Conversions that landed so far."""
    indexed: ClassVar[int] = 0
    """Key indexes compared with their tables so far."""
    upgrades: ClassVar[int] = 0
    """Tables that have got format version 3 so far."""
    merges: ClassVar[int] = 0
    """Merges that landed so far."""
    spark_runner: ClassVar[TaskRunner | None] = None
    """Runs the tasks instead of threads of this process: much slower, and closer to real use."""

    def __init__(self) -> None:
        super().__init__()
        self._closing = contextlib.ExitStack()
        name = f"prop_{os.urandom(4).hex()}"
        self.server.create_database(name)
        self._closing.callback(self.server.drop_database, name)
        database = self._database = Database(self.server, name)
        warehouse = self._closing.enter_context(tempfile.TemporaryDirectory())
        with database.session() as connection:
            connection.execute("CREATE SCHEMA w")
            connection.execute(f"CREATE TABLE {SIDE} (id int PRIMARY KEY, v text)")
            for statement in (statement for shape in SHAPES for statement in shape.ddl):
                connection.execute(statement.encode())
        log = CommitLog(database, f"oracle_{os.urandom(4).hex()}")
        threads = ThreadTaskRunner(3)
        self._closing.callback(threads.close)
        self._tasks = self.spark_runner or threads
        self._gate = GatedCopies(self._tasks)
        self._mirror = Mirror.create(database, Path(warehouse).as_uri(), self._gate, reconnect_backoff_max=0.3)
        self._history = History(log, {})
        self._connection = self._closing.enter_context(database.connect())
        self._writer = Writer(self._connection, self._history)
        self._side = self._closing.enter_context(database.connect())
        self._side_open: tuple[int, dict[Row, Row]] | None = None
        self._duckdb = self._closing.enter_context(duckdb_connection())
        self._probe = self._closing.enter_context(database.connect())
        self._lock = threading.Lock()
        self._points: list[tuple[int, str, str]] = []
        self._rows: dict[str, list[Row]] = {}
        self._fault: tuple[Step, type[Exception]] | None = None
        self._registered: set[str] = set()
        self._paused: set[str] = set()
        self._chance: random.Random | None = None
        self._pump: RunningPump
        self._steps = Steps(self._on_step)

    def _on_step(self, step: Step, _details: dict[str, object]) -> None:
        """Called in the pump's threads."""
        if step is Step.PUBLISHED:
            with self._lock:
                for table, frontier, location in self._probe.execute(_LIVE):
                    self._points.append((frontier, table, location))
        if step is Step.CONVERTED:
            MirrorMachine.conversions += 1
        if step is Step.MERGED:
            MirrorMachine.merges += 1
        fault = self._fault
        if fault is not None and fault[0] is step:
            self._fault = None
            raise fault[1](f"planted at {step}")

    # The first example of each round is the simplest one, with the first rule again and again: it is rejected.
    @initialize(
        seed=st.integers(0, 2**32 - 1).filter(bool),
        options=OPTIONS,
        tables=st.sets(st.sampled_from(TABLES), min_size=2, max_size=4),
        hold=st.booleans(),
    )
    def begin(self, seed: int, options: dict[str, Any], tables: set[str], hold: bool) -> None:
        self._chance = random.Random(seed)
        fill = RowOperation(Act.FILL, 0, 0, 0, None, None, None)
        work = random_operations(self._chance, 10)
        self._writer.transaction([*work, *(replace(fill, table=place) for place in range(2))], Ending.COMMIT)
        self._start(options)
        self.register(tables, hold)

    @invariant()
    def write(self) -> None:
        """Runs after every step: hypothesis leaves out some rules in each example, and this must not be one of them."""
        if self._chance is None:
            return
        self._alive()
        for _ in range(self._chance.randrange(6)):
            publishes = self._steps.count(Step.PUBLISHED)
            ending = self._chance.choice([Ending.COMMIT, Ending.COMMIT, Ending.COMMIT, *Ending])
            self._writer.transaction(random_operations(self._chance, 6), ending)
            # Usually each transaction waits for a publish after the one before, so that there are many frontiers.
            deadline = time.monotonic() + self._chance.choice([0.0, 0.1, 0.1])
            while self._steps.count(Step.PUBLISHED) == publishes and time.monotonic() < deadline:
                time.sleep(0.002)

    @precondition(lambda self: self._side_open is None)
    @rule(key=st.integers(0, 3))
    def begin_side(self, key: int) -> None:
        number = self._history.next_number()
        contents = dict(self._history.tables.get(SIDE, {}))
        self._side.execute("BEGIN")
        CommitLog.mark(self._side, number)
        if contents.pop((key,), None) is not None:
            self._side.execute(f"DELETE FROM {SIDE} WHERE id = {key}".encode())
        else:
            self._side.execute(f"INSERT INTO {SIDE} VALUES ({key}, 'v{number}')".encode())
            contents[(key,)] = (f"v{number}",)
        self._side_open = (number, contents)

    @precondition(lambda self: self._side_open is not None)
    @rule(commit=st.booleans())
    def end_side(self, commit: bool) -> None:
        assert self._side_open is not None
        number, contents = self._side_open
        self._side_open = None
        self._side.execute("COMMIT" if commit else "ROLLBACK")
        if commit:
            self._history.committed(number, {SIDE: contents})

    @rule(tables=st.sets(st.sampled_from(TABLES), min_size=1, max_size=3), hold=st.booleans())
    def register(self, tables: set[str], hold: bool) -> None:
        self._alive()
        chosen = [table for table in sorted(tables - self._registered) if table != SIDE or self._side_open is None]
        if hold:
            self._gate.hold()
        for table in chosen:
            self._mirror.register(table, choices=self._layout(table), format_version=self._format_version())
        self._registered |= set(chosen)

    @precondition(lambda self: self._registered)
    @rule(pick=st.integers(0, 9), again=st.booleans(), drop_lake=st.booleans())
    def unregister(self, pick: int, again: bool, drop_lake: bool) -> None:
        table = sorted(self._registered)[pick % len(self._registered)]
        if table == SIDE and self._side_open is not None:
            return
        if drop_lake:
            self._check()
        location = self._mirror.location(table)
        self._mirror.unregister(table, drop_lake)
        if drop_lake:
            gone = location.rpartition("/metadata/")[0]
            with self._lock:
                self._points = [point for point in self._points if not point[2].startswith(gone)]
        self._registered.discard(table)
        if again:
            self._mirror.register(table, choices=self._layout(table), format_version=self._format_version())
            self._registered.add(table)

    def _layout(self, table: str) -> ColumnChoices:
        """How the lake table is partitioned and sorted: by any columns, or not at all."""
        assert self._chance is not None
        columns = self._database.rows(
            "SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
            " AND atttypid = ANY (%s::regtype[]::oid[]) AND NOT attisdropped ORDER BY attnum",
            (table, list(_DIVIDING)),
        )
        names = [name for (name,) in columns]
        chosen = self._chance.sample(names, min(len(names), self._chance.choice([0, 0, 1, 2])))
        by = [self._chance.choice([name, f"bucket(3, {name})"]) for name in chosen]
        order = self._chance.sample(names, min(len(names), self._chance.choice([0, 1, 2])))
        return parse_choices([], [], partition_by=", ".join(by) or None, sort_by=", ".join(order) or None)

    def _format_version(self) -> int:
        """Tables of both versions are side by side."""
        assert self._chance is not None
        return self._chance.choice([2, 3])

    @precondition(lambda self: self._registered)
    @rule(pick=st.integers(0, 9))
    def upgrade(self, pick: int) -> None:
        """A table gets format version 3, unless it is being copied again."""
        table = sorted(self._registered)[pick % len(self._registered)]
        with contextlib.suppress(TableError):
            MirrorMachine.upgrades += upgrade(self._mirror.settings, table, 3, confirmed=True)

    @precondition(lambda self: self._registered)
    @rule(pick=st.integers(0, 9))
    def pause(self, pick: int) -> None:
        table = sorted(self._registered)[pick % len(self._registered)]
        pause(self._mirror.settings, table)
        self._paused.add(table)

    @precondition(lambda self: self._paused)
    @rule()
    def resume(self) -> None:
        for table in self._paused & self._registered:
            resume(self._mirror.settings, table)
        self._paused.clear()

    @rule(options=OPTIONS)
    def restart(self, options: dict[str, Any]) -> None:
        self._pump.stop()
        self._start(options)

    def _start(self, options: dict[str, Any]) -> None:
        self._streams = self._steps.count(Step.STREAMING)
        self._pump = self._mirror.with_options(**options).start(self._steps)

    @rule(step=st.sampled_from(FAULTS), error=st.sampled_from([ConnectionLost, CommitConflict]))
    def plant(self, step: Step, error: type[Exception]) -> None:
        self._fault = (step, error)

    @rule(count=st.integers(1, 3))
    def fail_tasks(self, count: int) -> None:
        self._gate.fail(count)

    @rule(kind=st.sampled_from(["walsender", "client backend"]))
    def terminate(self, kind: str) -> None:
        """Ends the pump's connections of one kind, once it has started up: until then a lost connection is final."""
        streams = self._streams
        await_true(lambda: self._steps.count(Step.STREAMING) > streams or self._pump.error, _SETTLE, "the pump starts")
        with self._database.session() as connection:
            ours = [session.info.backend_pid for session in (connection, self._connection, self._side, self._probe)]
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND backend_type = %s AND NOT pid = ANY (%s)",
                (kind, ours),
            )

    @rule(count=st.integers(1, 3))
    def copy_on(self, count: int) -> None:
        self._gate.let_go(count)

    @rule(pick=st.integers(0, len(SHAPES) - 1), full=st.booleans())
    def vacuum(self, pick: int, full: bool) -> None:
        self._connection.execute(f"VACUUM {'FULL' if full else ''} {SHAPES[pick].name}".encode())

    @rule()
    def settle(self) -> None:
        """Releases everything that is held back, waits, and compares what is published by then."""
        self.resume()
        if self._side_open is not None and SIDE in self._registered and self._mirror.state(SIDE) != "live":
            # Its copy waits for the transaction.
            self.end_side(commit=True)
        self._gate.let_go()
        try:
            await_true(self._settled, _SETTLE, "the mirror has caught up")
            self._mirror.await_frontier(seconds=_SETTLE)
            await_true(self._resolved, _SETTLE, "no equality delete is pending")
        except BaseException as error:
            self._alive()
            raise AssertionError(self._report()) from error
        self._check()
        # With tasks that are not made to fail: the failures of `fail_tasks` are meant for the pump.
        MirrorMachine.indexed += check_indexes(self._pump.pump, self._tasks, self._database)

    def teardown(self) -> None:
        with self._closing:
            if self._chance is None:
                return
            try:
                if self._side_open is not None:
                    self.end_side(commit=True)
                self.settle()
                if not MirrorMachine.upgrades:
                    # Hypothesis may have left the rule out, or have chosen it when no table was ready.
                    for pick in range(len(self._registered)):
                        self.upgrade(pick)
                    self.write()
                    self.settle()
                self._have_indexes()
                for table in sorted(self._registered):
                    expected = normalised([(*key, *row) for key, row in self._history.tables.get(table, {}).items()])
                    assert_same(self._mirror.heap(table), expected, f"the model of {table} against the heap")
                    self._mirror.assert_equal(table)
                self._mirror.assert_sound()
            finally:
                self._fault = None
                self._pump.pump.request_stop()
                self._pump.thread.join(60)
            assert_verified(self._database)

    def _have_indexes(self) -> None:
        """Deletes rows of every table, commit after commit: an index is ready after several of them, as which most
        examples have not drawn. Without memory for indexes there is none."""
        indexed, bump = MirrorMachine.indexed, RowOperation(Act.BUMP, 0, 0, 0, 1, None, None)
        for _ in range(4):
            if MirrorMachine.indexed > indexed or not self._registered:
                return
            every_row = [
                replace(bump, table=place, act=act) for act in (Act.FILL, Act.BUMP) for place in range(len(SHAPES))
            ]
            self._writer.transaction(every_row, Ending.COMMIT)
            self.settle()

    def _report(self) -> str:
        """The state of a mirror that does not progress: it may not happen again when the example is repeated."""
        states = {table: (self._mirror.state(table), self._mirror.error(table)) for table in self._registered}
        catalog = self._database.rows(
            "SELECT m.table_id, m.start_lsn, m.generation, m.live_after_lsn, p.chunks_done, s.applied_lsn,"
            " count(c.*) FILTER (WHERE c.done_at IS NULL)"
            " FROM modak.mirror_tables m JOIN modak.mirror_slots s USING (slot_name)"
            " LEFT JOIN modak.copy_progress p USING (table_id) LEFT JOIN modak.copy_chunks c USING (table_id)"
            " GROUP BY 1, 2, 3, 4, 5, 6"
        )
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = [
            f"{names.get(number)}: {''.join(traceback.format_stack(frame)[-4:])}"
            for number, frame in sys._current_frames().items()
        ]
        steps = "\n".join(map(str, self._steps.occurrences[-30:]))
        return f"tables {states}\ncatalog {catalog}\nlast steps\n{steps}\nthreads\n" + "\n".join(stacks)

    def _settled(self) -> bool:
        self._alive()
        states = {table: self._mirror.state(table) for table in self._registered}
        failed = {table: self._mirror.error(table) for table, state in states.items() if state == "failed"}
        assert not failed, failed
        return all(state == "live" for state in states.values())

    def _resolved(self) -> bool:
        self._alive()
        locations = [self._mirror.location(table) for table in self._registered]
        return not any(LakeTable.load(location, StorageOptions()).equality_deletes for location in locations)

    def _alive(self) -> None:
        if self._pump.error is not None:
            output = "".join(traceback.format_exception(self._pump.error))
            raise AssertionError(f"the pump ended: {output}\n{self._report()}") from self._pump.error

    def _check(self) -> None:
        """Compares every frontier that was published since the last check."""
        with self._lock:
            points, self._points = self._points, []
        for frontier, table, location in points:
            if location not in self._rows:
                self._rows[location] = lake_rows(location, self._duckdb)
            contents = self._history.at(frontier, table)
            expected = normalised([(*key, *row) for key, row in contents.items()])
            assert_same(
                expected, self._rows[location], f"{table} at frontier {format_lsn(frontier)} (heap: by the model)"
            )
            MirrorMachine.published += 1
