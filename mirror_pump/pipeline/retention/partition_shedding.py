"""Sheds old partitions: a thread that takes each one step further on its way out, and drops nothing that is not proven.

hot -> sealing (its changes are captured) -> tiering (T has passed it, changes are corrections) -> tiered (the lake
provably holds it) -> dropped; and from sealing back to hot, if it is not due any more. One step a transaction; what the
next step needs is in modak.partitions, so a thread that starts anew goes on wherever the last one was killed. The
oldest partition goes first, and T never moves back.

Invariants: nothing is dropped that was not compared with the lake, row by row, after the last moment at which a change
of it could bypass the delta. A step that is refused is tried again later and holds up nothing but what has to come
after it: T does not wait for drops. A proof that fails stops the table's retention until somebody asks again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from datetime import timedelta
from queue import SimpleQueue

import psycopg

from mirror_pump.engine.runner import TaskRunner
from mirror_pump.errors import ConnectionLost, LakeError, MirrorPumpError, SourceError, TableError, TaskFailed
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, MirroredTable, TableId, TableState
from mirror_pump.pipeline.flow.backoff import Backoff
from mirror_pump.pipeline.flow.events import AdvanceWanted, Event, FrontierWanted
from mirror_pump.pipeline.flow.requests import TierAdvance
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.flow.thread_end import ThreadStopped, reporting
from mirror_pump.pipeline.retention.drop_proof import Proof, Prover
from mirror_pump.pipeline.retention.newest_keys import NewestKeys
from mirror_pump.pipeline.retention.partition_premake import Premaker
from mirror_pump.pipeline.retention.partition_sync import reconcile
from mirror_pump.pipeline.upkeep.jobs import Tasks, outcome
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.retention import partitions as source
from mirror_pump.source.retention.partitions import HOT, SEALING, TIERED, TIERING, Partition, RetentionChoices

_UNSEAL_AFTER = 60.0
"""Seconds for which a sealed partition has to be not due, until its changes are captured no more: the newest row may be
deleted, and come back."""
_SWEEP_INTERVAL = 60.0
"""Seconds between two sweeps of expired pins and of what the journal says of long ago."""


class PartitionShedding:
    """The thread."""

    def __init__(
        self,
        connect: Callable[[], PgConnection],
        runner: TaskRunner,
        storage: StorageOptions,
        inbox: SimpleQueue[Event],
        slot: str,
        dsn: str,
        observer: Observer,
        interval: float,
    ) -> None:
        """`interval`: seconds between looks when nothing is due at once."""
        self._connect = connect
        self._inbox = inbox
        self._slot = slot
        self._observer = observer
        self._interval = interval
        self._changed = threading.Event()
        self._awaits_frontier = False
        self._stopping = threading.Event()
        self._prover = Prover(connect, Tasks(runner, self._stopping.is_set), storage, dsn)
        self._pauses: dict[tuple[TableId, str], Backoff] = {}
        """By table and partition."""
        self._undue: dict[tuple[TableId, str], float] = {}
        """Since when partitions are not due although their changes are captured: time.monotonic(), seconds."""
        self._newest = NewestKeys()
        self._premaker = Premaker(self._newest, observer)
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what it was doing is done again by the next one."""
        self._stopping.set()
        self._changed.set()
        self._thread.join()

    def published(self) -> None:
        """F has moved: past a seal that T waits for, maybe."""
        if self._awaits_frontier:
            self._changed.set()

    def wake(self) -> None:
        """Somebody asks for another try of everything that was put off."""
        self._pauses.clear()
        self._premaker.forget_pauses()
        self._newest.forget()
        self._changed.set()

    def _run(self) -> None:
        with reporting(self._inbox):
            while not self._stopping.is_set():
                # The pump itself notices a lost connection; this thread only needs a new one.
                with suppress(ConnectionLost), self._connect() as connection:
                    self._look_on(connection)
                self._stopping.wait(self._interval)

    def _look_on(self, connection: PgConnection) -> None:
        with source_errors("preparing to look at partitions"):
            source.bounded(connection)
        swept_at = -_SWEEP_INTERVAL
        began = time.monotonic()
        while not self._stopping.is_set():
            if time.monotonic() - began - swept_at >= _SWEEP_INTERVAL:
                swept_at = time.monotonic() - began
                with source_errors("sweeping expired pins"), suppress(psycopg.errors.LockNotAvailable):
                    source.run(connection, "sweep_pins", {"slot": self._slot})
                    source.run(connection, "prune", {"slot": self._slot})
            self._changed.clear()
            self._awaits_frontier = False
            moved = False
            with source_errors("looking for tables with heap retention"):
                tables = source.retained_tables(connection, self._slot)
            for table_id in tables:
                moved |= self._table(connection, table_id)
            if not moved:
                self._changed.wait(self._interval)

    def _table(self, connection: PgConnection, table_id: TableId) -> bool:
        """One look at one table; whether a step was taken. Errors of one table never stop others."""
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
                # Whatever reconcile() found may have stopped it.
                choices = source.read_choices(connection, table_id)
                if choices is None or choices.stopped is not None:
                    return False
                moved |= self._steps(connection, table, choices)
        except (ConnectionLost, ThreadStopped):
            raise
        except MirrorPumpError as error:
            self._put_off(table_id, "")
            cause = error.__cause__
            reason = source.refusal(cause) if isinstance(cause, psycopg.Error) else str(error)
            with source_errors("saying why partitions are not looked at"), suppress(psycopg.errors.LockNotAvailable):
                noted = {"table_id": table_id, "reason": source.NOT_SEEN.format(reason)}
                source.run(connection, "not_made", noted)
            self._observer(Step.RETENTION_REFUSED, table=str(table.name), partition="", reason=reason)
            return False
        self._pauses.pop((table_id, ""), None)
        return moved

    def _steps(self, connection: PgConnection, table: MirroredTable, choices: RetentionChoices) -> bool:
        """One step for each partition that can take one, the oldest first."""
        tier = table.tier
        assert tier is not None

        def newest() -> int | None:
            return self._newest.of(connection, table.table_id, tier, source.read_attached(connection, table.table_id))

        moved, first, all_due = False, True, True
        for one in source.read_partitions(connection, table.table_id):
            if self._stopping.is_set():
                raise ThreadStopped
            waits = one.state in (HOT, SEALING)
            if waits and one.name is not None:
                all_due = all_due and source.is_due(tier, one.hi, choices.lag, newest)
                if not all_due:
                    first = False
                    moved |= one.captured and self._unseal(connection, table, one)
                    continue
                self._undue.pop((table.table_id, one.partition_id), None)
            if one.state == TIERED and not self._leaves(connection, table, one, choices, newest):
                continue
            # T passes partitions in their order; all that are due are sealed meanwhile.
            may = not waits or first or (one.state == HOT and one.name is not None) or one.sealed_lsn is None
            first = first and not waits
            if not may or not self._due(table.table_id, one.partition_id):
                continue
            refused = self._step(connection, table, one, choices)
            if refused is None:
                moved = True
                self._pauses.pop((table.table_id, one.partition_id), None)
                if waits and one.sealed_lsn is not None:
                    # T moved: the session ends, and this thread with it.
                    return True
            elif refused:
                self._refused(connection, table, one, refused)
        return moved

    def _step(
        self, connection: PgConnection, table: MirroredTable, one: Partition, choices: RetentionChoices
    ) -> str | None:
        """Takes the partition's next step: None when it did, why not else; empty if it is only a matter of waiting."""
        where = {"table_id": table.table_id, "partition_id": one.partition_id}
        if one.state == HOT and one.name is not None:
            refused = source.attempt(connection, "seal", where)
            if refused is None:
                source.run(connection, "sealed", where)
                self._done(connection, table, one, "seal")
            return refused
        if one.state in (HOT, SEALING):
            if one.sealed_lsn is None:
                # Killed between the two, or truncated since.
                source.run(connection, "sealed", where)
                return None
            return self._advance(connection, table, one, choices)
        if one.name is None:
            return ""
        if one.state == TIERING:
            if one.attached_late and one.disproved:
                # Comparing reads all of it, and it is not likely to be another one soon.
                return ""
            return self._prove(connection, table, one)
        if one.state == TIERED:
            refused = source.attempt(connection, "drop", {**where, "detach": choices.detach})
            if refused is None:
                self._done(connection, table, one, "detach" if choices.detach else "drop")
            return refused
        return ""

    @staticmethod
    def _leaves(
        connection: PgConnection,
        table: MirroredTable,
        one: Partition,
        choices: RetentionChoices,
        newest: Callable[[], int | None],
    ) -> bool:
        """Whether a partition that the lake holds may be dropped: its grace is over, and nobody has chosen a larger
        distance since."""
        assert table.tier is not None
        if one.grace_left(choices.drop_grace) > timedelta(0):
            return False
        if source.is_due(table.tier, one.hi, choices.lag, newest):
            return True
        where = {"table_id": table.table_id, "partition_id": one.partition_id}
        source.run(connection, "waits", {**where, "reason": "it is not due any more: it stays"})
        return False

    def _unseal(self, connection: PgConnection, table: MirroredTable, one: Partition) -> bool:
        """Lets a partition be that was sealed and is not due any more; whether it was done."""
        key = table.table_id, one.partition_id
        since = self._undue.setdefault(key, time.monotonic())
        if time.monotonic() - since < _UNSEAL_AFTER or not self._due(*key):
            return False
        where = {"table_id": table.table_id, "partition_id": one.partition_id}
        refused = source.attempt(connection, "unseal", where)
        if refused is not None:
            self._refused(connection, table, one, refused)
            return False
        self._pauses.pop(key, None)
        self._undue.pop(key, None)
        self._done(connection, table, one, "unseal")
        return True

    def _advance(
        self, connection: PgConnection, table: MirroredTable, one: Partition, choices: RetentionChoices
    ) -> str | None:
        """Has the loop move T past the partition."""
        assert one.sealed_lsn is not None
        where = {"table_id": table.table_id, "partition_id": one.partition_id}
        if (reader := source.reader_in_the_way(connection, table.table_id, one.hi)) is not None:
            # Looked at again at every turn, not ever more rarely: T moves as soon as the reader is done.
            source.run(connection, "waits", {**where, "reason": reader})
            return ""
        if one.name is not None and source.run(connection, "crowded", where):
            return "much of it was changed since it was sealed: it is sealed anew"
        if choices.applied < one.sealed_lsn:
            self._awaits_frontier = True
            self._inbox.put(FrontierWanted(Lsn(one.sealed_lsn)))
            return ""
        answer: Future[str | None] = Future()
        advance = TierAdvance(one.partition_id, one.hi)
        self._inbox.put(AdvanceWanted(table, advance, answer))
        try:
            refused = outcome(answer, self._stopping.is_set)
        except (CancelledError, MirrorPumpError, psycopg.Error):
            # The session ends, for whatever reason: T has moved or not, the catalog knows.
            raise ThreadStopped from None
        if refused is None:
            self._done(connection, table, one, "advance")
        return refused

    def _prove(self, connection: PgConnection, table: MirroredTable, one: Partition) -> str | None:
        began = time.monotonic()
        try:
            proof = self._prover.prove(table, one)
        except ConnectionLost:
            raise
        except (TableError, LakeError, SourceError, TaskFailed) as error:
            return f"it could not be compared with the lake: {error}"
        seconds = round(time.monotonic() - began, 3)
        if proof.differing:
            self._disproved(connection, table, one, proof)
            return ""
        where = {"table_id": table.table_id, "partition_id": one.partition_id, "watched_as": proof.watched_as}
        if not source.run(connection, "proven", where):
            return "it was altered while it was compared with the lake"
        self._done(connection, table, one, "prove", rows=proof.rows, seconds=seconds, snapshot_id=proof.snapshot_id)
        return None

    def _disproved(self, connection: PgConnection, table: MirroredTable, one: Partition, proof: Proof) -> None:
        """Nothing is dropped, and somebody has to look."""
        reason = "heap and lake differ: " + "; ".join(proof.differing)
        where = {"table_id": table.table_id, "partition_id": one.partition_id, "reason": reason}
        source.run(connection, "disproved", where)
        details = {"kind": "prove", "partition": one.partition_id, "rows": proof.rows, "differing": [*proof.differing]}
        source.journal(connection, table.table_id, "failed", details, proof.snapshot_id)
        if not one.attached_late:
            # Rows of one that was attached late were never ours; the others are none the worse for it.
            self._stop_table(connection, table, f"partition {one.partition_id}: {reason}")

    def _stop_table(self, connection: PgConnection, table: MirroredTable, reason: str) -> None:
        source.run(connection, "stop", {"table_id": table.table_id, "reason": reason})
        self._observer(Step.RETENTION_STOPPED, table=str(table.name), reason=reason)

    def _refused(self, connection: PgConnection, table: MirroredTable, one: Partition, reason: str) -> None:
        self._put_off(table.table_id, one.partition_id)
        where = {"table_id": table.table_id, "partition_id": one.partition_id, "state": one.state, "reason": reason}
        with suppress(psycopg.errors.LockNotAvailable):
            source.run(connection, "reason", where)
        self._observer(
            Step.RETENTION_REFUSED, table=str(table.name), partition=one.partition_id, state=one.state, reason=reason
        )

    def _done(
        self, connection: PgConnection, table: MirroredTable, one: Partition, kind: str, **details: object
    ) -> None:
        snapshot_id = details.pop("snapshot_id", None)
        said = {"kind": kind, "partition": one.partition_id, "lo": one.lo, "hi": one.hi, **details}
        source.journal(connection, table.table_id, "done", said, snapshot_id if isinstance(snapshot_id, int) else None)
        self._observer(Step.RETENTION, table=str(table.name), partition=one.partition_id, step=kind)

    def _due(self, table_id: TableId, partition_id: str) -> bool:
        former = self._pauses.get((table_id, partition_id))
        return former is None or former.due

    def _put_off(self, table_id: TableId, partition_id: str) -> None:
        self._pauses.setdefault((table_id, partition_id), Backoff(source.FIRST_PAUSE)).put_off()
