"""Runs a statement of `mirror-pump sql` and writes its result as aligned text, CSV, JSON or Parquet."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from mirror_pump.database.quoting import identifier, literal
from mirror_pump.errors import LakeError, MirrorPumpError, UsageError, one_line_of
from mirror_pump.ops.duckdb_connection import require_duckdb, stopped_by_ctrl_c
from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.statement_errors import unknown_table
from mirror_pump.ops.reads.statement_moments import with_views
from mirror_pump.ops.reads.table_list import listing
from mirror_pump.ops.reads.table_reads import Warn
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    import duckdb

_COPIED_AS = {"csv": "FORMAT csv, HEADER", "json": "FORMAT json, ARRAY true", "parquet": "FORMAT parquet"}
_INTERRUPTED = "Query interrupted"
"""The text of the RuntimeError that DuckDB raises instead of KeyboardInterrupt while the tables are prepared."""


Opens: TypeAlias = Callable[[Settings, Query, Warn], AbstractContextManager["duckdb.DuckDBPyConnection"]]
"""Opens DuckDB with the tables that a query names, as `open_query` does."""


def run_query(
    settings: Settings,
    query: Query,
    written_as: str,
    output: Path | Callable[[BinaryIO], None],
    warn: Warn,
    opens: Opens = open_query,
) -> None:
    """Run the statement and write its result to `output` as `table`, `csv`, `json` or `parquet`.

    `output` is a file's path, or a function that takes the result as a binary stream. Nothing is written unless the
    whole result could be read. `opens`: what the tables are. `settings` must be completed. Raises UsageError if the
    statement is not one query, MirrorPumpError if the tables cannot be read, UsageError or LakeError for errors of
    DuckDB (see `_refused`), and KeyboardInterrupt.
    """
    require_duckdb()
    import duckdb

    with tempfile.TemporaryDirectory(prefix="mirror-pump-sql-") as directory:
        result = Path(directory) / "result"
        try:
            _write(settings, query, written_as, result, warn, opens)
        except duckdb.Error as error:
            raise _refused(settings, error) from error
        except RuntimeError as error:
            if _INTERRUPTED not in str(error):
                raise
            raise KeyboardInterrupt from error
        if not isinstance(output, Path):
            with result.open("rb") as content:
                output(content)
            return
        try:
            shutil.copyfile(result, output)
        except OSError as error:
            raise UsageError(
                f"{output} cannot be written: {error.strerror}", "name another file with --output"
            ) from error


def _write(settings: Settings, query: Query, written_as: str, result: Path, warn: Warn, opens: Opens) -> None:
    listed = listing(settings, query.statement)
    if listed is not None:
        query = replace(query, statement=listed)
    statement, past = with_views(query.statement)
    query = replace(query, statement=statement, past=past)
    statement = query.statement.strip().rstrip(";")
    with opens(settings, query, warn) as connection, stopped_by_ctrl_c(connection):
        if _explains(statement):
            rows = connection.execute(statement).fetchall()
            result.write_text("".join(f"{text}\n" for *_, text in rows), encoding="utf-8")
        elif written_as == "table":
            result.write_text(_as_text(connection, statement), encoding="utf-8")
        else:
            content = _whole(statement) if written_as == "parquet" else _printable(connection, statement)
            connection.execute(f"COPY ({content}\n) TO {literal(str(result))} ({_COPIED_AS[written_as]})")


def _refused(settings: Settings, error: duckdb.Error) -> MirrorPumpError:
    """Translate DuckDB's error: LakeError for I/O, HTTP and internal errors, else UsageError (a faulty statement)."""
    import duckdb

    if isinstance(error, duckdb.CatalogException):
        return unknown_table(settings, error)
    message = f"DuckDB: {one_line_of(error)}"
    if isinstance(error, duckdb.IOException | duckdb.HTTPException | duckdb.InternalException):
        return LakeError(message, "see `mirror-pump verify` and `mirror-pump status`")
    return UsageError(message)


def _explains(statement: str) -> bool:
    return statement[:7].lower() == "explain"


def _whole(statement: str) -> str:
    """Wrap the statement in a SELECT, which is valid as a subquery. A bare DESCRIBE, for example, is not."""
    return f"SELECT * FROM ({statement}\n)"


def _printable(connection: duckdb.DuckDBPyConnection, statement: str) -> str:
    """Return a query that yields the statement's result, with bytes as Postgres prints them."""
    relation = connection.sql(_whole(statement))
    columns = [(f"c{place}", name, type_) for place, (name, type_) in enumerate(_columns(relation))]
    if not any(_has_bytes(type_) for _, _, type_ in columns):
        return _whole(statement)
    shown = ", ".join(f"{_bytes_as_text(column, type_)} AS {identifier(name)}" for column, name, type_ in columns)
    return f"SELECT {shown} FROM ({statement}\n) AS result({', '.join(column for column, _, _ in columns)})"


def _columns(relation: duckdb.DuckDBPyRelation) -> list[tuple[str, Any]]:
    return list(zip(relation.columns, relation.types, strict=True))


def _has_bytes(type_: Any) -> bool:
    """Return whether a DuckDB type is BLOB or a list of it.

    In structs and maps bytes stay as DuckDB prints them. No mirrored column has such a type.
    """
    return type_.id == "blob" or (type_.id in ("list", "array") and _has_bytes(type_.children[0][1]))


def _bytes_as_text(value: str, type_: Any) -> str:
    """Return an SQL expression for `value` with bytes as text: \\x and two lower-case hex digits for each byte."""
    if type_.id == "blob":
        return rf"'\x' || lower(hex({value}))"
    if not _has_bytes(type_):
        return value
    element = f"{value}e"
    return f"list_transform({value}, lambda {element}: {_bytes_as_text(element, type_.children[0][1])})"


def _as_text(connection: duckdb.DuckDBPyConnection, statement: str) -> str:
    """Return all rows as aligned columns, followed by the number of rows."""
    # DuckDB converts the values to text, because Python's dates cover only the years 1 to 9999.
    relation = connection.execute(f"SELECT CAST(COLUMNS(*) AS VARCHAR) FROM ({_printable(connection, statement)}\n)")
    names = tuple(column[0] for column in relation.description or ())
    rows = [tuple("NULL" if value is None else value for value in row) for row in relation.fetchall()]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    lines = [
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (names, *rows)
    ]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    return "\n".join(lines) + f"\n({len(rows):,} row{'' if len(rows) == 1 else 's'})\n"
