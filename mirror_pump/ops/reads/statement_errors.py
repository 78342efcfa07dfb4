"""Says what is wrong with a statement of `mirror-pump sql` in terms of the mirror: DuckDB knows no table but those that
a statement names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from mirror_pump.database.quoting import identifier
from mirror_pump.errors import MirrorPumpError, UsageError, one_line_of
from mirror_pump.model import TableName
from mirror_pump.ops.reads.statements import quoted_or_comment
from mirror_pump.ops.reads.table_list import mirrored_tables
from mirror_pump.settings.config import Settings
from mirror_pump.source.connect import connect, source_errors
from mirror_pump.source.relations.similar_names import similar_names
from sql import queries

if TYPE_CHECKING:
    import duckdb

_SQL = queries("names")

_WRITES = re.compile(r"(?:insert|update|delete|truncate|merge|create|drop|alter)\b", re.IGNORECASE)
"""How a statement begins that writes, whether or not DuckDB's grammar has all of it."""
_WRITE_TYPES = frozenset({"INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER", "MERGE_INTO"})
"""Names of DuckDB's types of such statements, for those that begin with WITH."""
_WORD = re.compile(r"[^\W\d]\w*")
_UNKNOWN_TABLE = re.compile(r"Table with name (?P<name>.+?) does not exist")
_KEYWORDS = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category <> 'unreserved'"


def refuse_writes(statement: str, types: Collection[str] = ()) -> None:
    """Raise UsageError for a statement that writes. `types`: names of what DuckDB says that it is."""
    if _WRITES.match(statement) or not _WRITE_TYPES.isdisjoint(types):
        raise UsageError(
            "the mirror is read-only: `mirror-pump sql` runs queries",
            "write to the table in PostgreSQL; a mirrored change can be read here within seconds",
        )


def unreadable(
    connection: duckdb.DuckDBPyConnection, settings: Settings, statement: str, error: duckdb.Error
) -> UsageError:
    """The error for a statement that DuckDB cannot parse. Names reserved words that are used as names of the mirror."""
    text = f"DuckDB cannot read the statement: {one_line_of(error)}"
    words = _words_to_quote(connection, settings, statement)
    if not words:
        return UsageError(text)
    named = ", ".join(words)
    quoted = ", ".join(map(identifier, words))
    reserved = "is a reserved word" if len(words) == 1 else "are reserved words"
    return UsageError(f"{named} {reserved} of DuckDB, and a name here: {text}", f"write it in double quotes: {quoted}")


def _words_to_quote(connection: duckdb.DuckDBPyConnection, settings: Settings, statement: str) -> list[str]:
    """The reserved words that are names in the mirror, and with which in quotes DuckDB can parse the statement."""
    try:
        tables = mirrored_tables(settings)
    except MirrorPumpError:
        # What is wrong with the statement is said anyway.
        return []
    reserved = {word for (word,) in connection.execute(_KEYWORDS).fetchall()}
    names = {column.name.lower() for table in tables for column in table.columns}
    names |= {name.lower() for table in tables for name in (table.name.schema, table.name.name)}
    candidates = [(word, place) for word, place in _words(statement) if word.lower() in reserved & names]

    def can_parse(places: Collection[tuple[str, int]]) -> bool:
        return _can_parse(connection, _quoted(statement, [place for _, place in places]))

    if not candidates or not can_parse(candidates):
        # One of them may be what it looks like: END after CASE, say.
        return next(([word] for word, place in candidates if can_parse([(word, place)])), [])
    for name in dict.fromkeys(word.lower() for word, _ in candidates):
        others = [(word, place) for word, place in candidates if word.lower() != name]
        candidates = others if can_parse(others) else candidates
    return list(dict.fromkeys(word for word, _ in candidates))


def _words(statement: str) -> Iterator[tuple[str, int]]:
    """The words outside of quotes and comments, each with its place."""
    hidden = [token.span() for token in quoted_or_comment(statement)]
    for word in _WORD.finditer(statement):
        if not any(start <= word.start() < end for start, end in hidden):
            yield word[0], word.start()


def _quoted(statement: str, places: Collection[int]) -> str:
    for start in sorted(places, reverse=True):
        word = _WORD.match(statement, start)
        assert word is not None
        statement = f'{statement[:start]}"{word[0]}"{statement[word.end() :]}'
    return statement


def _can_parse(connection: duckdb.DuckDBPyConnection, statement: str) -> bool:
    import duckdb

    try:
        connection.extract_statements(statement)
    except duckdb.Error:
        return False
    return True


def unknown_table(settings: Settings, error: duckdb.CatalogException) -> UsageError:
    """The error for a name that is unknown to DuckDB: proposes tables that the role can read, and no others."""
    text = str(error)
    match = _UNKNOWN_TABLE.search(text)
    listed = "`SHOW TABLES` lists the mirrored tables"
    if match is None:
        return UsageError(f"DuckDB: {one_line_of(error)}", listed)
    alike = _alike(settings, match["name"])
    remedy = f"did you mean {' or '.join(alike)}? {listed}" if alike else listed
    return UsageError(f"DuckDB: {text[: match.end()].strip()}", remedy)


def _alike(settings: Settings, name: str) -> list[str]:
    """Names of tables that can be read, as SQL has them, that look like `name`."""
    with (
        connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-sql") as connection,
        source_errors("reading the mirrored tables"),
    ):
        readable = [TableName(schema, table) for schema, table in connection.execute(_SQL["readable"]).fetchall()]
    # DuckDB puts the schema before it, if the statement has one.
    return [str(table) for table in similar_names(name, readable)]
