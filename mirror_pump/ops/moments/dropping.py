"""Gives moments up, and removes the tags of those that were given up.

A moment that is dropped may be being read, and its readers hold no pins. So its snapshots are pinned for the time of a
lease, in the transaction that removes it. From then on histories are thinned out, and files expire, as ever.

The tags go by the same transaction, where the lake table may be changed. A table that is being copied keeps its tag
until a pass of maintenance finds that its moment is gone.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import CommitConflict, ConnectionLost, FileDamaged, FileMissing, TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.metadata_files import next_location
from mirror_pump.lake.document.next_metadata import without_tags
from mirror_pump.lake.storage import StorageOptions, discard, write_all
from mirror_pump.model import TableId
from mirror_pump.pipeline.publish.landing import Landing, hold_slot
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
    """Give a moment up, and return what it was. Raises TableError if there is none of that name, SourceError and
    LakeError."""
    storage = lake_storage(settings)
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-moment") as connection:
        for _ in range(_TRIES):
            try:
                return _attempt(connection, settings, storage, name)
            except CommitConflict:
                continue
    raise TableError(
        f"the moment {name} was not dropped: other engines commit to the lake tables all the time",
        "try again when they are done",
    )


def _attempt(connection: PgConnection, settings: Settings, storage: StorageOptions, name: str) -> KeptMoment:
    """Raises CommitConflict if another engine has committed meanwhile."""
    files: list[str] = []
    try:
        with source_errors(f"dropping the moment {name}"), connection.transaction():
            hold_slot(connection, settings.slot, _STOPPED_SECONDS)
            moment = one_moment(connection, settings.slot, name)
            lakes = _lakes(connection, settings.slot, moment, storage)
            read = [
                (table.table_id, snapshot_id)
                for table in moment.tables
                for snapshot_id in sorted({table.snapshot_id, table.main_snapshot_id})
                # A sweep refuses to work while a snapshot is pinned that another engine has removed.
                if table.table_id in lakes and lakes[table.table_id][1].has_snapshot(snapshot_id)
            ]
            delete_moment(connection, settings.slot, name, read, settings.lease_timeout)
            for candidate, lake in lakes.values():
                if candidate.is_settled:
                    _untag(connection, settings.slot, candidate, lake, tag_names(name), files)
    except ConnectionLost:
        # It may have been committed, and name the files.
        raise
    except BaseException:
        discard(files, storage)
        raise
    return moment


def _lakes(
    connection: PgConnection, slot: str, moment: KeptMoment, storage: StorageOptions
) -> dict[TableId, tuple[CandidateTable, LakeTable]]:
    """The lake tables of the moment that are still registered, as readers see them. Without those whose metadata is
    lost or damaged: nothing reads them, and a pass of maintenance finds their tags once it can be read again."""
    registered = {table.table_id for table in moment.tables if table.pointer is not None}
    lakes = {}
    for candidate in candidate_tables(connection, slot):
        if candidate.table_id in registered and candidate.metadata_location is not None:
            with suppress(FileMissing, FileDamaged):
                lakes[candidate.table_id] = (candidate, LakeTable.load(candidate.metadata_location, storage))
    return lakes


def _untag(
    connection: PgConnection,
    slot: str,
    table: CandidateTable,
    lake: LakeTable,
    tags: Collection[str],
    files: list[str],
) -> None:
    """Removes tags of a lake table, in the caller's transaction. `files` gets those that are written."""
    if lake.metadata.refs.keys().isdisjoint(tags):
        return
    metadata = without_tags(lake.metadata, tags, lake.metadata_location, time.time_ns() // 1_000_000)
    location = next_location(lake.metadata, lake.metadata_location)
    write_all([(location, metadata.to_json())], lake.storage)
    files.append(location)
    landing = Landing(connection, slot, table.table_id, table.start_lsn, table.lake_name, lake.storage)
    landing.land_staged(lake, replace(lake, metadata=metadata, metadata_location=location))
