"""Digests of a table's rows, in any order, by ranges of the key (docs/moments.md#how-a-digest-is-made).

The text of a row is that of its columns, one after the other: for each value its length, a colon and the value's text,
or `-` for NULL. So two different rows have different texts. A digest is the sum of the rows' SHA-256, in four parts of
64 bits, each modulo 2^64: it does not depend on the order, and equal rows count as often as they are there. It finds
every accident. Sums are weaker than SHA-256 itself against a person who makes up rows to match one.

DuckDB computes all of it, so that another person can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mirror_pump.database.quoting import identifier, literal

if TYPE_CHECKING:
    import duckdb

_MOST_RANGES = 16
_RANGE_ROWS = 1000
"""Tables with fewer rows have one range."""
_RAW = "__raw"
"""The end of a raw text column's name (docs/types.md)."""
_PARTS = 4


@dataclass(frozen=True)
class DigestColumn:
    """A column of the table, and the raw text column beside it, if there is one."""

    name: str
    type: str
    """DuckDB's name of its type in the lake."""
    raw: str | None = None

    @property
    def lake_text(self) -> str:
        """SQL for the value's text."""
        return self._text(identifier(self.name), "" if self.raw is None else identifier(self.raw))

    @property
    def heap_text(self) -> str:
        """SQL for the same of a value as PostgreSQL prints it."""
        column = identifier(self.name)
        if self.type == "BLOB":
            # bytea_output = hex
            return f"substr({column}, 3)"
        if self.type == "VARCHAR":
            return column
        if self.raw is None:
            return f"CAST(CAST({column} AS {self.type}) AS VARCHAR)"
        return f"coalesce(CAST(TRY_CAST({column} AS {self.type}) AS VARCHAR), {column})"

    @property
    def is_nested(self) -> bool:
        """Whether PostgreSQL and DuckDB print its values in different ways."""
        return self.type.endswith("]") or self.type.startswith(("STRUCT", "MAP"))

    def _text(self, column: str, raw: str) -> str:
        text = f"lower(hex({column}))" if self.type == "BLOB" else f"CAST({column} AS VARCHAR)"
        return f"coalesce({raw}, {text})" if raw else text


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


def lake_columns(connection: duckdb.DuckDBPyConnection, source: str) -> tuple[DigestColumn, ...]:
    """The columns of a relation, which `source` is the SQL of, each with its raw text column."""
    described = connection.execute(f"SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM {source})").fetchall()
    types = {str(name): str(kind) for name, kind in described}
    raw = {name + _RAW for name in types} & types.keys()
    return tuple(
        DigestColumn(name, kind, name + _RAW if name + _RAW in raw else None)
        for name, kind in types.items()
        if name not in raw
    )


def range_bounds(
    connection: duckdb.DuckDBPyConnection, source: str, columns: Sequence[DigestColumn], key: str | None
) -> tuple[str, ...]:
    """Where the ranges but for the first one begin, so that each has about as many rows."""
    column = next((column for column in columns if column.name == key), None)
    if column is None or column.type == "BLOB" or column.is_nested:
        return ()
    ((rows,),) = connection.execute(f"SELECT count(*) FROM {source}").fetchall()
    ranges = min(int(rows) // _RANGE_ROWS, _MOST_RANGES)
    if ranges < 2:
        return ()
    shares = ", ".join(f"{number / ranges:.6f}" for number in range(1, ranges))
    quantiles = f"SELECT unnest(quantile_disc({identifier(column.name)}, [{shares}])) AS v FROM {source}"
    begins = connection.execute(f"SELECT DISTINCT v, CAST(v AS VARCHAR) FROM ({quantiles}) ORDER BY v").fetchall()
    return tuple(text for _, text in begins)


def rows_digest(
    connection: duckdb.DuckDBPyConnection,
    source: str,
    columns: Sequence[DigestColumn],
    key: str | None,
    bounds: Sequence[str],
    *,
    of_heap: bool = False,
) -> RowsDigest:
    """The digest of all rows. `source` is the SQL of a relation: of the lake, or with `of_heap` of texts as PostgreSQL
    prints them."""
    result = connection.execute(digest_sql(source, columns, key, bounds, of_heap=of_heap)).fetchall()
    by_range = {int(place): RangeDigest(None, int(rows), str(digest)) for place, rows, digest in result}
    empty = RangeDigest(None, 0, "0" * 16 * _PARTS)
    ranges = tuple(
        RangeDigest(begin, part.rows, part.digest)
        for place, begin in enumerate((None, *bounds))
        for part in [by_range.get(place, empty)]
    )
    return RowsDigest(tuple(columns), key, ranges)


def digest_sql(
    source: str, columns: Sequence[DigestColumn], key: str | None, bounds: Sequence[str], *, of_heap: bool
) -> str:
    """The query of a digest: number of the range, rows, digest."""
    texts = [column.heap_text if of_heap else column.lake_text for column in columns]
    row = " || ".join(f"coalesce(length({text}) || ':' || {text}, '-')" for text in texts)
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
