"""Has tables copied again of which the stream may lack changes, because somebody changed the publication."""

from __future__ import annotations

from dataclasses import replace

from mirror_pump.model import Lsn, TableState
from mirror_pump.pipeline.flow.batches import TableChange
from mirror_pump.pipeline.flow.requests import PublishRequest, TableDelta
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.publish.publisher import Publisher
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.stream.publication import altered_tables
from mirror_pump.source.stream.slot import check_publication, wal_end

_REASON = "somebody changed how it is published: the stream may lack changes of it"


def copy_altered(
    connection: PgConnection,
    slot: str,
    publication: str,
    applied: Lsn,
    publisher: Publisher,
    indexes: KeyIndexes,
    observer: Observer,
) -> None:
    """Make such tables wait for a note to be copied again from (mirror_pump.pipeline.schema.schema_watcher), as of
    their last F.

    Those that are published whole now; the others wait until they are. `applied`: F. One that waited before has its L0
    at the present end of WAL: a note that it was to be copied from may be in there, of a time without the table's
    changes, and each session would find it again. Raises SourceError for a publication that the mirror cannot go on
    with.
    """
    # Before the look: whoever drops a table behind it says so beyond this.
    end = wal_end(connection)
    altered = [load_table(connection, table_id) for table_id in altered_tables(connection, slot)]
    deltas = []
    for table in altered:
        if table is not None and table.state is not TableState.FAILED:
            begin = end if table.awaiting_description else applied
            waiting = replace(
                table,
                state=TableState.COPYING,
                start_lsn=Lsn(max(begin, table.start_lsn + 1)),
                live_after_lsn=None,
                awaiting_description=True,
            )
            change = TableChange(waiting, table.start_lsn, 0, _REASON)
            deltas.append(TableDelta(waiting, change=change, republished=True))
    if not deltas:
        return
    landed = publisher.publish(PublishRequest(deltas=tuple(deltas)))
    # Of the settings, too, it recorded what they were by then, which may be others than were found in order before.
    check_publication(connection, publication)
    for failure in landed.failures:
        indexes.forget(failure.table.table_id)
        observer(Step.TABLE_FAILED, table=str(failure.table.name), error=failure.error)
    failed = {failure.table.table_id for failure in landed.failures}
    for table in altered:
        if table is not None and not table.awaiting_description and table.table_id not in failed:
            observer(Step.TABLE_COPIED_AGAIN, table=str(table.name), reason=_REASON)
