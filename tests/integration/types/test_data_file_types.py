"""Every column type, written by mirror_pump.lake.format.data_files and read by Spark, DuckDB and pyiceberg."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable

from decoders.columns import ColumnType, Kind
from mirror_pump.engine.rewrite.delete_conversion import OrderedFile
from mirror_pump.engine.rewrite.file_merge import MergeTask, merge_files
from mirror_pump.lake.commit.catalog import ensure_namespace, insert_pointer
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles
from mirror_pump.lake.format.data_files import write_data_file, write_equality_deletes
from mirror_pump.lake.format.schema import ELEMENT_IDS_FROM, LakeField, LakeSchema
from mirror_pump.lake.storage import StorageOptions, local_path
from mirror_pump.source.catalog.catalog_schema import migrate
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import metadata_location, read_duckdb
from tests.support.local_files import path_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORAGE = StorageOptions(fsync=False)
ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2**128 - 1)
UTC = dt.UTC

VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int": [-(2**31), 2**31 - 1],
    "long": [-(2**63), 2**63 - 1],
    "float": [1.5, math.inf],
    "double": [-1e300, -math.inf],
    "decimal(9,2)": [Decimal("-9999999.99"), Decimal("0.01")],
    "decimal(14,2)": [Decimal("-999999999999.99"), Decimal("0.01")],
    "decimal(38,10)": [Decimal("-" + "9" * 28 + "." + "9" * 10), Decimal("0E-10")],
    "string": ["", "grüße 🐘 " + "x" * 6000],
    "binary": [b"", b"\x00\xff" * 20],
    "uuid": [ONE.bytes, TWO.bytes],
    "date": [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "time": [dt.time(0, 0), dt.time(23, 59, 59, 999999)],
    "timestamp": [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)],  # noqa: DTZ001 - has no zone
    "timestamptz": [dt.datetime(2, 1, 1, tzinfo=UTC), dt.datetime(9998, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)],
    "list<long>": [[], [1, None, -5]],
    "list<string>": [["a", ""], [None]],
    "list<uuid>": [[ONE.bytes, None, TWO.bytes], []],
    "list<decimal(9,2)>": [[Decimal("1.25")], [Decimal("-1.00"), None]],
    "list<timestamptz>": [[dt.datetime(2020, 1, 1, tzinfo=UTC)], []],
}
NOT_IN_SPARK = {"time"}
"""Spark has no such type, and fails on the whole table's schema."""


def _schema(types: list[str], key: ColumnType) -> LakeSchema:
    fields = [LakeField(1, "key", key, required=True)]
    fields += [LakeField(2 + n, f"c{n}", ColumnType.parse(name), required=False) for n, name in enumerate(types)]
    return LakeSchema(0, tuple(fields), (1,))


def _table(types: list[str]) -> tuple[LakeSchema, pa.Table]:
    """Three rows: two with values, one with NULLs; keys 1, 2, 3."""
    schema = _schema(types, ColumnType(Kind.LONG))
    columns = [pa.array([1, 2, 3], pa.int64())]
    columns += [pa.array([*VALUES[name], None], ColumnType.parse(name).arrow) for name in types]
    return schema, pa.table(columns, schema=schema.arrow)


def _written(warehouse: str, types: list[str]) -> LakeTable:
    """A table of those rows in two files, sliced so that offsets do not begin at zero."""
    schema, rows = _table(types)
    table = LakeTable.create(schema, f"{warehouse}/public/t", STORAGE, {}, 0).table
    parts = (rows.slice(0, 2), rows.slice(2))
    segments = tuple(SegmentFiles((write_data_file(part, schema, table.location, STORAGE),), ()) for part in parts)
    return table.stage(RowDelta(segments), 0).table


def _plain(value: Any) -> Any:
    """UUIDs as their 16 bytes; everything else unchanged."""
    if isinstance(value, list):
        return [_plain(element) for element in value]
    return value.bytes if isinstance(value, uuid.UUID) else value


def _parsed(value: Any) -> Any:
    """UUIDs from text."""
    if isinstance(value, list):
        return [_parsed(element) for element in value]
    return None if value is None else uuid.UUID(value).bytes


def test_duckdb_reads_every_type(warehouse: str) -> None:
    types = list(VALUES)
    found = read_duckdb(_written(warehouse, types).metadata_location, "SELECT * FROM lake ORDER BY key")
    for n, name in enumerate(types):
        values = found.column(f"c{n}").to_pylist()
        if "uuid" in name:  # DuckDB passes UUIDs to Arrow as text.
            values = [_parsed(value) for value in values]
        assert values == [*VALUES[name], None], name


def test_pyiceberg_reads_every_type(warehouse: str) -> None:
    types = list(VALUES)
    table = StaticTable.from_metadata(_written(warehouse, types).metadata_location)
    assert [str(field.field_type).replace(" ", "") for field in table.schema().fields[1:]] == types
    found = table.scan().to_arrow().sort_by("key")
    for n, name in enumerate(types):
        assert [_plain(value) for value in found.column(f"c{n}").to_pylist()] == [*VALUES[name], None], name


def test_spark_reads_every_type_that_it_has(database: Database, lake: SparkSession, warehouse: str) -> None:
    types = [name for name in VALUES if name not in NOT_IN_SPARK]
    table = _written(warehouse, types)
    with database.connect() as connection:
        migrate(connection)
        ensure_namespace(connection, "public")
        insert_pointer(connection, "public", "t", table.metadata_location)
    found = {row["key"]: row for row in _spark_text(lake, types)}
    for n, name in enumerate(types):
        for key, value in enumerate([*VALUES[name], None], 1):
            assert found[key][f"c{n}"] == _as_spark_prints(name, value), (name, value)


def _spark_text(lake: SparkSession, types: list[str]) -> list[Any]:
    """Rows with dates, times and timestamps as text: Python's own types cannot hold all of Spark's."""
    columns = [
        f"CAST(c{n} AS string) AS c{n}" if any(word in name for word in ("date", "timestamp")) else f"c{n}"
        for n, name in enumerate(types)
    ]
    return list(lake.sql(f"SELECT key, {', '.join(columns)} FROM lake.public.t").collect())


def _as_spark_prints(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name == "uuid":
        return str(uuid.UUID(bytes=value))
    if name == "list<uuid>":
        return [None if element is None else str(uuid.UUID(bytes=element)) for element in value]
    if name == "list<timestamptz>":
        return "[" + ", ".join(_as_spark_prints("timestamp", element) for element in value) + "]"
    if name == "date":
        return value.isoformat()
    if name.startswith("timestamp"):
        text = value.replace(tzinfo=None).isoformat(sep=" ")
        return text.rstrip("0") if "." in text else text
    return value


def test_floats_keep_nan_and_the_sign_of_zero_and_a_nan_column_has_no_bounds(warehouse: str) -> None:
    schema = _schema(["double", "float"], ColumnType(Kind.LONG))
    values = [math.nan, -0.0, 1.0]
    rows = pa.table(
        [pa.array([1, 2, 3], pa.int64()), pa.array(values), pa.array([1.0, -0.0, 2.0], pa.float32())],
        schema=schema.arrow,
    )
    written = write_data_file(rows, schema, f"{warehouse}/t", STORAGE)
    assert written.nan_counts == {2: 1, 3: 0}
    assert set(written.lower_bounds) == set(written.upper_bounds) == {1, 3}
    table = LakeTable.create(schema, f"{warehouse}/t", STORAGE, {}, 0).table
    table = table.stage(RowDelta((SegmentFiles((written,), ()),)), 0).table
    found = read_duckdb(table.metadata_location, "SELECT c0 FROM lake ORDER BY key").column("c0").to_pylist()
    assert math.isnan(found[0])
    assert math.copysign(1, found[1]) == -1
    assert read_duckdb(table.metadata_location, "SELECT key FROM lake WHERE c0 > 5").to_pylist() == [{"key": 1}]
    assert read_duckdb(table.metadata_location, "SELECT key FROM lake WHERE c1 = 0").to_pylist() == [{"key": 2}]


@pytest.mark.further
@pytest.mark.parametrize("name", ["uuid", "string", "binary", "date", "decimal(38,10)", "timestamptz", "int"])
def test_keys_of_other_types_are_deleted_by(name: str, database: Database, lake: SparkSession, warehouse: str) -> None:
    key = ColumnType.parse(name)
    schema = LakeSchema(
        0, (LakeField(1, "key", key, required=True), LakeField(2, "v", ColumnType(Kind.INT), required=False)), (1,)
    )
    table = LakeTable.create(schema, f"{warehouse}/public/t", STORAGE, {}, 0).table
    rows = pa.table([pa.array(VALUES[name], key.arrow), pa.array([1, 2], pa.int32())], schema=schema.arrow)
    data = write_data_file(rows, schema, table.location, STORAGE)
    deletes = write_equality_deletes(rows.select(["key"]).slice(1), schema, table.location, STORAGE)
    table = table.stage(RowDelta((SegmentFiles((data,), ()), SegmentFiles((), (deletes,)))), 0).table
    assert read_duckdb(table.metadata_location, "SELECT v FROM lake").to_pylist() == [{"v": 1}]
    with database.connect() as connection:
        migrate(connection)
        insert_pointer(connection, "public", "t", table.metadata_location)
    assert [row["v"] for row in lake.sql("SELECT v FROM lake.public.t").collect()] == [1]


def test_parquet_types_are_those_of_the_spec(warehouse: str) -> None:
    """Iceberg spec, appendix A (Parquet), and field IDs on every column and list element."""
    types = list(VALUES)
    schema, rows = _table(types)
    path = path_of(write_data_file(rows, schema, f"{warehouse}/t", STORAGE).path)
    file = pq.ParquetFile(path)
    physical = {name: file.schema.column(1 + n) for n, name in enumerate(types)}
    assert physical["decimal(9,2)"].physical_type == "INT32"
    assert physical["decimal(14,2)"].physical_type == "INT64"
    assert physical["decimal(38,10)"].physical_type == "FIXED_LEN_BYTE_ARRAY"
    assert str(physical["uuid"].logical_type) == "UUID"
    assert "isAdjustedToUTC=false" in str(physical["time"].logical_type)
    assert "isAdjustedToUTC=false" in str(physical["timestamp"].logical_type)
    assert "isAdjustedToUTC=true" in str(physical["timestamptz"].logical_type)
    arrow = file.schema_arrow
    for column in schema.fields:
        field = arrow.field(column.name)
        assert field.metadata[b"PARQUET:field_id"] == str(column.field_id).encode()
        if column.type.kind is Kind.LIST:
            element = field.type.value_field
            assert element.metadata[b"PARQUET:field_id"] == str(ELEMENT_IDS_FROM + column.field_id).encode()


def test_every_value_is_found_behind_its_bounds(database: Database, lake: SparkSession, warehouse: str) -> None:
    """Bounds prune files; a wrong one hides rows from an equality filter."""
    types = ["int", "long", "double", "decimal(9,2)", "decimal(14,2)", "decimal(38,10)", "string", "date", "timestamp"]
    schema, rows = _table(types)
    table = LakeTable.create(schema, f"{warehouse}/public/t", STORAGE, {}, 0).table
    files = tuple(write_data_file(rows.slice(n, 1), schema, table.location, STORAGE) for n in range(3))
    table = table.stage(RowDelta((SegmentFiles(files, ()),)), 0).table
    with database.connect() as connection:
        migrate(connection)
        insert_pointer(connection, "public", "t", table.metadata_location)
    for n, name in enumerate(types):
        for key, value in enumerate(VALUES[name], 1):
            where = f"c{n} = {_literal(name, value)}"
            duck = read_duckdb(table.metadata_location, f"SELECT key FROM lake WHERE {where}")
            assert duck.column("key").to_pylist() == [key], where
            spark = lake.sql(f"SELECT key FROM lake.public.t WHERE {where}").collect()
            assert [row["key"] for row in spark] == [key], where


@pytest.mark.further
def test_a_uuid_is_found_in_a_file_that_has_both_halves_of_them(
    database: Database, lake: SparkSession, warehouse: str
) -> None:
    """Iceberg's Java code compares them as signed numbers: then 80... is below 00..., and no value is in between."""
    schema, rows = _table(["uuid"])
    table = LakeTable.create(schema, f"{warehouse}/public/t", STORAGE, {}, 0).table
    files = (write_data_file(rows, schema, table.location, STORAGE),)
    table = table.stage(RowDelta((SegmentFiles(files, ()),)), 0).table
    with database.connect() as connection:
        migrate(connection)
        insert_pointer(connection, "public", "t", table.metadata_location)

    def assert_found(location: str) -> None:
        for key, value in enumerate((ONE, TWO), 1):
            for where in (f"c0 = '{value}'", f"c0 IN ('{value}', '{uuid.UUID(int=5)}')"):
                found = read_duckdb(location, f"SELECT key FROM lake WHERE {where}")
                assert found.column("key").to_pylist() == [key], where
                spark = lake.sql(f"SELECT key FROM lake.public.t WHERE {where}").collect()
                assert [row["key"] for row in spark] == [key], where

    assert_found(table.metadata_location)
    lake.sql(
        "CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))"
    ).collect()
    assert_found(metadata_location(database.dsn, "public.t"))


def _literal(name: str, value: Any) -> str:
    """The value as SQL that both Spark and DuckDB understand."""
    if name in {"double", "long"}:
        return f"CAST('{value}' AS {'double' if name == 'double' else 'bigint'})"
    if name.startswith("decimal"):
        return f"CAST('{value:f}' AS {name})"
    if name in {"date", "timestamp"}:
        return f"CAST('{value.isoformat()}' AS {name})"
    return f"'{value}'" if isinstance(value, str) else str(value)


def test_a_merge_keeps_every_value(warehouse: str) -> None:
    schema, rows = _table(list(VALUES))
    files = [
        write_data_file(part, schema, f"{warehouse}/t", STORAGE).path for part in (rows.slice(0, 2), rows.slice(2))
    ]
    task = MergeTask(tuple(OrderedFile(path, 1) for path in files), (), schema, f"{warehouse}/t", STORAGE)
    merged = merge_files(task)
    assert merged.path is not None
    before, after = (
        pa.concat_tables([pq.read_table(local_path(path), partitioning=None) for path in paths])
        for paths in (files, [merged.path])
    )
    assert after.schema.equals(before.schema, check_metadata=True)
    assert after.equals(before)
