"""Sheds old partitions: a thread takes each partition one step at a time towards its drop, and drops nothing unproven.

The states are those of `mirror_pump.partition_life`, and `next_step` decides. Each step is one transaction. Everything
that the next step needs is in modak.partitions, so a new thread continues where a killed one stopped.

Invariant: no partition is dropped unless it was compared with the lake, row by row, after the last moment at which a
change of it could bypass modak.delta. A refused step is tried again later and delays only the steps that must follow
it: the cut-line does not wait for drops. A failed proof stops the table's retention until an operator requests another
attempt.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress

import psycopg

from mirror_pump.errors import (
    ConnectionLost,
    LakeError,
    MirrorPumpError,
    SourceError,
    TableError,
    TaskFailed,
    TransientRefusal,
    with_remedy,
)
from mirror_pump.lake.commit.presence import require_all
from mirror_pump.model import MirroredTable, TableId, TableMode, TableState
from mirror_pump.operation_life import OperationPhase
from mirror_pump.partition_life import TAKEN, WAITING, Refused, StepResult
from mirror_pump.pipeline.flow.events import TableFailed
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection, ThreadStopped, session_thread
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.flow.tasks import Tasks
from mirror_pump.pipeline.retention.cutline_advance import CutlineAdvance
from mirror_pump.pipeline.retention.drop_proof import Proof, Prover
from mirror_pump.pipeline.retention.newest_keys import NewestKeys
from mirror_pump.pipeline.retention.next_step import PartitionStep, Turns, next_steps
from mirror_pump.pipeline.retention.partition_sync import reconcile
from mirror_pump.pipeline.retention.row_expiry import RowExpiry
from mirror_pump.runtime.backoff import Backoff, Retries
from mirror_pump.runtime.service_thread import ThreadedService
from mirror_pump.runtime.table_work import REPORT, work_for
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, limited, source_errors
from mirror_pump.source.loads.labels import sweep_labels
from mirror_pump.source.retention import partitions as source
from mirror_pump.source.retention.partitions import Noted, Partition, RetentionChoices
from mirror_pump.source.unchanged_server import UnchangedServer

_SWEEP_INTERVAL = 60.0
"""Seconds between two sweeps of expired pins, old labels of loads, old journal entries, and functions of triggers."""
_BACKED_OFF = frozenset(
    (PartitionStep.SEAL, PartitionStep.NOTE_SEAL, PartitionStep.ADVANCE, PartitionStep.PROVE, PartitionStep.DROP)
)
"""The steps that rest after a refusal of the partition."""


class PartitionShedding(ThreadedService):
    """The thread that sheds the partitions of one mirror. The next thread repeats an unfinished step."""

    def __init__(
        self, context: SessionContext, shared: SharedConnection, waiting: SharedConnection, turns: Turns
    ) -> None:
        """`shared`: for the query whether there is anything to do; while there is, the thread has a connection of its
        own. `waiting`: for sweeps, which may wait for locks."""
        self._context = context
        self._shared = shared
        self._waiting = waiting
        self._turns = turns
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
        self._expiry = RowExpiry(context, self._backoff, self._thread.stopping)
        self._swept_at = -math.inf
        """When the last sweep began: time.monotonic(), in seconds."""

    def published(self) -> None:
        """Notes that the frontier has moved, possibly past a seal that the cut-line waits for."""
        if self._cutline.awaits_frontier:
            self._thread.wake()

    def wake(self) -> None:
        """Retries everything that was put off, on request."""
        self._refusals.clear()
        self._expiry.forget_pauses()
        self._newest.forget()
        super().wake()

    def _run(self) -> None:
        unchanged = UnchangedServer()
        while self._thread.next_round():
            # A statement that is refused a lock on the catalog is left to the next look, which is soon.
            with suppress(TransientRefusal):
                if self._sweep_due:
                    with self._waiting.use() as connection:
                        self._sweep(connection)
                if not unchanged.skips(self._shared.snapshot(self._interval, woken=self._thread.woken)):
                    with self._shared.use() as connection:
                        tables = self._tables(connection)
                    if not tables:
                        unchanged.nothing_left()
                    else:
                        # The pump itself notices a lost connection. This thread only needs a new one.
                        with suppress(ConnectionLost), self._context.connect() as connection:
                            self._look_on(connection)
            self._thread.await_wake(self._interval)

    @property
    def _sweep_due(self) -> bool:
        return time.monotonic() - self._swept_at >= _SWEEP_INTERVAL

    def _sweep(self, connection: PgConnection) -> None:
        """Removes what has expired."""
        self._swept_at = time.monotonic()
        with source_errors("sweeping expired pins"), suppress(psycopg.errors.LockNotAvailable):
            for statement in ("end_pins", "sweep_pins", "prune", "sweep_functions"):
                source.run(connection, statement, {"slot": self._slot})
            with limited(connection):
                sweep_labels(connection, self._slot)

    def _tables(self, connection: PgConnection) -> tuple[TableId, ...]:
        with source_errors("looking for tables with heap retention"):
            return source.retained_tables(connection, self._slot)

    def _look_on(self, connection: PgConnection) -> None:
        """Looks again and again, until no table has heap retention. What is refused a lock on the catalog is repeated
        here: a shared connection would wait for the lock, and its other users with it."""
        with source_errors("preparing to look at partitions"):
            source.bounded(connection)
        while self._thread.next_round():
            goes_on: bool | None = False
            with suppress(TransientRefusal):
                goes_on = self._look(connection)
            if goes_on is None:
                return
            if not goes_on:
                self._thread.await_wake(self._interval)

    def _look(self, connection: PgConnection) -> bool | None:
        """Looks at every table once. Returns whether more can be done at once; None if no table has heap retention."""
        if self._sweep_due:
            self._sweep(connection)
        self._cutline.awaits_frontier = self._cutline.goes_on = False
        moved = False
        tables = self._tables(connection)
        if not tables:
            return None
        for table_id in self._turns.order(tables):
            self._turns.begin(table_id)
            moved |= self._table(connection, table_id)
        return moved or self._cutline.goes_on

    def _table(self, connection: PgConnection, table_id: TableId) -> bool:
        """Looks at one table once. Returns whether a step was taken. Errors of one table never stop the others."""
        table = load_table(connection, table_id)
        if table is None or table.tier is None or table.state is not TableState.LIVE or not self._due(table_id, ""):
            return False
        try:
            with work_for(table, remedy=REPORT), source_errors(f"the retention of {table.name}"):
                choices = source.read_choices(connection, table_id)
                if choices is None or not choices.live:
                    return False
                moved = reconcile(
                    connection,
                    table,
                    choices,
                    lambda reason: self._stop_table(connection, table, reason),
                    self._limits.late_partition_bytes,
                )
                # reconcile() may have stopped the table's retention.
                choices = source.read_choices(connection, table_id)
                if choices is None or choices.stopped is not None:
                    return False
                moved |= self._steps(connection, table, choices)
                if choices.lake_lag is not None or choices.not_expired is not None:
                    moved |= self._expiry.look(connection, table_id)
        except (ConnectionLost, ThreadStopped):
            raise
        except source.CutlineWrong as error:
            self._context.inbox.put(TableFailed(table, with_remedy(error)))
            return False
        except MirrorPumpError as error:
            self._put_off(table_id, "")
            cause = error.__cause__
            reason = source.refusal(cause) if isinstance(cause, psycopg.Error) else str(error)
            with source_errors("storing why partitions are not checked"), suppress(psycopg.errors.LockNotAvailable):
                source.note(connection, table_id, Noted.NOT_SEEN, source.NOT_SEEN.format(reason))
            self._observer(Step.RETENTION_REFUSED, table=str(table.name), partition="", reason=reason)
            return False
        self._refusals.pop((table_id, ""), None)
        if choices.not_made is not None:
            with source_errors("storing that partitions are checked"), suppress(psycopg.errors.LockNotAvailable):
                source.note(connection, table_id, Noted.NOT_SEEN, None)
        return moved

    def _steps(self, connection: PgConnection, table: MirroredTable, choices: RetentionChoices) -> bool:
        """Takes one step for each partition that can take one, the oldest first."""
        tier = table.tier
        assert tier is not None

        def newest() -> int | None:
            return self._newest.of(connection, table.table_id, tier, source.read_attached(connection, table.table_id))

        def is_due(partition: Partition) -> bool:
            return source.is_due(tier, partition.hi, choices.lag, newest)

        self._cutline.tidy(connection, table)
        moved = False
        for partition, step in next_steps(source.read_partitions(connection, table.table_id), choices, is_due):
            if self._thread.stopping():
                raise ThreadStopped
            key = table.table_id, partition.partition_id
            if step not in (PartitionStep.UNSEAL, PartitionStep.NOT_DUE):
                self._undue.pop(key, None)
            if step in _BACKED_OFF and not self._due(*key):
                continue
            result = self._take(step, connection, table, partition, choices)
            if isinstance(result, Refused):
                self._refused(connection, table, partition, result.reason)
            elif result is TAKEN:
                moved = True
                self._refusals.pop(key, None)
                if step is PartitionStep.ADVANCE:
                    # The cut-line moved: `table` is out of date.
                    return True
        return moved

    def _take(
        self,
        step: PartitionStep,
        connection: PgConnection,
        table: MirroredTable,
        partition: Partition,
        choices: RetentionChoices,
    ) -> StepResult:
        """Takes the partition's next step."""
        where = {"table_id": table.table_id, "partition_id": partition.partition_id}
        match step:
            case PartitionStep.NONE | PartitionStep.NOT_DUE:
                return WAITING
            case PartitionStep.SEAL:
                return self._seal(connection, table, partition)
            case PartitionStep.NOTE_SEAL:
                source.run(connection, "sealed", where)
                return TAKEN
            case PartitionStep.UNSEAL:
                return self._unseal(connection, table, partition)
            case PartitionStep.ADVANCE:
                return self._advance(connection, table, partition, choices)
            case PartitionStep.PROVE:
                return self._prove(connection, table, partition)
            case PartitionStep.CHECK_ALTERED:
                return TAKEN if source.run(connection, "unproven", where) else WAITING
            case PartitionStep.STAY:
                source.run(connection, "waits", {**where, "reason": "it is not due any more: it stays"})
                return WAITING
            case PartitionStep.DROP:
                return self._drop(connection, table, partition, choices)

    def _seal(self, connection: PgConnection, table: MirroredTable, partition: Partition) -> StepResult:
        where = {"table_id": table.table_id, "partition_id": partition.partition_id}
        result = source.attempt(connection, "seal", where)
        if result is TAKEN:
            source.run(connection, "sealed", where)
            self._done(connection, table, partition, "seal")
        return result

    def _drop(
        self, connection: PgConnection, table: MirroredTable, partition: Partition, choices: RetentionChoices
    ) -> StepResult:
        try:
            self._require_files(connection, table)
        except LakeError as error:
            self._context.report_file(table.table_id, error)
            return Refused(f"it stays, since the lake's files cannot all be found: {error}")
        where = {"table_id": table.table_id, "partition_id": partition.partition_id, "detach": choices.detach}
        result = source.attempt(connection, "drop", where)
        if result is TAKEN:
            self._done(connection, table, partition, "detach" if choices.detach else "drop")
        return result

    def _require_files(self, connection: PgConnection, table: MirroredTable) -> None:
        """Raises LakeError if the lake may no longer hold what was proven, because some of its files are missing."""
        for location in source.lake_locations(connection, table.table_id):
            require_all(location, self._context.storage)

    def _unseal(self, connection: PgConnection, table: MirroredTable, partition: Partition) -> StepResult:
        """Returns a sealed partition to the hot state, once it has not been due for a while."""
        key = table.table_id, partition.partition_id
        since = self._undue.setdefault(key, time.monotonic())
        if time.monotonic() - since < self._limits.unseal_after or not self._due(*key):
            return WAITING
        where = {"table_id": table.table_id, "partition_id": partition.partition_id}
        result = source.attempt(connection, "unseal", where)
        if result is TAKEN:
            self._undue.pop(key, None)
            self._done(connection, table, partition, "unseal")
        return result

    def _advance(
        self, connection: PgConnection, table: MirroredTable, partition: Partition, choices: RetentionChoices
    ) -> StepResult:
        """Has the cut-line move past the partition; for a tiered one, after it was copied. Raises ThreadStopped once
        that of a table with a stream has moved."""

        def copied(rows: int) -> None:
            self._done(connection, table, partition, "copy", rows=rows)

        try:
            result = self._cutline.advance(connection, table, partition, choices, copied)
        except ConnectionLost:
            raise
        except (TableError, LakeError, SourceError, TaskFailed) as error:
            self._context.report_file(table.table_id, error)
            return Refused(f"it could not be copied: {error}")
        if result is TAKEN:
            self._done(connection, table, partition, "advance")
            if table.mode is TableMode.MIRRORED:
                # The session ends now. Another table's turn would be lost.
                raise ThreadStopped
        return result

    def _prove(self, connection: PgConnection, table: MirroredTable, partition: Partition) -> StepResult:
        began = time.monotonic()
        try:
            proof = self._prover.prove(table, partition)
        except ConnectionLost:
            raise
        except (TableError, LakeError, SourceError, TaskFailed) as error:
            self._context.report_file(table.table_id, error)
            return Refused(f"it could not be compared with the lake: {error}")
        seconds = round(time.monotonic() - began, 3)
        if proof.differing:
            self._disproved(connection, table, partition, proof)
            return WAITING
        where = {"table_id": table.table_id, "partition_id": partition.partition_id, "watched_as": proof.watched_as}
        if not source.run(connection, "proven", where):
            return Refused("it was altered while it was compared with the lake")
        self._done(
            connection, table, partition, "prove", rows=proof.rows, seconds=seconds, snapshot_id=proof.snapshot_id
        )
        return TAKEN

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
        source.journal(connection, table, OperationPhase.FAILED, details, proof.snapshot_id)
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
            "state": partition.state.value,
            "reason": reason,
        }
        with suppress(psycopg.errors.LockNotAvailable):
            source.run(connection, "reason", where)
        self._observer(
            Step.RETENTION_REFUSED,
            table=str(table.name),
            partition=partition.partition_id,
            state=partition.state.value,
            reason=reason,
        )

    def _done(
        self, connection: PgConnection, table: MirroredTable, partition: Partition, kind: str, **details: object
    ) -> None:
        taken = details.pop("snapshot_id", None)
        snapshot_id = taken if isinstance(taken, int) else None
        entry = {"kind": kind, "partition": partition.partition_id, "lo": partition.lo, "hi": partition.hi, **details}
        source.journal(
            connection, table, OperationPhase.DONE, entry, snapshot_id if isinstance(snapshot_id, int) else None
        )
        self._observer(Step.RETENTION, table=str(table.name), partition=partition.partition_id, step=kind)

    def _due(self, table_id: TableId, partition_id: str) -> bool:
        refusals = self._refusals.get((table_id, partition_id))
        return refusals is None or refusals.due

    def _put_off(self, table_id: TableId, partition_id: str) -> None:
        self._refusals.setdefault((table_id, partition_id), Retries(self._backoff)).failed()
