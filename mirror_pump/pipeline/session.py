"""One uninterrupted life of the pump: from taking the lead to the first error, or to the stop.

It starts from what the catalog says is applied and keeps nothing else from before, so going on after an error is
nothing but a new session: everything left of the publish may be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

from mirror_pump.config import Settings
from mirror_pump.engine.runner import TaskRunner
from mirror_pump.engine.tasks import SegmentResult
from mirror_pump.errors import SourceError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, MirroredTable, TableId, TableState
from mirror_pump.pipeline.apply import BatchApplier
from mirror_pump.pipeline.assembler import Failure
from mirror_pump.pipeline.copy import Copier, CopySettings
from mirror_pump.pipeline.listener import Listener
from mirror_pump.pipeline.publish import LandedPublish, Publisher, RetryPolicy
from mirror_pump.pipeline.receiver import Receiver, ReceiverSettings
from mirror_pump.pipeline.requests import CopiedChunk, PublishRequest, TableDelta
from mirror_pump.pipeline.steps import Observer, Step
from mirror_pump.pipeline.work import (
    Batch,
    CaughtUp,
    ChunkCopied,
    CopyFailed,
    CopyInvalid,
    CopyPlanned,
    FrontierWanted,
    SegmentInFlight,
    StopRequested,
    ThreadFailed,
    Work,
)
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.source.leader import Leader
from mirror_pump.source.slot import SystemIdentity, check_slot
from mirror_pump.source.stream import ReplicationStream
from mirror_pump.source.tables import load_table
from sql import queries

_SQL = queries("pump")

_POLL = 0.25
"""Seconds between looks at the stop request while a task's result is waited for."""
_IDLE_WAIT = 1.0
"""Seconds without any work after which the loop asks itself whether somebody still waits."""
_STOP_GRACE = 3.0
"""Seconds that a batch under way is given once the stop is requested; then it is abandoned."""


class Abandoned(Exception):
    """The stop was requested and the batch under way did not finish in time. It will be received again."""


@dataclass
class Totals:
    """What the pump has done since it started, over all sessions."""

    frontier: Lsn
    commits: int = 0
    changes: int = 0


@dataclass(frozen=True)
class Goal:
    """When the pump is done; with neither part, never."""

    until: Lsn | None = None
    """F has reached it."""
    copies: bool = False
    """No table is being copied any more."""

    @property
    def endless(self) -> bool:
        return self.until is None and not self.copies


class PumpSession:
    """Owns the threads and connections of one life. `run` returns when the goal is reached or the stop requested."""

    def __init__(
        self,
        settings: Settings,
        storage: StorageOptions,
        runner: TaskRunner,
        observer: Observer,
        goal: Goal,
        totals: Totals,
        inbox: SimpleQueue[Work],
        stop_requested: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._observer = observer
        self._goal = goal
        self._totals = totals
        self._inbox = inbox
        self._stop_requested = stop_requested
        self._dsn = settings.require_dsn()
        self._leader = Leader.acquire(self._dsn, settings.slot)
        self._closing: list[Callable[[], None]] = [self._leader.release]
        try:
            self._start(storage, runner)
        except BaseException:
            self.close()
            raise

    def _start(self, storage: StorageOptions, runner: TaskRunner) -> None:
        settings = self._settings
        self._connection = self._connect()
        self._closing.append(self._connection.close)
        row = self._connection.execute(_SQL["slot"], {"slot": settings.slot}).fetchone()
        if row is None:
            raise SourceError(f"slot {settings.slot} is not in the catalog", "Run `mirror-pump init` first.")
        publication, system, timeline, database, applied = row
        check_slot(
            self._connection,
            settings.slot,
            applied_lsn=applied,
            identity=SystemIdentity(system, timeline, database),
        )
        self._frontier = self._totals.frontier = Lsn(applied)
        self._publisher = Publisher(
            self._connect,
            settings.slot,
            self._leader.epoch,
            storage,
            RetryPolicy(settings.publish_attempts, settings.publish_backoff_max),
            staged=lambda request: self._observer(Step.STAGED, frontier=request.frontier),
        )
        self._closing.append(self._publisher.close)
        self._applier = BatchApplier(runner, storage, self._connect, self._publisher.load)
        self._chunks: dict[TableId, list[tuple[MirroredTable, CopiedChunk]]] = {}
        self._wanted = Lsn(0)
        self._caught_up = Lsn(applied)
        self._idle_published_at = time.monotonic()
        lookup_connection = self._connect()
        self._closing.append(lookup_connection.close)
        self._receiver = Receiver(
            lambda lsn: ReplicationStream.start(self._dsn, settings.slot, publication, lsn),
            lambda relation_id: self._registered(lookup_connection, relation_id),
            runner,
            storage,
            self._inbox,
            ReceiverSettings(
                segment_bytes=settings.segment_bytes,
                batch_bytes=settings.batch_bytes,
                batch_age=settings.batch_age,
                max_buffered_bytes=settings.max_buffered_bytes,
                status_interval=self._status_interval(),
            ),
            Lsn(applied),
            self._goal.until,
        )
        self._copier = Copier(
            self._connect,
            runner,
            storage,
            self._inbox,
            CopySettings(
                self._dsn, settings.slot, self._leader.epoch, settings.copy_chunk_bytes, settings.copy_workers
            ),
            self._observer,
        )
        self._listener = Listener(self._connect, self._inbox, self._copier.wake)
        for thread in (self._receiver, self._copier, self._listener):
            thread.start()
            self._closing.append(thread.stop)

    def close(self) -> None:
        """End the threads, let go of the lead. Files of work that was not published stay unreferenced."""
        while self._closing:
            self._closing.pop()()

    def run(self) -> None:
        """Take work until the goal is reached or the stop requested."""
        self._observer(Step.STREAMING, frontier=self._frontier)
        if self._goal.until is not None:
            self._receiver.want_position()
        while not self._stop_requested() and not self._done():
            try:
                work = self._inbox.get(timeout=_IDLE_WAIT)
            except Empty:
                self._look_around()
                continue
            self._take(work)
            # Also when the last chunk came with other work behind it: nothing else might ever publish it.
            if self._chunks and self._inbox.empty():
                self._publish_copies()

    def _take(self, work: Work) -> None:
        match work:
            case Batch():
                self._apply(work)
            case CaughtUp(lsn):
                self._caught_up = max(self._caught_up, lsn)
                self._publish_idle()
            case FrontierWanted(lsn):
                self._wanted = max(self._wanted, lsn)
                self._publish_idle()
                if self._wanted > self._frontier:
                    self._receiver.want_position()
            case ChunkCopied(table, chunk):
                self._chunks.setdefault(table.table_id, []).append((table, chunk))
            case CopyPlanned():
                self._publish_idle()
            case CopyInvalid(table):
                self._publish(PublishRequest(deltas=(TableDelta(table, restart_copy=True),)))
                self._copier.wake()
            case CopyFailed(table, error):
                self._publish(PublishRequest(failures=(Failure(table, error),)))
            case ThreadFailed(error):
                raise error
            case StopRequested():
                return

    def _apply(self, batch: Batch) -> None:
        self._observer(Step.RECEIVED, changes=batch.end.changes, segments=batch.end.segments)
        results = self._results(batch.segments)
        applied = self._applier.apply(batch.end, [segment.tables for segment in batch.segments], results)
        self._observer(Step.WRITTEN, frontier=batch.end.end_lsn)
        landed = self._publish(
            PublishRequest(
                frontier=batch.end.end_lsn,
                commit_time_us=batch.end.commit_time_us,
                deltas=self._with_chunks(applied.deltas),
                failures=applied.failures,
            )
        )
        self._receiver.batch_done()
        self._totals.changes += batch.end.changes
        if any(delta.truncate for delta in applied.deltas):
            self._copier.wake()
        self._caught_up = max(self._caught_up, landed.frontier)
        self._publish_idle()

    def _publish_copies(self) -> None:
        self._publish(PublishRequest(deltas=self._with_chunks(())))
        self._observer(Step.CHUNKS_PUBLISHED)
        # After the last chunk F has to move for the table to go live, and nothing may come that moves it.
        self._look_around()

    def _with_chunks(self, deltas: Iterable[TableDelta]) -> tuple[TableDelta, ...]:
        """The deltas, and with them the chunks that were copied meanwhile."""
        by_table = {delta.table.table_id: delta for delta in deltas}
        waiting, self._chunks = self._chunks, {}
        for table_id, copied in waiting.items():
            newest = max((table for table, _ in copied), key=lambda table: table.start_lsn)
            delta = by_table.get(table_id, TableDelta(newest))
            if delta.table.start_lsn < newest.start_lsn:
                # The table was registered anew meanwhile: the delta of its former life counts for nothing any more.
                delta = TableDelta(newest)
            chunks = tuple(chunk for table, chunk in copied if table.start_lsn == delta.table.start_lsn)
            by_table[table_id] = replace(delta, chunks=chunks)
        return tuple(by_table.values())

    def _publish(self, request: PublishRequest) -> LandedPublish:
        landed = self._publisher.publish(request)
        self._frontier = self._totals.frontier = landed.frontier
        self._totals.commits += 1
        self._observer(Step.PUBLISHED, frontier=landed.frontier, snapshots=landed.snapshots)
        self._receiver.acknowledge(landed)
        self._observer(Step.ACKNOWLEDGED, frontier=landed.frontier)
        for failure in request.failures:
            self._receiver.drop(failure.table.table_id)
            self._observer(Step.TABLE_FAILED, table=str(failure.table.name), error=failure.error)
        if landed.live:
            tables = [load_table(self._connection, table_id) for table_id in landed.live]
            self._receiver.refresh(tuple(table for table in tables if table is not None))
            for table in tables:
                self._observer(Step.LIVE, table=str(table and table.name))
        return landed

    def _publish_idle(self) -> None:
        """Move F without changes, if somebody needs it: a waiter, the goal, a copied table, or WAL of others.

        A publish writes WAL itself, so it must not be a reason for the next one: others have to write
        `idle_publish_bytes` first, and `idle_publish_interval` has to pass.
        """
        position = self._caught_up
        if position <= self._frontier:
            return
        until = self._goal.until
        now = time.monotonic()
        wanted = self._frontier < self._wanted <= position
        goal = until is not None and self._frontier < until <= position
        foreign = (
            position - self._frontier >= self._settings.idle_publish_bytes
            and now - self._idle_published_at >= self._settings.idle_publish_interval
        )
        if wanted or goal or foreign or self._copy_due(position):
            self._idle_published_at = now
            self._publish(PublishRequest(frontier=position, deltas=self._with_chunks(())))

    def _copy_due(self, position: Lsn) -> bool:
        """Whether a copied table may go live at `position`; if it only needs a later one, ask for that."""
        row = self._connection.execute(_SQL["due_to_go_live"], {"slot": self._settings.slot}).fetchone()
        if row is None or row[0] is None:
            return False
        if row[0] <= position:
            return True
        self._wanted = max(self._wanted, Lsn(row[0]))
        self._receiver.want_position()
        return False

    def _look_around(self) -> None:
        """Nothing came for a while: has F still to move for somebody?"""
        if self._wanted > self._frontier or not self._goal.endless:
            self._receiver.want_position()
        self._publish_idle()
        if self._caught_up <= self._frontier:
            self._copy_due(self._frontier)

    def _done(self) -> bool:
        goal = self._goal
        if goal.endless or (goal.until is not None and self._frontier < goal.until):
            return False
        if not goal.copies:
            return True
        row = self._connection.execute(_SQL["copying"], {"slot": self._settings.slot}).fetchone()
        return row is not None and row[0] == 0

    def _results(self, segments: Iterable[SegmentInFlight]) -> list[SegmentResult]:
        """The tasks' results, in stream order. Raises Abandoned when the stop was requested and they take too long."""
        results: list[SegmentResult] = []
        deadline: float | None = None
        for segment in segments:
            while True:
                try:
                    results.append(segment.result.result(timeout=_POLL))
                    break
                except FutureTimeout:
                    if self._stop_requested():
                        deadline = deadline or time.monotonic() + _STOP_GRACE
                        if time.monotonic() > deadline:
                            raise Abandoned from None
        return results

    def _registered(self, connection: PgConnection, relation_id: int) -> MirroredTable | None:
        table = load_table(connection, TableId(relation_id))
        return None if table is None or table.state is TableState.FAILED else table

    def _status_interval(self) -> float:
        """Seconds between status updates: a third of the server's patience, 10 s at most."""
        row = self._connection.execute(_SQL["sender_timeout"]).fetchone()
        patience = row[0] / 1000 if row is not None else 0
        return min(10.0, patience / 3) if patience else 10.0

    def _connect(self) -> PgConnection:
        return connect(self._dsn, autocommit=True)
