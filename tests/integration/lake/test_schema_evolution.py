"""Tables whose columns change between commits, as Spark, DuckDB and pyiceberg read them, with and without deletes."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from decoders.columns import ColumnType
from mirror_pump.engine.lake_reads.lookup import LookupTask, find_rows, rows_of
from mirror_pump.engine.rewrite.conversion_plan import file_rewrite_of, plan_conversion
from mirror_pump.engine.rewrite.delete_conversion import convert_deletes
from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.replacement import EveryFile
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles, StagedCommit
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.format.data_files import WrittenFile, write_data_file, write_equality_deletes
from mirror_pump.lake.format.position_deletes import PATH_ID
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.source.catalog.catalog_schema import migrate
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_duckdb, read_spark
from tests.support.lake_tables import START_MS, STORAGE, land

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _schema(*fields: str) -> LakeSchema:
    """Fields as `ID name type`; those whose name begins with k are the key."""
    parsed = [field.split(" ", 2) for field in fields]
    return LakeSchema(
        0,
        tuple(
            LakeField(int(number), name, ColumnType.parse(type_), required=name.startswith("k"))
            for number, name, type_ in parsed
        ),
        tuple(int(number) for number, name, _ in parsed if name.startswith("k")),
    )


class _EvolvingTable:
    """public.t, each of whose commits lands in the catalog."""

    def __init__(self, database: Database, warehouse: str, schema: LakeSchema) -> None:
        with database.connect() as connection:
            migrate(connection)
        self._dsn = database.dsn
        self._now = START_MS
        self.table = self._land(LakeTable.create(schema, f"{warehouse}/public/t", STORAGE, {}, self._now))

    def segment(self, schema: LakeSchema, rows: list[tuple[Any, ...]], deleted: Sequence[Any] = ()) -> SegmentFiles:
        location = self.table.location
        data: tuple[WrittenFile, ...] = ()
        deletes: tuple[WrittenFile, ...] = ()
        if rows:
            columns = [
                pa.array(values, field.type)
                for values, field in zip(zip(*rows, strict=True), schema.arrow, strict=True)
            ]
            data = (write_data_file(pa.table(columns, schema=schema.arrow), schema, location, STORAGE),)
        if deleted:
            keys = pa.table([pa.array(deleted, schema.key.arrow.field(0).type)], schema=schema.key.arrow)
            deletes = (write_equality_deletes(keys, schema, location, STORAGE),)
        return SegmentFiles(data, deletes)

    def commit(self, *segments: SegmentFiles, schema: LakeSchema | None = None, replace: bool = False) -> StagedCommit:
        self._now += 1000
        staged = self.table.stage(
            RowDelta(segments, schema=schema, replaces=EveryFile() if replace else None), self._now
        )
        self.table = self._land(staged)
        return staged

    def convert(self) -> None:
        plan = plan_conversion(self.table, Listing(STORAGE, (*self.table.schema.key_ids, PATH_ID)))
        assert plan is not None
        self._now += 1000
        file_rewrite = file_rewrite_of(plan, [convert_deletes(task) for task in plan.tasks])
        self.table = self._land(self.table.stage(RowDelta((), replaces=file_rewrite), self._now))

    def rows(self, lake: SparkSession) -> list[tuple[Any, ...]]:
        """Names and rows, which have to be the same in Spark and DuckDB."""
        spark = read_spark(lake, "public.t")
        duckdb = read_duckdb(self.table.metadata_location)
        names = tuple(duckdb.column_names)
        found = sorted((tuple(row.values()) for row in duckdb.to_pylist()), key=repr)
        assert found == sorted((tuple(row) for row in spark), key=repr)
        return [names, *found]

    def _land(self, staged: StagedCommit) -> LakeTable:
        land(self._dsn, staged)
        return staged.table


FIRST = _schema("1 k long", "2 a string", "3 b int", "4 price decimal(10,2)", "8 n int")
RENAMED = _schema("1 key long", "2 b string", "3 a int", "4 price decimal(10,2)", "8 n int")
CHANGED = _schema("1 key long", "2 b string", "4 price decimal(24,2)", "9 a list<int>", "8 n long", "10 note string")


def test_columns_change_while_rows_and_deletes_of_before_stay(
    database: Database, warehouse: str, lake: SparkSession
) -> None:
    table = _EvolvingTable(database, warehouse, FIRST)
    p = Decimal("-12.50")
    table.commit(table.segment(FIRST, [(k, f"a{k}", k * 10, p, k) for k in range(1, 7)]))
    first = table.table.snapshot_id
    # Two names are swapped in the middle of a commit, with a delete before the swap and one after it.
    table.commit(
        table.segment(FIRST, [(1, "a1'", 11, p, 1)], [1]),
        table.segment(RENAMED, [(2, "a2'", 22, None, 2)], [2, 3]),
        schema=RENAMED,
    )
    renamed = table.table.snapshot_id
    assert table.rows(lake) == [
        ("key", "b", "a", "price", "n"),
        (1, "a1'", 11, p, 1), (2, "a2'", 22, None, 2), (4, "a4", 40, p, 4), (5, "a5", 50, p, 5), (6, "a6", 60, p, 6),
    ]  # fmt: skip
    table.commit(
        table.segment(RENAMED, [], [4]),
        table.segment(CHANGED, [(3, "z", None, [1, None], 2**40, "n"), (5, "a5'", Decimal(10**20), [], 5, None)], [5]),
        schema=CHANGED,
    )
    expected = [
        ("key", "b", "price", "a", "n", "note"),
        (1, "a1'", p, None, 1, None), (2, "a2'", None, None, 2, None), (3, "z", None, [1, None], 2**40, "n"),
        (5, "a5'", Decimal(10**20), [], 5, None), (6, "a6", p, None, 6, None),
    ]  # fmt: skip
    assert table.rows(lake) == expected
    table.convert()
    assert table.table.equality_deletes == 0
    assert table.rows(lake) == expected
    # Every snapshot is read with the schema of its time.
    old = lake.sql(f"SELECT k, a, b, price, n FROM lake.public.t VERSION AS OF {first} ORDER BY k").collect()
    assert [tuple(row) for row in old] == [(k, f"a{k}", k * 10, p, k) for k in range(1, 7)]
    old = lake.sql(f"SELECT key, b, a FROM lake.public.t VERSION AS OF {renamed} ORDER BY key").collect()
    assert [tuple(row) for row in old] == [(1, "a1'", 11), (2, "a2'", 22), (4, "a4", 40), (5, "a5", 50), (6, "a6", 60)]
    # A new process reads the same from the metadata file, and can continue.
    table.table = LakeTable.load(table.table.metadata_location, STORAGE)
    assert table.table.schema.fields == CHANGED.fields
    table.commit(table.segment(CHANGED, [], [6]))
    assert table.rows(lake) == expected[:-1]


def test_a_key_becomes_wider_only_with_all_its_files_replaced(
    database: Database, warehouse: str, lake: SparkSession
) -> None:
    narrow, wide = _schema("1 k int", "2 v string"), _schema("1 k long", "2 v string")
    table = _EvolvingTable(database, warehouse, narrow)
    table.commit(table.segment(narrow, [(1, "a"), (2, "b")]), table.segment(narrow, [], [2]))
    message = "key column k cannot change from int to long while rows and deletes of the old type remain"
    with pytest.raises(LakeError, match=message):
        table.commit(schema=wide)
    table.commit(table.segment(wide, [(2**40, "c")]), table.segment(wide, [], [2]), schema=wide, replace=True)
    assert table.rows(lake) == [("k", "v"), (2**40, "c")]


def test_values_are_looked_up_by_field_id(database: Database, warehouse: str) -> None:
    table = _EvolvingTable(database, warehouse, FIRST)
    old = table.segment(FIRST, [(7, "seven", 70, None, 7), (8, "eight", 80, None, 8)])
    task = LookupTask(
        (old.data[0].path,), pa.table({"key": pa.array([7], pa.int64())}), ("b", "note", "a", "n"), CHANGED, STORAGE,
        table.table.location,
    )  # fmt: skip
    (found,) = (rows_of(row, STORAGE) for row in find_rows(task))
    assert found.to_pylist() == [{"key": 7, "b": "seven", "note": None, "a": None, "n": 7}]
    assert found.schema.types == [pa.int64(), pa.string(), pa.string(), pa.list_(pa.int32()), pa.int64()]


def test_a_schema_that_comes_back_has_its_number_again(database: Database, warehouse: str) -> None:
    table = _EvolvingTable(database, warehouse, FIRST)
    table.commit(schema=RENAMED)
    table.commit(schema=FIRST)
    table.commit(schema=FIRST)
    assert [schema.schema_id for schema in table.table.metadata.readable_schemas] == [0, 1]
    assert [snapshot.schema_id for snapshot in table.table.metadata.snapshots] == [0, 1, 0, 0]


def test_what_other_engines_are_to_leave_out_of_uuids_follows_their_names(
    database: Database, warehouse: str, lake: SparkSession
) -> None:
    """Iceberg refuses to set any property as long as another property names a column that does not exist."""
    before = _schema("1 k uuid", "2 gone uuid", "3 v uuid")
    after = _schema("1 key uuid", "3 a.b uuid", "4 new uuid", "5 w int")
    table = _EvolvingTable(database, warehouse, before)
    table.commit(schema=after)
    lake.sql("ALTER TABLE lake.public.t SET TBLPROPERTIES ('steward' = 'somebody')").collect()
    found = {row[0]: row[1] for row in lake.sql("SHOW TBLPROPERTIES lake.public.t").collect()}
    expected = {
        f"{prefix}.column.{name}": value
        for name in ("key", "a.b", "new")
        for prefix, value in (("write.metadata.metrics", "counts"), ("write.parquet.stats-enabled", "false"))
    }
    assert {name: value for name, value in found.items() if ".column." in name} == expected
    assert found["steward"] == "somebody"


def test_a_replaced_table_may_get_another_key(database: Database, warehouse: str, lake: SparkSession) -> None:
    table = _EvolvingTable(database, warehouse, FIRST)
    table.commit(table.segment(FIRST, [(1, "x", 10, None, 0)]))
    other = _schema("1 v long", "3 kb int", "11 more string")
    with pytest.raises(LakeError, match="kb cannot become required"):
        table.commit(schema=other)
    table.commit(table.segment(other, [(1, 10, "m"), (2, 10, "n")], [10]), schema=other, replace=True)
    assert table.rows(lake) == [("v", "kb", "more"), (1, 10, "m"), (2, 10, "n")]
    assert table.table.metadata.readable_schemas[-1].key_ids == (3,)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (("1 k long", "2 a int"), "cannot change from string to int"),
        (("1 k long", "4 price decimal(10,3)"), "cannot change from"),
        (("1 k long", "4 price decimal(9,2)"), "cannot change from"),
        (("1 k long", "9 knew int"), "cannot be required"),
        (("1 k long", "2 a string", "2 b string"), "twice"),
        (("1 k long", "2 a string", "3 a int"), "twice"),
        (("3 b int",), None),
    ],
)
def test_what_would_make_old_files_unreadable_is_refused(
    database: Database, warehouse: str, fields: tuple[str, ...], why: str | None
) -> None:
    table = _EvolvingTable(database, warehouse, FIRST)
    if why is not None:
        with pytest.raises(LakeError, match=why):
            table.commit(schema=_schema(*fields))
        return
    # A dropped column never returns, even after many commits.
    table.commit(schema=_schema("1 k long", "2 a string"))
    with pytest.raises(LakeError, match="IDs are never reused"):
        table.commit(schema=FIRST.__class__(0, (*FIRST.fields[:2], _schema("3 c int").fields[0]), (1,)))
