"""The table that a load writes to: its columns, its key, and where the cut-line and the retention line are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import psycopg

from mirror_pump.database.quoting import identifier
from mirror_pump.errors import TableError
from mirror_pump.model import TableId, TableName, TierKind
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.relations.target_columns import TargetColumn, read_target_columns, require_given
from mirror_pump.source.relations.tier_keys import literal
from mirror_pump.source.rows import fetch_row
from sql import queries

_SQL = queries("loads")


@dataclass(frozen=True)
class TierBounds:
    """Where rows go by their tier key; a row of the query `bounds`."""

    tier_column: str | None
    tier_type: str
    cut: int | None
    """The cut-line; None while no row can be below it."""
    retention_line: int | None

    def below(self, alias: str, value: int | None) -> str | None:
        """The condition that a row is below a tier value; None if no row can be."""
        if value is None or self.tier_column is None:
            return None
        bound = literal(TierKind(self.tier_type), value)
        return None if bound is None else f"{alias}.{identifier(self.tier_column)} < {bound}"


@dataclass(frozen=True)
class LoadTarget:
    """A registered table, as its owner has it now."""

    table_id: TableId
    name: TableName
    columns: tuple[TargetColumn, ...]

    @cached_property
    def key(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.in_key)

    def chosen(self, names: Sequence[str], *, key_only: bool) -> tuple[TargetColumn, ...]:
        """The columns of a file, in its order, that a load writes; of a load that deletes, those of the key.

        Raises TableError for a column that the table does not have or computes itself, and if the key is incomplete.
        """
        require_given(self.name, self.columns, names)
        missing = [name for name in self.key if name not in names]
        if missing:
            raise TableError(
                f"{self.name}: the input has no key column {', '.join(missing)}",
                f"a load has the whole key: {', '.join(self.key)}",
            )
        by_name = {column.name: column for column in self.columns}
        return tuple(by_name[name] for name in names if by_name[name].in_key or not key_only)


def read_target(connection: PgConnection, name: str) -> LoadTarget:
    """The table of this name. Raises UsageError if there is none, TableError if it has no key, SourceError."""
    resolved, table_id = resolve_name(connection, name)
    with source_errors(f"reading the columns of {resolved}"):
        try:
            columns = read_target_columns(connection, table_id)
        except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName) as error:
            raise TableError(
                f"{resolved} is not registered: this database has no mirror", "mirror-pump init"
            ) from error
    target = LoadTarget(table_id, resolved, columns)
    if not target.key:
        raise TableError(f"{resolved} has no key", "a load needs a primary key, or a replica identity index")
    return target


def read_bounds(connection: PgConnection, table_id: TableId) -> TierBounds | None:
    """Cut-line and retention line of now; None for a table that is not registered. Raises psycopg.Error."""
    return fetch_row(connection, TierBounds, _SQL["bounds"], {"table_id": table_id})
