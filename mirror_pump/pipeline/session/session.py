"""One session of the pump: from acquiring the leadership to the first error or the stop.

A session starts at the frontier in the catalog and keeps nothing else from before. So after an error the pump starts
a new session: all work before a publish can be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from queue import Empty

import psycopg
from psycopg.types.json import Jsonb

from mirror_pump.engine.ingest.segment_tasks import SegmentResult
from mirror_pump.errors import FileDamaged, FileMissing, LakeError, SourceError, TableError, UnsendableRow
from mirror_pump.lake.storage import discard
from mirror_pump.model import Lsn, MirroredTable, TableId, TableMode, TableState
from mirror_pump.pipeline.flow.events import (
    AdvanceWanted,
    ArchiveBranchOutdated,
    Batch,
    CaughtUp,
    ChunkCopied,
    CopyFailed,
    CopyInvalid,
    CopyPlanned,
    Event,
    ExpiryWanted,
    FileRewriteReady,
    FoldReady,
    FrontierWanted,
    IndexRead,
    IndexWanted,
    LakeFileMissing,
    PendingSegment,
    StopRequested,
    StreamAdded,
    TableGivenUp,
    TablesMarked,
    ThreadFailed,
    TieredTableChanged,
    task_periods,
)
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.pipeline.flow.steps import Step, report_failure
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.missing_files.missing_files import stored_tables
from mirror_pump.pipeline.operations.advance_cutline import AdvanceRefused
from mirror_pump.pipeline.operations.combinations import TableOperation, schema_operation
from mirror_pump.pipeline.operations.expire_rows import ExpiryRefused
from mirror_pump.pipeline.operations.refresh_archive import RefreshArchive
from mirror_pump.pipeline.operations.requests import PublishRequest, TableRequest
from mirror_pump.pipeline.operations.restart_copy import RestartCopy
from mirror_pump.pipeline.operations.rewrite_files import RewriteFiles
from mirror_pump.pipeline.operations.table_changes import Failure
from mirror_pump.pipeline.operations.truncate import Truncate
from mirror_pump.pipeline.publish.publisher import LandedPublish
from mirror_pump.pipeline.session.frontier_scheduler import FrontierScheduler, Goal
from mirror_pump.pipeline.session.pending_chunks import PendingChunks
from mirror_pump.pipeline.session.run_state import RunState
from mirror_pump.pipeline.session.scattered_rows import report_scattered
from mirror_pump.pipeline.session.services import drop_stale_indexes, start_services
from mirror_pump.pipeline.session.table_change_reports import TableChangeReports
from mirror_pump.pipeline.stream.unpublished_files import UnpublishedFiles, files_of
from mirror_pump.source.catalog.pump_error import clear_error
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import source_errors
from mirror_pump.source.stream.leader import Leader
from mirror_pump.source.stream.slot import remove_from_publication, wal_end
from sql import queries

_SQL = queries("pump")

_POLL = 0.25
"""Seconds between checks for a stop request while the loop waits for a task's result."""
_RETAIN_INTERVAL = 30.0
"""Seconds between two checks, made when the loop is idle: whether tables with a key index are still mirrored, and
whether failed tables are still published."""
_STOP_GRACE = 3.0
"""Seconds that the current batch may still take after a stop request. After that it is abandoned."""

_REWRITTEN = "its heap was rewritten while it was copied: the copy restarts"


class Abandoned(Exception):
    """A stop was requested and the current batch did not finish in time. The batch will be received again."""


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
        self._scattered_partitions = settings.limits.scattered_partitions
        self._storage = context.storage
        self._observer = context.observer
        self._run_state = run_state
        self._inbox = context.inbox
        self._indexes = indexes
        self._chunks = PendingChunks()
        self._invalid_copies: set[tuple[TableId, Lsn, int]] = set()
        """Table, start LSN and generation of copies that were restarted. Each chunk of such a copy may report it, but
        it is reported to the observer only once."""
        self._left: list[str] = []
        """URIs of the files that were left in the inbox when the session ended."""
        self._begin_again = False
        """The cut-line has moved, and segments that were decoded under the old cut-line must not be published; or
        tables were marked to be copied again, whose segments no publish takes any more; or the mirror has a stream from
        now on."""
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
                self._closing,
                context,
                indexes,
                self._unpublished_files,
                self._leader.epoch,
                goal.until,
                run_state,
            )
            # Earlier sessions have reported these tables and stored the reasons.
            waiting = services.connection.execute(_SQL["waiting"], {"slot": settings.slot}).fetchall()
        except BaseException:
            self.close()
            raise
        self._services = services
        self._change_reports = TableChangeReports(
            self._observer, {TableId(table_id): error for table_id, error in waiting}
        )
        self._frontier = run_state.frontier = services.applied
        self._scheduler = FrontierScheduler(
            goal, services.applied, settings.idle_publish_bytes, settings.idle_publish_interval
        )
        self._began = self._checked_at = time.monotonic()
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
                match self._inbox.get_nowait():
                    case AdvanceWanted(answer=answer) | ExpiryWanted(answer=answer):
                        answer.cancel()
                    case IndexWanted(answer=answer):
                        answer.cancel()
                    case FoldReady(fold=fold, answer=answer):
                        answer.cancel()
                        self._left += fold.files
                    case ChunkCopied(chunk=chunk):
                        self._left += [file.path for file in chunk.files]
                    case FileRewriteReady(rewrite=rewrite):
                        self._left += [file.path for file in rewrite.written]

    def run(self) -> bool:
        """Take work until the goal is reached or the stop is requested. Returns True if a new session has to start at
        once."""
        self._observer(self._services.stream.begins, frontier=self._frontier)
        if self._scheduler.goal.until is not None:
            self._services.stream.want_position()
        while not self._stop_requested() and not self._done():
            try:
                work = self._inbox.get(timeout=self._scheduler.poll_interval)
            except Empty:
                self._scheduler.waited()
                self._handle_idle()
                self._report_indexes()
                continue
            try:
                self._take(work)
            except FileMissing as error:
                self._fail_owner(error)
                raise
            self._report_indexes()
            if self._begin_again:
                return True
            # This also covers a last chunk that came with other work behind it: nothing else might ever publish it.
            if self._chunks.waiting and self._inbox.empty():
                self._publish_copies()
        # The key indexes live in this process's memory and end with it.
        self._services.connection.execute(_SQL["no_indexes"], {"slot": self._slot})
        return False

    def _take(self, work: Event) -> None:
        match work:
            case Batch():
                self._apply(work)
            case CaughtUp(lsn):
                self._caught_up = True
                self._scheduler.reached(lsn)
                self._publish_idle()
            case FrontierWanted(lsn):
                # Any client may ask for any position. A position beyond the end of WAL must not make other clients
                # wait, so it is capped. A client that really waits for it asks again.
                self._scheduler.want(min(lsn, wal_end(self._services.connection)))
                self._publish_idle()
                if self._scheduler.has_waiters(self._frontier):
                    self._services.stream.want_position()
            case ChunkCopied(table, chunk):
                self._chunks.add(table, chunk)
            case CopyPlanned(table) if table.mode is TableMode.TIERED:
                # Its files are filled. It goes live at any frontier.
                self._publish(PublishRequest())
            case CopyPlanned():
                # An empty table has no chunks to publish, but the frontier has to move before the table can go live.
                self._handle_idle()
            case CopyInvalid(table):
                landed = self._publish(PublishRequest(tables=(TableRequest(table, (RestartCopy(),)),)))
                copy = table.table_id, table.start_lsn, table.generation
                if table.table_id in landed.tables and copy not in self._invalid_copies:
                    self._invalid_copies.add(copy)
                    self._observer(Step.TABLE_COPIED_AGAIN, table=str(table.name), reason=_REWRITTEN)
                self._services.copier.wake()
            case CopyFailed(table, error):
                self._publish(PublishRequest(failures=(Failure(table, error),)))
            case LakeFileMissing():
                self._fail_if_missing(work)
            case IndexRead():
                self._indexes.take_answer(work)
            case IndexWanted():
                self._want_index(work)
            case FileRewriteReady():
                self._publish_rewrite(work)
            case AdvanceWanted():
                self._advance(work)
            case ExpiryWanted():
                self._expire(work)
            case FoldReady():
                self._fold(work)
            case ArchiveBranchOutdated(table):
                self._publish(PublishRequest(tables=(TableRequest(table, (RefreshArchive(),)),)))
            case TieredTableChanged():
                self._follow(work)
            case TableGivenUp():
                given_up = load_table(self._services.connection, work.table_id)
                if given_up is not None and not given_up.state.has_ended and not work.handled.is_set():
                    self._publish(PublishRequest(failures=(Failure(given_up, work.error),)))
                work.handled.set()
            case TablesMarked() | StreamAdded():
                self._begin_again = True
            case ThreadFailed(error):
                if isinstance(error, UnsendableRow):
                    self._run_state.isolated_transaction = Lsn(error.transaction)
                    self._unpublish_failed()
                raise error
            case StopRequested():
                return

    def _apply(self, batch: Batch) -> None:
        end = batch.end
        self._observer(Step.RECEIVED, changes=end.changes, segments=end.segments, receive=batch.received)
        results = self._results(batch.segments)
        applied = self._services.applier.apply(batch.end, [segment.tables for segment in batch.segments], results)
        self._observer(Step.WRITTEN, frontier=batch.end.end_lsn, **task_periods(results, time.time()))
        self._unpublished_files.hand_over(segment.result for segment in batch.segments)
        landed = self._publish(
            PublishRequest(
                frontier=batch.end.end_lsn,
                commit_time_us=batch.end.commit_time_us,
                tables=self._chunks.take_with(applied.tables),
                failures=applied.failures,
                written_since=batch.written_since,
            )
        )
        self._services.stream.batch_done()
        self._run_state.changes += batch.end.changes
        changes = [table_request.change for table_request in applied.tables if table_request.change is not None]
        for change in changes:
            self._change_reports.report(change)
        if changes:
            self._services.watcher.wake()
        if changes or any(table_request.get(Truncate) is not None for table_request in applied.tables):
            self._services.copier.wake()
        self._scheduler.reached(landed.frontier)
        self._publish_idle()

    def _unpublish_failed(self) -> None:
        """Remove failed tables from the publication. The server may be unable to send one of their rows, or may refuse
        their updates because they are published."""
        rows = self._services.connection.execute(_SQL["failed"], {"slot": self._slot}).fetchall()
        for table_id, publication in rows:
            # A table that is locked stays published until the next check. The loop notices a lost connection by itself.
            with suppress(SourceError), self._services.connection.transaction() as transaction:
                self._services.connection.execute("SELECT set_config('lock_timeout', '1s', true)")
                with source_errors("removing a failed table from the publication"):
                    remove_from_publication(self._services.connection, publication, table_id)
                # This transaction now holds a lock that registering needs. If the table was registered again before
                # that, it has to stay published.
                if (
                    self._services.connection.execute(_SQL["failed_or_dropped"], {"table_id": table_id}).fetchone()
                    is None
                ):
                    raise psycopg.Rollback(transaction)

    def _publish_copies(self) -> None:
        self._publish(PublishRequest(tables=self._chunks.take_with(())))
        self._observer(Step.CHUNKS_PUBLISHED)
        # After the last chunk the frontier has to move before the table can go live, and perhaps no change moves it.
        self._handle_idle()

    def _publish_rewrite(self, work: FileRewriteReady) -> None:
        table_id = work.table.table_id
        table_request = TableRequest(work.table, (RewriteFiles(work.rewrite),))
        landed = self._publish(PublishRequest(tables=(table_request,), written_since=work.written_since))
        accepted = table_id in landed.tables
        self._observer(work.landed if accepted else work.refused, table=str(work.table.name), **work.details)
        self._services.upkeep.finished(table_id, landed=accepted)

    def _advance(self, work: AdvanceWanted) -> None:
        """Move the cut-line in its own publish, so that a refused advance holds up nothing else.

        Invariant: published stream changes were decoded under the current cut-line, so that below the cut-line the
        main branch changes by folds and ingests only. Segments in tasks and in the inbox were decoded under the old
        cut-line. They are discarded with this session, and the next session receives them again from the frontier. No
        segment concerns a tiered table, so the session goes on after an advance of its cut-line.
        """
        if not self._publish_for(work.answer, work.table, work.advance):
            return
        if work.table.mode is TableMode.MIRRORED:
            self._begin_again = True
        self._observer(Step.TIER_ADVANCED, table=str(work.table.name), cut=work.advance.cut)
        work.answer.set_result(None)

    def _expire(self, work: ExpiryWanted) -> None:
        """Move the retention line in its own publish, so that a refused expiry holds up nothing else."""
        if not self._publish_for(work.answer, work.table, work.expiry):
            return
        self._observer(Step.EXPIRED, table=str(work.table.name), line=work.expiry.line)
        work.answer.set_result(None)

    def _publish_for(self, answer: Future[str | None], table: MirroredTable, operation: TableOperation) -> bool:
        """Publish one operation by itself, for a thread that waits for the answer. Returns whether it landed; the
        caller answers then. Otherwise the answer says why not."""
        if not answer.set_running_or_notify_cancel():
            return False
        try:
            landed = self._publish(PublishRequest(tables=(TableRequest(table, (operation,)),)))
        except (AdvanceRefused, ExpiryRefused) as refusal:
            answer.set_result(str(refusal))
            return False
        except BaseException as error:
            answer.set_exception(error)
            raise
        if table.table_id not in landed.tables:
            answer.set_result("the table has failed, was registered again, or is being copied")
            return False
        return True

    def _follow(self, work: TieredTableChanged) -> None:
        """Publish a change of a tiered table, unless it is followed already."""
        former = work.former
        present = load_table(self._services.connection, former.table_id)
        if present is None or present.state is not former.state or present.shape != former.shape:
            return
        if work.failure is not None:
            self._publish(PublishRequest(failures=(work.failure,)))
        elif work.change is not None:
            table_request = TableRequest(work.change.table, (schema_operation(work.change),))
            landed = self._publish(PublishRequest(tables=(table_request,)))
            if former.table_id not in landed.dropped:
                self._change_reports.report(work.change)

    def _want_index(self, work: IndexWanted) -> None:
        if not work.answer.set_running_or_notify_cancel():
            return
        try:
            lake = self._services.publisher.load(work.table)
            work.answer.set_result(self._indexes.request(work.table, lake, work.deletes))
        except (TableError, FileDamaged):
            # The table has changed, or cannot be read. Its fold will find that out.
            work.answer.set_result(False)
        except BaseException as error:
            work.answer.set_exception(error)
            raise

    def _fold(self, work: FoldReady) -> None:
        """Publish a fold: corrections of rows below the cut-line."""
        if not work.answer.set_running_or_notify_cancel():
            return
        table_request = TableRequest(work.table, (work.fold,))
        try:
            landed = self._publish(PublishRequest(tables=(table_request,), written_since=work.written_since))
        except BaseException as error:
            work.answer.set_exception(error)
            raise
        table_id = work.table.table_id
        done = table_id in landed.tables and table_id not in landed.refused
        if done:
            self._observer(Step.FOLDED, table=str(work.table.name), rows=len(work.fold.versions))
        work.answer.set_result(done)

    def _fail_owner(self, error: FileMissing) -> None:
        """Fail the table whose missing file ends the session; otherwise the next session would fail on it again."""
        for stored in stored_tables(self._services.connection):
            if error.location.startswith(f"{stored.location}/"):
                self._fail_if_missing(LakeFileMissing(stored.table_id, error.location))

    def _fail_if_missing(self, work: LakeFileMissing) -> None:
        """Fail the table if its current state needs the missing file. Raises LakeError while the storage as a whole
        does not answer."""
        table = load_table(self._services.connection, work.table_id)
        if table is None or table.state is TableState.FAILED:
            return
        failure = self._services.publisher.missing.confirmed(table, work.location)
        if failure is not None:
            self._publish(PublishRequest(failures=(failure,)))
        elif work.copying and work.location.startswith(f"{table.location}/"):
            raise LakeError(f"{work.location} could not be written for a moment", "the copy continues by itself")

    def _publish(self, request: PublishRequest) -> LandedPublish:
        request = self._services.stream.positioned(request)
        try:
            landed = self._services.publisher.publish(request)
        except BaseException:
            if not self._services.publisher.may_have_landed:
                # The publish certainly did not happen, and these files are not published later either.
                discard(files_of(request), self._storage)
            raise
        self._frontier = self._run_state.frontier = landed.frontier
        self._run_state.published = landed.frontier
        self._run_state.commits += 1
        self._observer(Step.PUBLISHED, frontier=landed.frontier, snapshots=landed.snapshots)
        self._services.upkeep.published(landed.tables)
        self._services.retention.published()
        self._services.stream.acknowledge(landed)
        self._observer(Step.ACKNOWLEDGED, frontier=landed.frontier)
        report_scattered(self._observer, request, landed.tables, self._scattered_partitions)
        for failure in landed.failures:
            self._services.stream.drop(failure.table)
            self._indexes.forget(failure.table.table_id)
            report_failure(self._observer, failure)
        if landed.failures:
            failed = {failure.table.table_id for failure in landed.failures}.difference(landed.tables)
            left_out = tuple(
                table_request for table_request in request.tables if table_request.table.table_id in failed
            )
            discard(files_of(PublishRequest(tables=left_out)), self._storage)
            self._unpublish_failed()
        if landed.dropped:
            self._drop_stale_indexes()
        if landed.live or landed.filling:
            tables = [load_table(self._services.connection, table_id) for table_id in (*landed.live, *landed.filling)]
            self._services.stream.refresh(tuple(table for table in tables if table is not None))
            self._services.upkeep.live((*landed.live, *landed.filling))
            for table in tables[: len(landed.live)]:
                self._observer(Step.LIVE, table=str(table and table.name))
        return landed

    def _publish_idle(self) -> None:
        """Move the frontier without changes if a waiter, the goal, a copied table, or WAL written by others needs
        it."""
        position = self._scheduler.caught_up
        if position <= self._frontier:
            return
        if self._scheduler.due(self._frontier) or self._copy_due(position):
            self._scheduler.served()
            self._publish(PublishRequest(frontier=position, tables=self._chunks.take_with(())))

    def _copy_due(self, position: Lsn) -> bool:
        """Whether a copied table may go live at `position`. If it needs a later position, ask for that one."""
        row = self._services.connection.execute(_SQL["due_to_go_live"], {"slot": self._slot}).fetchone()
        if row is None or row[0] is None:
            return False
        if row[0] <= position:
            return True
        self._scheduler.want(Lsn(row[0]))
        self._services.stream.want_position()
        return False

    def _drop_stale_indexes(self) -> None:
        self._checked_at = time.monotonic()
        drop_stale_indexes(self._indexes, self._services.connection, self._slot)

    def _report_indexes(self) -> None:
        """Store for `status` that an index is ready or was evicted for another one, even if its table is idle."""
        for table_id, report in self._indexes.changed_reports().items():
            self._services.connection.execute(_SQL["index"], {"table_id": table_id, "report": Jsonb(dict(report))})

    def _handle_idle(self) -> None:
        """The inbox is idle: publish an empty batch if a client waits for the frontier."""
        if not self._recovered and time.monotonic() - self._began >= self._recovered_after:
            self._recover()
        if self._scheduler.has_waiters(self._frontier) or not self._scheduler.goal.endless:
            self._services.stream.want_position()
        self._publish_idle()
        if self._scheduler.caught_up <= self._frontier:
            self._copy_due(self._frontier)
        if time.monotonic() - self._checked_at >= _RETAIN_INTERVAL:
            self._drop_stale_indexes()
            self._unpublish_failed()

    def _recover(self) -> None:
        """Clear the recorded error of the last session if this one has caught up, even without a publish."""
        if self._caught_up:
            clear_error(self._services.connection, self._slot)
            self._recovered = True
        else:
            self._services.stream.want_position()

    def _done(self) -> bool:
        goal = self._scheduler.goal
        if goal.endless or (goal.until is not None and self._frontier < goal.until):
            return False
        if not goal.copies:
            return True
        row = self._services.connection.execute(_SQL["copying"], {"slot": self._slot}).fetchone()
        return row is not None and row[0] == 0

    def _results(self, segments: Iterable[PendingSegment]) -> list[SegmentResult]:
        """The tasks' results, in stream order. Raises Abandoned if a stop is requested and they take too long."""
        results: list[SegmentResult] = []
        deadline: float | None = None
        for segment in segments:
            # Not by a time-out of `result`, which a task's own TimeoutError looks like.
            while wait([segment.result], _POLL).not_done:
                if self._stop_requested():
                    deadline = deadline or time.monotonic() + _STOP_GRACE
                    if time.monotonic() > deadline:
                        raise Abandoned
            results.append(segment.result.result())
        return results
