"""Compares what a follower shows with the mirror: the same files by the same schema are the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum

from pyiceberg.table import Table

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import FollowerError, LakeError, with_remedy
from mirror_pump.json_documents import JsonDocument
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, TableId
from mirror_pump.ops.follow.follower_catalog import FollowerCatalog
from mirror_pump.ops.follow.follower_tables import FRONTIER, TableKind, kind_of, move_to, shown_table
from mirror_pump.ops.follow.following import PATIENCE, locked_follower
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.followers import Follower, FollowerTable, tables_of
from mirror_pump.source.catalog.published_state import PublishedState, published_states
from mirror_pump.source.connect import source_errors


class FollowerCheckResult(StrEnum):
    """What a comparison has found."""

    SAME = "same"
    """It shows what is published."""
    BEHIND = "behind"
    """It shows a former state, of which the mirror made it."""
    MISSING = "missing"
    """It is not there."""
    CHANGED = "changed"
    """Another program has committed to it there."""
    FOREIGN = "foreign"
    """A table of this name is there that is not this mirror's."""
    UNREADABLE = "unreadable"
    """It could not be compared."""


@dataclass(frozen=True)
class CheckedFollowerTable(JsonDocument):
    """A mirrored table, compared with what a follower shows of it."""

    table: str
    """Its name in the lake."""
    follower_table: str
    """Its name there."""
    result: FollowerCheckResult
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
        with closing(FollowerCatalog(follower)) as catalog:
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
        table: Table | None = None
        try:
            table = catalog.load(identifier)
            result, error = _result(follower, state, record, table, storage), None if record is None else record.error
        except (FollowerError, LakeError) as failure:
            catalog.answers()
            result, error = FollowerCheckResult.UNREADABLE, with_remedy(failure)
        frontier = None if table is None else table.metadata.properties.get(FRONTIER)
        yield CheckedFollowerTable(str(state.lake_name), ".".join(identifier), result, frontier, error)


def _result(
    follower: Follower,
    state: PublishedState,
    record: FollowerTable | None,
    table: Table | None,
    storage: StorageOptions,
) -> FollowerCheckResult:
    shown = shown_table(follower, state, None if record is None else record.directory, storage)
    kind = kind_of(table, follower, str(shown.metadata.table_uuid))
    if table is None or kind is TableKind.MISSING:
        return FollowerCheckResult.MISSING
    if kind is TableKind.FOREIGN:
        return FollowerCheckResult.FOREIGN
    if kind is TableKind.CHANGED:
        return FollowerCheckResult.CHANGED
    move = move_to(shown, table) if kind is TableKind.OURS else None
    if move is None or move.updates:
        return FollowerCheckResult.BEHIND
    there, published = table.metadata.current_snapshot(), shown.metadata.current_snapshot()
    assert there is not None
    assert published is not None
    same = there.manifest_list == published.manifest_list
    return FollowerCheckResult.SAME if same else FollowerCheckResult.CHANGED
