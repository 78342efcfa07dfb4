"""Gives moments up, and removes the tags of those that were given up.

A moment that is dropped may be being read, and its readers hold no pins. So its snapshots are pinned for the time of a
lease, in the transaction that removes it. From then on histories are thinned out, and files expire, as ever.

The tags go by the same transaction, where the lake table may be changed. A table that is being copied keeps its tag
until a pass of maintenance finds that its moment is gone; so does one that has moved at each try.
"""

from __future__ import annotations

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import CommitConflict, ConnectionLost, TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.next_metadata import without_tags
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.model import SnapshotId, TableId
from mirror_pump.ops.moments.staged_tags import StagedTags
from mirror_pump.pipeline.publish.landing import hold_slot
from mirror_pump.runtime.interrupts import deferred_interrupt
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.kept_moments import (
    CandidateTable,
    KeptMoment,
    candidate_tables,
    delete_moment,
    read_moments,
    tag_names,
)
from mirror_pump.source.connect import PgConnection, connect, source_errors

_TRIES = 16
_STOPPED_SECONDS = 60


def no_such_moment(name: str) -> TableError:
    """The error for a name that no moment has."""
    return TableError(f"there is no moment {name}", "mirror-pump moment list shows those that are kept")


def one_moment(connection: PgConnection, slot: str, name: str) -> KeptMoment:
    """The moment of that name. Raises TableError if there is none, SourceError."""
    moments = read_moments(connection, slot, name)
    if not moments:
        raise no_such_moment(name)
    return moments[0]


def drop(settings: Settings, name: str) -> KeptMoment:
    """Give a moment up, and return what it was. The pump's publishes wait only while it is taken out of the catalog.
    Raises TableError if there is none of that name, SourceError and LakeError."""
    storage = lake_storage(settings)
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-moment") as connection:
        # Of a damaged table nothing is read, and a pass of maintenance finds its tags once it can be read again.
        tags = StagedTags(connection, settings.slot, storage, without_damaged=True)
        try:
            for last in [False] * (_TRIES - 1) + [True]:
                try:
                    return _attempt(connection, settings, tags, name, last=last)
                except CommitConflict:
                    continue
        finally:
            tags.discard()
    raise TableError(
        f"the moment {name} was not dropped: other engines commit to the lake tables all the time",
        "try again when they are done",
    )


def _attempt(connection: PgConnection, settings: Settings, tags: StagedTags, name: str, *, last: bool) -> KeptMoment:
    """Raises CommitConflict if tables have moved meanwhile, unless it is the last try."""

    def untagged(candidate: CandidateTable, lake: LakeTable, now_ms: int) -> TableMetadata | None:
        metadata = lake.metadata
        if not candidate.is_settled or metadata.refs.keys().isdisjoint(tag_names(name)):
            return None
        return without_tags(metadata, tag_names(name), lake.metadata_location, now_ms)

    with source_errors(f"dropping the moment {name}"):
        moment = one_moment(connection, settings.slot, name)
        tags.stage(_registered(connection, settings.slot, moment), untagged, {})
    try:
        # An interrupt waits until it is certain whether the COMMIT happened.
        with deferred_interrupt(connection.cancel):
            with source_errors(f"dropping the moment {name}"), connection.transaction():
                hold_slot(connection, settings.slot, _STOPPED_SECONDS)
                moment = one_moment(connection, settings.slot, name)
                tables = _registered(connection, settings.slot, moment)
                moved = tags.moved(tables)
                if moved and not last:
                    raise CommitConflict("lake tables have moved since their tags were staged")
                delete_moment(connection, settings.slot, name, _in_histories(tags, moment), settings.lease_timeout)
                tags.land([table for table in tables if table.is_settled and table not in moved])
            tags.keep()
    except ConnectionLost:
        # It may have been committed, and name the files.
        tags.keep()
        raise
    return moment


def _registered(connection: PgConnection, slot: str, moment: KeptMoment) -> list[CandidateTable]:
    """The tables of the moment that are still registered, as readers see them."""
    registered = {table.table_id for table in moment.tables if table.pointer is not None}
    return [
        candidate
        for candidate in candidate_tables(connection, slot)
        if candidate.table_id in registered and candidate.metadata_location is not None
    ]


def _in_histories(tags: StagedTags, moment: KeptMoment) -> list[tuple[TableId, SnapshotId]]:
    """The moment's snapshots that are in the histories of their tables, with the table of each. A sweep refuses to work
    while a snapshot is pinned that another engine has removed."""
    return [
        (table.table_id, snapshot_id)
        for table in moment.tables
        for snapshot_id in sorted({table.snapshot_id, table.main_snapshot_id})
        if (lake := tags.base(table.table_id)) is not None and lake.has_snapshot(snapshot_id)
    ]
