"""Tables with a struct and a map, as change feeds have them: written, changed, and read by other engines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from decoders.columns import ColumnType
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles, StagedCommit
from mirror_pump.lake.commit.schema_evolution import SchemaConflict
from mirror_pump.lake.format.feed_schema import (
    FEED_PARTITIONING,
    OLD,
    TRANSACTION_SCHEMA,
    feed_schema,
    raw_text_of_feed,
    table_part,
)
from mirror_pump.lake.format.partitioned_files import write_data_files
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Column, FeedMode, Lsn, MirroredTable, SequenceNumber, TableId, TableName, TableState
from mirror_pump.testing.lake import read_duckdb

STORAGE = StorageOptions()


def _column(number: int, name: str, kind: str) -> Column:
    return Column(number, name, 0, -1, kind, ColumnType.parse(kind), number, not_null=False)


_TABLE = MirroredTable(
    TableId(1),
    TableName("public", "t"),
    (_column(1, "id", "long"), _column(2, "u", "uuid"), _column(3, "l", "list<int>"), _column(4, "_lsn", "date")),
    ("id",),
    TableState.LIVE,
    Lsn(1),
    SequenceNumber(1),
    0,
    "t",
    "",
    None,
)
_DAY = 86_400_000_000


def _feed(schema: LakeSchema, number: int, old: dict[str, object] | None, **values: object) -> pa.Table:
    row = {"_op": "update", "_lsn": number, "_seq": 2, "_xid": 7, "_committed_at": number * _DAY, "_origin": None}
    return pa.Table.from_pylist([{**row, OLD: old, **values}], schema=schema.arrow)


def _append(table: StagedCommit, rows: pa.Table, schema: LakeSchema) -> StagedCommit:
    location = table.table.location
    files = write_data_files(rows, schema, location, STORAGE, table.table.partitioning)
    return table.table.stage(RowDelta((SegmentFiles(files, ()),), schema=schema), 1)


def test_a_feed_follows_the_columns_and_other_engines_read_it(tmp_path: Path) -> None:
    first = feed_schema(_TABLE, FeedMode.ROWS)
    assert first == LakeSchema.from_iceberg_json(json.loads(json.dumps(first.to_iceberg_json())))
    names = [field.name for field in first.fields]
    assert names == ["_op", "_lsn", "_seq", "_xid", "_committed_at", "_origin", OLD, "id", "u", "l", "_lsn__column"]
    table = LakeTable.create(first, str(tmp_path / "t"), STORAGE, {}, 1, partitioning=FEED_PARTITIONING)
    identifier = b"0123456789abcdef"
    old: dict[str, object] = {"id": 4, "u": identifier, "l": [1, None], "_lsn__column": None}
    table = _append(table, _feed(first, 5, old, id=5, u=identifier, l=[3]), first)
    # A column is renamed, another dropped, one added, and two columns have got raw text.
    columns = (*_TABLE.columns[:2], replace(_TABLE.columns[3], name="day"), _column(5, "n", "decimal(4,2)"))
    second = feed_schema(replace(_TABLE, columns=columns), FeedMode.ROWS, (4,), (4, 5))
    assert raw_text_of_feed(second) == (frozenset({4}), frozenset({4, 5}))
    assert [field.name for field in table_part(second).fields] == ["id", "u", "day", "n"]
    old = {"id": 5, "u": None, "day": None, "day__raw": "infinity", "n": None, "n__raw": "NaN"}
    table = _append(table, _feed(second, 6, old, id=6, day__raw="-infinity"), second)
    rows = StaticTable.from_metadata(table.new_location).scan().to_arrow().to_pylist()
    rows.sort(key=lambda row: row["_lsn"])
    assert [row["_old"]["id"] for row in rows] == [4, 5]
    assert [row["_old"]["n__raw"] for row in rows] == [None, "NaN"]
    assert [row["day__raw"] for row in rows] == [None, "-infinity"]
    assert [row["_lsn"] for row in rows] == [5, 6]
    query = (
        "SELECT _lsn, id, _old.id AS old_id, CAST(_old.u AS VARCHAR) AS u, day__raw, _old.day__raw AS old, _old.n__raw"
        f" FROM iceberg_scan('{table.new_location}') ORDER BY _lsn"
    )
    assert list(map(tuple, (row.values() for row in read_duckdb(table.new_location, query).to_pylist()))) == [
        (5, 5, 4, str(UUID(bytes=identifier)), None, None, None),
        (6, 6, 5, None, "-infinity", "infinity", "NaN"),
    ]


def test_a_field_of_the_old_row_cannot_become_another(tmp_path: Path) -> None:
    first = feed_schema(_TABLE, FeedMode.ROWS)
    table = LakeTable.create(first, str(tmp_path / "t"), STORAGE, {}, 1, partitioning=FEED_PARTITIONING)
    changed = replace(_TABLE, columns=(_column(1, "id", "string"), *_TABLE.columns[1:]))
    plain = feed_schema(_TABLE, FeedMode.ROWS)
    fields = [
        next(field for field in feed_schema(changed, FeedMode.ROWS).fields if field.name == OLD)
        if field.name == OLD
        else field
        for field in plain.fields
    ]
    with pytest.raises(SchemaConflict, match="column id cannot change from long to string"):
        table.table.stage(RowDelta((), schema=replace(plain, fields=tuple(fields))), 1)


def test_a_map(tmp_path: Path) -> None:
    table = LakeTable.create(TRANSACTION_SCHEMA, str(tmp_path / "t"), STORAGE, {}, 1, partitioning=FEED_PARTITIONING)
    row = {"_lsn": 5, "_xid": 7, "_committed_at": 3, "_origin": None, "tables": [("public.t", 3)]}
    rows = pa.Table.from_pylist([row], schema=TRANSACTION_SCHEMA.arrow)
    table = _append(table, rows, TRANSACTION_SCHEMA)
    assert StaticTable.from_metadata(table.new_location).scan().to_arrow().to_pylist()[0]["tables"] == [("public.t", 3)]
