"""Sheds old partitions: a thread takes each partition one step at a time towards its drop, and drops nothing unproven.

The states are hot -> sealing (changes of the partition are captured) -> tiering (the cut-line has passed it; changes
are corrections) -> tiered (the lake provably holds it) -> dropped. A partition that is no longer due goes from sealing
back to hot. Each step is one transaction. Everything that the next step needs is in modak.partitions, so a new thread
continues where a killed one stopped. The oldest partition goes first, and the cut-line never moves back.

Invariant: no partition is dropped unless it was compared with the lake, row by row, after the last moment at which a
change of it could bypass modak.delta. A refused step is tried again later and delays only the steps that must follow
it: the cut-line does not wait for drops. A failed proof stops the table's retention until an operator requests another
attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import psycopg

from mirror_pump.backoff import Backoff, Retries
from mirror_pump.errors import (
    ConnectionLost,
    FileMissing,
    LakeError,
    MirrorPumpError,
    SourceError,
    TableError,
    TaskFailed,
    TransientRefusal,
)
from mirror_pump.lake.commit.presence import require_all
from mirror_pump.model import MirroredTable, TableId, TableState
from mirror_pump.pipeline.flow.events import LakeFileMissing
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.pipeline.flow.session_threads import ThreadStopped, session_thread
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.flow.tasks import Tasks
from mirror_pump.pipeline.retention.cutline_advance import CutlineAdvance
from mirror_pump.pipeline.retention.drop_proof import Proof, Prover
from mirror_pump.pipeline.retention.newest_keys import NewestKeys
from mirror_pump.pipeline.retention.partition_premake import Premaker
from mirror_pump.pipeline.retention.partition_sync import reconcile
from mirror_pump.pipeline.retention.row_expiry import RowExpiry
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.loads.labels import sweep_labels
from mirror_pump.source.retention import partitions as source
from mirror_pump.source.retention.partitions import HOT, SEALING, TIERED, TIERING, Partition, RetentionChoices

_SWEEP_INTERVAL = 60.0
"""Seconds between two sweeps of expired pins, old labels of loads, old journal entries, and functions of triggers."""


class PartitionShedding:
    """The thread that sheds the partitions of one mirror."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._inbox = context.inbox
        self._slot = context.slot
        self._observer = context.observer
        self._interval = context.settings.retention_interval
        self._thread = session_thread("retention", self._run, context.inbox)
        self._limits = context.settings.limits
        tasks = Tasks(context.runner, self._thread.stopping)
        self._cutline = CutlineAdvance(context, tasks, self._thread.stopping)
        self._prover = Prover(context.connect, tasks, context.storage, context.dsn, self._limits)
        self._backoff = Backoff(source.FIRST_PAUSE, self._limits.retry_pause_max)
        self._refusals: dict[tuple[TableId, str], Retries] = {}
        """Refusals in a row of the next step, by table and partition."""
        self._undue: dict[tuple[TableId, str], float] = {}
        """When each captured partition stopped being due: time.monotonic(), in seconds."""
        self._newest = NewestKeys()
        self._premaker = Premaker(self._newest, context.observer, self._backoff)
        self._expiry = RowExpiry(context, self._backoff, self._thread.stopping)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. The next thread repeats an unfinished step."""
        self._thread.stop()

    def published(self) -> None:
        """Notes that the frontier has moved, possibly past a seal that the cut-line waits for."""
        if self._cutline.awaits_frontier:
            self._thread.wake()

    def wake(self) -> None:
        """Retries everything that was put off, on request."""
        self._refusals.clear()
        self._premaker.forget_pauses()
        self._expiry.forget_pauses()
        self._newest.forget()
        self._thread.wake()

    def _run(self) -> None:
        while not self._thread.stopping():
            # The pump itself notices a lost connection. This thread only needs a new one. A statement that waits for a
            # lock on the catalog is refused after LOCK_TIMEOUT: the next look is soon.
            with suppress(ConnectionLost, TransientRefusal), self._context.connect() as connection:
                self._look_on(connection)
            self._thread.pause(self._interval)

    def _look_on(self, connection: PgConnection) -> None:
        with source_errors("preparing to look at partitions"):
            source.bounded(connection)
        swept_at = -_SWEEP_INTERVAL
        began = time.monotonic()
        while self._thread.next_round():
            if time.monotonic() - began - swept_at >= _SWEEP_INTERVAL:
                swept_at = time.monotonic() - began
                with source_errors("sweeping expired pins"), suppress(psycopg.errors.LockNotAvailable):
                    source.run(connection, "sweep_pins", {"slot": self._slot})
                    source.run(connection, "prune", {"slot": self._slot})
                    source.run(connection, "sweep_functions", {"slot": self._slot})
                    sweep_labels(connection, self._slot)
            self._cutline.awaits_frontier = self._cutline.goes_on = False
            moved = False
            with source_errors("looking for tables with heap retention"):
                tables = source.retained_tables(connection, self._slot)
            for table_id in tables:
                moved |= self._table(connection, table_id)
            if not moved and not self._cutline.goes_on:
                self._thread.await_wake(self._interval)

    def _table(self, connection: PgConnection, table_id: TableId) -> bool:
        """Looks at one table once. Returns whether a step was taken. Errors of one table never stop the others."""
        table = load_table(connection, table_id)
        if table is None or table.tier is None or table.state is not TableState.LIVE or not self._due(table_id, ""):
            return False
        try:
            with source_errors(f"the retention of {table.name}"):
                choices = source.read_choices(connection, table_id)
                if choices is None or not choices.live:
                    return False
                moved = reconcile(
                    connection, table, choices, lambda reason: self._stop_table(connection, table, reason)
                )
                moved |= self._premaker.make(connection, table, choices)
                # reconcile() may have stopped the table's retention.
                choices = source.read_choices(connection, table_id)
                if choices is None or choices.stopped is not None:
                    return False
                moved |= self._steps(connection, table, choices)
                moved = moved or self._expiry.look(connection, table)
        except (ConnectionLost, ThreadStopped):
            raise
        except MirrorPumpError as error:
            self._put_off(table_id, "")
            cause = error.__cause__
            reason = source.refusal(cause) if isinstance(cause, psycopg.Error) else str(error)
            with source_errors("storing why partitions are not checked"), suppress(psycopg.errors.LockNotAvailable):
                noted = {"table_id": table_id, "reason": source.NOT_SEEN.format(reason)}
                source.run(connection, "not_made", noted)
            self._observer(Step.RETENTION_REFUSED, table=str(table.name), partition="", reason=reason)
            return False
        self._refusals.pop((table_id, ""), None)
        return moved

    def _steps(self, connection: PgConnection, table: MirroredTable, choices: RetentionChoices) -> bool:
        """Takes one step for each partition that can take one, the oldest first."""
        tier = table.tier
        assert tier is not None

        def newest() -> int | None:
            return self._newest.of(connection, table.table_id, tier, source.read_attached(connection, table.table_id))

        self._cutline.tidy(connection, table)
        moved, first, all_due = False, True, True
        for partition in source.read_partitions(connection, table.table_id):
            if self._thread.stopping():
                raise ThreadStopped
            waits = partition.state in (HOT, SEALING)
            if waits and partition.name is not None:
                all_due = all_due and source.is_due(tier, partition.hi, choices.lag, newest)
                if not all_due:
                    first = False
                    moved |= partition.captured and self._unseal(connection, table, partition)
                    continue
                self._undue.pop((table.table_id, partition.partition_id), None)
            if partition.state == TIERED and choices.keep_heap:
                moved |= self._unproven_if_altered(connection, table, partition)
                continue
            if partition.state == TIERED and not self._leaves(connection, table, partition, choices, newest):
                continue
            # The cut-line passes partitions in order. Meanwhile all due partitions are sealed.
            may = (
                not waits
                or first
                or (partition.state == HOT and partition.name is not None)
                or partition.sealed_lsn is None
            )
            first = first and not waits
            if not may or not self._due(table.table_id, partition.partition_id):
                continue
            refused = self._step(connection, table, partition, choices)
            if refused is None:
                moved = True
                self._refusals.pop((table.table_id, partition.partition_id), None)
                if waits and partition.sealed_lsn is not None:
                    # The cut-line moved: `table` is out of date. A session with a stream that concerns the table ends.
                    return True
            elif refused:
                self._refused(connection, table, partition, refused)
        return moved

    def _step(
        self, connection: PgConnection, table: MirroredTable, partition: Partition, choices: RetentionChoices
    ) -> str | None:
        """Takes the partition's next step. Returns None if it was taken, otherwise the reason why not; the reason is
        empty if the step only has to wait."""
        where = {"table_id": table.table_id, "partition_id": partition.partition_id}
        if partition.state == HOT and partition.name is not None:
            refused = source.attempt(connection, "seal", where)
            if refused is None:
                source.run(connection, "sealed", where)
                self._done(connection, table, partition, "seal")
            return refused
        if partition.state in (HOT, SEALING):
            if partition.sealed_lsn is None:
                # The pump was killed between the two steps, or the partition was truncated since.
                source.run(connection, "sealed", where)
                return None
            return self._advance(connection, table, partition, choices)
        if partition.name is None:
            return ""
        if partition.state == TIERING:
            if partition.attached_late and partition.disproved:
                # A comparison reads the whole partition, and it is unlikely to succeed soon.
                return ""
            return self._prove(connection, table, partition)
        if partition.state == TIERED:
            if (lacking := self._lacking(connection, table)) is not None:
                return lacking
            refused = source.attempt(connection, "drop", {**where, "detach": choices.detach})
            if refused is None:
                self._done(connection, table, partition, "detach" if choices.detach else "drop")
            return refused
        return ""

    def _lacking(self, connection: PgConnection, table: MirroredTable) -> str | None:
        """Returns why the lake may no longer hold what was proven, if some of its files are missing; otherwise None."""
        try:
            for location in source.lake_locations(connection, table.table_id):
                require_all(location, self._context.storage)
        except LakeError as error:
            self._report_missing(table, error)
            return f"it stays, since the lake's files cannot all be found: {error}"
        return None

    def _report_missing(self, table: MirroredTable, error: Exception) -> None:
        """Has the loop fail the table if the table needs the missing file."""
        if isinstance(error, FileMissing):
            self._inbox.put(LakeFileMissing(table.table_id, error.location))

    @staticmethod
    def _leaves(
        connection: PgConnection,
        table: MirroredTable,
        partition: Partition,
        choices: RetentionChoices,
        newest: Callable[[], int | None],
    ) -> bool:
        """Returns whether a partition that the lake holds may be dropped: its grace period is over, and it is still
        due (the retention distance may have been increased)."""
        assert table.tier is not None
        if partition.grace_left(choices.drop_grace) > timedelta(0):
            return False
        if source.is_due(table.tier, partition.hi, choices.lag, newest):
            return True
        where = {"table_id": table.table_id, "partition_id": partition.partition_id}
        source.run(connection, "waits", {**where, "reason": "it is not due any more: it stays"})
        return False

    @staticmethod
    def _unproven_if_altered(connection: PgConnection, table: MirroredTable, partition: Partition) -> bool:
        """Has a partition that stays in the heap compared with the lake again if a command may have changed its rows
        behind its triggers. Returns whether it has."""
        if not partition.altered or partition.name is None:
            return False
        where = {"table_id": table.table_id, "partition_id": partition.partition_id}
        return source.run(connection, "unproven", where) > 0

    def _unseal(self, connection: PgConnection, table: MirroredTable, partition: Partition) -> bool:
        """Returns a sealed partition that is no longer due to the hot state. Returns whether this was done."""
        key = table.table_id, partition.partition_id
        since = self._undue.setdefault(key, time.monotonic())
        if time.monotonic() - since < self._limits.unseal_after or not self._due(*key):
            return False
        where = {"table_id": table.table_id, "partition_id": partition.partition_id}
        refused = source.attempt(connection, "unseal", where)
        if refused is not None:
            self._refused(connection, table, partition, refused)
            return False
        self._refusals.pop(key, None)
        self._undue.pop(key, None)
        self._done(connection, table, partition, "unseal")
        return True

    def _advance(
        self, connection: PgConnection, table: MirroredTable, partition: Partition, choices: RetentionChoices
    ) -> str | None:
        """Has the cut-line move past the partition; for a tiered one, after it was copied."""

        def copied(rows: int) -> None:
            self._done(connection, table, partition, "copy", rows=rows)

        try:
            refused = self._cutline.advance(connection, table, partition, choices, copied)
        except ConnectionLost:
            raise
        except (TableError, LakeError, SourceError, TaskFailed) as error:
            self._report_missing(table, error)
            return f"it could not be copied: {error}"
        if refused is None:
            self._done(connection, table, partition, "advance")
        return refused

    def _prove(self, connection: PgConnection, table: MirroredTable, partition: Partition) -> str | None:
        began = time.monotonic()
        try:
            proof = self._prover.prove(table, partition)
        except ConnectionLost:
            raise
        except (TableError, LakeError, SourceError, TaskFailed) as error:
            self._report_missing(table, error)
            return f"it could not be compared with the lake: {error}"
        seconds = round(time.monotonic() - began, 3)
        if proof.differing:
            self._disproved(connection, table, partition, proof)
            return ""
        where = {"table_id": table.table_id, "partition_id": partition.partition_id, "watched_as": proof.watched_as}
        if not source.run(connection, "proven", where):
            return "it was altered while it was compared with the lake"
        self._done(
            connection, table, partition, "prove", rows=proof.rows, seconds=seconds, snapshot_id=proof.snapshot_id
        )
        return None

    def _disproved(self, connection: PgConnection, table: MirroredTable, partition: Partition, proof: Proof) -> None:
        """Records a failed proof. Nothing is dropped, and an operator has to look at it."""
        reason = "heap and lake differ: " + "; ".join(proof.differing)
        where = {"table_id": table.table_id, "partition_id": partition.partition_id, "reason": reason}
        source.run(connection, "disproved", where)
        details = {
            "kind": "prove",
            "partition": partition.partition_id,
            "rows": proof.rows,
            "differing": [*proof.differing],
        }
        source.journal(connection, table, "failed", details, proof.snapshot_id)
        if not partition.attached_late:
            # A partition that was attached late held rows that were never mirrored. Its failed proof means nothing for
            # the others.
            self._stop_table(connection, table, f"partition {partition.partition_id}: {reason}")

    def _stop_table(self, connection: PgConnection, table: MirroredTable, reason: str) -> None:
        source.run(connection, "stop", {"table_id": table.table_id, "reason": reason})
        self._observer(Step.RETENTION_STOPPED, table=str(table.name), reason=reason)

    def _refused(self, connection: PgConnection, table: MirroredTable, partition: Partition, reason: str) -> None:
        self._put_off(table.table_id, partition.partition_id)
        where = {
            "table_id": table.table_id,
            "partition_id": partition.partition_id,
            "state": partition.state,
            "reason": reason,
        }
        with suppress(psycopg.errors.LockNotAvailable):
            source.run(connection, "reason", where)
        self._observer(
            Step.RETENTION_REFUSED,
            table=str(table.name),
            partition=partition.partition_id,
            state=partition.state,
            reason=reason,
        )

    def _done(
        self, connection: PgConnection, table: MirroredTable, partition: Partition, kind: str, **details: object
    ) -> None:
        snapshot_id = details.pop("snapshot_id", None)
        entry = {"kind": kind, "partition": partition.partition_id, "lo": partition.lo, "hi": partition.hi, **details}
        source.journal(connection, table, "done", entry, snapshot_id if isinstance(snapshot_id, int) else None)
        self._observer(Step.RETENTION, table=str(table.name), partition=partition.partition_id, step=kind)

    def _due(self, table_id: TableId, partition_id: str) -> bool:
        refusals = self._refusals.get((table_id, partition_id))
        return refusals is None or refusals.due

    def _put_off(self, table_id: TableId, partition_id: str) -> None:
        self._refusals.setdefault((table_id, partition_id), Retries(self._backoff)).failed()
