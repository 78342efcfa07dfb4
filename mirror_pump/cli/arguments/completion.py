"""Completes table names in the shell, from the database. Offers nothing if the database does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sql import queries
from sql.mirror_names import SCHEMA

if TYPE_CHECKING:
    from mirror_pump.source.connect import PgConnection

_SQL = queries("names")
_CONNECT_SECONDS = 2
"""Connection timeout, the minimum of libpq: the user is waiting for the completion."""


@dataclass(frozen=True)
class Completion:
    """A table that a name may be completed to."""

    schema_name: str
    table_name: str
    name: str
    """With its schema, and quoted."""
    without_schema: str


def tables_argument(text: str, *, show_default: bool = True) -> Any:
    """The argument of a command about mirrored tables. `text`: its help."""
    return typer.Argument(metavar="TABLE", help=text, autocompletion=mirrored_tables, show_default=show_default)


def mirrored_tables(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of mirrored tables that begin with `incomplete`, in the form that every command takes."""
    return _matching(ctx, incomplete, mirrored=True)


def other_tables(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of tables that are not mirrored; after --alter, of those that are."""
    return _matching(ctx, incomplete, mirrored=bool(ctx.params.get("alter")))


def kept_moments(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of moments that are kept and begin with `incomplete`."""
    try:
        with _connection(ctx) as connection:
            rows = connection.execute(_SQL["kept_moments"]).fetchall()
    except Exception:  # noqa: BLE001 - whatever is wrong, the command that is being typed says it better
        return []
    return [name for (name,) in rows if name.startswith(incomplete)]


def _matching(ctx: typer.Context, incomplete: str, *, mirrored: bool) -> list[str]:
    from mirror_pump.source.relations.own_path import on_path
    from mirror_pump.source.rows import fetch_rows

    try:
        with _connection(ctx) as connection:
            ((has_catalog,),) = connection.execute(f"SELECT to_regclass('{SCHEMA}.tables') IS NOT NULL").fetchall()
            tables = fetch_rows(connection, Completion, _SQL["mirrored"]) if has_catalog else []
            if not mirrored:
                mirrored_names = {table.name for table in tables}
                others = fetch_rows(connection, Completion, _SQL["others"])
                tables = [table for table in others if table.name not in mirrored_names]
            schemas = on_path(connection, [table.table_name for table in tables])
    except Exception:  # noqa: BLE001 - whatever is wrong, the command that is being typed says it better
        return []
    qualified = [table.name for table in tables if table.name.startswith(incomplete)]
    # Without its schema only if the user left it out and Postgres finds the table that way.
    visible = [table.without_schema for table in tables if schemas.get(table.table_name) == table.schema_name]
    return qualified or [name for name in visible if name.startswith(incomplete)]


@contextmanager
def _connection(ctx: typer.Context) -> Iterator[PgConnection]:
    from mirror_pump.settings.config import load_settings
    from mirror_pump.source.connect import connect, with_connect_timeout

    config = ctx.params.get("config")
    given = {name: ctx.params.get(name) for name in ("dsn", "password_command", "mirror")}
    settings = load_settings(given, Path(config) if config else None)
    dsn = with_connect_timeout(settings.require_dsn(), _CONNECT_SECONDS)
    with connect(dsn, autocommit=True, application_name="mirror-pump-completion") as connection:
        connection.execute("SET statement_timeout = '1s'")
        yield connection
