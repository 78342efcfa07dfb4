"""Handles events that concern one table: publishes that threads ask for, altered and lost lake tables, failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirror_pump.errors import FileDamaged, FileMissing, LakeError, TableError
from mirror_pump.model import Lsn, MirroredTable, TableId, TableMode, TableState
from mirror_pump.partition_life import TAKEN, Refused
from mirror_pump.pipeline.flow.events import (
    CopyInvalid,
    Event,
    FileRewriteReady,
    IndexRead,
    IndexWanted,
    LakeFileMissing,
    LakeTableMoved,
    PublishWanted,
    TableFailed,
    TableGivenUp,
    TieredTableChanged,
)
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.missing_files.missing_files import stored_tables
from mirror_pump.pipeline.operations.advance_cutline import AdvanceCutline, AdvanceRefused
from mirror_pump.pipeline.operations.combinations import schema_operation
from mirror_pump.pipeline.operations.expire_rows import ExpireRows, ExpiryRefused
from mirror_pump.pipeline.operations.fold_corrections import FoldCorrections
from mirror_pump.pipeline.operations.requests import FeedRequest, PublishRequest, TableRequest
from mirror_pump.pipeline.operations.restart_copy import RestartCopy
from mirror_pump.pipeline.operations.table_changes import Failure, TableChange
from mirror_pump.pipeline.publish.foreign_commits import examination
from mirror_pump.pipeline.session.services import SessionServices
from mirror_pump.pipeline.session.session_publisher import SessionPublisher
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.catalog.tables import load_table

_REWRITTEN = "its heap was rewritten while it was copied: the copy restarts"
_LEFT_OUT = Refused("the table has failed, was registered again, or is being copied")


class TableEvents:
    """The events of one session. Only the loop's thread may use it."""

    def __init__(
        self,
        observer: Observer,
        services: SessionServices,
        publisher: SessionPublisher,
        indexes: KeyIndexes,
        change_reports: TableChangeReports,
    ) -> None:
        self._observer = observer
        self._services = services
        self._publisher = publisher
        self._indexes = indexes
        self._change_reports = change_reports
        self._invalid_copies: set[tuple[TableId, Lsn, int]] = set()
        """Table, start LSN and generation of copies that were restarted. Each chunk of such a copy may report it, but
        it is reported to the observer only once."""
        self.cutline_moved = False
        """Segments were decoded under a former cut-line, and must not be published."""

    def take(self, event: Event) -> None:
        """Handles an event of one table. Ignores others."""
        match event:
            case PublishWanted():
                self._publish_wanted(event)
            case CopyInvalid(table):
                self._restart_copy(table)
            case TableFailed(table, error):
                self._publisher.publish(PublishRequest(failures=(Failure(table, error),)))
            case LakeFileMissing():
                self._fail_if_missing(event)
            case LakeTableMoved(table_id):
                self._publisher.publish(examination(self._services.connection, table_id))
            case IndexRead(table_id):
                self._take_index(table_id, event)
            case IndexWanted():
                self._want_index(event)
            case TieredTableChanged():
                self._follow(event)
            case TableGivenUp():
                self._give_up(event)

    def fail_owner(self, error: FileMissing) -> None:
        """Fail the table whose missing file ends the session; otherwise the next session would fail on it again."""
        for stored in stored_tables(self._services.connection):
            if error.location.startswith(f"{stored.location}/"):
                self._fail_if_missing(LakeFileMissing(stored.table_id, error.location))

    def _publish_wanted(self, request: PublishWanted) -> None:
        """Publish one operation by itself, for a thread that waits for the answer."""
        if not request.answer.set_running_or_notify_cancel():
            return
        table_id = request.table.table_id
        try:
            landed = self._publisher.publish(PublishRequest.of(request.table, request.operation, request.written_since))
        except (AdvanceRefused, ExpiryRefused) as refusal:
            request.answer.set_result(Refused(str(refusal)))
            return
        except BaseException as error:
            request.answer.set_exception(error)
            raise
        if table_id not in landed.tables or table_id in landed.refused:
            request.answer.set_result(_LEFT_OUT)
            return
        self._report_landed(request)
        request.answer.set_result(TAKEN)

    def _report_landed(self, request: PublishWanted) -> None:
        """Tells the observer what was done.

        Invariant: published stream changes were decoded under the current cut-line, so that below the cut-line the
        main branch changes by folds and ingests only. Segments in tasks and in the inbox were decoded under the old
        cut-line. They are discarded with this session, and the next session receives them again from the frontier. No
        segment concerns a tiered table, so the session goes on after an advance of its cut-line.
        """
        name = str(request.table.name)
        match request.operation:
            case AdvanceCutline(cut=cut):
                self.cutline_moved |= request.table.mode is TableMode.MIRRORED
                self._observer(Step.TIER_ADVANCED, table=name, cut=cut)
            case ExpireRows(line=line):
                self._observer(Step.EXPIRED, table=name, line=line)
            case FoldCorrections(versions=versions):
                self._observer(Step.FOLDED, table=name, rows=len(versions))

    def publish_rewrites(self, rewrites: Sequence[FileRewriteReady]) -> None:
        """Publishes rewrites of different tables and feeds together: most of what a publish costs does not depend on
        how many tables it changes. One that does not fit its table any more is left out alone."""
        requests = [ready.request for ready in rewrites]
        request = PublishRequest(
            tables=tuple(part for part in requests if isinstance(part, TableRequest)),
            feeds=tuple(part for part in requests if isinstance(part, FeedRequest)),
            written_since=min(ready.written_since for ready in rewrites),
        )
        landed = self._publisher.publish(request)
        for ready, part in zip(rewrites, requests, strict=True):
            if isinstance(part, FeedRequest):
                has_landed = part.feed_id not in landed.refused_feeds
                self._services.feed_upkeep.finished(part.feed_id, landed=has_landed)
            else:
                has_landed = part.table.table_id in landed.tables
                self._services.upkeep.finished(part.table.table_id, landed=has_landed)
            self._observer(ready.landed if has_landed else ready.refused, table=ready.name, **ready.details)

    def _restart_copy(self, table: MirroredTable) -> None:
        landed = self._publisher.publish(PublishRequest.of(table, RestartCopy()))
        copy = table.table_id, table.start_lsn, table.generation
        if table.table_id in landed.tables and copy not in self._invalid_copies:
            self._invalid_copies.add(copy)
            self._observer(Step.TABLE_COPIED_AGAIN, table=str(table.name), reason=_REWRITTEN)
        self._services.wake_copies()

    def _want_index(self, request: IndexWanted) -> None:
        if not request.answer.set_running_or_notify_cancel():
            return
        try:
            lake = self._services.publisher.load(request.table)
            with work_for(request.table):
                request.answer.set_result(self._indexes.request(request.table, lake, request.deletes))
        except (TableError, FileDamaged):
            # The table has changed, or cannot be read. Its fold will find that out.
            request.answer.set_result(False)
        except BaseException as error:
            request.answer.set_exception(error)
            raise

    def _take_index(self, table_id: TableId, event: IndexRead) -> None:
        try:
            with work_for(str(table_id)):
                self._indexes.take_answer(event)
        except TableError:
            # The table goes on without its index, and another one is built.
            self._indexes.forget(table_id)

    def _follow(self, altered: TieredTableChanged) -> None:
        """Publish a change of a tiered table, unless it is followed already."""
        known_table = altered.known_table
        current = load_table(self._services.connection, known_table.table_id)
        if current is None or current.state is not known_table.state or current.shape != known_table.shape:
            return
        change = altered.change
        if altered.failure is not None:
            self._publisher.publish(PublishRequest(failures=(altered.failure,)))
        elif change is not None:
            landed = self._publisher.publish(PublishRequest.of(change.table, schema_operation(change)))
            if known_table.table_id not in landed.dropped:
                self._change_reports.report(change)

    def _give_up(self, given_up: TableGivenUp) -> None:
        table = load_table(self._services.connection, given_up.table_id)
        if table is not None and not table.state.has_ended and not given_up.handled.is_set():
            self._publisher.publish(PublishRequest(failures=(Failure(table, given_up.error),)))
        given_up.handled.set()

    def _fail_if_missing(self, missing: LakeFileMissing) -> None:
        """Fail the table if its current state needs the missing file. Raises LakeError while the storage as a whole
        does not answer."""
        table = load_table(self._services.connection, missing.table_id)
        if table is None or table.state is TableState.FAILED:
            return
        failure = self._services.publisher.missing.confirmed(table, missing.location)
        if failure is not None:
            self._publisher.publish(PublishRequest(failures=(failure,)))
        elif missing.copying and missing.location.startswith(f"{table.location}/"):
            raise LakeError(f"{missing.location} could not be written for a moment", "the copy continues by itself")


_DESCRIBED = "an earlier change of it made this necessary, and its new definition is known now"
"""Why a table is copied again, if only an earlier session knew the exact reason."""


class TableChangeReports:
    """Reports to the observer how tables change in one session, and why they are copied again."""

    def __init__(self, observer: Observer, waiting: Mapping[TableId, str]) -> None:
        """`waiting`: why the tables that await their description will be copied again. Earlier sessions have reported
        these tables."""
        self._observer = observer
        self._waiting = {table_id: _cause(reason) for table_id, reason in waiting.items()}

    def report(self, change: TableChange) -> None:
        """Report what happens to a changed table.

        A table that awaits its description before it is copied again is reported twice with the same reason: when the
        need for the copy is known, and when the copy begins.
        """
        table = change.table
        reason = change.reason
        if change.copy_again:
            earlier_reason = self._waiting.pop(table.table_id, "")
            reason = ", ".join(dict.fromkeys(part for part in (earlier_reason, reason) if part)) or _DESCRIBED
            if table.awaiting_description:
                self._waiting[table.table_id] = _cause(reason)
        if reason:
            remedy = {"remedy": change.remedy} if change.remedy else {}
            self._observer(_step_of(change), table=str(table.name), reason=reason, **remedy)


def _step_of(change: TableChange) -> Step:
    if change.waits_for_owner:
        return Step.TABLE_WAITING
    if change.copy_again:
        return Step.TABLE_COPIED_AGAIN
    return Step.TABLE_FILLING if change.fills else Step.TABLE_CHANGED


def _cause(reason: str) -> str:
    """The reason without the sentences that tell the owner what to do."""
    return reason.partition(". ")[0]
