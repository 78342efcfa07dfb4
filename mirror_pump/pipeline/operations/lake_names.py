"""Gives mirrored tables, and their change feeds, the names in the catalog and in the lake that PostgreSQL has for them.

A name means one table. Each table has the name of its place in the stream: the publish that follows a rename renames
it. Several tables may claim a name all the same: one was dropped, or has failed, so that the stream renames it no more;
one waits to be described; or one was registered ahead of the frontier. Then PostgreSQL decides: the name is that of the
table which has it there now. Each of the others takes the name that it has there, and one that was dropped takes a name
that nothing has, under which it stays readable. So does a lake table of that name that is not mirrored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from psycopg import errors as pg_errors

from mirror_pump.lake.commit.catalog import ensure_namespace
from mirror_pump.lake.format.feed_schema import FEED_SUFFIX
from mirror_pump.model import TableId, TableName
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.rows import fetch_row, fetch_rows
from sql import queries

_SQL = queries("lake_names")

_FORMER_SUFFIX = "__former"
"""Ends the name of what has given its name up to another table."""


@dataclass(frozen=True)
class TableNames:
    """A registered table with its names."""

    table_id: TableId
    name: TableName
    """In the catalog and in the lake."""
    present_name: TableName | None
    """In PostgreSQL. None if it was dropped, or UTF-8 does not have its name."""
    feed: TableName | None = None
    """Name of its change feed in the lake."""


def settle_names(
    lock: SlotLock, new_names: Mapping[TableId, TableName], newcomer: Mapping[TableId, TableName] | None = None
) -> None:
    """Renames tables in the catalog and in the lake.

    `new_names`: of tables that may have been renamed, as of their place in the stream. `newcomer`: the name of a table
    that is about to be registered, which the others give up.
    """
    newcomer = newcomer or {}
    connection = lock.connection
    if not newcomer and not _differ(connection, new_names):
        return
    tables = _registered(connection)
    entries = set(fetch_rows(connection, TableName, _SQL["entries"]))
    reserved = set(fetch_rows(connection, TableName, _SQL["feeds_without_table"]))

    def is_free(name: TableName) -> bool:
        return name not in entries and not _is_relation(connection, name)

    names = settled_names(tables, new_names, newcomer, is_free, reserved)
    feeds = {table.table_id: table.feed for table in tables if table.feed is not None}
    others = entries - {table.name for table in tables} - set(feeds.values()) - reserved
    for name in others.intersection(names.values()):
        new_name = _first_free(name, _FORMER_SUFFIX, lambda new: is_free(new) and new not in names.values())
        _rename_entry(lock, name, new_name)
        entries.add(new_name)
        others = others - {name} | {new_name}
    new_feeds = settled_feeds(feeds, names, others.union(reserved, newcomer.values()))
    renames = [("rename", table.table_id, table.name, names[table.table_id]) for table in tables]
    renames += [("rename_feed", table_id, feeds[table_id], name) for table_id, name in new_feeds.items()]
    moving = [(query, table_id, new_name) for query, table_id, name, new_name in renames if new_name != name]
    # All get a name first that nothing else has, so that they may swap names.
    for query, table_id, _ in moving:
        _rename(lock, query, table_id, TableName("", f"{query} {table_id}"))
    for query, table_id, name in moving:
        ensure_namespace(connection, name.schema)
        _rename(lock, query, table_id, name)


def follow_names(connection: PgConnection, slot: str) -> None:
    """Renames tables that the stream does not rename: they have failed, or wait."""
    table_ids = {table_id for (table_id,) in connection.execute(_SQL["not_streamed"], {"slot": slot}).fetchall()}
    if not table_ids:
        return
    tables = [table for table in _registered(connection) if table.table_id in table_ids]
    names = {
        table.table_id: table.present_name
        for table in tables
        if table.present_name is not None and table.present_name != table.name
    }
    if names:
        with connection.transaction():
            settle_names(SlotLock.take(connection, slot), names)


def settled_names(
    tables: Sequence[TableNames],
    new_names: Mapping[TableId, TableName],
    newcomer: Mapping[TableId, TableName],
    is_free: Callable[[TableName], bool],
    reserved: Collection[TableName] = (),
) -> dict[TableId, TableName]:
    """The name of each registered table, so that no two of them, and no newcomer, have the same one. The arguments are
    those of `settle_names`; `is_free` says whether neither the lake nor PostgreSQL has a name. `reserved`: names that
    no table gets, whatever PostgreSQL calls it."""
    names = {table.table_id: new_names.get(table.table_id, table.name) for table in tables} | dict(newcomer)
    present_names = {table.table_id: table.present_name for table in tables} | dict(newcomer)
    while rivals := _rivals(names):
        name = names[rivals[0]]
        # What PostgreSQL calls so keeps the name: each table that takes its name there is settled for good.
        keeper = min(rivals, key=lambda rival: (present_names[rival] != name, rival not in new_names, rival))
        for rival in rivals:
            if rival != keeper:
                names[rival] = present_names[rival] or _first_free(
                    name, _FORMER_SUFFIX, lambda free: is_free(free) and free not in names.values()
                )

    def may_have(catalog_name: TableName, name: TableName) -> bool:
        # The name that it was given before stays its name.
        return (name == catalog_name or is_free(name)) and name not in names.values()

    for table in tables:
        if names[table.table_id] in reserved:
            names[table.table_id] = _first_free(names[table.table_id], _FORMER_SUFFIX, partial(may_have, table.name))
    return {table_id: name for table_id, name in names.items() if table_id not in newcomer}


def settled_feeds(
    feeds: Mapping[TableId, TableName], names: Mapping[TableId, TableName], taken: Collection[TableName]
) -> dict[TableId, TableName]:
    """The name of each feed, beside tables of these names and `taken` ones."""
    used = {*names.values(), *taken}
    new_feeds = {}
    for table_id in sorted(feeds):
        new_feeds[table_id] = _first_free(names[table_id], FEED_SUFFIX, lambda free: free not in used)
        used.add(new_feeds[table_id])
    return new_feeds


def _rivals(names: Mapping[TableId, TableName]) -> list[TableId]:
    """The tables that claim the same name; empty if there are none."""
    claims: dict[TableName, list[TableId]] = {}
    for table_id, name in names.items():
        claims.setdefault(name, []).append(table_id)
    return next((table_ids for table_ids in claims.values() if len(table_ids) > 1), [])


def _first_free(name: TableName, suffix: str, is_free: Callable[[TableName], bool]) -> TableName:
    """The first name that is free among that with the suffix, and those with a number behind it."""
    candidates = (TableName(name.schema, f"{name.name}{suffix}{'' if n == 1 else f'_{n}'}") for n in count(1))
    return next(candidate for candidate in candidates if is_free(candidate))


def _differ(connection: PgConnection, new_names: Mapping[TableId, TableName]) -> bool:
    """Whether the catalog has another name for one of the tables."""
    if not new_names:
        return False
    rows = fetch_rows(connection, _CatalogName, _SQL["catalog_names"], {"table_ids": list(new_names)})
    return any(TableName(row.schema_name, row.table_name) != new_names[row.table_id] for row in rows)


def _is_relation(connection: PgConnection, name: TableName) -> bool:
    """Whether PostgreSQL has a relation of that name."""
    return connection.execute(_SQL["is_relation"], {"schema": name.schema, "name": name.name}).fetchone() is not None


def _rename(lock: SlotLock, query: str, table_id: TableId, new_name: TableName) -> None:
    """Renames a table or a feed in both catalogs."""
    parameters = {"table_id": table_id, "schema": new_name.schema, "name": new_name.name}
    name = fetch_row(lock.connection, TableName, _SQL[query], parameters)
    if name is not None:
        lock.rename(name, new_name)


def _rename_entry(lock: SlotLock, name: TableName, new_name: TableName) -> None:
    """Renames a lake table that is not mirrored."""
    pointer = lock.rename(name, new_name)
    parameters = {"schema": new_name.schema, "name": new_name.name, "pointer": pointer}
    lock.connection.execute(_SQL["rename_location"], parameters)


@dataclass(frozen=True)
class _CatalogName:
    """A row of the query `catalog_names`."""

    table_id: TableId
    schema_name: str
    table_name: str


@dataclass(frozen=True)
class _TableNamesRow:
    """A row of the query `registered`."""

    table_id: TableId
    schema_name: str
    table_name: str
    feed_schema: str | None
    feed_name: str | None
    present_schema: str | None
    present_name: str | None

    def table(self) -> TableNames:
        return TableNames(
            self.table_id,
            TableName(self.schema_name, self.table_name),
            _name(self.present_schema, self.present_name),
            _name(self.feed_schema, self.feed_name),
        )


def _name(schema: str | None, name: str | None) -> TableName | None:
    return None if schema is None or name is None else TableName(schema, name)


def _registered(connection: PgConnection) -> list[TableNames]:
    """All registered tables."""
    try:
        with connection.transaction():
            rows = fetch_rows(connection, _TableNamesRow, _SQL["registered"], {"in_ascii": False})
    except (pg_errors.UntranslatableCharacter, pg_errors.CharacterNotInRepertoire):
        # The database has another encoding, and one of the names has bytes that are no character.
        rows = fetch_rows(connection, _TableNamesRow, _SQL["registered"], {"in_ascii": True})
    return [row.table() for row in rows]
