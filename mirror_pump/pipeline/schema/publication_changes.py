"""Marks tables to be copied again if the stream may lack some of their changes because the publication was altered."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirror_pump.errors import TableError
from mirror_pump.model import Lsn, MirroredTable, TableId, TableState
from mirror_pump.pipeline.flow.steps import Observer, Step, report_failure
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.operations.copy_again import CopyAgain
from mirror_pump.pipeline.operations.record_publication import RecordPublication
from mirror_pump.pipeline.operations.requests import PublishRequest, TableRequest
from mirror_pump.pipeline.operations.table_changes import TableChange
from mirror_pump.pipeline.publish.publisher import Publisher
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.catalog.pauses import PAUSED
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.options.option_values import choices_text
from mirror_pump.source.relations.published_rules import PublishedRules, read_rules, with_rules
from mirror_pump.source.stream.publication import PublicationCheck, how_to_restore, not_whole
from mirror_pump.source.stream.slot import check_publication, wal_end

_REASON = "another session changed how it is published: the stream may lack changes of it"
_TAKEN_OVER = "another session changed how it is published, and it is mirrored so from now on"
_NOT_WHOLE = "another session changed how it is published, and the stream does not have all of it"


@dataclass(frozen=True)
class _TakeOver:
    """What becomes of a table whose publication was altered."""

    table: MirroredTable
    reason: str
    rules: PublishedRules | None = None
    """The rules that it takes over."""
    waits_for_owner: bool = False


def _incomplete(connection: PgConnection, publication: str, table: MirroredTable) -> _TakeOver:
    """For a table that is not published as it is registered: it takes over what the publication has, or waits."""
    if table.paused_since is not None:
        return _TakeOver(table, PAUSED, waits_for_owner=True)
    rules = read_rules(connection, publication, table.table_id)
    problem = ""
    if rules is not None:
        try:
            with work_for(table):
                changed_table = with_rules(connection, publication, table, rules)
        except TableError as error:
            remedy = f"; {error.remedy}" if error.remedy else ""
            problem = f" ({error}{remedy})"
        else:
            options = choices_text(changed_table)
            return _TakeOver(changed_table, f"{_TAKEN_OVER}: {options or 'all columns and rows'}", rules)
    reason = f"{_NOT_WHOLE}{problem}: {how_to_restore(publication, table)}"
    return _TakeOver(table, reason, waits_for_owner=True)


def copy_altered(
    connection: PgConnection,
    slot: str,
    check: PublicationCheck,
    publication: str,
    applied: Lsn,
    publisher: Publisher,
    indexes: KeyIndexes,
    observer: Observer,
) -> None:
    """Make tables whose publication was altered await their description, and then be copied again. Until then readers
    see them as of their last frontier.

    The copy starts at a note of the schema watcher (mirror_pump.pipeline.schema.schema_watcher). Tables that are
    published whole now, or whose new column list or row filter they take over, wait only for this note; the others wait
    until they are published whole. `applied` is the
    frontier. A table that was already awaiting its description gets the current end of WAL as its start LSN: the WAL
    before it may hold a note for the copy from a time without the table's changes, and each session would find that
    note again. Raises SourceError for a publication that the mirror cannot continue with.
    """
    # Read this before the tables: a note of a table that is dropped afterwards lies beyond this position.
    end = wal_end(connection)
    altered = [load_table(connection, table_id) for table_id in check.altered_tables(connection)]
    missing = not_whole(connection, slot) if altered else set[TableId]()
    table_requests = []
    for table in altered:
        if table is not None and not table.state.has_ended:
            outcome = _TakeOver(table, _REASON)
            if table.table_id in missing:
                outcome = _incomplete(connection, publication, table)
            begin = end if table.awaiting_description or outcome.rules is not None else applied
            waiting = replace(
                outcome.table,
                state=TableState.WAITING,
                start_lsn=Lsn(max(begin, table.start_lsn + 1)),
                live_after_lsn=None,
            )
            change = TableChange(waiting, table.start_lsn, 0, outcome.reason, waits_for_owner=outcome.waits_for_owner)
            table_requests.append(TableRequest(waiting, (CopyAgain(change), RecordPublication(outcome.rules))))
    if not table_requests:
        return
    landed = publisher.publish(PublishRequest(tables=tuple(table_requests)))
    # The publish also recorded the publication's settings as of that moment. They may have changed since they were last
    # checked.
    check_publication(connection, publication)
    for failure in landed.failures:
        indexes.forget(failure.table.table_id)
        report_failure(observer, failure)
    failed = {failure.table.table_id for failure in landed.failures}
    tables_by_id = {table.table_id: table for table in altered if table is not None}
    for table_request in table_requests:
        table_id, published = table_request.table.table_id, table_request.change
        if published is not None and not tables_by_id[table_id].awaiting_description and table_id not in failed:
            step = Step.TABLE_WAITING if published.waits_for_owner else Step.TABLE_COPIED_AGAIN
            observer(step, table=str(table_request.table.name), reason=published.reason)
