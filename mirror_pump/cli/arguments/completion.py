"""Completes table names in the shell, from the database. Offers nothing if the database does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sql import queries

if TYPE_CHECKING:
    from mirror_pump.source.connect import PgConnection

_SQL = queries("names")
_CONNECT_SECONDS = 2
"""Connection timeout, the minimum of libpq: the user is waiting for the completion."""


@dataclass(frozen=True)
class Completion:
    """A table that a name may be completed to. Its names are quoted where SQL needs it."""

    name: str
    """With its schema."""
    without_schema: str
    visible: bool
    """Whether Postgres finds the table without its schema."""


def mirrored_tables(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of mirrored tables that begin with `incomplete`, in the form that every command takes."""
    return _matching(ctx, incomplete, mirrored=True)


def other_tables(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of tables that are not mirrored."""
    return _matching(ctx, incomplete, mirrored=False)


def _matching(ctx: typer.Context, incomplete: str, *, mirrored: bool) -> list[str]:
    from mirror_pump.source.rows import fetch_rows

    try:
        with _connection(ctx) as connection:
            known = connection.execute("SELECT to_regclass('modak.tables') IS NOT NULL").fetchone() == (True,)
            tables = fetch_rows(connection, Completion, _SQL["mirrored"]) if known else []
            if not mirrored:
                present = {table.name for table in tables}
                others = fetch_rows(connection, Completion, _SQL["others"])
                tables = [table for table in others if table.name not in present]
    except Exception:  # noqa: BLE001 - whatever is wrong, the command that is being typed says it better
        return []
    found = [table.name for table in tables if table.name.startswith(incomplete)]
    # Without its schema only if the user left it out and Postgres finds the table that way.
    visible = [table.without_schema for table in tables if table.visible]
    return found or [name for name in visible if name.startswith(incomplete)]


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
