"""Answers `SHOW TABLES` and similar statements with all mirrored tables. DuckDB knows only those that a query names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mirror_pump.database.quoting import literal
from mirror_pump.model import MirroredTable
from mirror_pump.ops.reads.views import duckdb_type
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.tables import load_tables
from mirror_pump.source.connect import connect

_LIST = re.compile(
    r"""(?: SHOW | (?P<columns> DESC(?:RIBE)? (?: \s+ TABLES)? )
          | (?: SHOW | (?P<all> SHOW \s+ ALL ) ) \s+ TABLES
            (?: \s+ FROM \s+ (?: "(?P<quoted>(?:[^"]|"")+)" | (?P<schema>\w+) ) )? ) [\s;]*""",
    re.VERBOSE | re.IGNORECASE,
)


def mirrored_tables(settings: Settings) -> tuple[MirroredTable, ...]:
    """Return all mirrored tables, sorted by schema and name. Does not access the lake.

    `settings` must be completed. Raises SourceError.
    """
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-sql") as connection:
        tables = load_tables(connection, settings.slot)
    return tuple(sorted(tables, key=lambda table: (table.name.schema, table.name.name)))


def listing(settings: Settings, statement: str) -> str | None:
    """Return a query that yields the current result of a statement that lists tables. None for other statements."""
    match = _LIST.fullmatch(statement.strip())
    if match is None:
        return None
    schema = match["schema"] or (match["quoted"] or "").replace('""', '"')
    tables = [table for table in mirrored_tables(settings) if not schema or table.name.schema == schema]
    columns = {
        "schema": _texts(table.name.schema for table in tables),
        "name": _texts(table.name.name for table in tables),
        "state": _texts(table.state.value for table in tables),
    }
    if match["columns"] or match["all"]:
        columns["column_names"] = _lists([[column.name for column in table.columns] for table in tables])
        columns["column_types"] = _lists([[duckdb_type(column.type) for column in table.columns] for table in tables])
    return "SELECT " + ", ".join(f'unnest({values}) AS "{name}"' for name, values in columns.items())


def _texts(values: Iterable[str]) -> str:
    return f"[{', '.join(map(literal, values))}]::VARCHAR[]"


def _lists(values: Iterable[Iterable[str]]) -> str:
    return f"[{', '.join(map(_texts, values))}]::VARCHAR[][]"
