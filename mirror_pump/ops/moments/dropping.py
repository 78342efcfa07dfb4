"""Gives moments up, and removes the tags of those that were given up.

A moment that is dropped may be being read, and its readers hold no pins. So its snapshots are pinned for the time of a
lease, in the transaction that removes it. From then on histories are thinned out, and files expire, as ever.

The tags go by the same transaction, where the lake table may be changed. A table that is being copied keeps its tag
until a pass of maintenance finds that its moment is gone; so does one that has moved at each try.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import CommitConflict, TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.next_metadata import without_tags
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.model import SnapshotId, TableId
from mirror_pump.ops.moments.staged_tags import StagedTags
from mirror_pump.pipeline.landing.landing import Landing
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.kept_moments import (
    KeptMoment,
    delete_moment,
    read_moments,
    tag_names,
)
from mirror_pump.source.catalog.published_state import PublishedState, published_states
from mirror_pump.source.connect import PgConnection, connect


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
    with (
        connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-moment") as connection,
        WrittenFiles(lake_storage(settings)) as files,
    ):
        try:
            return _Dropping(connection, settings, files, name).land()
        except CommitConflict as conflict:
            raise TableError(
                f"the moment {name} was not dropped: other engines commit to the lake tables all the time",
                "try again when they are done",
            ) from conflict


@dataclass(frozen=True)
class _DroppedMoment:
    """A moment, and those of its tables that are still registered, as readers see them."""

    moment: KeptMoment
    tables: list[PublishedState]


class _Dropping(Landing[_DroppedMoment, KeptMoment]):
    """Takes a moment out of the catalog, and its tags out of the lake tables."""

    tries = 16
    stopped_seconds = 60
    quick_seconds = inf
    """Nothing is staged under the lock."""

    def __init__(self, connection: PgConnection, settings: Settings, files: WrittenFiles, name: str) -> None:
        super().__init__(connection, settings.slot, files, f"dropping the moment {name}")
        self._name = name
        self._lease = settings.lease_timeout
        # Of a damaged table nothing is read, and a pass of maintenance finds its tags once it can be read again.
        self._tags = StagedTags(connection, files, without_damaged=True)

    def look(self) -> _DroppedMoment:
        moment = one_moment(self.connection, self.slot, self._name)
        registered = {table.table_id for table in moment.tables if table.pointer is not None}
        tables = [
            candidate
            for candidate in published_states(self.connection, slot=self.slot)
            if candidate.table_id in registered and candidate.metadata_location is not None
        ]
        return _DroppedMoment(moment, tables)

    def has_moved(self, _base: _DroppedMoment, current: _DroppedMoment) -> bool:
        return bool(self._tags.moved(current.tables))

    def supersede(self, _conflict: CommitConflict) -> None:
        """Tables that have not moved stay staged."""

    def stage(self, base: _DroppedMoment) -> KeptMoment:
        def untagged(candidate: PublishedState, lake: LakeTable, now_ms: int) -> TableMetadata | None:
            metadata, tags = lake.metadata, tag_names(self._name)
            if not candidate.is_settled or metadata.refs.keys().isdisjoint(tags):
                return None
            return without_tags(metadata, tags, lake.metadata_location, now_ms)

        self._tags.stage(base.tables, untagged, {})
        return base.moment

    def stage_late(self, base: _DroppedMoment) -> KeptMoment:
        """Tables that have moved once more keep their tags."""
        return base.moment

    def swap(self, lock: SlotLock, base: _DroppedMoment, _state: KeptMoment) -> None:
        delete_moment(self.connection, self.slot, self._name, _in_histories(self._tags, base.moment), self._lease)
        moved = self._tags.moved(base.tables)
        self._tags.land(lock, [table for table in base.tables if table.is_settled and table not in moved])


def _in_histories(tags: StagedTags, moment: KeptMoment) -> list[tuple[TableId, SnapshotId]]:
    """The moment's snapshots that are in the histories of their tables, with the table of each. A sweep refuses to work
    while a snapshot is pinned that another engine has removed."""
    return [
        (table.table_id, snapshot_id)
        for table in moment.tables
        for snapshot_id in sorted({table.snapshot_id, table.main_snapshot_id})
        if (lake := tags.base(table.table_id)) is not None and lake.has_snapshot(snapshot_id)
    ]
