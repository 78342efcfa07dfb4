"""Names of tables for the shell's completion, from the database; nothing, in silence, when it does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mirror_pump.source.connect import PgConnection

_CONNECT_SECONDS = 2
"""The least that libpq knows; somebody waits for it with a finger on the key."""

_MIRRORED = """
SELECT quote_ident(schema_name) || '.' || quote_ident(table_name), quote_ident(table_name),
       coalesce(pg_table_is_visible(to_regclass(quote_ident(schema_name) || '.' || quote_ident(table_name))), false)
  FROM modak.tables ORDER BY 1
"""
_OTHERS = """
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), quote_ident(c.relname), pg_table_is_visible(c.oid)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'modak')
 ORDER BY 1
"""


def mirrored_tables(ctx: typer.Context, incomplete: str) -> list[str]:
    """The tables under the mirror whose names begin so, as every command takes them."""
    return _matching(ctx, incomplete, mirrored=True)


def other_tables(ctx: typer.Context, incomplete: str) -> list[str]:
    """The tables that are not under the mirror."""
    return _matching(ctx, incomplete, mirrored=False)


def _matching(ctx: typer.Context, incomplete: str, *, mirrored: bool) -> list[str]:
    try:
        with _connection(ctx) as connection:
            known = connection.execute("SELECT to_regclass('modak.tables') IS NOT NULL").fetchone() == (True,)
            rows = connection.execute(_MIRRORED).fetchall() if known else []
            if not mirrored:
                present = {name for name, _, _ in rows}
                rows = [row for row in connection.execute(_OTHERS).fetchall() if row[0] not in present]
    except Exception:  # noqa: BLE001 - whatever is wrong, the command that is being typed says it better
        return []
    found = [str(name) for name, _, _ in rows if name.startswith(incomplete)]
    # Without its schema where Postgres finds it so, once somebody began to type it so.
    return found or [str(bare) for _, bare, visible in rows if visible and bare.startswith(incomplete)]


@contextmanager
def _connection(ctx: typer.Context) -> Iterator[PgConnection]:
    from psycopg.conninfo import make_conninfo

    from mirror_pump.config import load_settings
    from mirror_pump.source.connect import connect

    config = ctx.params.get("config")
    settings = load_settings({"dsn": ctx.params.get("dsn")}, Path(config) if config else None)
    dsn = make_conninfo(settings.require_dsn(), connect_timeout=_CONNECT_SECONDS)
    with connect(dsn, autocommit=True, application_name="mirror-pump-completion") as connection:
        connection.execute("SET statement_timeout = '1s'")
        yield connection
