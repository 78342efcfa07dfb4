"""Brings all rows below a table's cut-line back into its heap, so that the table is an ordinary one again.

Rows are copied into tables that are not attached, from a pinned published snapshot, while readers and writers go on
across the cut-line. Corrections that are written meanwhile are applied in rounds. When few are left, and every row was
compared with the lake, one transaction, which locks the table, applies the last ones and attaches the tables. The
caller ends the registration in the same transaction.

Invariant: at each moment a row is found once. Before that transaction commits it is in the lake or in modak.delta, and
in no attached partition; from then on it is in the heap, and no reader needs the corrections: the transaction waits for
readers that may. Everything before is journalled, so that a restore that was killed is continued or abandoned.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import replace
from enum import StrEnum
from typing import Self, TypeVar

from mirror_pump.engine.spark_runtime.local_runner import LocalTaskRunner
from mirror_pump.errors import ExpectedOutcome, TableError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, TableState
from mirror_pump.ops.restore.restored_rows import RestoredRows, pins_of
from mirror_pump.ops.table_locks import locked_transaction
from mirror_pump.pipeline.flow.tasks import Tasks
from mirror_pump.pipeline.retention.drop_proof import Prover
from mirror_pump.runtime.cores import available_cores
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.pins import PinnedSet
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.retention import new_partitions
from mirror_pump.source.retention import partitions as source
from mirror_pump.source.retention import restore_journal as journals
from mirror_pump.source.retention import restored_tables as tables
from mirror_pump.source.retention.restore_journal import RestoreJournal, RestorePin
from mirror_pump.source.retention.restore_plan import RestoredRange, plan_ranges

_MOST_WORKERS = 4
_FEW = 500
"""Corrections that the last transaction applies, at most; writers wait for about as many milliseconds. Doubles each
time that more came meanwhile, so that the restore ends some time."""
_PATIENCE = 120.0
"""Seconds that the last transaction waits for readers by the seam protocol."""
_PAUSE = 0.5
"""Seconds between two looks for readers."""

_Result = TypeVar("_Result")


class RestoreStep(StrEnum):
    """What has been done, and cannot be lost any more."""

    PLANNED = "planned"
    MADE = "made"
    COPIED_FILE = "copied file"
    COPIED = "copied"
    CORRECTED = "corrected"
    PROVEN = "proven"
    ATTACHED = "attached"
    """Not committed yet."""


Report = Callable[[RestoreStep, str], None]
"""Called with each step, and a sentence about it."""


class NotYet(ExpectedOutcome):
    """The last transaction cannot be made now. Nothing was done."""

    def __init__(self, reason: str, *, moved: bool = False) -> None:
        super().__init__(reason)
        self.moved = moved
        """The plan does not fit any more."""


class HeapRestoration:
    """The restore of one table, begun or continued. A context manager.

    `drop_lake`: the lake's files are about to be removed, so no reader may need them. `without_excluded`: columns that
    were left out of the mirror may get their defaults.
    """

    def __init__(
        self,
        settings: Settings,
        table: MirroredTable,
        storage: StorageOptions,
        report: Report,
        *,
        drop_lake: bool = False,
        without_excluded: bool = False,
    ) -> None:
        self._settings = settings
        self._table = table
        self._storage = storage
        self._report = report
        self._drop_lake = drop_lake
        self._without_excluded = without_excluded
        self._few = _FEW
        self._keeps_heap = False
        self._watched: dict[int, str | None] = {}
        """modak.watch_mark() of the attached partitions below the cut-line, as of their proofs."""
        self._waited_since: float | None = None
        self.rows = 0
        """Rows that are in the restored partitions, as of the proof."""
        self.partitions = 0
        """Restored partitions."""

    def __enter__(self) -> Self:
        self._connection = connect(self._settings.require_dsn(), autocommit=True)
        try:
            with source_errors(f"restoring {self._table.name}"):
                alone = journals.exclude_others(self._connection, self._table.table_id)
                self._role = new_partitions.other_owner(self._connection, self._table.name)
        except BaseException:
            self._connection.close()
            raise
        if not alone:
            self._connection.close()
            raise TableError(f"another process is restoring {self._table.name}", "wait for it to end, or end it")
        self._workers = min(_MOST_WORKERS, available_cores())
        self._runner = LocalTaskRunner(self._workers)
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()
        self._connection.close()

    def prepare(self) -> None:
        """Does everything that can be done beforehand. What was done already is not done again.

        Raises TableError if the table cannot be restored, LakeError, SourceError, ConnectionLost.
        """
        with source_errors(f"restoring {self._table.name}"):
            while not self._prepared():
                pass

    def _prepared(self) -> bool:
        """Does it. False if rows were ingested into the lake meanwhile: what was copied lacks them."""
        # It may have been altered since an earlier attempt.
        self._table = load_table(self._connection, self._table.table_id) or self._table
        self._check()
        self._prove_attached()
        self._journal = self._resumed() or self._begun()
        self._make_tables()
        self._rows = RestoredRows(
            self._settings, self._connection, self._table, self._journal, self._storage, self._role
        )
        if self._journal.tables:
            self._copy()
        self._catch_up()
        if self._journal.tables:
            try:
                self.rows = self._rows.prove(self._runner)
            except TableError:
                if self._has_ingested(self._connection, self._journal):
                    return False
                raise
            self._report(RestoreStep.PROVEN, f"{self.rows} rows compared with the lake")
        return True

    def _has_ingested(self, connection: PgConnection, journal: RestoreJournal) -> bool:
        """Whether an ingest has landed that the pinned snapshot may lack."""
        return not set(journals.landed_ingests(connection, self._table.table_id)) <= set(journal.ingests)

    def _check(self) -> None:
        name = self._table.name
        if self._table.state is TableState.DROPPED:
            raise TableError(
                f"{name} was dropped in Postgres: there is no table to bring rows back into",
                "`mirror-pump sql` reads what the lake has of it. Keep that by --keep-lake, or give it up by"
                " --drop-lake --yes.",
            )
        if self._table.state is TableState.FILLING:
            raise TableError(
                f"{name}: the pump is filling a new column of the rows below the cut-line",
                "wait until `mirror-pump status` shows it live, then try again",
            )
        if self._table.excluded and not self._without_excluded:
            named = ", ".join(column.name for column in self._table.excluded)
            raise TableError(
                f"{name}: the lake has no values of columns that were left out of the mirror: {named}",
                "With --yes, restored rows get the columns' defaults.",
            )

    def _resumed(self) -> RestoreJournal | None:
        """The restore that was begun, if its tables and its pin are as they should be. Otherwise it is abandoned."""
        journal = journals.read_journal(self._connection, self._table.table_id)
        if journal is None:
            return None
        if pins_of(self._connection, self._table.table_id, journal.pin).renew() and not self._outdated(
            self._connection, journal
        ):
            return journal
        self._discard(journal)
        return None

    def _outdated(self, connection: PgConnection, journal: RestoreJournal) -> str | None:
        """Why what was made is of no use any more: the cut-line has moved, partitions were attached or detached below
        it, rows were ingested there, or another session has changed one of the tables."""
        cut, floor = journals.retention_line(connection, self._table.table_id)
        if (cut, floor) != (journal.pin.cut, journal.floor):
            return "the cut-line has moved"
        if self._has_ingested(connection, journal):
            return "rows were ingested below the cut-line"
        if [(partition.lo, partition.hi) for partition in self._plan(connection, cut, floor)] != [
            (partition.lo, partition.hi) for partition in journal.planned
        ]:
            return f"partitions of {self._table.name} were attached or detached"
        with connection.transaction():
            if tables.definition_of(connection, self._table) != journal.definition:
                return f"{self._table.name} was altered"
            for made in journal.tables:
                if not tables.is_intact(connection, self._table, made):
                    return f"{made.name} was altered"
        return None

    def _begun(self) -> RestoreJournal:
        """Pins the lake and plans the tables."""
        table = self._table
        # Nothing leaves the heap from here on, but for a step that the pump is just taking.
        journals.stop_retention(self._connection, table.table_id)
        # Before the pin: one that lands in between counts as one that the pinned snapshot lacks.
        ingests = journals.landed_ingests(self._connection, table.table_id)
        pins = pins_of(self._connection, table.table_id, None)
        try:
            journal = self._noted(pins, ingests)
        except BaseException:
            # No journal names them yet.
            pins.drop()
            raise
        count = sum(not planned_table.if_filled for planned_table in journal.planned)
        self._report(RestoreStep.PLANNED, f"{count} partitions come back, with the rows below the cut-line")
        for gone in journals.shed_partitions(self._connection, table.table_id):
            if gone.still_there is not None:
                self._report(
                    RestoreStep.PLANNED,
                    f"{gone.still_there}, which was detached, stays a table of its own; its rows come from the lake",
                )
        return journal

    def _noted(self, pins: PinnedSet, ingests: tuple[str, ...]) -> RestoreJournal:
        """Pins what is published, also of a table that is copied for the first time, and enters the journal."""
        table = self._table
        states = pins.take_published(table_ids=[table.table_id])
        if not pins.pins:
            raise TableError(f"{table.name} is not registered any more")
        state = states[0]
        pin = RestorePin(pins.pins[0].pin_id, state.cut, state.snapshot_id, state.published_location)
        cut, floor = journals.retention_line(self._connection, table.table_id)
        planned = self._plan(self._connection, cut, floor)
        with self._connection.transaction():
            definition = tables.definition_of(self._connection, table)
            journal = RestoreJournal(str(uuid.uuid4()), pin, floor, definition, tuple(planned), (), ingests)
            journals.begin(self._connection, table.table_id, journal)
        return journal

    def _plan(self, connection: PgConnection, cut: int, floor: int) -> list[RestoredRange]:
        """The partitions to make, as of now."""
        table = self._table
        assert table.tier is not None
        attached = [
            (leaf.lo, leaf.hi) for leaf in source.read_attached(connection, table.table_id) if not leaf.is_default
        ]
        shed = journals.shed_partitions(connection, table.table_id)
        # A table that keeps its heap refuses rows without a partition.
        gaps = replace(table.tier, cut=cut).moved and not journals.keeps_heap(connection, table.table_id)
        return plan_ranges(table.name, table.tier.kind, shed, attached, cut, floor, gaps=gaps)

    def _make_tables(self) -> None:
        for planned_table in self._journal.planned[len(self._journal.tables) :]:

            def make() -> RestoreJournal:
                made = tables.make_table(self._connection, self._table, planned_table, self._role)  # noqa: B023 - called at once
                journal = self._journal.with_table(made)
                journals.note(self._connection, journal)
                return journal

            self._journal = self._locked("making a partition for", make)
            self._report(RestoreStep.MADE, f"{self._journal.tables[-1].name} was made")

    def _copy(self) -> None:
        def copied(path: str, done: int, total: int) -> None:
            self._report(RestoreStep.COPIED_FILE, f"{done} of {total} files copied ({path.rpartition('/')[2]})")

        rows = self._rows.copy(self._runner, self._workers, copied)
        self._report(RestoreStep.COPIED, f"{rows} rows copied")

    def _catch_up(self) -> None:
        """Applies corrections until few are left."""
        while True:
            pending = self._rows.pending(self._connection)
            count = sum(map(len, pending.values()))
            self._rows.correct(pending)
            self._rows.keep_pin()
            if count <= self._few:
                break
            self._few *= 2
        self._report(RestoreStep.CORRECTED, "the corrections were applied")

    def _prove_attached(self) -> None:
        """Compares attached partitions below the cut-line with the lake, if that is not proven already."""
        table = self._table
        self._watched = {}
        self._keeps_heap = journals.keeps_heap(self._connection, table.table_id)
        if self._keeps_heap:
            return
        dsn = self._settings.require_dsn()
        tasks = Tasks(self._runner, lambda: False)
        prover = Prover(lambda: connect(dsn, autocommit=True), tasks, self._storage, dsn, self._settings.limits)
        partitions = {
            partition.partition_id: partition for partition in source.read_partitions(self._connection, table.table_id)
        }
        below = journals.attached_below(self._connection, table.table_id)
        cut, _ = journals.retention_line(self._connection, table.table_id)
        if unknown := self._unknown(self._connection, cut, {attached.relation_id for attached in below}):
            raise TableError(
                f"partition {unknown} was attached below the cut-line, and nothing is known about its rows",
                "Detach it, or have a pump look at it (`mirror-pump run`), and try again.",
            )
        for attached in below:
            self._watched[attached.relation_id] = attached.watched_as
            if attached.proven:
                continue
            # Rows that a TRUNCATE took from the partition are in the lake still.
            proof = prover.prove(table, replace(partitions[attached.partition_id], truncated=False))
            self._watched[attached.relation_id] = proof.watched_as
            if proof.differing:
                raise TableError(
                    f"partition {attached.partition_id} is attached below the cut-line, and"
                    f" does not hold what the lake has there: {'; '.join(proof.differing)}",
                    f"Detach it (ALTER TABLE {table.name} DETACH PARTITION {attached.partition_id}), which keeps its"
                    " rows in a table of their own, and try again: its range is then copied from the lake.",
                )

    def _unknown(self, connection: PgConnection, cut: int, relation_ids: Collection[int]) -> str | None:
        """An attached partition below the cut-line whose relation is not among `relation_ids`."""
        for leaf in source.read_attached(connection, self._table.table_id):
            if not leaf.is_default and leaf.lo < cut and leaf.relation_id not in relation_ids:
                return str(leaf.name)
        return None

    def again(self, obstacle: NotYet) -> None:
        """After the last transaction could not be made: does what is to be done before the next attempt.

        Raises TableError if readers are in the way for too long.
        """
        if obstacle.moved:
            self.prepare()
            return
        now = time.monotonic()
        self._waited_since = self._waited_since or now
        if now - self._waited_since > _PATIENCE:
            raise TableError(
                f"{self._table.name} cannot be restored yet: {obstacle}",
                "Everything is copied. Run the command again when the reader is done.",
            )
        time.sleep(_PAUSE)
        with source_errors(f"restoring {self._table.name}"):
            self._catch_up()

    def finish(self, connection: PgConnection) -> None:
        """The first part of the last transaction: locks the table, applies what was corrected meanwhile, and checks
        that nothing else has changed. Raises NotYet, TableError, and psycopg.Error for a lock."""
        table_id = self._table.table_id
        connection.execute(f"LOCK TABLE ONLY {self._table.name.quoted} IN ACCESS EXCLUSIVE MODE".encode())
        # Everybody waits from here on.
        connection.execute("SELECT set_config('lock_timeout', %s, true)", (source.LOCKED_TIMEOUT,))
        for leaf in source.read_attached(connection, table_id):
            if leaf.is_default or leaf.lo < self._journal.pin.cut:
                connection.execute(f"LOCK TABLE ONLY {leaf.name.quoted} IN ACCESS EXCLUSIVE MODE".encode())
        for made in self._journal.tables:
            connection.execute(f"LOCK TABLE ONLY {made.name.quoted} IN SHARE ROW EXCLUSIVE MODE".encode())
        journals.lock_pins(connection)
        pins_of(connection, table_id, self._journal.pin).drop()
        reader = journals.reader_in_the_way(connection, table_id, whole=self._drop_lake)
        if reader is not None:
            raise NotYet(reader)
        watched = {leaf.relation_id: leaf.watched_as for leaf in journals.attached_below(connection, table_id)}
        altered = not self._keeps_heap and (
            watched != self._watched or self._unknown(connection, self._journal.pin.cut, watched)
        )
        if altered or self._outdated(connection, self._journal):
            raise NotYet("partitions have changed meanwhile", moved=True)
        pending = self._rows.pending(connection)
        if sum(map(len, pending.values())) > self._few:
            raise NotYet("more rows were corrected meanwhile")
        self._rows.correct_finally(connection, pending)

    def attach(self, connection: PgConnection) -> None:
        """The second part, once our DEFAULT partition is gone: attaches the tables."""
        connection.execute("SELECT set_config('lock_timeout', %s, true)", (source.LOCKED_TIMEOUT,))
        self.partitions = tables.attach_all(connection, self._table, self._journal.tables, self._role)
        self._report(RestoreStep.ATTACHED, f"{self.partitions} partitions attached")

    def abort(self) -> bool:
        """Removes the tables of an unfinished restore, and lets retention go on. Returns whether there was one."""
        with source_errors(f"abandoning the restore of {self._table.name}"):
            journal = journals.read_journal(self._connection, self._table.table_id)
            if journal is None:
                journals.resume_retention(self._connection, self._table.table_id)
                return False
            self._discard(journal)
            return True

    def _discard(self, journal: RestoreJournal) -> None:
        def discard() -> None:
            for made in journal.tables:
                tables.drop_table(self._connection, made)
            pins_of(self._connection, self._table.table_id, journal.pin).drop()
            journals.forget(self._connection, self._table.table_id)

        self._locked("abandoning the restore of", discard)

    def _locked(self, doing: str, work: Callable[[], _Result]) -> _Result:
        name = self._table.name
        return locked_transaction(self._connection, self._settings, name, f"{doing} {name}", work)
