"""The tables that patterns mean at present."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirror_pump.database.quoting import printed_identifier
from mirror_pump.model import TableId, TableName
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.relations.own_path import on_path
from mirror_pump.source.relations.table_patterns import TablePattern
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("patterns")


@dataclass(frozen=True)
class MatchedTables:
    """The tables that patterns mean."""

    tables: Mapping[str, TableId]
    """By their names with schemas, as PostgreSQL reads them; small tables first."""
    unfit: Mapping[str, str]
    """Why tables are left out that match, but can never be mirrored, by name."""
    unmatched: tuple[str, ...]
    """The patterns that mean no table at all."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tables)


def matched_tables(
    connection: PgConnection, patterns: Sequence[TablePattern], excluded: Sequence[TablePattern]
) -> MatchedTables:
    """Returns what the patterns mean now. A pattern without a schema means the tables that the role finds without one;
    an excluded one, those of any schema."""
    with source_errors("looking for tables"):
        candidates = fetch_rows(connection, _MatchCandidate, _SQL["candidates"])
    schemas = on_path(connection, {table.relation_name for table in candidates})
    tables: dict[str, TableId] = {}
    unfit: dict[str, str] = {}
    meant: set[str] = set()
    for candidate in candidates:
        table = TableName(candidate.schema_name, candidate.relation_name)
        visible = schemas.get(table.name) == table.schema
        matching = [
            pattern for pattern in patterns if pattern.matches(table) and (visible or pattern.schema is not None)
        ]
        meant |= {pattern.text for pattern in matching}
        if not matching or any(pattern.matches(table) for pattern in excluded):
            continue
        name = ".".join(map(printed_identifier, (table.schema, table.name)))
        reason = candidate.unfit()
        if reason:
            unfit[name] = reason
        else:
            tables[name] = candidate.table_id
    return MatchedTables(tables, unfit, tuple(pattern.text for pattern in patterns if pattern.text not in meant))


@dataclass(frozen=True)
class _MatchCandidate:
    """A row of the query `candidates`."""

    table_id: TableId
    schema_name: str
    relation_name: str
    is_foreign: bool
    is_unlogged: bool
    extension: str | None

    def unfit(self) -> str:
        """Why it can never be mirrored; empty if it can."""
        if self.is_foreign:
            return "a foreign table has no WAL"
        if self.is_unlogged:
            return "an unlogged table has no WAL"
        return f"it belongs to extension {self.extension}" if self.extension is not None else ""
