"""What other mirrors of the same database have, each with a catalog of its own, and what no two may share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from mirror_pump.database.quoting import identifier
from mirror_pump.errors import SourceError, TableError, UsageError
from mirror_pump.model import TableId, TableName
from mirror_pump.settings.config import Settings
from mirror_pump.settings.storage_profiles import StorageProfile
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("other_mirrors")


def refuse_used_stream(connection: PgConnection, settings: Settings) -> None:
    """Raise UsageError if another mirror has this one's slot or publication, or may have it: what is there already is
    adopted otherwise."""
    catalogs = _catalogs(connection)
    unread = [catalog.schema for catalog in catalogs if not catalog.is_trusted]
    for schema in (catalog.schema for catalog in catalogs if catalog.is_trusted):
        with _reading(connection, schema):
            streams = connection.execute(_of(schema, "streams")).fetchall()
        for slot, publication in streams:
            for name, this, other in (
                ("slot", settings.slot, slot),
                ("publication", settings.publication, publication),
            ):
                if this == other:
                    raise UsageError(
                        f"{name} {this} is that of another mirror of this database, whose catalog is in schema"
                        f" {identifier(schema)}",
                        f"leave --{name} out, or give another one",
                    )
    names = {"slot": settings.slot, "publication": settings.publication}
    for (name,) in connection.execute(_SQL["existing"], names).fetchall() if unread else ():
        raise UsageError(
            f"{name} {names[name]} exists, and may be that of the mirror in schema"
            f" {', '.join(map(identifier, unread))}, which is not read: code of its owner could run",
            f"give another --{name}; if no mirror has it, drop it",
        )


def profiles_of_others(connection: PgConnection) -> tuple[StorageProfile, ...]:
    """The storage profiles of all other mirrors, named for messages. Their warehouses are theirs alone: maintenance
    deletes what its own catalog does not know."""
    profiles = []
    for schema in _schemas(connection):
        with _reading(connection, schema):
            rows = connection.execute(_of(schema, "warehouses")).fetchall()
        profiles += [StorageProfile(f"{name} of the mirror in schema {identifier(schema)}", uri) for name, uri in rows]
    return tuple(profiles)


def refuse_second_retention(connection: PgConnection, name: TableName, table_id: TableId) -> None:
    """Raise TableError if another mirror moves the table's rows from the heap into its lake. Two that do would each
    have rows that the other one has never seen leave."""
    for schema in _schemas(connection):
        with _reading(connection, schema):
            rows = connection.execute(_of(schema, "moves_rows"), {"table_id": table_id}).fetchall()
        if rows == [(True,)]:
            raise TableError(
                f"{name} is tiered, or has heap retention, in another mirror of this database, whose catalog is in"
                f" schema {identifier(schema)}: one mirror alone may move a table's rows from the heap",
                "register it without --heap-retention and --mode tiered: this mirror then has what the heap has",
            )


@dataclass(frozen=True)
class _CatalogRow:
    """A row of the query `catalogs`."""

    schema: str
    is_trusted: bool


def _catalogs(connection: PgConnection) -> tuple[_CatalogRow, ...]:
    with source_errors("looking for other mirrors of the database"):
        return tuple(fetch_rows(connection, _CatalogRow, _SQL["catalogs"]))


def _schemas(connection: PgConnection) -> list[str]:
    """Those that can be read without running code of roles that are not trusted. Others do not count: any role can make
    one, and must not keep all mirrors from being set up."""
    return [catalog.schema for catalog in _catalogs(connection) if catalog.is_trusted]


def _of(schema: str, query: str) -> bytes:
    return _SQL[query].format(schema=identifier(schema)).encode()


@contextmanager
def _reading(connection: PgConnection, schema: str) -> Iterator[None]:
    """Raises SourceError if the role may not read another mirror's catalog: what both may have is not known then."""
    named, role = identifier(schema), identifier(connection.info.user)
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise SourceError(
            f"another mirror of this database has its catalog in schema {named}, which this role may not read:"
            f" {error.diag.message_primary}",
            f"as the owner of that schema: GRANT USAGE ON SCHEMA {named} TO {role}; GRANT SELECT ON"
            f" {named}.mirror_slots, {named}.mirror_tables, {named}.storage_profiles TO {role}",
        ) from error
