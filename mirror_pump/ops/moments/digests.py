"""Digests of a table's rows, in any order, by ranges of the key (docs/moments.md#how-a-digest-is-made).

The text of a row is that of its columns, one after the other: for each value its length, a colon and the value's text,
or `-` for NULL. So two different rows have different texts. A digest is the sum of the rows' SHA-256, in four parts of
64 bits, each modulo 2^64: it does not depend on the order, and equal rows count as often as they are there. It finds
every accident. Sums are weaker than SHA-256 itself against a person who makes up rows to match one.

DuckDB computes all of it, so that another person can. Its statements are made of the lake's own schema: of a receipt,
which a stranger may have written, they take the bounds of ranges alone, as literals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mirror_pump.database.quoting import identifier, literal
from mirror_pump.errors import LakeError

if TYPE_CHECKING:
    import duckdb

MOST_RANGES = 16
_RANGE_ROWS = 1000
"""Tables with fewer rows have one range."""
_PARTS = 4
DIGEST_DIGITS = 16 * _PARTS


@dataclass(frozen=True)
class DigestColumn:
    """A column of the table, and the raw text column beside it, if there is one."""

    name: str
    type: str
    """DuckDB's name of its type in the lake."""
    raw: str | None = None

    @property
    def is_nested(self) -> bool:
        """Whether PostgreSQL and DuckDB print its values in different ways."""
        return self.type.endswith("]") or self.type.startswith(("STRUCT", "MAP"))

    @property
    def text(self) -> str:
        """SQL for the text of the value in the lake."""
        column = identifier(self.name)
        return f"lower(hex({column}))" if self.type == "BLOB" else f"CAST({column} AS VARCHAR)"


RowText = Callable[[DigestColumn], str]
"""SQL for a column's part of the text of a row."""


def values_text(column: DigestColumn) -> str:
    """The value, and behind it the raw text, if there is a column for that."""
    return _counted(column.text) + ("" if column.raw is None else " || " + _counted(identifier(column.raw)))


def first_text(column: DigestColumn) -> str:
    """The raw text if there is one, else the value: the text of a former method."""
    return _counted(column.text if column.raw is None else f"coalesce({identifier(column.raw)}, {column.text})")


def printed_text(column: DigestColumn) -> str:
    """What PostgreSQL prints of the value that the lake has: the raw text if there is one. A value beside a raw text,
    which no pump writes, is added behind a character that no text of PostgreSQL has."""
    if column.raw is None:
        return _counted(column.text)
    return _counted(f"coalesce({identifier(column.raw)} || coalesce(chr(0) || {column.text}, ''), {column.text})")


def heap_text(column: DigestColumn) -> str:
    """The same as `printed_text`, of what PostgreSQL printed."""
    name = identifier(column.name)
    if column.type == "BLOB":
        # bytea_output = hex
        return _counted(f"substr({name}, 3)")
    if column.type == "VARCHAR":
        return _counted(name)
    if column.raw is None:
        return _counted(f"CAST(CAST({name} AS {column.type}) AS VARCHAR)")
    return _counted(f"coalesce(CAST(TRY_CAST({name} AS {column.type}) AS VARCHAR), {name})")


def _counted(text: str) -> str:
    return f"coalesce(length({text}) || ':' || {text}, '-')"


@dataclass(frozen=True)
class RangeDigest:
    """The rows of a range of the key's first column, in its order."""

    begin: str | None
    """Its least value, as text; None for the first range."""
    rows: int
    digest: str
    """64 hexadecimal digits."""

    def to_json(self) -> dict[str, Any]:
        """An entry of `ranges` of a receipt."""
        return {"from": self.begin, "rows": self.rows, "digest": self.digest}


@dataclass(frozen=True)
class RowsDigest:
    """All rows of a table."""

    columns: tuple[DigestColumn, ...]
    key: str | None
    """The first column of the key, by which the ranges are; None if the table has no key."""
    ranges: tuple[RangeDigest, ...]

    @property
    def rows(self) -> int:
        """How many there are."""
        return sum(part.rows for part in self.ranges)

    @property
    def digest(self) -> str:
        """The sum of the ranges."""
        sums = [0] * _PARTS
        for part in self.ranges:
            for place in range(_PARTS):
                sums[place] += int(part.digest[16 * place : 16 * place + 16], 16)
        return "".join(f"{total % (1 << 64):016x}" for total in sums)


def lake_columns(
    connection: duckdb.DuckDBPyConnection, source: str, raw: Mapping[str, str]
) -> tuple[DigestColumn, ...]:
    """The columns of a relation, which `source` is the SQL of. `raw`: the raw text columns, by the names of theirs."""
    described = _select(connection, f"SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM {source})")
    beside = frozenset(raw.values())
    return tuple(DigestColumn(name, kind, raw.get(name)) for name, kind in described if name not in beside)


def range_bounds(
    connection: duckdb.DuckDBPyConnection, source: str, columns: Sequence[DigestColumn], key: str | None
) -> tuple[str, ...]:
    """Where the ranges but for the first one begin, so that each has about as many rows."""
    column = next((column for column in columns if column.name == key), None)
    if column is None or column.type == "BLOB" or column.is_nested:
        return ()
    ((rows,),) = _select(connection, f"SELECT count(*) FROM {source}")
    ranges = min(int(rows) // _RANGE_ROWS, MOST_RANGES)
    if ranges < 2:
        return ()
    shares = ", ".join(f"{number / ranges:.6f}" for number in range(1, ranges))
    quantiles = f"SELECT unnest(quantile_disc({identifier(column.name)}, [{shares}])) AS v FROM {source}"
    begins = _select(connection, f"SELECT DISTINCT v, CAST(v AS VARCHAR) FROM ({quantiles}) ORDER BY v")
    return tuple(text for _, text in begins)


def are_bounds_of(
    connection: duckdb.DuckDBPyConnection, columns: Sequence[DigestColumn], key: str | None, bounds: Sequence[str]
) -> bool:
    """Whether all these texts are values of the key's first column."""
    column = next((column for column in columns if column.name == key), None)
    if not bounds or column is None:
        return not bounds
    parsed = ", ".join(f"TRY_CAST({literal(bound)} AS {column.type}) IS NOT NULL" for bound in bounds)
    ((are_values,),) = _select(connection, f"SELECT list_aggregate([{parsed}], 'bool_and')")
    return bool(are_values)


def rows_digest(
    connection: duckdb.DuckDBPyConnection,
    source: str,
    columns: Sequence[DigestColumn],
    key: str | None,
    bounds: Sequence[str],
    row_text: RowText = values_text,
) -> RowsDigest:
    """The digest of all rows. `source` is the SQL of a relation."""
    result = _select(connection, _digest_sql(source, columns, key, bounds, row_text))
    by_range = {int(place): RangeDigest(None, int(rows), str(digest)) for place, rows, digest in result}
    empty = RangeDigest(None, 0, "0" * DIGEST_DIGITS)
    ranges = tuple(
        RangeDigest(begin, part.rows, part.digest)
        for place, begin in enumerate((None, *bounds))
        for part in [by_range.get(place, empty)]
    )
    return RowsDigest(tuple(columns), key, ranges)


def _digest_sql(
    source: str, columns: Sequence[DigestColumn], key: str | None, bounds: Sequence[str], row_text: RowText
) -> str:
    """The query of a digest: number of the range, rows, digest."""
    row = " || ".join(map(row_text, columns))
    place = "0"
    if bounds:
        column = next(column for column in columns if column.name == key)
        value = f"CAST({identifier(column.name)} AS {column.type})"
        place = " + ".join(
            f"CASE WHEN {value} >= CAST({literal(bound)} AS {column.type}) THEN 1 ELSE 0 END" for bound in bounds
        )
    sums = ", ".join(
        f"(sum(('0x' || substr(h, {16 * part + 1}, 16))::UBIGINT) % 18446744073709551616)::UBIGINT"
        for part in range(_PARTS)
    )
    digest = f"format('{'{:016x}' * _PARTS}', {sums})"
    return f"SELECT p, count(*), {digest} FROM (SELECT {place} AS p, sha256({row}) AS h FROM {source}) GROUP BY p"


def _select(connection: duckdb.DuckDBPyConnection, query: str) -> list[tuple[Any, ...]]:
    """The rows of one SELECT. Raises LakeError for anything else: names and types in it are those of a lake."""
    import duckdb

    statements = connection.extract_statements(query)
    if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
        raise LakeError("a name or type of the lake's schema is not what it says", "report this")
    rows: list[tuple[Any, ...]] = connection.execute(statements[0]).fetchall()
    return rows
