"""What a statement demands of the rows of its tables, as conditions that PostgreSQL can evaluate.

DuckDB plans the statement for empty tables, and the plan says how it filters the rows that it reads from each. A heap
then sends only the rows that some scan of its table keeps.

Invariant: a row that fails the condition changes no result. The plan is a correct way to compute the statement from any
rows: optimisers that look at the rows are off. Each scan in it drops the rows that fail its filter, so a row that every
scan of the table drops can as well be missing. PostgreSQL must therefore keep each row that DuckDB would keep. So only
comparisons are passed on in which both agree about every value, and of text only equality, as both sort texts
differently. What is not understood is left out, which keeps more rows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from decoders.pgtypes import column_type
from mirror_pump.database.quoting import identifier, literal
from mirror_pump.model import Column, MirroredTable, TableId
from mirror_pump.ops.duckdb_connection import open_planner
from mirror_pump.ops.reads.statement_tables import planned_scans
from mirror_pump.ops.reads.views import create_schema, duckdb_type

if TYPE_CHECKING:
    import duckdb

_SCHEMA = "mirror_pump_plan"

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names that cannot be mistaken for something else in the text of a filter, where DuckDB does not quote them."""

_INTEGER = r"-?\d{1,19}"
_DAY = r"\d{4}-\d\d-\d\d"
_TIME = rf"{_DAY} \d\d:\d\d:\d\d(?:\.\d{{1,6}})?"
_ASCII = r"'(?P<value>(?:[\x01-\x26\x28-\x7f]|'')*)'"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

_CONSTANTS = {
    # pg_type.oid of smallint, integer, bigint, date, timestamp, timestamptz.
    21: (rf"(?P<value>{_INTEGER})", "bigint"),
    23: (rf"(?P<value>{_INTEGER})", "bigint"),
    20: (rf"(?P<value>{_INTEGER})", "bigint"),
    1082: (rf"'(?P<value>{_DAY})'::DATE", "date"),
    1114: (rf"'(?P<value>{_TIME})'::TIMESTAMP", "timestamp"),
    1184: (rf"'(?P<value>{_TIME}[+-]\d\d(?::\d\d)?)'::TIMESTAMP WITH TIME ZONE", "timestamptz"),
}
"""By type: how DuckDB prints a constant of it, and PostgreSQL's type of the constant."""

_EQUAL_ONLY = {
    # uuid, text, varchar. PostgreSQL would refuse a text that its encoding cannot express.
    2950: (rf"'(?P<value>{_UUID})'::UUID", "uuid"),
    25: (_ASCII, "text"),
    1043: (_ASCII, "text"),
}


def heap_conditions(statement: str, tables: Mapping[MirroredTable, Collection[str]]) -> dict[TableId, str]:
    """The SQL condition, for PostgreSQL, that the rows of each table have to meet to matter for the statement.

    `tables`: the tables that it names, each with the SQL names that it uses. A table of which all rows matter, or of
    which that is not known, is missing in the result.
    """
    import duckdb

    by_target = {f"{_SCHEMA}.t{table.table_id}": table for table in tables}
    with open_planner() as connection:
        try:
            _create(connection, tables)
        except duckdb.Error:
            return {}
        # Without a plan, the statement is wrong, which running it will say, or of a kind that has none.
        scans = planned_scans(connection, statement) or []
    by_table: dict[TableId, str] = {}
    for target, table in by_target.items():
        conditions = [_condition(scan.filters, table) for scan in scans if scan.table == target]
        if conditions and all(conditions):
            by_table[table.table_id] = " OR ".join(f"({condition})" for condition in dict.fromkeys(conditions))
    return by_table


def _create(connection: duckdb.DuckDBPyConnection, tables: Mapping[MirroredTable, Collection[str]]) -> None:
    """Create an empty table for each of the tables, under its names."""
    connection.execute(f"CREATE SCHEMA {_SCHEMA}")
    for table, names in tables.items():
        columns = ", ".join(f"{identifier(column.name)} {duckdb_type(column.type)}" for column in table.columns)
        connection.execute(f"CREATE TABLE {_SCHEMA}.t{table.table_id} ({columns})")
        for name in names:
            create_schema(connection, name)
            connection.execute(f"CREATE VIEW {name} AS FROM {_SCHEMA}.t{table.table_id}")


def _condition(filters: Sequence[str], table: MirroredTable) -> str:
    """The condition that the filters amount to, as far as they are understood; empty if none of them is."""
    if not all(_PLAIN.fullmatch(column.name) for column in table.columns):
        return ""
    # DuckDB calls a filter optional if the plan tests the rows again; a row that fails is dropped all the same.
    translations = (_translated(text.removeprefix("optional: "), table) for text in filters)
    return " AND ".join(f"({condition})" for condition in translations if condition)


def _translated(text: str, table: MirroredTable) -> str:
    """A filter in PostgreSQL's SQL; empty if it is not a chain of comparisons of one column with constants."""
    name = _PLAIN.match(text)
    column = next((column for column in table.columns if name is not None and column.name == name[0]), None)
    if column is None:
        return ""
    terms = _Terms.of(column)
    return "" if terms is None else terms.translated(text)


class _Terms:
    """The comparisons of one column that are understood."""

    def __init__(self, column: Column, constant: str, type_sql: str, operators: str) -> None:
        self._name = identifier(column.name)
        self._type_sql = type_sql
        bare = constant.replace("?P<value>", "?:")
        self._constant = re.compile(constant)
        several = rf"{bare}(?:, {bare})*"
        self._term = re.compile(
            rf"{column.name}(?:(?P<operator>{operators})(?P<one>{bare})| IN \((?P<many>{several})\))"
        )
        anonymous = rf"{column.name}(?:(?:{operators}){bare}| IN \({several}\))"
        self._chain = re.compile(rf"{anonymous}(?:(?: AND {anonymous})*|(?: OR {anonymous})*)", re.DOTALL)

    @classmethod
    def of(cls, column: Column) -> _Terms | None:
        """None for a column whose comparisons are not passed on: for its type, or because the statement compares its
        mask, which PostgreSQL does not have."""
        if column.type.mask is not None:
            return None
        for types, operators in ((_CONSTANTS, "=|>=|<=|>|<"), (_EQUAL_ONLY, "=")):
            constant, type_sql = types.get(column.type_oid, ("", ""))
            # A lake type that the user chose may compare differently.
            if constant and column.type == column_type(column.type_oid):
                return cls(column, constant, type_sql, operators)
        return None

    def translated(self, text: str) -> str:
        """The filter in PostgreSQL's SQL; empty if it has anything else in it."""
        if not self._chain.fullmatch(text):
            return ""
        parts = []
        end = 0
        for term in self._term.finditer(text):
            parts.append(text[end : term.start()])
            if term["many"] is None:
                parts.append(f"{self._name} {term['operator']} {self._literal(term['one'])}")
            else:
                values = (self._literal(match[0]) for match in self._constant.finditer(term["many"]))
                parts.append(f"{self._name} IN ({', '.join(values)})")
            end = term.end()
        return "".join(parts)

    def _literal(self, constant: str) -> str:
        match = self._constant.fullmatch(constant)
        assert match is not None, "the term was made of constants"
        return f"{literal(match['value'].replace(chr(39) * 2, chr(39)))}::{self._type_sql}"
