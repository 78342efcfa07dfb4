"""Compares two Iceberg tables row by row with DuckDB, in this process: as exact as Spark, and without its start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mirror_pump.database.quoting import identifier, literal
from mirror_pump.lake.contents.kept_ranges import KeptRanges
from mirror_pump.lake.format.raw_text_columns import every_raw_text, is_raw_text
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TierKind
from mirror_pump.ops.document_rows import document_rows, has_variants, with_documents, without_variants
from mirror_pump.ops.verify.comparison import (
    ALL_ROWS,
    SHOWN_ROWS,
    ComparedRows,
    Comparison,
    difference,
    is_floating,
    is_temporal,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_SIDES = ("heap", "lake")
_LOCAL_FILES = StorageOptions()


def compare(
    duckdb: DuckDBPyConnection,
    heap_location: str,
    lake_location: str,
    schema: LakeSchema,
    rows: ComparedRows = ALL_ROWS,
    *,
    shown: int = SHOWN_ROWS,
    storage: StorageOptions = _LOCAL_FILES,
) -> Comparison:
    """Like `mirror_pump.ops.verify.compare_spark.compare`. Raises duckdb.Error, also if the connection's memory limit
    is too low.

    Of a table with variants, DuckDB compares the other columns as it reads them, and then all columns as the mirror's
    own reader does.
    """
    locations = dict(zip(_SIDES, (heap_location, lake_location), strict=True))
    scans = {side: f"iceberg_scan({literal(at)})" for side, at in locations.items()}
    first = compare_rows(duckdb, scans, every_raw_text(without_variants(schema)), rows, shown)
    if first.different_rows or not has_variants(schema):
        return first
    for side, location in locations.items():
        duckdb.register(f"read_{side}", document_rows(location, schema, storage))
    try:
        scans = {side: f"read_{side}" for side in _SIDES}
        return compare_rows(duckdb, scans, with_documents(schema), rows, shown)
    finally:
        for side in _SIDES:
            duckdb.unregister(f"read_{side}")


def compare_rows(
    duckdb: DuckDBPyConnection, scans: Mapping[str, str], schema: LakeSchema, rows: ComparedRows, shown: int
) -> Comparison:
    """Compares what the scans of both sides, `heap` and `lake`, read in the columns of the schema, which has all raw
    text columns."""
    names_by_side = {
        side: {row[0] for row in duckdb.execute(f"DESCRIBE SELECT * FROM {scan}").fetchall()}
        for side, scan in scans.items()
    }
    fields = [
        field
        for field in schema.fields
        if not is_raw_text(field) or field.name in names_by_side["heap"] | names_by_side["lake"]
    ]
    keys = [place for place, field in enumerate(fields) if field.field_id in schema.key_ids or not schema.key_ids]
    line = rows.line
    compared = "" if line is None else f" WHERE {_tier_value(line.kind, identifier(line.name))} >= {line.cut}"
    try:
        for side, scan in scans.items():
            columns = ", ".join(
                f"{_exact(field, names_by_side[side])} AS c{place}" for place, field in enumerate(fields)
            )
            # With a view, each of the queries below would scan the files again.
            duckdb.execute(
                f"CREATE OR REPLACE TEMP TABLE compared_{side} AS SELECT *, row_number() OVER (PARTITION BY"
                f" {', '.join(f'c{place}' for place in keys)}) AS n FROM (SELECT {columns} FROM {scan}{compared})"
            )
        return _compared(duckdb, fields, keys, rows.kept_ranges, shown)
    finally:
        for side in _SIDES:
            duckdb.execute(f"DROP TABLE IF EXISTS compared_{side}")


def _compared(
    duckdb: DuckDBPyConnection, fields: Sequence[LakeField], keys: Sequence[int], ranges: KeptRanges | None, shown: int
) -> Comparison:
    """Compares the tables compared_heap and compared_lake. Columns c0, c1, ... are the fields; n numbers the rows that
    share a key. Of a key that the lake has twice, one is a difference wherever it is."""
    values = [place for place in range(len(fields)) if place not in keys]
    same_row = " AND ".join(["h.n = l.n", *(f"h.c{place} IS NOT DISTINCT FROM l.c{place}" for place in keys)])
    kept_row = "false" if ranges is None else f"h.n IS NULL AND l.n = 1 AND {_is_kept(ranges, fields)}"
    joined = f"FROM compared_heap h FULL JOIN compared_lake l ON {same_row} WHERE NOT ({kept_row})"
    differs = " OR ".join(
        ["h.n IS NULL", "l.n IS NULL", *(f"h.c{place} IS DISTINCT FROM l.c{place}" for place in values)]
    )
    ((heap_rows, lake_rows, different),) = duckdb.execute(
        f"SELECT count(h.n), count(l.n), count(*) FILTER (WHERE {differs}) {joined}"
    ).fetchall()
    differences = []
    if different:
        columns = [f"{side}_{field.name}" for side in "hl" for field in fields]
        selected = ", ".join(
            f"{side}.c{place}{'::text' if is_temporal(field) else ''}"
            for side in "hl"
            for place, field in enumerate(fields)
        )
        rows = duckdb.execute(f"SELECT h.n, l.n, {selected} {joined} AND ({differs}) LIMIT {shown}").fetchall()
        key_names, value_names = ([fields[place].name for place in places] for places in (keys, values))
        differences = [
            difference(dict(zip(("hn", "ln", *columns), row, strict=True)), key_names, value_names) for row in rows
        ]
    return Comparison(heap_rows, lake_rows, different, tuple(differences))


def _is_kept(ranges: KeptRanges, fields: Sequence[LakeField]) -> str:
    """Whether the row of the lake is in one of the ranges."""
    (place,) = (place for place, field in enumerate(fields) if field.name == ranges.name)
    value = _tier_value(ranges.kind, f"l.c{place}")
    return f"({' OR '.join(f'{value} >= {at.lower} AND {value} < {at.upper}' for at in ranges.bounds)})"


def _tier_value(kind: TierKind, column: str) -> str:
    """The tier key as a number that can be compared with tier values."""
    match kind:
        case TierKind.DATE:
            return f"({column} - DATE '1970-01-01')"
        case TierKind.TIMESTAMP | TierKind.TIMESTAMPTZ:
            return f"epoch_us({column})"
        case _:
            return column


def _exact(field: LakeField, columns: set[str]) -> str:
    """The column in a form in which only identical values are equal. NULL for a raw text column that the table
    lacks."""
    name = identifier(field.name)
    if is_raw_text(field) and field.name not in columns:
        return "NULL::text"
    return f"{name}::text" if is_floating(field) else name
