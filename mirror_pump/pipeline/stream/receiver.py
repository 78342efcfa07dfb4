"""The receiving thread: reads the slot, feeds the assembler, hands segments to tasks and batches to the inbox.

It also keeps the walsender's status updates going whatever the rest does, and stops reading (never reporting) while
too many bytes are in flight. What it acknowledges is the frontier of a landed publish, nothing else.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

import numpy as np

from mirror_pump.engine.runner import TaskRunner
from mirror_pump.engine.segment_tasks import SegmentResult, SegmentTask, apply_segment, segment_table
from mirror_pump.errors import SourceError, UnsendableRow
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.pipeline.flow.batches import BatchEnd, Segment
from mirror_pump.pipeline.flow.events import Batch, CaughtUp, Event, FrontierWanted, PendingSegment, ThreadFailed
from mirror_pump.pipeline.flow.thread_end import reporting
from mirror_pump.pipeline.publish.publisher import LandedPublish
from mirror_pump.pipeline.schema.decisions import SchemaChangeDecision
from mirror_pump.pipeline.stream.assembler import HEADER, Assembler, Limits
from mirror_pump.pipeline.stream.unpublished_files import UnpublishedFiles
from mirror_pump.source.relations.change_notes import Note, NoteReader
from mirror_pump.source.stream.replication_stream import ReplicationStream

_READ_MESSAGES = 8192
"""Messages taken from the connection before the assembler sees them."""
_LONGEST_WAIT = 1.0
"""Seconds; how long an idle stream is waited for before the thread looks around (stop, status)."""
_HANDLED_INTERVAL = 1.0
"""Seconds between status updates that only say how far an idle stream is."""
_PAUSE = 0.005
"""Seconds between looks while too much is in flight."""
_BACKLOG = 2
"""Batches that may wait or be under way before age no longer closes one: it grows instead."""


@dataclass(frozen=True)
class ReceiverSettings:
    """Sizes in bytes, times in seconds."""

    segment_bytes: int
    batch_bytes: int
    row_bytes: int
    batch_age: float
    max_buffered_bytes: int
    status_interval: float


class Receiver:
    """Owns the replication connection. All public methods may be called from any thread."""

    def __init__(
        self,
        open_stream: Callable[[Lsn], ReplicationStream],
        lookup: Callable[[int], MirroredTable | None],
        packing: Callable[[MirroredTable], KeyPacking | None],
        runner: TaskRunner,
        storage: StorageOptions,
        inbox: SimpleQueue[Event],
        leftovers: UnpublishedFiles,
        settings: ReceiverSettings,
        start: Lsn,
        barrier: Lsn | None,
        read_note: NoteReader,
        judge: Callable[[MirroredTable, Note], SchemaChangeDecision],
        isolated_transaction: Lsn | None,
        mirrored: Callable[[], Sequence[TableId]],
    ) -> None:
        """`isolated_transaction`: the transaction at which the stream ended in UnsendableRow before; `mirrored` lists
        all tables."""
        self._open_stream = open_stream
        self._packing = packing
        self._runner = runner
        self._storage = storage
        self._inbox = inbox
        self._leftovers = leftovers
        self._settings = settings
        self._start = start
        self._assembler = Assembler(
            Limits(settings.segment_bytes, settings.batch_bytes, settings.row_bytes),
            start,
            lookup,
            self._dispatch,
            barrier,
            judge,
            isolated_transaction,
            lambda lsn: inbox.put(FrontierWanted(lsn)),
            read_note=read_note,
        )
        self._isolated_transaction = isolated_transaction
        self._mirrored = mirrored
        self._segments: list[PendingSegment] = []
        self._written_since = time.time()
        self._stream: ReplicationStream | None = None
        self._lock = threading.Lock()
        self._in_flight = 0
        self._backlog = 0
        self._acknowledged = start
        self._commands: deque[Callable[[], None]] = deque()
        self._keepalive_wanted = threading.Event()
        self._stopping = threading.Event()
        self._announced = start
        self._received = start
        self._thread = threading.Thread(target=self._run, name="receiver", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and the connection; what was not published is forgotten, and will be sent again."""
        self._stopping.set()
        self._wake()
        self._thread.join()

    def acknowledge(self, landed: LandedPublish) -> None:
        """Report F to the slot: WAL below it may go."""
        self._acknowledged = max(self._acknowledged, landed.frontier)
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
        """Ask the server how far it has sent; the answer comes as CaughtUp, after everything before it."""
        self._keepalive_wanted.set()
        self._wake()

    def _wake(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.wake()

    def _run(self) -> None:
        with reporting(self._inbox):
            try:
                with self._open_stream(self._start) as stream:
                    self._stream = stream
                    try:
                        self._receive(stream)
                    finally:
                        self._stream = None
            except UnsendableRow as error:
                self._row_not_sent(error)

    def _row_not_sent(self, error: UnsendableRow) -> None:
        """The first time, end: the next session keeps the transaction apart. Then pass it over, and end."""
        assembler = self._assembler
        if assembler.transaction is None:
            if error.message_end <= assembler.position:
                raise SourceError(str(error), "see the server's log")
            # A message of no transaction, which changes nothing: the server sends none from before F.
            assembler.idle_at(Lsn(error.message_end))
            if not assembler.empty:
                self._close()
            self._announce()
            self._inbox.put(FrontierWanted(assembler.position))
            raise error
        error.transaction = assembler.transaction
        if assembler.transaction == self._isolated_transaction:
            self._segments = []
            self._finish(
                assembler.skip_transaction(self._mirrored(), f"{error}, in a transaction that was passed over")
            )
        raise error

    def _receive(self, stream: ReplicationStream) -> None:
        assembler, settings = self._assembler, self._settings
        opened_at: float | None = None
        reported, handled, reported_at = Lsn(0), Lsn(0), 0.0
        while not self._stopping.is_set():
            now = time.monotonic()
            asked = self._keepalive_wanted.is_set()
            due = (
                reported != self._acknowledged
                or now - reported_at >= settings.status_interval
                or (handled != self._handled() and now - reported_at >= _HANDLED_INTERVAL)
            )
            if asked or due or stream.reply_requested:
                self._keepalive_wanted.clear()
                reported, handled, reported_at = self._acknowledged, self._handled(), now
                # Only `reported`, the frontier of a landed publish, moves the slot. `handled` is for people: the
                # server shows it as replay_lsn, which tells an idle pump from one that is behind.
                stream.send_status(max(self._received, reported), reported, handled, reply=asked)
            while self._commands:
                self._commands.popleft()()
            if self._in_flight >= settings.max_buffered_bytes:
                self._stopping.wait(_PAUSE)
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

    def _handled(self) -> Lsn:
        """Up to where nothing is left to do: beyond F when only WAL that concerns no mirrored table has gone by."""
        idle = self._assembler.empty and not self._assembler.in_transaction and self._backlog == 0
        return max(self._acknowledged, self._assembler.position) if idle else self._acknowledged

    def _wait(self, opened_at: float | None, reported_at: float, now: float) -> float:
        """Seconds to wait for messages at most: until the open batch is due, or the next status."""
        waits = [_LONGEST_WAIT, reported_at + self._settings.status_interval - now]
        if opened_at is not None:
            # Once due but held back by the backlog, look again soon.
            waits.append(max(opened_at + self._settings.batch_age - now, _PAUSE if self._backlog >= _BACKLOG else 0))
        return max(0.0, min(waits))

    def _due(self, opened_at: float) -> bool:
        if self._assembler.in_transaction:
            return False
        if self._assembler.full:
            return True
        return self._backlog < _BACKLOG and time.monotonic() - opened_at >= self._settings.batch_age

    def _take(self, stream: ReplicationStream, messages: list[bytes]) -> None:
        """Feed the assembler, closing full batches on the way; then note how far the server says it has sent."""
        self._feed(messages)
        keepalive = stream.keepalive
        if keepalive is not None:
            self._assembler.idle_at(keepalive.wal_end)
        self._received = Lsn(max(self._received, self._assembler.position))
        self._announce()

    def _feed(self, messages: list[bytes]) -> None:
        while messages:
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
        self._inbox.put(Batch(end, segments, time.monotonic(), self._written_since if segments else time.time()))
        self._announce()

    def _announce(self) -> None:
        """Tell the loop how far the stream is when nothing is open: everything below is in the inbox already."""
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
        # A future keeps its callbacks, and lives until the batch ends: this one must not keep the segment's messages.
        size = segment.size
        if not self._segments:
            self._written_since = time.time()
        with self._lock:
            self._in_flight += size
        future = self._runner.submit(apply_segment, task)
        self._leftovers.add(future)
        future.add_done_callback(partial(self._landed, size))
        self._segments.append(PendingSegment(future, segment.tables))

    def _landed(self, size: int, result: Future[SegmentResult]) -> None:
        with self._lock:
            self._in_flight -= size
        error = None if result.cancelled() else result.exception()
        if error is not None:
            # Nothing can come of its batch any more, which may be hours from its end.
            self._inbox.put(ThreadFailed(error))
