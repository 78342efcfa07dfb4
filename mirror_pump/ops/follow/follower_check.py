"""Compares what a follower shows with the mirror: the same files by the same schema are the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from pyiceberg.table import Table

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import FollowerError, LakeError, with_remedy
from mirror_pump.json_documents import JsonDocument
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, TableId
from mirror_pump.ops.follow.follower_catalog import FollowerCatalog
from mirror_pump.ops.follow.follower_tables import (
    FRONTIER,
    FollowerTableState,
    ForeignEntry,
    move_to,
    shown_table,
    state_of,
)
from mirror_pump.ops.follow.following import PATIENCE, locked_follower
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.followers import Follower, FollowerTable, tables_of
from mirror_pump.source.catalog.published_state import PublishedState, published_states
from mirror_pump.source.connect import source_errors


@dataclass(frozen=True)
class CheckedFollowerTable(JsonDocument):
    """A mirrored table, compared with what a follower shows of it."""

    table: str
    """Its name in the lake."""
    follower_table: str
    """Its name there."""
    result: FollowerTableState
    frontier: str | None
    """The frontier that the table there is as of, as it says itself."""
    error: str | None
    """Why it is not the same, if the pump or this look has found out."""


def check_follower(settings: Settings, name: str) -> list[CheckedFollowerTable]:
    """All mirrored tables that can be read. No pump changes anything there meanwhile. Raises FollowerError if the
    catalog does not answer, UsageError, SourceError."""
    storage = lake_storage(settings)
    with locked_follower(settings, name, PATIENCE) as (connection, follower):
        records = {record.registration: record for record in tables_of(connection, follower)}
        with closing(FollowerCatalog(follower, storage)) as catalog:
            with source_errors("reading the mirrored tables"):
                states = published_states(connection, slot=settings.slot)
            return list(_checked(states, records, follower, catalog, storage))


def _checked(
    states: list[PublishedState],
    records: Mapping[tuple[TableId, Lsn], FollowerTable],
    follower: Follower,
    catalog: FollowerCatalog,
    storage: StorageOptions,
) -> Iterator[CheckedFollowerTable]:
    for state in states:
        if not state.is_readable or state.metadata_location is None:
            continue
        record = records.get((state.table_id, state.start_lsn))
        identifier = follower.identifier(state.lake_name)
        table: Table | ForeignEntry | None = None
        try:
            table = catalog.load(identifier)
            result, error = _result(follower, state, record, table, storage), None if record is None else record.error
        except (FollowerError, LakeError) as failure:
            catalog.answers()
            result, error = FollowerTableState.UNREADABLE, with_remedy(failure)
        frontier = table.metadata.properties.get(FRONTIER) if isinstance(table, Table) else None
        yield CheckedFollowerTable(str(state.lake_name), ".".join(identifier), result, frontier, error)


def _result(
    follower: Follower,
    published_state: PublishedState,
    record: FollowerTable | None,
    table: Table | ForeignEntry | None,
    storage: StorageOptions,
) -> FollowerTableState:
    shown = shown_table(follower, published_state, None if record is None else record.directory, storage)
    state = state_of(table, follower, str(shown.metadata.table_uuid))
    if state is not FollowerTableState.BEHIND or not isinstance(table, Table):
        return state
    move = move_to(shown, table)
    if move is None or move.updates:
        return state
    there, published = table.metadata.current_snapshot(), shown.metadata.current_snapshot()
    assert there is not None
    assert published is not None
    same = there.manifest_list == published.manifest_list
    return FollowerTableState.SAME if same else FollowerTableState.CHANGED
