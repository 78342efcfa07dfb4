"""One uninterrupted life of the pump: from taking the lead to the first error, or to the stop.

It starts from what the catalog says is applied and keeps nothing else from before, so going on after an error is
nothing but a new session: everything left of the publish may be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from queue import Empty

import psycopg
from psycopg.types.json import Jsonb

from mirror_pump.engine.segment_tasks import SegmentResult
from mirror_pump.errors import FileMissing, LakeError, SourceError, TableError, UnsendableRow
from mirror_pump.lake.storage import discard
from mirror_pump.model import Lsn, MirroredTable, TableId, TableState
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
    FileRewriteReady,
    FoldReady,
    FrontierWanted,
    IndexRead,
    IndexWanted,
    LakeFileMissing,
    PendingSegment,
    StopRequested,
    ThreadFailed,
)
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.pipeline.flow.steps import Step, tell_of_failure
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.missing_files.missing_files import stored_tables
from mirror_pump.pipeline.operations.add_chunks import AddChunks, CopiedChunk
from mirror_pump.pipeline.operations.advance_cutline import AdvanceRefused
from mirror_pump.pipeline.operations.refresh_archive import RefreshArchive
from mirror_pump.pipeline.operations.requests import PublishRequest, TableDelta
from mirror_pump.pipeline.operations.restart_copy import RestartCopy
from mirror_pump.pipeline.operations.rewrite_files import RewriteFiles
from mirror_pump.pipeline.operations.table_changes import Failure, TableChange
from mirror_pump.pipeline.operations.truncate import Truncate
from mirror_pump.pipeline.publish.publisher import LandedPublish
from mirror_pump.pipeline.session.frontier_scheduler import FrontierScheduler, Goal
from mirror_pump.pipeline.session.services import retain_live, start_services
from mirror_pump.pipeline.stream.unpublished_files import UnpublishedFiles, files_of
from mirror_pump.source.catalog.pump_error import clear_error
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import source_errors
from mirror_pump.source.stream.leader import Leader
from mirror_pump.source.stream.slot import remove_from_publication, wal_end
from sql import queries

_SQL = queries("pump")

_POLL = 0.25
"""Seconds between looks at the stop request while a task's result is waited for."""
_RETAIN_INTERVAL = 30.0
"""Seconds between looks, when there is time, at whether tables with a key index are still mirrored, and tables that
were set aside still published."""
_RECOVERED_AFTER = 10.0
"""Seconds after which a session that has caught up, and had nothing to publish, is a success."""
_STOP_GRACE = 3.0
"""Seconds that a batch under way is given once the stop is requested; then it is abandoned."""


def _step_of(change: TableChange) -> Step:
    if change.waits_for_owner:
        return Step.TABLE_WAITING
    if change.copy_again:
        return Step.TABLE_COPIED_AGAIN
    return Step.TABLE_FILLING if change.fills else Step.TABLE_CHANGED


_DESCRIBED = "a change that was found before made it necessary, and what the table is like is known now"
"""Why a table is copied again, where a former session knew more."""
_REWRITTEN = "its heap was rewritten while it was copied: the copy begins again"


def _cause(reason: str) -> str:
    """Without what its owner has to do about it."""
    return reason.partition(". ")[0]


class Abandoned(Exception):
    """The stop was requested and the batch under way did not finish in time. It will be received again."""


@dataclass
class RunState:
    """What the pump has done since it started, over all sessions."""

    frontier: Lsn
    commits: int = 0
    changes: int = 0
    isolated_transaction: Lsn | None = None
    """The transaction (LSN of its commit) at which the stream ended because a row cannot be sent."""
    epoch: int | None = None
    """Of the last lead."""


class PumpSession:
    """Owns what `start_services` starts. `run` returns when the goal is reached or the stop requested."""

    def __init__(
        self,
        context: SessionContext,
        goal: Goal,
        totals: RunState,
        indexes: KeyIndexes,
        stop_requested: Callable[[], bool],
        leader: Leader | None = None,
    ) -> None:
        """`leader`: the lead, if a former session kept it; this one lets go of it when it is closed."""
        settings = context.settings
        self._slot = context.slot
        self._storage = context.storage
        self._observer = context.observer
        self._totals = totals
        self._inbox = context.inbox
        self._indexes = indexes
        self._chunks: dict[TableId, list[tuple[MirroredTable, CopiedChunk]]] = {}
        self._awaiting_copy: dict[TableId, str] = {}
        """Why tables that are to be described first are to be copied again."""
        self._invalid_copies: set[tuple[TableId, Lsn, int]] = set()
        """Table, the start LSN and generation of copies that have begun again: each of their chunks may report it."""
        self._left: list[str] = []
        """URIs of the files that were left in the inbox when the session ended."""
        self._begin_again = False
        """The cut-line has moved: segments that were decoded under the former cut-line must not be published."""
        self._stop_requested = stop_requested
        self._leader = Leader.acquire(context.dsn, context.slot, totals.epoch) if leader is None else leader
        self._lead_kept = False
        totals.epoch = self._leader.epoch
        self._unpublished_files = UnpublishedFiles(context.storage)
        # In reverse: the threads end before what they left is removed.
        self._closing = ExitStack()
        self._closing.callback(self._release_lead)
        self._closing.callback(self._remove_leftovers)
        try:
            parts = start_services(
                self._closing,
                context,
                indexes,
                self._unpublished_files,
                self._leader.epoch,
                goal.until,
                totals.isolated_transaction,
            )
        except BaseException:
            self.close()
            raise
        self._services = parts
        # Of those that a former session told of.
        waiting = parts.connection.execute(_SQL["waiting"], {"slot": settings.slot}).fetchall()
        self._awaiting_copy |= {TableId(table_id): _cause(error) for table_id, error in waiting}
        self._frontier = totals.frontier = parts.applied
        self._scheduler = FrontierScheduler(
            goal, parts.applied, settings.idle_publish_bytes, settings.idle_publish_interval
        )
        self._began = self._retained_at = time.monotonic()
        self._caught_up = self._recovered = False

    def close(self) -> None:
        """End the threads, remove files of work that will not be published, let go of the lead."""
        # Threads may wait for an answer.
        self._empty_inbox()
        # The last first, and each of them, whatever becomes of the others.
        self._closing.close()

    def keep_lead(self) -> Leader:
        """The lead, for the next session: closing this one leaves it as it is."""
        self._lead_kept = True
        return self._leader

    def _release_lead(self) -> None:
        if not self._lead_kept:
            self._leader.release()

    def _remove_leftovers(self) -> None:
        self._unpublished_files.remove()
        self._empty_inbox()
        chunks = [chunk for copied in self._chunks.values() for _, chunk in copied]
        discard([*self._left, *(chunk.file.path for chunk in chunks if chunk.file is not None)], self._storage)

    def _empty_inbox(self) -> None:
        """Whoever waits for an answer to what is left in the inbox gets none; files are kept to be removed."""
        with suppress(Empty):
            while True:
                match self._inbox.get_nowait():
                    case AdvanceWanted(answer=answer):
                        answer.cancel()
                    case IndexWanted(answer=answer):
                        answer.cancel()
                    case FoldReady(fold=fold, answer=answer):
                        answer.cancel()
                        self._left += fold.files
                    case ChunkCopied(chunk=chunk) if chunk.file is not None:
                        self._left.append(chunk.file.path)
                    case FileRewriteReady(resolution=resolution):
                        self._left += [file.path for file in resolution.written]

    def run(self) -> bool:
        """Take work until the goal is reached or the stop requested. True: begin again at once."""
        self._observer(Step.STREAMING, frontier=self._frontier)
        if self._scheduler.goal.until is not None:
            self._services.receiver.want_position()
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
            # Also when the last chunk came with other work behind it: nothing else might ever publish it.
            if self._chunks and self._inbox.empty():
                self._publish_copies()
        # The memory goes with the process.
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
                # Anybody may ask for anything: a position that WAL has not reached is nothing that others should have
                # to wait behind. Whoever means it asks again.
                self._scheduler.want(min(lsn, wal_end(self._services.connection)))
                self._publish_idle()
                if self._scheduler.has_waiters(self._frontier):
                    self._services.receiver.want_position()
            case ChunkCopied(table, chunk):
                self._chunks.setdefault(table.table_id, []).append((table, chunk))
            case CopyPlanned():
                # An empty table has nothing to publish: the frontier has to move for it to go live.
                self._handle_idle()
            case CopyInvalid(table):
                landed = self._publish(PublishRequest(deltas=(TableDelta(table, (RestartCopy(),)),)))
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
                self._indexes.read(work)
            case IndexWanted():
                self._want_index(work)
            case FileRewriteReady():
                self._publish_rewrite(work)
            case AdvanceWanted():
                self._advance(work)
            case FoldReady():
                self._fold(work)
            case ArchiveBranchOutdated(table):
                self._publish(PublishRequest(deltas=(TableDelta(table, (RefreshArchive(),)),)))
            case ThreadFailed(error):
                if isinstance(error, UnsendableRow):
                    self._totals.isolated_transaction = Lsn(error.transaction)
                    self._unpublish_failed()
                raise error
            case StopRequested():
                return

    def _apply(self, batch: Batch) -> None:
        self._observer(Step.RECEIVED, changes=batch.end.changes, segments=batch.end.segments)
        results = self._results(batch.segments)
        applied = self._services.applier.apply(batch.end, [segment.tables for segment in batch.segments], results)
        self._observer(Step.WRITTEN, frontier=batch.end.end_lsn)
        self._unpublished_files.hand_over(segment.result for segment in batch.segments)
        landed = self._publish(
            PublishRequest(
                frontier=batch.end.end_lsn,
                commit_time_us=batch.end.commit_time_us,
                deltas=self._with_chunks(applied.deltas),
                failures=applied.failures,
                written_since=batch.written_since,
            )
        )
        self._services.receiver.batch_done()
        self._totals.changes += batch.end.changes
        changes = [delta.change for delta in applied.deltas if delta.change is not None]
        for change in changes:
            self._report_change(change)
        if changes:
            self._services.watcher.wake()
        if changes or any(delta.get(Truncate) is not None for delta in applied.deltas):
            self._services.copier.wake()
        self._scheduler.reached(landed.frontier)
        self._publish_idle()

    def _report_change(self, change: TableChange) -> None:
        """Say what became of a table that changed. One that cannot be copied again before it is described is told of
        twice: when that is known, and when its copy begins, for the same reason."""
        table = change.table
        reason = change.reason
        if change.copy_again:
            former = self._awaiting_copy.pop(table.table_id, "")
            reason = ", ".join(dict.fromkeys(part for part in (former, reason) if part)) or _DESCRIBED
            if table.awaiting_description:
                self._awaiting_copy[table.table_id] = _cause(reason)
        self._observer(_step_of(change), table=str(table.name), reason=reason)

    def _unpublish_failed(self) -> None:
        """Have the server send no more of tables that are set aside: a row of theirs may be what it cannot send, or
        their being published what makes it refuse their updates."""
        rows = self._services.connection.execute(_SQL["failed"], {"slot": self._slot}).fetchall()
        for table_id, publication in rows:
            # One that somebody holds a lock on stays until there is time; of a lost connection the loop hears soon.
            with suppress(SourceError), self._services.connection.transaction() as transaction:
                self._services.connection.execute("SELECT set_config('lock_timeout', '1s', true)")
                with source_errors("having the server send no more of a table"):
                    remove_from_publication(self._services.connection, publication, table_id)
                # It holds a lock now that registering needs: what is registered anew by now has to stay.
                if self._services.connection.execute(_SQL["set_aside"], {"table_id": table_id}).fetchone() is None:
                    raise psycopg.Rollback(transaction)

    def _publish_copies(self) -> None:
        self._publish(PublishRequest(deltas=self._with_chunks(())))
        self._observer(Step.CHUNKS_PUBLISHED)
        # After the last chunk the frontier has to move for the table to go live, and nothing may come that moves it.
        self._handle_idle()

    def _publish_rewrite(self, work: FileRewriteReady) -> None:
        table_id = work.table.table_id
        delta = TableDelta(work.table, (RewriteFiles(work.resolution),))
        landed = self._publish(PublishRequest(deltas=(delta,), written_since=work.written_since))
        accepted = table_id in landed.tables
        self._observer(work.landed if accepted else work.refused, table=str(work.table.name), **work.details)
        self._services.upkeep.finished(table_id, landed=accepted)

    def _advance(self, work: AdvanceWanted) -> None:
        """Move the cut-line, in a publish of its own: what is refused here must hold up nothing else.

        Invariant: what is published of the stream was decoded under the present cut-line, so that below the cut-line
        main changes by folds only. Segments in tasks and in the inbox were decoded under the former one; with this
        session they are forgotten, and the next one receives them again, from the frontier.
        """
        if not work.answer.set_running_or_notify_cancel():
            return
        try:
            landed = self._publish(PublishRequest(deltas=(TableDelta(work.table, (work.advance,)),)))
        except AdvanceRefused as refusal:
            work.answer.set_result(str(refusal))
            return
        except BaseException as error:
            work.answer.set_exception(error)
            raise
        if work.table.table_id not in landed.tables:
            work.answer.set_result("the table is not what it was: it was registered anew, or set aside")
            return
        self._begin_again = True
        self._observer(Step.TIER_ADVANCED, table=str(work.table.name), cut=work.advance.cut)
        work.answer.set_result(None)

    def _want_index(self, work: IndexWanted) -> None:
        if not work.answer.set_running_or_notify_cancel():
            return
        try:
            lake = self._services.publisher.load(work.table)
            work.answer.set_result(self._indexes.want(work.table, lake, work.deletes))
        except TableError:
            # The table is not what it was; its fold finds that out.
            work.answer.set_result(False)
        except BaseException as error:
            work.answer.set_exception(error)
            raise

    def _fold(self, work: FoldReady) -> None:
        """Publish corrections of rows below the cut-line."""
        if not work.answer.set_running_or_notify_cancel():
            return
        delta = TableDelta(work.table, (work.fold,))
        try:
            landed = self._publish(PublishRequest(deltas=(delta,), written_since=work.written_since))
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
        """Set the table aside if its present state needs the file that somebody missed. Raises LakeError while the
        storage as a whole does not answer."""
        table = load_table(self._services.connection, work.table_id)
        if table is None or table.state is TableState.FAILED:
            return
        failure = self._services.publisher.missing.confirmed(table, work.location)
        if failure is not None:
            self._publish(PublishRequest(failures=(failure,)))
        elif work.copying and work.location.startswith(f"{table.location}/"):
            raise LakeError(f"{work.location} could not be written for a moment", "the copy goes on by itself")

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
            by_table[table_id] = delta.adding(AddChunks(chunks)) if chunks else delta
        return tuple(by_table.values())

    def _publish(self, request: PublishRequest) -> LandedPublish:
        try:
            landed = self._services.publisher.publish(request)
        except BaseException:
            if not self._services.publisher.may_have_landed:
                # It certainly did not happen, and these files are not offered again.
                discard(files_of(request), self._storage)
            raise
        self._frontier = self._totals.frontier = landed.frontier
        self._totals.commits += 1
        self._observer(Step.PUBLISHED, frontier=landed.frontier, snapshots=landed.snapshots)
        self._services.upkeep.published(landed.tables)
        self._services.retention.published()
        self._services.receiver.acknowledge(landed)
        self._observer(Step.ACKNOWLEDGED, frontier=landed.frontier)
        for failure in landed.failures:
            self._services.receiver.drop(failure.table)
            self._indexes.forget(failure.table.table_id)
            tell_of_failure(self._observer, failure)
        if landed.failures:
            failed = {failure.table.table_id for failure in landed.failures}.difference(landed.tables)
            left_out = tuple(delta for delta in request.deltas if delta.table.table_id in failed)
            discard(files_of(PublishRequest(deltas=left_out)), self._storage)
            self._unpublish_failed()
        if landed.dropped:
            self._retain_indexes()
        if landed.live or landed.filling:
            tables = [load_table(self._services.connection, table_id) for table_id in (*landed.live, *landed.filling)]
            self._services.receiver.refresh(tuple(table for table in tables if table is not None))
            self._services.upkeep.live((*landed.live, *landed.filling))
            for table in tables[: len(landed.live)]:
                self._observer(Step.LIVE, table=str(table and table.name))
        return landed

    def _publish_idle(self) -> None:
        """Move the frontier without changes, if somebody needs it: a waiter, the goal, a copied table, or WAL of
        others."""
        position = self._scheduler.caught_up
        if position <= self._frontier:
            return
        if self._scheduler.due(self._frontier) or self._copy_due(position):
            self._scheduler.served()
            self._publish(PublishRequest(frontier=position, deltas=self._with_chunks(())))

    def _copy_due(self, position: Lsn) -> bool:
        """Whether a copied table may go live at `position`; if it only needs a later one, ask for that."""
        row = self._services.connection.execute(_SQL["due_to_go_live"], {"slot": self._slot}).fetchone()
        if row is None or row[0] is None:
            return False
        if row[0] <= position:
            return True
        self._scheduler.want(Lsn(row[0]))
        self._services.receiver.want_position()
        return False

    def _retain_indexes(self) -> None:
        self._retained_at = time.monotonic()
        retain_live(self._indexes, self._services.connection, self._slot)

    def _report_indexes(self) -> None:
        """`status` is told of an index that is ready, or has made room for another, also if its table rests."""
        for table_id, report in self._indexes.news().items():
            self._services.connection.execute(_SQL["index"], {"table_id": table_id, "report": Jsonb(dict(report))})

    def _handle_idle(self) -> None:
        """The inbox is idle: publish an empty batch if a client waits for the frontier."""
        if not self._recovered and time.monotonic() - self._began >= _RECOVERED_AFTER:
            self._recover()
        if self._scheduler.has_waiters(self._frontier) or not self._scheduler.goal.endless:
            self._services.receiver.want_position()
        self._publish_idle()
        if self._scheduler.caught_up <= self._frontier:
            self._copy_due(self._frontier)
        if time.monotonic() - self._retained_at >= _RETAIN_INTERVAL:
            self._retain_indexes()
            self._unpublish_failed()

    def _recover(self) -> None:
        """Clear the recorded error of the last session although nothing was published since."""
        if self._caught_up:
            clear_error(self._services.connection, self._slot)
            self._recovered = True
        else:
            self._services.receiver.want_position()

    def _done(self) -> bool:
        goal = self._scheduler.goal
        if goal.endless or (goal.until is not None and self._frontier < goal.until):
            return False
        if not goal.copies:
            return True
        row = self._services.connection.execute(_SQL["copying"], {"slot": self._slot}).fetchone()
        return row is not None and row[0] == 0

    def _results(self, segments: Iterable[PendingSegment]) -> list[SegmentResult]:
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
