"""The receiving thread: reads the slot, feeds the assembler, hands segments to tasks and batches to the inbox.

It sends status updates to the walsender whatever the other threads do. While too many bytes are in flight it stops
reading, but never stops reporting. It acknowledges only the frontier of a landed publish, and only once the stream has
passed that publish (mirror_pump.pipeline.stream.acknowledgement).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import numpy as np

from mirror_pump.engine.ingest.segment_tasks import SegmentResult, SegmentTask, apply_segment, segment_table
from mirror_pump.errors import SourceError, UnsendableRow
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.pipeline.flow.batches import BatchEnd, Period, Segment
from mirror_pump.pipeline.flow.events import Batch, CaughtUp, FrontierWanted, PendingSegment, ThreadFailed
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.pipeline.flow.session_threads import session_thread
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.operations.requests import PublishRequest
from mirror_pump.pipeline.publish.publisher import LandedPublish
from mirror_pump.pipeline.schema.decisions import SchemaChangeDecision
from mirror_pump.pipeline.stream.acknowledgement import Acknowledgement
from mirror_pump.pipeline.stream.assembler import HEADER, Assembler, Limits
from mirror_pump.pipeline.stream.unpublished_files import UnpublishedFiles
from mirror_pump.source.relations.change_notes import Note, NoteReader
from mirror_pump.source.stream.replication_stream import ReplicationStream

_READ_MESSAGES = 8192
"""Number of messages read from the connection before they are fed to the assembler."""
_LONGEST_WAIT = 1.0
"""Longest time in seconds that the thread waits on an idle stream before it checks for a stop and a due status."""
_HANDLED_INTERVAL = 1.0
"""Seconds between status updates that only report the position of an idle stream."""
_PAUSE = 0.005
"""Seconds between checks while too many bytes are in flight."""
_BACKLOG = 2
"""Number of waiting or running batches from which on age no longer closes the open batch: it grows instead."""


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


class Receiver:
    """Owns the replication connection. All public methods may be called from any thread."""

    def __init__(
        self,
        context: SessionContext,
        source: StreamSource,
        packing: Callable[[MirroredTable], KeyPacking | None],
        unpublished_files: UnpublishedFiles,
    ) -> None:
        """`packing` returns the packing in which the table's key index, if it has one, needs its keys."""
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
        )
        self._segments: list[PendingSegment] = []
        self._written_since = time.time()
        self._batch_since = time.time()
        self._stream: ReplicationStream | None = None
        self._lock = threading.Lock()
        self._in_flight = 0
        self._backlog = 0
        self._acknowledgement = Acknowledgement()
        self._acknowledgement.landed(source.start, source.recorded_at)
        self._commands: deque[Callable[[], None]] = deque()
        self._keepalive_wanted = threading.Event()
        self._announced = source.start
        self._received = source.start
        self._thread = session_thread("receiver", self._run, inbox, interrupt=self._wake)

    begins = Step.STREAMING

    def start(self) -> None:
        self._thread.start()

    def registered(self) -> None:
        """Nothing: the server describes the table before its first change."""

    def positioned(self, request: PublishRequest) -> PublishRequest:
        """Nothing: only batches move the frontier, and idle publishes, which name it."""
        return request

    def stop(self) -> None:
        """End the thread and the connection. Everything unpublished is discarded, and will be sent again."""
        self._thread.stop()

    def acknowledge(self, landed: LandedPublish) -> None:
        """Report the frontier to the slot, as soon as the stream has passed the publish: the server may remove WAL
        below it."""
        if landed.recorded_at is not None:
            self._acknowledgement.landed(landed.frontier, landed.recorded_at)
            self._wake()

    def batch_done(self) -> None:
        """The batch that was taken from the inbox is published."""
        with self._lock:
            self._backlog -= 1

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
        assembler, settings = self._assembler, self._settings
        opened_at: float | None = None
        reported, handled, reported_at = Lsn(0), Lsn(0), 0.0
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
                reported, handled, reported_at = acknowledged, self._handled(), now
                # Only `reported`, the frontier of a landed publish, moves the slot. `handled` is for people: the
                # server shows it as replay_lsn, which distinguishes an idle pump from one that is behind.
                stream.send_status(max(self._received, reported), reported, handled, reply=reply_wanted)
            while self._commands:
                self._commands.popleft()()
            if self._in_flight >= settings.max_buffered_bytes:
                self._thread.pause(_PAUSE)
                continue
            messages: list[bytes] = []
            stream.read(messages, _READ_MESSAGES, self._wait(opened_at, reported_at, now))
            self._take(stream, messages)
            if assembler.empty:
                opened_at = None
            else:
                opened_at = opened_at or time.monotonic()
                if self._due(opened_at):
                    self._close()
                    opened_at = None

    def _acknowledgeable(self, stream: ReplicationStream) -> Lsn:
        """What the slot may be told, now that the stream is where it is."""
        sent = 0 if stream.keepalive is None else stream.keepalive.wal_end
        self._acknowledgement.passed(Lsn(max(self._received, sent)))
        return self._acknowledgement.frontier

    def _handled(self) -> Lsn:
        """The position up to which nothing is left to do. It is beyond the frontier if the WAL since then concerns no
        mirrored table."""
        idle = self._assembler.empty and not self._assembler.in_transaction and self._backlog == 0
        acknowledged = self._acknowledgement.frontier
        return max(acknowledged, self._assembler.position) if idle else acknowledged

    def _wait(self, opened_at: float | None, reported_at: float, now: float) -> float:
        """The most seconds to wait for messages: until the open batch or the next status update is due."""
        waits = [_LONGEST_WAIT, reported_at + self._source.status_interval - now]
        if opened_at is not None:
            # If the batch is due but held back by the backlog, check again soon.
            waits.append(max(opened_at + self._settings.batch_age - now, _PAUSE if self._backlog >= _BACKLOG else 0))
        return max(0.0, min(waits))

    def _due(self, opened_at: float) -> bool:
        if self._assembler.in_transaction:
            return False
        if self._assembler.full:
            return True
        return self._backlog < _BACKLOG and time.monotonic() - opened_at >= self._settings.batch_age

    def _take(self, stream: ReplicationStream, messages: list[bytes]) -> None:
        """Feed the assembler and close full batches on the way. Then record the server's position."""
        self._feed(messages)
        keepalive = stream.keepalive
        if keepalive is not None:
            self._assembler.idle_at(keepalive.wal_end)
        self._received = Lsn(max(self._received, self._assembler.position))
        self._announce()

    def _feed(self, messages: list[bytes]) -> None:
        while messages:
            if self._assembler.empty:
                self._batch_since = time.time()
            taken = self._assembler.feed(messages)
            if taken == len(messages):
                break
            messages = messages[taken:]
            self._close()

    def _close(self) -> None:
        """Send the batch to the inbox."""
        self._finish(self._assembler.close())

    def _finish(self, end: BatchEnd) -> None:
        segments, self._segments = tuple(self._segments), []
        with self._lock:
            self._backlog += 1
        now = time.time()
        self._inbox.put(Batch(end, segments, Period(self._batch_since, now), self._written_since if segments else now))
        self._announce()

    def _announce(self) -> None:
        """Report the stream's position to the loop if no batch is open: everything before it is already in the
        inbox."""
        position = self._assembler.position
        if self._assembler.empty and not self._assembler.in_transaction and position > self._announced:
            self._announced = position
            self._inbox.put(CaughtUp(position))

    def _dispatch(self, segment: Segment) -> None:
        task = SegmentTask(
            data=b"".join(segment.messages),
            lengths=np.fromiter(map(len, segment.messages), np.int32, len(segment.messages)).tobytes(),
            tables=tuple(segment_table(table, self._packing(table)) for table in segment.tables),
            storage=self._storage,
            header=HEADER,
        )
        # A future keeps its callbacks and lives until the batch ends, so this callback must not hold the segment's
        # messages.
        size = segment.size
        if not self._segments:
            self._written_since = time.time()
        with self._lock:
            self._in_flight += size
        future = self._runner.submit(apply_segment, task)
        self._unpublished_files.add(future)
        future.add_done_callback(partial(self._landed, size))
        self._segments.append(PendingSegment(future, segment.tables))

    def _landed(self, size: int, result: Future[SegmentResult]) -> None:
        with self._lock:
            self._in_flight -= size
        error = None if result.cancelled() else result.exception()
        if error is not None:
            # The batch can no longer succeed, and its end may be hours away: report the error now.
            self._inbox.put(ThreadFailed(error))
