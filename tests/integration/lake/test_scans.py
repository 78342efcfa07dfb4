"""Tables that Spark and pyiceberg made are read exactly, past deletes and through former schemas and specs."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg import expressions as pyiceberg_expressions
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from mirror_pump.lake.document.metadata_files import read_any_version
from mirror_pump.lake.storage import StorageOptions, list_files
from mirror_pump.tables.catalogs.memory_catalog import MemoryCatalog
from mirror_pump.tables.read_plan.plan import read_plan
from mirror_pump.tables.read_plan.scan import Scan
from mirror_pump.tables.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORAGE = StorageOptions(fsync=False)
expressions: Any = pyiceberg_expressions

_PREDICATES = (
    None,
    "id >= 40",
    "id = 7",
    "region = 'eu' and id < 50",
    "note is null",
    "moment >= '2026-01-02T00:00:00+00:00' and not (id in (60, 61, 62))",
    "amount > 50",
    "added is null or region != 'us'",
)


def _newest(directory: Path) -> str:
    found = [file.location for file in list_files(f"file://{directory}/metadata", STORAGE)]
    versions = [location for location in found if location.endswith(".metadata.json")]
    return max(versions, key=lambda location: int(location.rsplit("/v", 1)[1].split(".")[0]))


def _rows(rows: list[dict[str, object]]) -> list[str]:
    return sorted(repr(sorted((name, str(value)) for name, value in row.items())) for row in rows)


@pytest.mark.further
def test_a_table_of_spark_with_deletes_and_evolution(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    catalog = f"c{uuid.uuid4().hex[:8]}"
    session.conf.set(f"spark.sql.catalog.{catalog}", "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set(f"spark.sql.catalog.{catalog}.type", "hadoop")
    session.conf.set(f"spark.sql.catalog.{catalog}.warehouse", f"file://{tmp_path}")
    name = f"{catalog}.db.t"
    modes = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("delete", "update", "merge"))
    session.sql(
        f"CREATE TABLE {name} (id int, region string, moment timestamp, amount decimal(9,2), note string) USING iceberg"
        f" PARTITIONED BY (region, days(moment)) TBLPROPERTIES ('format-version' = '2', {modes})"
    )
    session.sql(
        f"INSERT INTO {name} SELECT cast(id AS int), CASE WHEN id % 2 = 0 THEN 'eu' ELSE 'us' END,"
        " TIMESTAMP '2026-01-01 12:00:00' + make_dt_interval(cast(id % 3 AS int)), cast(id AS decimal(9,2)),"
        " CASE WHEN id % 5 <> 0 THEN repeat('x', 40) END FROM range(80)"
    )
    session.sql(f"DELETE FROM {name} WHERE id % 7 = 0")
    first = read_any_version(_newest(tmp_path / "db" / "t"), STORAGE).current_snapshot_id
    session.sql(f"ALTER TABLE {name} ALTER COLUMN id TYPE bigint")
    session.sql(f"ALTER TABLE {name} ADD COLUMN added string")
    session.sql(f"ALTER TABLE {name} RENAME COLUMN note TO remark")
    session.sql(f"ALTER TABLE {name} RENAME COLUMN remark TO note")
    session.sql(f"UPDATE {name} SET amount = amount + 100, added = 'late' WHERE id BETWEEN 40 AND 45")
    location = _newest(tmp_path / "db" / "t")
    metadata = read_any_version(location, STORAGE)
    deletes = read_plan(metadata, STORAGE).deletes.files
    assert deletes, "the table was to have delete files"
    for predicate in _PREDICATES:
        frame = session.table(name)
        if predicate is not None:
            frame = frame.where(predicate.replace("T00:00:00+00:00", ""))
        expected = _rows(_in_utc(frame.toArrow()))
        plan = read_plan(metadata, STORAGE) if predicate is None else read_plan(metadata, STORAGE, predicate)
        scan = Scan(plan, location)
        assert _rows(_in_utc(scan.to_arrow())) == expected, predicate
        assert _rows(_in_utc(scan.to_spark(session).toArrow())) == expected, predicate
    old = Scan(read_plan(metadata, STORAGE, snapshot_id=first), location)
    expected = _rows(_in_utc(session.sql(f"SELECT * FROM {name} VERSION AS OF {first}").toArrow()))
    assert _rows(_in_utc(old.to_arrow())) == expected
    assert _rows(_in_utc(old.to_spark(session).toArrow())) == expected


def _in_utc(table: pa.Table) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = table.to_pylist()
    return [{name: str(value).removesuffix("+00:00") for name, value in row.items()} for row in rows]


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_table_of_pyiceberg(tmp_path: Path, version: str) -> None:
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("db")
    schema = Schema(
        NestedField(1, "id", IntegerType(), required=False), NestedField(2, "name", StringType(), required=False)
    )
    table = catalog.create_table("db.t", schema=schema, properties={"format-version": version})
    table.append(pa.table({"id": pa.array([1, 2, None], pa.int32()), "name": ["a", None, "c"]}))
    with table.update_schema() as update:
        update.update_column("id", LongType())
        update.rename_column("name", "title")
        update.add_column("extra", StringType())
    with table.update_spec() as spec:
        spec.add_identity("id")
    table.append(pa.table({"id": [5, 6], "title": ["e", "f"], "extra": ["x", None]}))
    metadata = read_any_version(table.metadata_location, STORAGE)
    for predicate in (None, "id > 1", "id = 6", "title is null", "extra is null", "id is null", "title >= 'b'"):
        expected = table.scan().to_arrow() if predicate is None else table.scan(predicate).to_arrow()
        plan = read_plan(metadata, STORAGE) if predicate is None else read_plan(metadata, STORAGE, predicate)
        assert _rows(Scan(plan).to_arrow().to_pylist()) == _rows(expected.to_pylist()), predicate


_AWKWARD: Mapping[str, tuple[pa.DataType, Sequence[Any]]] = {
    "f": (pa.float32(), (0.1, -0.0, math.inf, math.nan, None)),
    "dec": (
        pa.decimal128(38, 10),
        (Decimal("9999999999999999999999999999.9999999999"), Decimal("-1E-10"), *[None] * 3),
    ),
    "day": (pa.date32(), (-1_000_000, -1, 0, 2_932_897, None)),
    "ts": (pa.timestamp("us"), (-86_400_000_001, -1, 0, 1_700_000_000_000_001, None)),
    "tz": (pa.timestamp("us", "UTC"), (-86_400_000_001, -1, 0, 1_700_000_000_000_001, None)),
    "b": (pa.binary(), (b"", b"\x80", b"'", b"a", None)),
    "a.b": (pa.string(), ("", "it's", "\\", "\U0010ffff", None)),
    "o.p": (pa.struct([("in.ner", pa.string())]), ({"in.ner": "%"}, {"in.ner": None}, {"in.ner": "b_"}, None, None)),
}
"""Values in a column of each type, in the form of their storage."""


@pytest.mark.further
def test_spark_reads_the_same_rows_by_awkward_literals(spark: SparkSession, tmp_path: Path) -> None:
    """In a session of another time zone, by names that have dots."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    kinds = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in _AWKWARD.items())])
    table = Table.create(MemoryCatalog(tmp_path.as_uri(), STORAGE), "db.t", kinds)
    columns = [pa.array(range(5), pa.int64()), *(pa.array(values, kind) for kind, values in _AWKWARD.values())]
    table.append(pa.table(columns, kinds))
    predicates: list[BooleanExpression] = []
    for name, (_, values) in _AWKWARD.items():
        literals = [value for value in values[:3] if value is not None]
        if name == "o.p":
            name, literals = "o.p.in.ner", ["%", "b_"]
            predicates.append(expressions.StartsWith(name, "b_"))
        predicates += [expressions.In(name, literals), expressions.NotIn(name, literals[:1])]
        predicates += [expressions.LessThanOrEqual(name, literals[0]), expressions.GreaterThan(name, literals[1])]
    for predicate in predicates:
        scan = table.scan(predicate, ["id"])
        found = sorted(row.id for row in scan.to_spark(session).collect())
        assert found == sorted(scan.to_arrow()["id"].to_pylist()), predicate
