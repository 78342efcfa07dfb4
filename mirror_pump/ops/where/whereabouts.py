"""Says where rows with some values still are, whether they are deleted or not, and what ends each of these states.

It only reads. What is written meanwhile counts as far as it is there when the directory is listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import FileDamaged, FileMissing, MirrorPumpError, UsageError
from mirror_pump.json_documents import JsonDocument
from mirror_pump.lake.document.metadata_files import read_any_version
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.format.feed_schema import FEED_SUFFIX
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, TableId, TableName
from mirror_pump.ops.register.unregistration import former_named, present_name, registered_table
from mirror_pump.ops.where.file_search import FileSearch, RowFile, UnreadFile, schemas_of
from mirror_pump.ops.where.reaching_states import RootKind, RowState, SearchedRoot, StateKind
from mirror_pump.ops.where.searched_rows import SearchedRow, searched_row
from mirror_pump.settings.config import Settings
from mirror_pump.settings.policy import Policy, policy_of
from mirror_pump.source.catalog.change_feeds import load_feed
from mirror_pump.source.catalog.former_locations import FormerLocation, former_locations
from mirror_pump.source.catalog.kept_moments import KeptMoment, read_moments
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.rows import fetch_row
from sql import queries

_SQL = queries("where")


@dataclass(frozen=True)
class Whereabouts(JsonDocument):
    """Where a row is."""

    table: TableName
    values: Mapping[str, str]
    """What was looked for, by column, as PostgreSQL prints it."""
    states: tuple[RowState, ...]
    """Empty: the row is nowhere."""
    files: tuple[RowFile, ...]
    unread: tuple[UnreadFile, ...]
    """Not empty: the answer is not complete."""
    heap_read: bool
    """Whether the role may read the whole table in PostgreSQL. If not, nothing is said of it."""
    files_read: int
    files_left_out: int
    """By the bounds of their columns, which say that they do not have the row."""


def where(settings: Settings, name: str, values: Sequence[str], columns: Sequence[str]) -> Whereabouts:
    """Look for rows of a table whose `columns` have these values, by default those of the key. The table may be one
    that was registered. Raises UsageError for another table, column or value, SourceError, and LakeError if the lake's
    metadata cannot be read."""
    storage = lake_storage(settings)
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-where") as connection:
        table, formers = _named(connection, name)
        relation, table_id = _relation(connection, table, formers)
        roots = list(_roots(connection, settings.slot, table, formers, storage))
        row = searched_row(connection, relation, table_id, _given(table, roots, values, columns))
        states, heap_read = _in_postgres(connection, table, row)
    search = FileSearch(storage, row.texts)
    for root in roots:
        # A feed has the field IDs of its table, and may have other names for its columns.
        search.look_into(root, roots[0] if root.kind is RootKind.FEED else root)
    return Whereabouts(
        relation,
        row.texts,
        (*states, *search.states),
        tuple(search.files),
        tuple(search.unread),
        heap_read,
        search.files_read,
        search.files_left_out,
    )


def _named(connection: PgConnection, name: str) -> tuple[MirroredTable | None, list[FormerLocation]]:
    """The registration of the table, and where those that have ended left files. Raises MirrorPumpError if there is
    neither."""
    table = None
    try:
        table = registered_table(connection, name)
        names = {table.name, TableName(table.name.schema, table.lake_table)}
    except MirrorPumpError:
        named = former_named(connection, name)
        if not named:
            raise
        names = {named[0].table}
    names |= {TableName(one.schema, one.name + FEED_SUFFIX) for one in names}
    return table, [location for location in former_locations(connection) if location.table in names]


def _relation(
    connection: PgConnection, table: MirroredTable | None, formers: Sequence[FormerLocation]
) -> tuple[TableName, TableId]:
    """What PostgreSQL calls the table now, or did, and its OID; 0 if it is gone."""
    if table is not None:
        return present_name(connection, table), table.table_id
    with suppress(UsageError):
        return resolve_name(connection, str(formers[0].table))
    return formers[0].table, TableId(0)


@dataclass(frozen=True)
class _SearchedTable:
    """A row of the query `table`."""

    policy: Mapping[str, Any] | None
    metadata_location: str | None
    published_snapshot: int


def _roots(
    connection: PgConnection,
    slot: str,
    table: MirroredTable | None,
    formers: Sequence[FormerLocation],
    storage: StorageOptions,
) -> Iterator[SearchedRoot]:
    """The directory of the table's files, that of its feed, and those of former registrations. Raises LakeError."""
    moments = read_moments(connection, slot)
    if table is not None:
        with source_errors("reading what is published"):
            of_table = {"table_id": table.table_id}
            row = fetch_row(connection, _SearchedTable, _SQL["table"], of_table)
            pins: dict[int, datetime] = dict(connection.execute(_SQL["pins"], of_table).fetchall())
            feed_pins: dict[int, datetime] = dict(connection.execute(_SQL["feed_pins"], of_table).fetchall())
        assert row is not None
        policy = policy_of(row.policy or {})
        metadata = None if row.metadata_location is None else read_any_version(row.metadata_location, storage)
        lake_name = TableName(table.name.schema, table.lake_table)
        root = SearchedRoot(RootKind.TABLE, table.name, lake_name, table.location, metadata, policy, pins)
        yield _with_moments(replace(root, published=row.published_snapshot), moments, storage)
        feed = load_feed(connection, table.table_id)
        if feed is not None:
            metadata = None if feed.metadata_location is None else read_any_version(feed.pointer, storage)
            yield SearchedRoot(
                RootKind.FEED, table.name, feed.lake_name, feed.location, metadata, policy, feed_pins, keep=feed.keep
            )
    for ended in formers:
        metadata = None
        if ended.metadata_location is not None:
            with suppress(FileMissing, FileDamaged):
                metadata = read_any_version(ended.metadata_location, storage)
        root = SearchedRoot(RootKind.ENDED, ended.table, ended.table, ended.location, metadata, Policy())
        yield _with_moments(root, moments, storage)


def _with_moments(root: SearchedRoot, moments: Sequence[KeptMoment], storage: StorageOptions) -> SearchedRoot:
    """The directory with the moments that need its files. Raises LakeError."""
    names: dict[int, tuple[str, ...]] = {}
    snapshots: dict[int, Snapshot] = {}
    for moment in moments:
        locations = {place for table in moment.tables for place in (table.metadata_location, table.main_location)}
        for location in locations:
            within = location.startswith(root.location.rstrip("/") + "/")
            snapshot = read_any_version(location, storage).current_snapshot if within else None
            if snapshot is not None:
                snapshots[snapshot.snapshot_id] = snapshot
                names[snapshot.snapshot_id] = (*names.get(snapshot.snapshot_id, ()), moment.name)
    return replace(root, moments=names, kept_snapshots=tuple(snapshots.values()))


def _given(
    table: MirroredTable | None, roots: Sequence[SearchedRoot], values: Sequence[str], columns: Sequence[str]
) -> dict[str, str]:
    """The values by column. Raises UsageError."""
    if not columns:
        schemas = schemas_of(roots[0])
        columns = [field.name for field in schemas[-1].key.fields] if table is None and schemas else ()
        columns = columns if table is None else table.key
    if not columns:
        raise UsageError("the table has no key", "name columns that tell the row: --column NAME, once for each value")
    if len(columns) != len(values) or len(set(columns)) != len(columns):
        raise UsageError(
            f"{len(values)} values for the columns {', '.join(columns)}",
            "give one value for each column, in this order",
        )
    masked = {column.name for column in (() if table is None else table.columns) if column.type.mask is not None}
    if not masked.isdisjoint(columns):
        raise UsageError(
            f"column {min(masked.intersection(columns))} is masked: the lake does not have its values",
            "name other columns",
        )
    return dict(zip(columns, values, strict=True))


def _in_postgres(
    connection: PgConnection, table: MirroredTable | None, row: SearchedRow
) -> tuple[list[RowState], bool]:
    """The states of the heap and of corrections that have the row, and whether the heap could be read."""
    states = []
    in_heap = row.in_heap(connection)
    if in_heap:
        states.append(RowState(StateKind.HEAP, None, None, "DELETE in PostgreSQL", rows=in_heap))
    corrections = row.in_delta(connection, table.key) if table is not None and table.tier is not None else 0
    if corrections:
        ends_by = "fold_age or fold_rows: a running pump folds it, and clears it once no reader needs it"
        states.append(RowState(StateKind.DELTA, None, None, ends_by, rows=corrections))
    return states, in_heap is not None
