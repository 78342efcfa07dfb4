"""One session of the pump: from acquiring the leadership to the first error or the stop.

A session starts at the frontier in the catalog and keeps nothing else from before. So after an error the pump starts
a new session: all work before a publish can be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from queue import Empty
from typing import TypeAlias

from psycopg.types.json import Jsonb

from mirror_pump.errors import FileMissing, LakeError, TableError, UnsendableRow
from mirror_pump.lake.storage import discard
from mirror_pump.model import Lsn, TableId, TableMode
from mirror_pump.pipeline.flow.batches import ReceivedBatch
from mirror_pump.pipeline.flow.events import (
    CaughtUp,
    ChunkCopied,
    CopyPlanned,
    Event,
    FileRewriteReady,
    FrontierWanted,
    IndexWanted,
    PublishWanted,
    RowsRead,
    StreamAdded,
    TablesMarked,
    ThreadFailed,
)
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.key_index.whole_rows import RowReading
from mirror_pump.pipeline.operations.requests import PublishRequest
from mirror_pump.pipeline.session.batch_landing import BatchLanding, PendingChunks
from mirror_pump.pipeline.session.frontier_scheduler import FrontierScheduler, Goal
from mirror_pump.pipeline.session.run_state import RunState
from mirror_pump.pipeline.session.services import start_services
from mirror_pump.pipeline.session.session_publisher import SessionPublisher
from mirror_pump.pipeline.session.table_events import TableChangeReports, TableEvents
from mirror_pump.pipeline.stream.unpublished_files import UnpublishedFiles
from mirror_pump.source.catalog.pump_error import clear_error
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.stream.leader import Leader
from mirror_pump.source.stream.slot import wal_end
from mirror_pump.source.unchanged_server import UnchangedServer
from sql import queries

_SQL = queries("pump")


_REWRITES_AT_ONCE = 100
"""Rewrites that one publish takes: more would keep a batch waiting for long."""
_REPORTS_WAIT = 5.0
"""Seconds for which reports of indexes wait while the inbox has work."""


_StreamEvent: TypeAlias = ReceivedBatch | CaughtUp


class PostponedBatches:
    """What the stream brought to a session and waits: a batch whose deletes need much to be read, and what came after
    it. Only the loop's thread may use it.

    Invariant: batches and positions are taken in stream order. A session that ends while they wait discards them, and
    the next one receives them again.
    """

    def __init__(self) -> None:
        self._first: ReceivedBatch | None = None
        self._later: list[_StreamEvent] = []
        self._readings: list[RowReading] = []
        """What the first one waits for."""

    @property
    def waiting(self) -> bool:
        """Whether a batch waits, and so must what comes from the stream."""
        return self._first is not None

    def wait_for(self, batch: ReceivedBatch, readings: Iterable[RowReading]) -> None:
        """The batch waits for these."""
        self._first, self._readings = batch, list(readings)

    def add(self, event: _StreamEvent) -> None:
        """This came from the stream after a batch that waits."""
        if isinstance(event, CaughtUp) and self._later and isinstance(self._later[-1], CaughtUp):
            # The pump asks for its position again and again; only the last answer counts.
            self._later.pop()
        self._later.append(event)

    def taken(self, reading: object) -> tuple[ReceivedBatch | None, list[_StreamEvent]]:
        """The row reader has done a reading. Returns the batch that need not wait any more, and what came after it."""
        self._readings = [other for other in self._readings if other is not reading]
        if self._first is None or self._readings:
            return None, []
        first, later = self._first, self._later
        self._first, self._later = None, []
        return first, later


class PumpSession:
    """Owns what `start_services` starts. `run` returns when the goal is reached or the stop is requested."""

    def __init__(
        self,
        context: SessionContext,
        goal: Goal,
        run_state: RunState,
        indexes: KeyIndexes,
        stop_requested: Callable[[], bool],
        leader: Leader | None = None,
    ) -> None:
        """`leader`: the leadership, if the previous session kept it. This session releases it when it is closed."""
        settings = context.settings
        self._slot = context.slot
        self._recovered_after = settings.limits.recovered_after
        self._storage = context.storage
        self._observer = context.observer
        self._run_state = run_state
        self._inbox = context.inbox
        self._backlog = context.backlog
        self._indexes = indexes
        self._chunks = PendingChunks()
        self._next: Event | None = None
        """An event that was taken from the inbox before it was its turn."""
        self._postponed = PostponedBatches()
        self._unchanged = UnchangedServer()
        """Whether a copied table may have become due to go live."""
        self._left: list[str] = []
        """URIs of the files that were left in the inbox when the session ended."""
        self._begin_again = False
        """Tables were marked to be copied again, whose segments no publish takes any more; or the mirror has a stream
        from now on."""
        self._stop_requested = stop_requested
        self._leader = Leader.acquire(context.dsn, context.slot, run_state.epoch) if leader is None else leader
        self._lead_kept = False
        run_state.epoch = self._leader.epoch
        self._unpublished_files = UnpublishedFiles(context.storage)
        # The stack closes in reverse order: the threads end before the files that they left are removed.
        self._closing = ExitStack()
        self._closing.callback(self._release_lead)
        self._closing.callback(self._remove_unpublished_files)
        try:
            services = start_services(
                self._closing, context, indexes, self._unpublished_files, self._leader.epoch, goal.until, run_state
            )
            # Earlier sessions have reported these tables and stored the reasons.
            waiting = services.connection.execute(_SQL["waiting"], {"slot": settings.slot}).fetchall()
        except BaseException:
            self.close()
            raise
        self._services = services
        reports = TableChangeReports(self._observer, {TableId(table_id): error for table_id, error in waiting})
        self._publisher = SessionPublisher(context, services, indexes, run_state)
        self._batches = BatchLanding(
            self._observer, services, self._publisher, self._chunks, self._unpublished_files, reports, stop_requested
        )
        self._table_events = TableEvents(self._observer, services, self._publisher, indexes, reports)
        self._scheduler = FrontierScheduler(
            goal, services.applied, settings.idle_publish_bytes, settings.idle_publish_interval
        )
        self._began = self._indexes_looked_at = time.monotonic()
        self._caught_up = self._recovered = False

    def close(self) -> None:
        """End the threads, remove files of work that will not be published, and release the leadership."""
        # Threads may wait for an answer.
        self._empty_inbox()
        try:
            # Close in reverse order, even if one of them fails.
            self._closing.close()
        except BaseException:
            # There is no next session at once. A later one could not lead while this one does.
            self._leader.release()
            raise

    def keep_lead(self) -> Leader:
        """Hand the leadership to the next session: closing this session does not release it."""
        self._lead_kept = True
        return self._leader

    def _release_lead(self) -> None:
        if not self._lead_kept:
            self._leader.release()

    def _remove_unpublished_files(self) -> None:
        self._unpublished_files.remove()
        self._empty_inbox()
        discard([*self._left, *self._chunks.files], self._storage)

    def _empty_inbox(self) -> None:
        """Cancel the answers that threads wait for, and remember the files named in the inbox for removal."""
        with suppress(Empty):
            while True:
                match self._take_event(0):
                    case IndexWanted(answer=answer):
                        answer.cancel()
                    case PublishWanted(operation=operation, answer=answer):
                        answer.cancel()
                        self._left += operation.files
                    case ChunkCopied(chunk=chunk):
                        self._left += [file.path for file in chunk.files]
                    case FileRewriteReady(rewrite=rewrite):
                        self._left += [file.path for file in rewrite.written]

    def run(self) -> bool:
        """Take work until the goal is reached or the stop is requested. Returns True if a new session has to start at
        once."""
        self._observer(self._services.stream.begins, frontier=self._publisher.frontier)
        self._services.stream.want_position()
        self._read_ahead()
        while not self._stop_requested() and not self._done():
            try:
                work = self._take_event(min(self._scheduler.poll_interval, self._chunks.due_in))
            except Empty:
                if self._chunks.due_in <= 0:
                    self._publish_copies()
                    continue
                self._scheduler.waited()
                self._handle_idle(woken=False)
                self._report_indexes()
                continue
            try:
                self._take(work)
            except FileMissing as error:
                self._table_events.fail_owner(error)
                raise
            self._report_indexes()
            if self._begin_again or self._table_events.cutline_moved:
                return True
        # The key indexes live in this process's memory and end with it.
        self._services.connection.execute(_SQL["no_indexes"], {"slot": self._slot})
        return False

    def _take_event(self, timeout: float) -> Event:
        """The next event. Raises Empty if there is none within this many seconds."""
        event, self._next = self._next, None
        return self._inbox.get(timeout=timeout) if event is None else event

    def _rewrites_from(self, first: FileRewriteReady) -> list[FileRewriteReady]:
        """A rewrite with those that follow it in the inbox, of which no two are of one table: a table has one at a
        time. A batch behind them waits for one publish instead of one for each."""
        rewrites = [first]
        with suppress(Empty):
            while len(rewrites) < _REWRITES_AT_ONCE:
                event = self._take_event(0)
                if not isinstance(event, FileRewriteReady):
                    self._next = event
                    break
                rewrites.append(event)
        return rewrites

    def _take(self, work: Event) -> None:
        match work:
            case FileRewriteReady():
                self._table_events.publish_rewrites(self._rewrites_from(work))
            case ReceivedBatch() | CaughtUp() if self._postponed.waiting:
                self._postponed.add(work)
            case ReceivedBatch():
                self._land_or_postpone(work)
            case RowsRead(reading):
                batch, later = self._postponed.taken(reading)
                if batch is not None:
                    self._land(batch)
                for event in later:
                    self._take(event)
            case CaughtUp(lsn):
                self._caught_up = True
                self._backlog.reached(lsn)
                self._scheduler.reached(lsn)
                self._publish_idle()
            case FrontierWanted(lsn):
                # Any client may ask for any position. A position beyond the end of WAL must not make other clients
                # wait, so it is capped. A client that really waits for it asks again.
                self._scheduler.want(min(lsn, wal_end(self._services.connection)))
                self._publish_idle()
                if self._scheduler.has_waiters(self._publisher.frontier):
                    self._services.stream.want_position()
            case ChunkCopied(table, chunk, others_follow):
                self._chunks.add(table, chunk, others_follow=others_follow)
            case CopyPlanned(table) if table.mode is TableMode.TIERED:
                # Its files are filled. It goes live at any frontier.
                self._publisher.publish(PublishRequest())
            case CopyPlanned():
                # An empty table has no chunks to publish, but the frontier has to move before the table can go live.
                self._handle_idle()
            case TablesMarked() | StreamAdded():
                self._begin_again = True
            case ThreadFailed(error):
                if isinstance(error, UnsendableRow):
                    self._run_state.isolated_transaction = Lsn(error.transaction)
                    self._publisher.unpublish_failed()
                raise error
            case _:
                self._table_events.take(work)

    def _land_or_postpone(self, batch: ReceivedBatch) -> None:
        readings = self._batches.readings(batch)
        if not readings:
            self._land(batch)
            return
        self._postponed.wait_for(batch, readings)
        for reading in readings:
            self._observer(Step.ROWS_READING, table=str(reading.table.name), rows=reading.unread)
            self._services.row_reader.submit(reading)

    def _land(self, batch: ReceivedBatch) -> None:
        landed = self._batches.land(batch)
        self._run_state.changes += batch.end.changes
        self._scheduler.reached(landed.frontier)
        self._publish_idle()

    def _read_ahead(self) -> None:
        """Has the row reader read what deletes of tables without a key may need, while none waits for it."""
        for (table_id,) in self._services.connection.execute(_SQL["without_key"], {"slot": self._slot}).fetchall():
            table = load_table(self._services.connection, TableId(table_id))
            if table is not None and table.whole_rows:
                # What is missing or damaged is found and reported by what needs it.
                with suppress(TableError, LakeError):
                    self._publisher.read_ahead(table, self._services.publisher.load(table))

    def _publish_copies(self) -> None:
        self._publisher.publish(PublishRequest(tables=self._chunks.take_with(())))
        self._observer(Step.CHUNKS_PUBLISHED)
        # After the last chunk the frontier has to move before the table can go live, and perhaps no change moves it.
        self._handle_idle()

    def _publish_idle(self, *, woken: bool = True) -> None:
        """Move the frontier without changes if a waiter, the goal, a copied table, or WAL written by others needs
        it. `woken`: an event was taken."""
        position = self._scheduler.caught_up
        if position <= self._publisher.frontier:
            return
        due = self._scheduler.due(self._publisher.frontier, self._publisher.recorded_at)
        if due or self._copy_due(position, woken=woken):
            self._scheduler.served()
            self._publisher.publish(PublishRequest(frontier=position, tables=self._chunks.take_with(())))

    def _copy_due(self, position: Lsn, *, woken: bool) -> bool:
        """Whether a copied table may go live at `position`. If it needs a later position, ask for that one."""
        if self._unchanged.skips(self._services.shared.snapshot(self._scheduler.poll_interval, woken=woken)):
            return False
        row = self._services.connection.execute(_SQL["due_to_go_live"], {"slot": self._slot}).fetchone()
        if row is None or row[0] is None:
            self._unchanged.nothing_left()
            return False
        if row[0] <= position:
            return True
        self._scheduler.want(Lsn(row[0]))
        self._services.stream.want_position()
        return False

    def _report_indexes(self) -> None:
        """Store for `status` that an index is ready or was evicted for another one, even if its table is idle. Hundreds
        become ready one after the other: what waits in the inbox comes first, but for some seconds only."""
        now = time.monotonic()
        if (self._next is not None or not self._inbox.empty()) and now - self._indexes_looked_at < _REPORTS_WAIT:
            return
        self._indexes_looked_at = now
        reports = self._indexes.changed_reports()
        if reports:
            values = [Jsonb(dict(report)) for report in reports.values()]
            rows = self._services.connection.execute(_SQL["indexes"], {"table_ids": list(reports), "reports": values})
            self._indexes.reported(reports.keys() - {TableId(table_id) for (table_id,) in rows})

    def _handle_idle(self, *, woken: bool = True) -> None:
        """The inbox is idle: publish an empty batch if a client waits for the frontier. `woken`: an event was taken."""
        if not self._recovered and time.monotonic() - self._began >= self._recovered_after:
            self._recover()
        if (
            self._scheduler.has_waiters(self._publisher.frontier)
            or not self._scheduler.goal.endless
            or self._backlog.remains
        ):
            self._services.stream.want_position()
        self._publish_idle(woken=woken)
        if self._scheduler.caught_up <= self._publisher.frontier:
            self._copy_due(self._publisher.frontier, woken=woken)
        self._publisher.check_tables()

    def _recover(self) -> None:
        """Clear the recorded error of the last session if this one has caught up, even without a publish."""
        if self._caught_up:
            clear_error(self._services.connection, self._slot)
            self._recovered = True
        else:
            self._services.stream.want_position()

    def _done(self) -> bool:
        goal = self._scheduler.goal
        if goal.endless or (goal.until is not None and self._publisher.frontier < goal.until):
            return False
        if not goal.copies:
            return True
        row = self._services.connection.execute(_SQL["copying"], {"slot": self._slot}).fetchone()
        return row == (False,)
