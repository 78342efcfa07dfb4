"""Tables without a server: which files they accept, what their partitions are, and that other engines' tables are
continued as well as read back by these engines."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import StaticTable
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)

from mirror_pump.errors import ForeignTable, LakeError
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.tables.catalogs.lake_catalog import MetadataPointer, PointerChange, TableIdentifier
from mirror_pump.tables.catalogs.memory_catalog import MemoryCatalog
from mirror_pump.tables.catalogs.path_catalog import PathCatalog
from mirror_pump.tables.catalogs.sqlite_catalog import SqliteCatalog
from mirror_pump.tables.table.partition_values import plain_values
from mirror_pump.tables.table.table import Table
from mirror_pump.tables.table.table_errors import FileRefused, SchemaMismatch, TableExists, TableMissing
from mirror_pump.testing.lake import duckdb_connection
from tests.support.catalog_kinds import ROWS, file_of, files_at, left_behind, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "sales.orders"
_STORAGE = StorageOptions(fsync=False)


@pytest.fixture
def table(warehouse: str) -> Table:
    return Table.create(MemoryCatalog(warehouse, _STORAGE), NAME, ROWS)


def written(table: Table, content: pa.Table, name: str = "") -> str:
    """A file of any content in the table's directory, as a program writes it that knows nothing of Iceberg."""
    directory = Path(table.location.removeprefix("file://")) / "data"
    directory.mkdir(exist_ok=True)
    path = directory / (name or f"{uuid.uuid4().hex}.parquet")
    pq.write_table(content, path)
    return str(path)


def by_duckdb(table: Table, query: str = "SELECT * FROM t") -> list[tuple[Any, ...]]:
    """Rows in order, by DuckDB."""
    with duckdb_connection() as duckdb:
        text = query.replace("FROM t", f"FROM iceberg_scan('{table.metadata_location}')")
        return sorted(duckdb.execute(text).fetchall())


def by_pyiceberg(table: Table) -> list[tuple[Any, ...]]:
    found = StaticTable.from_metadata(table.metadata_location).scan().to_arrow()
    return sorted(tuple(row.values()) for row in found.to_pylist())


BAD_FILES = {
    "of another type": (pa.table({"id": ["x"], "name": ["x"]}), "column id: it is string"),
    "wider": (pa.table({"id": [Decimal(1)], "name": ["x"]}), "column id: it is decimal"),
    "without a required column": (pa.table({"name": ["x"]}), "lacks the required column id"),
    "with a NULL in a required column": (
        pa.table({"id": pa.array([1, None]), "name": ["x", "y"]}),
        "column id may be null",
    ),
    "with a new column that is not nullable": (
        pa.table([[1], ["x"], [2]], schema=pa.schema([*ROWS, pa.field("new", pa.int64(), nullable=False)])),
        "no column new, and it is not nullable",
    ),
    "with a name that differs by case": (pa.table({"id": [1], "NAME": ["x"]}), "column NAME has another field ID"),
    "with nanoseconds": (
        pa.table({"id": [1], "at": pa.array([1], pa.timestamp("ns"))}),
        "a type that Iceberg does not have",
    ),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_file_with_other_columns_is_refused(table: Table, kind: str) -> None:
    content, reason = BAD_FILES[kind]
    good = file_of(table, 1)
    bad = written(table, content, "bad.parquet")
    before = table.metadata_location
    with pytest.raises(SchemaMismatch, match=rf"bad\.parquet.*{reason}"):
        table.commit_append([good, bad])
    assert table.refresh().metadata_location == before
    assert left_behind(table, metadata_of(table)) == []


def metadata_of(table: Table) -> list[Path]:
    return list((Path(table.location.removeprefix("file://")) / "metadata").iterdir())


def test_what_is_no_file_of_the_table_is_refused(table: Table, tmp_path: Path) -> None:
    directory = Path(table.location.removeprefix("file://")) / "data"
    directory.mkdir(exist_ok=True)
    good = file_of(table, 1)
    (directory / "empty.parquet").touch()
    (directory / "text.parquet").write_text("id,name\n1,x\n" * 100)
    cut = Path(written(table, rows(1), "cut.parquet"))
    cut.write_bytes(cut.read_bytes()[:-20])
    outside = tmp_path / "outside.parquet"
    pq.write_table(rows(1), outside)
    for files, reason in (
        ([good, good], "named twice"),
        ([good, good.removeprefix("file://")], "named twice"),
        ([str(directory / "missing.parquet")], "does not exist"),
        ([str(directory)], "is a directory"),
        ([str(directory / "empty.parquet")], "has 0 bytes"),
        ([str(directory / "text.parquet")], "is not a Parquet file"),
        ([str(cut)], "is not a Parquet file"),
        ([str(outside)], "outside the table"),
        ([f"{directory}/../../../../outside.parquet"], "outside the table"),
    ):
        with pytest.raises(FileRefused, match=reason):
            table.commit_append([*files])
    assert len(table.refresh().history()) == 1
    assert left_behind(table, metadata_of(table)) == []


def test_a_file_that_the_table_has_is_refused(warehouse: str) -> None:
    """By any of its names, also once its manifest was merged, and if another writer adds it at the same time. A file
    that was removed may come back."""
    catalog = MemoryCatalog(warehouse, _STORAGE)
    table, other = Table.create(catalog, NAME, ROWS), Table.open(catalog, NAME)
    files = [file_of(table, number) for number in range(12)]
    for file in files:
        table.commit_append([file])
    new = file_of(table, 13)
    before = metadata_of(table)
    for writer in (table, other, Table.open(catalog, NAME)):
        for there in (files[0], files[11], files[5].removeprefix("file://")):
            with pytest.raises(FileRefused, match=f"{Path(there).name} is in the table"):
                writer.commit_append([new, there])
    with pytest.raises(FileRefused, match="is in the table"):
        table.commit_overwrite([files[0]], [files[0]])
    assert sorted(metadata_of(table)) == sorted(before)
    # Prepared on the same snapshot: the second one finds the pointer moved, and the file there.
    other.refresh()
    table.commit_append([new])
    with pytest.raises(FileRefused, match="is in the table"):
        other.commit_append([new])
    other.commit_overwrite([files[0]], [file_of(table, 14)])
    table.commit_append([files[0]])
    assert files_at(table) > set(files)


def test_new_nullable_columns_come_with_the_files_that_have_them(table: Table) -> None:
    table.append(rows(1))
    table.append(pa.table({"id": [2], "name": ["n2"], "paid": [Decimal("1.50")]}, schema=wider()))
    stale = Table.open(table._catalog, NAME)
    table.commit_append([written(table, pa.table({"id": [3], "note": ["a note"]}))])
    assert table.schema.column_names == ["id", "name", "paid", "note"]
    # A writer that does not know of the columns yet.
    stale.append(rows(4))
    expected = [
        (1, "n1", None, None),
        (2, "n2", Decimal("1.50"), None),
        (3, None, None, "a note"),
        (4, "n4", None, None),
    ]
    assert by_pyiceberg(stale) == expected
    assert by_duckdb(stale, "SELECT id, name, paid, note FROM t") == expected
    first = stale.history()[-2]
    assert len(files_at(stale, first)) == 1
    assert first.schema_id == 0, "old snapshots have their own columns"


def wider() -> pa.Schema:
    return pa.schema([*ROWS, pa.field("paid", pa.decimal128(10, 2))])


def test_two_writers_that_add_columns_of_one_id_do_not_mix_them(table: Table) -> None:
    """Files written for the same new field ID, with other columns: the second is refused, whatever the order."""
    first, second = (Table.open(table._catalog, NAME) for _ in range(2))
    sized = with_text(2, "size", "XL")
    first.append(with_text(1, "colour", "red"))
    with pytest.raises(SchemaMismatch, match="field ID 3, which is that of colour"):
        second.append(sized)
    # It knows the table as it is now.
    second.append(sized)
    assert by_pyiceberg(second) == [(1, None, "red", None), (2, None, None, "XL")]


def with_text(number: int, column: str, text: str) -> pa.Table:
    return pa.table({"id": [number], column: [text]}, schema=pa.schema([ROWS.field(0), pa.field(column, pa.string())]))


def moment(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


MOMENTS = [moment("1969-12-31T23:59:59.000005"), moment("2024-02-29T12:00:00"), None]
TYPES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("seen", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("flag", pa.bool_()),
    ]
)
CONTENT = pa.table(
    {
        "id": list(range(12)),
        "text": ["Ähre", "x" * 40, None] * 4,
        "seen": MOMENTS * 4,
        "day": [None if found is None else found.date() for found in MOMENTS] * 4,
        "price": [Decimal("-1.50"), Decimal("10.00"), None] * 4,
        "flag": [True, False, None] * 4,
    },
    schema=TYPES,
)
SPECS: dict[str, tuple[int, Transform[Any, Any]]] = {
    "identity text": (2, IdentityTransform()),
    "identity decimal": (5, IdentityTransform()),
    "identity bool": (6, IdentityTransform()),
    "identity date": (4, IdentityTransform()),
    "bucket id": (1, BucketTransform(4)),
    "bucket text": (2, BucketTransform(4)),
    "bucket decimal": (5, BucketTransform(4)),
    "truncate text": (2, TruncateTransform(3)),
    "truncate id": (1, TruncateTransform(5)),
    "truncate decimal": (5, TruncateTransform(100)),
    "hour": (3, HourTransform()),
    "day": (3, DayTransform()),
    "day of date": (4, DayTransform()),
    "month": (3, MonthTransform()),
    "year": (3, YearTransform()),
}


_BEYOND_DUCKDB: dict[str, Sequence[object]] = {
    # DuckDB 1.5 rounds a moment before 1970 towards zero, to the day and month after it.
    "day": MOMENTS[:1],
    "month": MOMENTS[:1],
    # It fails with an internal error.
    "truncate decimal": [Decimal("-1.50"), Decimal("10.00")],
}


@pytest.mark.parametrize("kind", SPECS)
def test_partitions_are_those_of_pyiceberg(warehouse: str, kind: str) -> None:
    """Of rows divided here, and of files that somebody else wrote, described by their footers."""
    source, transform = SPECS[kind]
    spec = PartitionSpec(PartitionField(source, 1000, transform, "part"))
    table = Table.create(MemoryCatalog(warehouse, _STORAGE), NAME, TYPES, spec)
    for _ in range(11):
        # Enough that manifests are merged, and their summaries with them.
        table.append(CONTENT)
    scan = StaticTable.from_metadata(table.metadata_location)
    files = [task.file for task in scan.scan().plan_files()]
    field = scan.schema().find_field(source)
    apply = transform.transform(field.field_type)
    for file in files:
        values = plain_values(pq.read_table(file.file_path.removeprefix("file://"))[field.name], field.field_type)
        assert {None if value is None else apply(value) for value in values} == {file.partition[0]}
    for row in CONTENT.to_pylist()[:3]:
        value = row[field.name]
        condition = f"{field.name} IS NULL" if value is None else f"{field.name} = {literal(value)}"
        found = scan.scan(row_filter=condition).to_arrow()
        assert found.num_rows == 11 * sum(other[field.name] == value for other in CONTENT.to_pylist()), condition
        if value not in _BEYOND_DUCKDB.get(kind, ()):
            assert by_duckdb(table, f"SELECT count(*) FROM t WHERE {condition}") == [(found.num_rows,)]


def literal(value: object) -> str:
    if isinstance(value, int | Decimal):
        return str(value)
    return f"'{value.isoformat() if isinstance(value, dt.date) else value}'"


def test_a_file_of_several_partitions_is_refused(warehouse: str) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name_part"))
    table = Table.create(MemoryCatalog(warehouse, _STORAGE), NAME, ROWS, spec)
    with pytest.raises(FileRefused, match="rows of 2 partitions by name_part: n1, n2"):
        table.commit_append([written(table, rows(1, 2))])
    with pytest.raises(FileRefused, match="has no rows"):
        table.commit_append([written(table, rows())])
    table.commit_append([written(table, rows(1, 1))])
    (task,) = StaticTable.from_metadata(table.metadata_location).scan().plan_files()
    assert task.file.partition[0] == "n1"


def test_tables_of_pyiceberg_are_continued_and_it_continues_ours(tmp_path: Path) -> None:
    warehouse = (tmp_path / "lake").as_uri()
    theirs = SqlCatalog("lake", uri=f"sqlite:///{tmp_path / 'catalog.db'}", warehouse=warehouse)
    theirs.create_namespace("sales")
    made = theirs.create_table(NAME, ROWS)
    made.append(rows(1, 2))
    ours = SqliteCatalog(tmp_path / "catalog.db", warehouse, _STORAGE)
    table = Table.open(ours, NAME)
    table.append(rows(3))
    made.refresh()
    made.append(rows(4))
    table.append(rows(5))
    made.refresh()
    assert sorted(made.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4, 5]
    assert [number for number, _ in by_duckdb(table)] == [1, 2, 3, 4, 5]
    Table.create(ours, "sales.other", ROWS).append(rows(7))
    assert theirs.load_table("sales.other").scan().to_arrow()["id"].to_pylist() == [7]
    assert sorted(theirs.list_tables("sales")) == [("sales", "orders"), ("sales", "other")]
    with pytest.raises(TableExists):
        Table.create(ours, NAME, ROWS)
    Table.drop(ours, NAME)
    assert theirs.list_tables("sales") == [("sales", "other")]
    with pytest.raises(TableMissing):
        Table.open(ours, NAME)


def test_other_format_versions_are_refused_clearly(table: Table) -> None:
    catalog = MemoryCatalog(table.location, _STORAGE)
    document = {**table.metadata.document, "format-version": 4}
    name = TableIdentifier("sales", "third")
    catalog.commit([PointerChange(name, None, TableMetadata(document))])
    with pytest.raises(ForeignTable, match="format version 4"):
        Table.open(catalog, name)


@pytest.mark.further
def test_spark_and_tables_of_a_path(spark: SparkSession, warehouse: str) -> None:
    """Spark's HadoopCatalog makes a table, we continue it, and the other way round."""
    for key, value in (("", "org.apache.iceberg.spark.SparkCatalog"), (".type", "hadoop"), (".warehouse", warehouse)):
        spark.conf.set(f"spark.sql.catalog.pathlake{key}", value)
    spark.sql(
        "CREATE TABLE pathlake.sales.made (id bigint NOT NULL, name string, at timestamp_ntz) USING iceberg"
        " PARTITIONED BY (bucket(4, id), days(at))"
    )
    spark.sql("INSERT INTO pathlake.sales.made VALUES (1, 'one', timestamp_ntz'2024-02-29 12:00:00')")
    catalog = PathCatalog(warehouse, _STORAGE)
    assert [str(name) for name in catalog.tables("sales")] == ["sales.made"]
    table = Table.open(catalog, "sales.made")
    more = pa.table({"id": [2, 3], "name": ["two", None], "at": [moment("2024-03-01"), None]})
    table.append(more)
    spark.sql("REFRESH TABLE pathlake.sales.made")
    spark.sql("DELETE FROM pathlake.sales.made WHERE id = 1")
    spark.sql("INSERT INTO pathlake.sales.made VALUES (4, 'four', NULL)")
    table.append(pa.table({"id": [5], "name": ["five"], "extra": [1.5]}))
    spark.sql("REFRESH TABLE pathlake.sales.made")
    found = spark.sql("SELECT id, name, extra FROM pathlake.sales.made ORDER BY id").collect()
    assert [tuple(row) for row in found] == [
        (2, "two", None),
        (3, None, None),
        (4, "four", None),
        (5, "five", 1.5),
    ]
    assert spark.sql("SELECT name FROM pathlake.sales.made WHERE id = 5").collect()[0][0] == "five"
    own = Table.create(catalog, "sales.own", ROWS)
    own.append(rows(1, 2))
    own.commit_overwrite(files_at(own), [file_of(own, 3)])
    assert [row[0] for row in spark.sql("SELECT id FROM pathlake.sales.own").collect()] == [3]
    first = own.history()[1].snapshot_id
    old = spark.sql(f"SELECT id FROM pathlake.sales.own VERSION AS OF {first} ORDER BY id").collect()
    assert [row[0] for row in old] == [1, 2]
    with pytest.raises(LakeError, match="has no transaction log"):
        catalog.commit([PointerChange(TableIdentifier("a", name), None, own.metadata) for name in "bc"])
    assert catalog.load(own.identifier) == MetadataPointer(own.metadata_location, 3)
