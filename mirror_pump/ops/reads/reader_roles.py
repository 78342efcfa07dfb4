"""Roles that may read the mirror and change nothing of it: their rights in schema modak (sql/roles/reader.sql)."""

from __future__ import annotations

from collections.abc import Sequence

from mirror_pump.config import Settings
from mirror_pump.errors import SourceError, UsageError
from mirror_pump.ops.setup.stored_settings import complete_from
from mirror_pump.quoting import identifier
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.relations.relations import resolve_name
from sql import reader_role

_MAY_READ = "has_schema_privilege(r.oid, 'modak', 'USAGE') AND has_table_privilege(r.oid, 'modak.cutline', 'SELECT')"

_RELATIONS = """
SELECT format('%%I.%%I', n.nspname, c.relname)
  FROM modak.mirror_tree(%s::bigint::oid) r
  JOIN pg_class c ON c.oid = r.relation JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY 1
"""


def grants(settings: Settings, role: str, tables: Sequence[str] = ()) -> str:
    """The statements that give `role` a reader's rights, and SELECT on `tables` (names as Postgres reads them) with all
    their present partitions. They may be repeated. UsageError for a name that is no table, or no role."""
    with connect(settings.require_dsn(), application_name="mirror-pump-reader") as connection:
        return _grants(connection, settings, role, tables)


def grant(settings: Settings, role: str, tables: Sequence[str] = ()) -> None:
    """Runs these statements, in one transaction. SourceError if our role may not give the rights, else as `grants`."""
    with connect(settings.require_dsn(), application_name="mirror-pump-reader") as connection:
        statements = _grants(connection, settings, role, tables)
        with source_errors(f"giving {role} a reader's rights"):
            connection.execute(statements.encode())
        # Postgres only warns a role that has rights itself and may not pass them on.
        if not may_read(connection, role):
            raise SourceError(
                f"{connection.info.user} may not give away rights in schema modak",
                "run this as the role that ran `mirror-pump init`, or give it the statements of --print",
            )


def _grants(connection: PgConnection, settings: Settings, role: str, tables: Sequence[str]) -> str:
    complete_from(connection, settings)
    may_read(connection, role)
    statements = [reader_role(identifier(role)).strip()]
    for table in tables:
        _, table_id = resolve_name(connection, table)
        with source_errors(f"looking up the partitions of {table}"):
            relations = connection.execute(_RELATIONS, (table_id,)).fetchall()
        statements += [f"GRANT SELECT ON {relation} TO {identifier(role)};" for (relation,) in relations]
    return "\n".join(statements)


def may_read(connection: PgConnection, role: str) -> bool:
    """Whether `role` has a reader's rights on the catalog. UsageError if there is no such role."""
    with source_errors("looking up a role"):
        row = connection.execute(
            f"SELECT {_MAY_READ} FROM pg_roles r WHERE r.rolname = %s".encode(), (role,)
        ).fetchone()
    if row is None:
        raise UsageError(f"there is no role {role}", f"CREATE ROLE {identifier(role)} LOGIN PASSWORD '...'")
    return bool(row[0])
