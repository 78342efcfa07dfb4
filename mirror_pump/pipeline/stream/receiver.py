"""The receiving thread: reads the slot, feeds the assembler, hands segments to tasks and batches to the inbox.

It sends status updates to the walsender whatever the other threads do. While too many bytes are in flight it stops
reading, but never stops reporting. It acknowledges only the frontier of a landed publish, and only once the stream has
passed that publish (Acknowledgement).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from mirror_pump.engine.ingest.segment_tasks import (
    SegmentResult,
    SegmentTable,
    SegmentTask,
    apply_segment,
    segment_table,
)
from mirror_pump.errors import SourceError, TableError, UnsendableRow, with_remedy
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.pipeline.flow.batches import BatchEnd, PendingSegment, Period, ReceivedBatch, Segment
from mirror_pump.pipeline.flow.events import CaughtUp, FrontierWanted, TableFailed, ThreadFailed
from mirror_pump.pipeline.flow.session_context import SessionContext, session_thread
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.operations.requests import PublishRequest
from mirror_pump.pipeline.publish.publisher import LandedPublish
from mirror_pump.pipeline.schema.decisions import SchemaChangeDecision
from mirror_pump.pipeline.stream.assembler import Assembler, Limits
from mirror_pump.pipeline.stream.batch_pace import BatchPace
from mirror_pump.pipeline.stream.unpublished_files import UnpublishedFiles
from mirror_pump.runtime.cores import available_cores
from mirror_pump.runtime.service_thread import ThreadedService
from mirror_pump.runtime.spill import Spill
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.relations.change_notes import Note, NoteReader
from mirror_pump.source.stream.message_block import HEADER_BYTES, MessageBlock
from mirror_pump.source.stream.replication_stream import ReplicationStream

_LONGEST_WAIT = 1.0
"""Longest time in seconds that the thread waits on an idle stream before it checks for a stop and a due status."""
_HANDLED_INTERVAL = 0.2
"""Seconds between status updates that only report the position of an idle stream, and between looks at it while it
moves: `status` waits for it."""
_PAUSE = 0.005
"""Seconds between checks while too many bytes are in flight."""
_SHARED_BYTES = 1 << 20
"""Bytes of a segment that several tasks may decode, each for its share of the tables. Transactions, to which the rows
of feeds refer, are decoded by one."""
_MANY_TABLES = 50
"""Background work makes way for a batch of so many tables: its publish takes long enough to be slowed by it."""


@dataclass(frozen=True)
class StreamSource:
    """Where the stream comes from, and the lookups that interpret its messages."""

    open_stream: Callable[[Lsn], ReplicationStream]
    """Opens the stream at a position."""
    start: Lsn
    """The frontier at the start: nothing that ended at or below it is received again."""
    recorded_at: Lsn
    """A WAL position behind the publish of that frontier."""
    barrier: Lsn | None
    """Where the stream may end."""
    isolated_transaction: Lsn | None
    """The transaction (LSN of its commit) at which an earlier session ended with UnsendableRow."""
    status_interval: float
    """Seconds between status updates."""
    lookup: Callable[[int], MirroredTable | None]
    """The mirrored table with this OID."""
    mirrored: Callable[[], Sequence[TableId]]
    """All mirrored tables."""
    read_note: NoteReader
    decide: Callable[[MirroredTable, Note], SchemaChangeDecision]
    """What a changed table means for the mirror."""


class Acknowledgement:
    """What the slot may be told: the newest frontier whose publish the stream has passed.

    A frontier is recorded in the database by the commit of its publish, which is further back in the WAL than the
    frontier itself. Were the slot told at once, a standby could have the slot's new position without that commit. Once
    promoted, its slot would be ahead of its catalog, and the transactions between the two would never be sent again.
    The server sends WAL to a failover slot only after the standbys in synchronized_standby_slots have it. So once the
    stream has passed the commit of a publish, each of these standbys has it too.

    `landed` may be called from any thread; everything else belongs to the thread that reads the stream.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Lsn, Lsn]] = deque()
        """Frontiers, with a position behind the commit of their publish. Both only grow."""
        self._frontier = Lsn(0)

    @property
    def frontier(self) -> Lsn:
        """What the slot may be told. 0, which the server ignores, if that is nothing yet."""
        return self._frontier

    def landed(self, frontier: Lsn, recorded_at: Lsn) -> None:
        """A publish has landed: its commit is before `recorded_at`."""
        self._waiting.append((frontier, recorded_at))

    def passed(self, position: Lsn) -> None:
        """The server has sent everything before `position`."""
        while self._waiting and self._waiting[0][1] <= position:
            self._frontier = max(self._frontier, self._waiting.popleft()[0])


class Receiver(ThreadedService):
    """Owns the replication connection. All public methods may be called from any thread.

    When it stops, everything unpublished is discarded, and will be sent again.
    """

    def __init__(
        self,
        context: SessionContext,
        source: StreamSource,
        packing: Callable[[MirroredTable], KeyPacking | None],
        unpublished_files: UnpublishedFiles,
        pace: BatchPace,
    ) -> None:
        """`packing` returns the packing in which the table's key index, if it has one, needs its keys. Owns `pace`
        from now on."""
        self._settings = context.settings
        self._runner = context.runner
        self._storage = context.storage
        self._inbox = inbox = context.inbox
        self._source = source
        self._packing = packing
        self._unpublished_files = unpublished_files
        self._assembler = Assembler(
            Limits(self._settings.segment_bytes, self._settings.batch_bytes, self._settings.max_row_bytes),
            source.start,
            source.lookup,
            self._dispatch,
            source.barrier,
            source.decide,
            source.isolated_transaction,
            lambda lsn: inbox.put(FrontierWanted(lsn)),
            read_note=source.read_note,
            mirror=self._settings.mirror,
        )
        self._segments: list[PendingSegment] = []
        self._spill_bytes = self._settings.limits.batch_memory
        self._spill = Spill(self._spill_bytes)
        """What the segments of the open batch return, beyond that."""
        self._written_since = time.time()
        self._batch_since = time.time()
        self._stream: ReplicationStream | None = None
        self._lock = threading.Lock()
        self._in_flight = 0
        self._pace = pace
        self._backlog = context.backlog
        self._backlog.expect(source.recorded_at)
        self._acknowledgement = Acknowledgement()
        self._acknowledgement.landed(source.start, source.recorded_at)
        self._commands: deque[Callable[[], None]] = deque()
        self._keepalive_wanted = threading.Event()
        self._announced = source.start
        self._received = source.start
        self._thread = session_thread("receiver", self._run, inbox, interrupt=self._wake, restarts=False)

    begins = Step.STREAMING

    def registered(self) -> None:
        """Nothing: the server describes the table before its first change."""

    def positioned(self, request: PublishRequest) -> PublishRequest:
        """Nothing: only batches move the frontier, and idle publishes, which name it."""
        return request

    def acknowledge(self, landed: LandedPublish) -> None:
        """Report the frontier to the slot, as soon as the stream has passed the publish: the server may remove WAL
        below it."""
        if landed.recorded_at is not None:
            self._acknowledgement.landed(landed.frontier, landed.recorded_at)
            self._wake()

    def batch_done(self, landed: LandedPublish) -> None:
        """The batch that was taken from the inbox is published."""
        with self._lock:
            self._pace.landed(landed.files, time.monotonic())
        self._wake()

    def refresh(self, tables: tuple[MirroredTable, ...]) -> None:
        """Use these descriptions from the next segment on."""
        self._commands.append(lambda: self._assembler.refresh(tables))

    def drop(self, table: MirroredTable) -> None:
        """Ignore the changes of this registration from the next segment on."""
        self._commands.append(lambda: self._assembler.drop(table))

    def want_position(self) -> None:
        """Ask the server how far it has sent. The answer arrives as CaughtUp, after everything before it."""
        self._keepalive_wanted.set()
        self._wake()

    def _wake(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.wake()

    def _run(self) -> None:
        try:
            with self._source.open_stream(self._source.start) as stream:
                self._stream = stream
                try:
                    self._receive(stream)
                finally:
                    self._stream = None
        except UnsendableRow as error:
            self._end_at_unsendable_row(error)

    def _end_at_unsendable_row(self, error: UnsendableRow) -> None:
        """End the session when the server cannot send a row. The first time, the next session isolates the transaction.
        The second time, skip the transaction first."""
        assembler = self._assembler
        if assembler.transaction is None:
            if error.message_end <= assembler.position:
                raise SourceError(str(error), "see the server's log")
            # The message belongs to no transaction and changes nothing. The server sends no message from before the
            # frontier, so it is enough to move the frontier past it.
            assembler.idle_at(Lsn(error.message_end))
            if not assembler.empty:
                self._close()
            self._announce()
            self._inbox.put(FrontierWanted(assembler.position))
            raise error
        error.transaction = assembler.transaction
        if assembler.transaction == self._source.isolated_transaction:
            self._segments = []
            self._finish(
                assembler.skip_transaction(self._source.mirrored(), f"{error}, in a transaction that was skipped")
            )
        raise error

    def _receive(self, stream: ReplicationStream) -> None:
        settings = self._settings
        reported, handled, reported_at, moved_at = Lsn(0), Lsn(0), 0.0, 0.0
        while not self._thread.stopping():
            now = time.monotonic()
            reply_wanted = self._keepalive_wanted.is_set()
            acknowledged = self._acknowledgeable(stream)
            due = (
                reported != acknowledged
                or now - reported_at >= self._source.status_interval
                or (handled != self._handled() and now - reported_at >= _HANDLED_INTERVAL)
            )
            if reply_wanted or due or stream.reply_requested:
                self._keepalive_wanted.clear()
                moved_at = moved_at if handled == self._handled() else now
                reported, handled, reported_at = acknowledged, self._handled(), now
                # Only `reported`, the frontier of a landed publish, moves the slot. `handled` is for people: the
                # server shows it as replay_lsn, which distinguishes an idle pump from one that is behind.
                stream.send_status(max(self._received, reported), reported, handled, reply=reply_wanted)
            while self._commands:
                self._commands.popleft()()
            if self._in_flight >= settings.max_buffered_bytes:
                self._thread.pause(_PAUSE)
                continue
            self._take(stream, self._read(stream, now, reported_at, moved_at))
            if self._may_close() and (self._assembler.full or time.monotonic() >= self._due_at()):
                self._close()

    def _read(self, stream: ReplicationStream, now: float, reported_at: float, moved_at: float) -> MessageBlock:
        """Wait for messages, until the open batch or the next status update is due."""
        longest = _HANDLED_INTERVAL if now - moved_at < _LONGEST_WAIT else _LONGEST_WAIT
        wait = min(longest, reported_at + self._source.status_interval - now)
        if self._may_close():
            wait = min(wait, self._due_at() - now)
        return stream.read(max(0.0, wait))

    def _acknowledgeable(self, stream: ReplicationStream) -> Lsn:
        """What the slot may be told, now that the stream is where it is."""
        sent = 0 if stream.keepalive is None else stream.keepalive.wal_end
        self._acknowledgement.passed(Lsn(max(self._received, sent)))
        return self._acknowledgement.frontier

    def _handled(self) -> Lsn:
        """The position up to which nothing is left to do. It is beyond the frontier if the WAL since then concerns no
        mirrored table."""
        idle = self._assembler.empty and not self._assembler.in_transaction and not self._pace.under_way
        acknowledged = self._acknowledgement.frontier
        return max(acknowledged, self._assembler.position) if idle else acknowledged

    def _may_close(self) -> bool:
        return not self._assembler.empty and not self._assembler.in_transaction

    def _due_at(self) -> float:
        with self._lock:
            return self._pace.due_at

    def _take(self, stream: ReplicationStream, messages: MessageBlock) -> None:
        """Feed the assembler and close full batches on the way. Then record the server's position."""
        self._feed(messages)
        keepalive = stream.keepalive
        if keepalive is not None:
            self._assembler.idle_at(keepalive.wal_end)
        self._received = Lsn(max(self._received, self._assembler.position))
        self._announce()

    def _feed(self, messages: MessageBlock) -> None:
        taken = 0
        while taken < len(messages):
            if self._assembler.empty:
                self._batch_since = time.time()
            taken = self._assembler.feed(messages, taken)
            if taken < len(messages):
                self._close()
                self._backlog.expect(self._assembler.position)

    def _close(self) -> None:
        """Send the batch to the inbox."""
        self._finish(self._assembler.close())

    def _finish(self, end: BatchEnd) -> None:
        segments, self._segments = tuple(self._segments), []
        with self._lock:
            self._pace.closed(time.monotonic())
        if len({table.table_id for segment in segments for table in segment.tables}) >= _MANY_TABLES:
            self._backlog.expect(end.end_lsn)
        now = time.time()
        received = Period(self._batch_since, now)
        self._inbox.put(ReceivedBatch(end, segments, received, self._written_since if segments else now))
        self._announce()

    def _announce(self) -> None:
        """Report the stream's position to the loop if no batch is open: everything before it is already in the
        inbox."""
        position = self._assembler.position
        if self._assembler.empty and not self._assembler.in_transaction and position > self._announced:
            self._announced = position
            self._inbox.put(CaughtUp(position))

    def _dispatch(self, segment: Segment) -> None:
        if not self._segments:
            self._written_since = time.time()
            self._spill = Spill(self._spill_bytes)
        tables = tuple(self._segment_tables(segment.tables))
        tasks = 1
        if len(segment.data) <= _SHARED_BYTES and segment.transactions is None:
            tasks = max(min(available_cores(), len(tables) // self._settings.limits.task_tables), 1)
        results = tuple(self._submit(segment, tables[place::tasks]) for place in range(tasks))
        self._segments.append(PendingSegment(results, segment.tables))

    def _submit(self, segment: Segment, tables: tuple[SegmentTable, ...]) -> SpilledResult:
        task = SegmentTask(
            data=segment.data,
            lengths=segment.lengths,
            tables=tables,
            storage=self._storage,
            header=HEADER_BYTES,
            transactions=segment.transactions,
        )
        # A future keeps its callbacks and lives until the batch ends, so this callback must not hold the segment's
        # messages.
        size = len(segment.data)
        with self._lock:
            self._in_flight += size
        future = SpilledResult(self._runner.submit(apply_segment, task), self._spill)
        self._unpublished_files.add(future)
        future.add_done_callback(partial(self._landed, size))
        return future

    def _segment_tables(self, tables: Sequence[MirroredTable]) -> Iterator[SegmentTable]:
        """What the task needs of the tables. One of which that cannot be told fails, before its batch lands."""
        for table in tables:
            try:
                with work_for(table):
                    described = segment_table(table, self._packing(table))
            except TableError as error:
                self._inbox.put(TableFailed(table, with_remedy(error)))
            else:
                yield described

    def _landed(self, size: int, result: Future[SegmentResult]) -> None:
        with self._lock:
            self._in_flight -= size
        error = None if result.cancelled() else result.exception()
        if error is not None:
            # The batch can no longer succeed, and its end may be hours away: report the error now.
            self._inbox.put(ThreadFailed(error))


class SpilledResult(Future[SegmentResult]):
    """The task's future, but for where its result is. Does not refer to the task's future once that is done."""

    def __init__(self, task: Future[SegmentResult], spill: Spill) -> None:
        super().__init__()
        self._task: Future[SegmentResult] | None = task
        self._spill: Spill | None = spill
        task.add_done_callback(self._take)

    def cancel(self) -> bool:
        """Cancels the task if it has not begun."""
        task = self._task
        return self.cancelled() if task is None else task.cancel()

    def _take(self, task: Future[SegmentResult]) -> None:
        spill, self._task, self._spill = self._spill, None, None
        assert spill is not None
        if task.cancelled():
            super().cancel()
            self.set_running_or_notify_cancel()
            return
        error = task.exception()
        if error is not None:
            self.set_exception(error)
            return
        result = task.result()
        try:
            self.set_result(spill.stored(result, result.nbytes))
        except Exception as failure:  # noqa: BLE001 - a future only logs what its callbacks raise
            self.set_exception(failure)
