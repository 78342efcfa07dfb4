"""Grants roles read-only access to the mirror: their rights in schema modak are in sql/roles/reader.sql."""

from __future__ import annotations

from collections.abc import Sequence

from mirror_pump.database.quoting import identifier
from mirror_pump.errors import SourceError, UsageError
from mirror_pump.ops.setup.stored_settings import complete_from
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.relations.relations import resolve_name
from sql import queries, reader_role
from sql.mirror_names import SCHEMA

_SQL = queries("names")

_MAY_READ = (
    f"has_schema_privilege(r.oid, '{SCHEMA}', 'USAGE') AND has_table_privilege(r.oid, '{SCHEMA}.cutline', 'SELECT')"
)

_MAY_WRITE = f"has_table_privilege(r.oid, '{SCHEMA}.iceberg_tables', 'INSERT, UPDATE, DELETE')"


def grants(settings: Settings, role: str, tables: Sequence[str] = ()) -> str:
    """Return the statements that give `role` a reader's rights, and SELECT on `tables` and their current partitions.

    The names of `tables` are read as Postgres reads them. Running the statements again is harmless. Raises UsageError
    if a table or the role does not exist, and for a table whose rules keep values or rows from readers.
    """
    with connect(settings.require_dsn(), application_name="mirror-pump-reader") as connection:
        return _grants(connection, settings, role, tables)


def grant(settings: Settings, role: str, tables: Sequence[str] = ()) -> None:
    """Run the statements of `grants` in one transaction.

    Raises UsageError if a table or the role does not exist, and SourceError if the connection's role may not grant
    the rights.
    """
    with connect(settings.require_dsn(), application_name="mirror-pump-reader") as connection:
        statements = _grants(connection, settings, role, tables)
        with source_errors(f"giving {role} a reader's rights"):
            connection.execute(statements.encode())
        # Postgres only warns if the granting role has the rights itself but no grant option.
        if not may_read(connection, role):
            raise SourceError(
                f"{connection.info.user} may not grant rights in schema modak",
                "run this as the role that ran `mirror-pump init`, or give it the statements of --print",
            )


def _grants(connection: PgConnection, settings: Settings, role: str, tables: Sequence[str]) -> str:
    complete_from(connection, settings)
    may_read(connection, role)
    statements = [reader_role(identifier(role), settings.mirror).strip()]
    for table in tables:
        _, table_id = resolve_name(connection, table)
        registered = load_table(connection, table_id)
        if registered is not None and (registered.leaves_out_new or registered.row_filter):
            raise UsageError(
                f"{registered.name} has masks, a column list or a row filter, and rights on it would show the rest",
                "name no such table: its readers need the lake alone",
            )
        with source_errors(f"looking up the partitions of {table}"):
            relations = connection.execute(_SQL["relations"], (table_id,)).fetchall()
        statements += [f"GRANT SELECT ON {relation} TO {identifier(role)};" for (relation,) in relations]
    return "\n".join(statements)


def reader_roles(connection: PgConnection) -> list[str]:
    """The roles that may log in, read the mirror, and change nothing of it: that of the connection first, then by
    name."""
    with source_errors("looking for readers' roles"):
        rows = connection.execute(
            f"SELECT r.rolname::text FROM pg_roles r WHERE r.rolcanlogin AND {_MAY_READ} AND NOT {_MAY_WRITE}"
            " ORDER BY r.rolname <> current_user, 1".encode()
        ).fetchall()
    return [name for (name,) in rows]


def may_write(connection: PgConnection, role: str) -> bool:
    """Return whether `role` may move the pointers of Iceberg's catalog, as owners and pumps may."""
    with source_errors("looking up a role"):
        row = connection.execute(
            f"SELECT {_MAY_WRITE} FROM pg_roles r WHERE r.rolname = %s".encode(), (role,)
        ).fetchone()
    return row is not None and bool(row[0])


def may_read(connection: PgConnection, role: str) -> bool:
    """Return whether `role` has a reader's rights on the catalog. Raises UsageError if the role does not exist."""
    with source_errors("looking up a role"):
        row = connection.execute(
            f"SELECT {_MAY_READ} FROM pg_roles r WHERE r.rolname = %s".encode(), (role,)
        ).fetchone()
    if row is None:
        raise UsageError(f"there is no role {role}", f"CREATE ROLE {identifier(role)} LOGIN PASSWORD '...'")
    return bool(row[0])
