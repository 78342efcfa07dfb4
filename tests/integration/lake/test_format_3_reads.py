"""Tables of format version 3 that Spark made: each row past deletion vectors, and its lineage."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from mirror_pump.lake.document.metadata_files import metadata_number, read_any_version
from mirror_pump.lake.storage import StorageOptions, list_files
from mirror_pump.tables.read_plan.plan import read_plan
from mirror_pump.tables.read_plan.scan import Scan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORAGE = StorageOptions(fsync=False)
LINEAGE = ("_file", "_pos", "_row_id", "_last_updated_sequence_number")
_MODES = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("delete", "update", "merge"))


class SparkTable:
    """A table in a catalog of its own."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.session = spark.newSession()
        catalog = f"c{uuid.uuid4().hex[:8]}"
        self.session.conf.set("spark.sql.session.timeZone", "UTC")
        self.session.conf.set(f"spark.sql.catalog.{catalog}", "org.apache.iceberg.spark.SparkCatalog")
        self.session.conf.set(f"spark.sql.catalog.{catalog}.type", "hadoop")
        self.session.conf.set(f"spark.sql.catalog.{catalog}.warehouse", directory.as_uri())
        self.name = f"{catalog}.db.t"
        self.directory = directory / "db" / "t"

    def sql(self, statement: str) -> None:
        self.session.sql(statement.format(self.name))

    @property
    def newest(self) -> str:
        files = [file.location for file in list_files(f"file://{self.directory}/metadata", STORAGE)]
        return max(
            (file for file in files if file.endswith(".metadata.json")), key=lambda file: metadata_number(file) or 0
        )

    def require_equal(self, *, lineage: bool = True) -> list[dict[str, object]]:
        """The rows, which this project reads as Spark does."""
        location = self.newest
        metadata = read_any_version(location, STORAGE)
        columns = ["id", "region", "note", *(LINEAGE if lineage else ())]
        expected = _sorted(self.session.table(self.name).select(*columns).toArrow())
        scan = Scan(read_plan(metadata, STORAGE, columns=columns), location)
        assert _sorted(scan.to_arrow()) == expected
        some = Scan(read_plan(metadata, STORAGE, "region = 'eu' and id > 20", columns=columns), location)
        assert _sorted(some.to_arrow()) == [row for row in expected if row["region"] == "eu" and row["id"] > 20]  # type: ignore[operator]
        assert _sorted(some.to_spark(self.session).toArrow()) == _sorted(some.to_arrow())
        return expected


def _sorted(table: pa.Table) -> list[dict[str, object]]:
    return sorted(table.to_pylist(), key=lambda row: (row["id"], row.get("_row_id")))


def test_a_table_of_spark_with_vectors_and_lineage(spark: SparkSession, tmp_path: Path) -> None:
    table = SparkTable(spark, tmp_path)
    table.sql(
        "CREATE TABLE {} (id bigint, region string, note string) USING iceberg PARTITIONED BY (region)"
        f" TBLPROPERTIES ('format-version' = '3', {_MODES})"
    )
    table.sql("INSERT INTO {} SELECT id, CASE WHEN id % 2 = 0 THEN 'eu' ELSE 'us' END, 'new' FROM range(80)")
    table.require_equal()
    table.sql("DELETE FROM {} WHERE id % 7 = 0")
    table.sql("DELETE FROM {} WHERE id % 11 = 0")
    table.require_equal()
    table.sql("UPDATE {} SET note = 'changed' WHERE id BETWEEN 40 AND 50")
    table.sql("UPDATE {} SET region = 'us' WHERE id = 26")
    rows = table.require_equal()
    ids = {row["id"]: row["_row_id"] for row in rows}
    assert len(set(ids.values())) == len(rows)
    vectors = read_plan(read_any_version(table.newest, STORAGE), STORAGE).deletes.files
    assert vectors
    assert all(file.blob is not None and file.format == "PUFFIN" for file in vectors)
    # Without partitions the later files are of another spec.
    table.sql("ALTER TABLE {} DROP PARTITION FIELD region")
    table.sql("INSERT INTO {} VALUES (100, 'eu', 'late'), (101, 'us', 'late')")
    table.sql("DELETE FROM {} WHERE id IN (3, 4, 100)")
    table.require_equal()
    catalog = table.name.split(".")[0]
    table.sql(f"CALL {catalog}.system.rewrite_data_files(table => 'db.t', options => map('rewrite-all', 'true'))")
    compacted = {row["id"]: row["_row_id"] for row in table.require_equal()}
    assert {row_id: compacted[row_id] for row_id in ids if row_id not in (3, 4)} == {
        row_id: number for row_id, number in ids.items() if row_id not in (3, 4)
    }


@pytest.mark.further
def test_a_table_that_spark_upgraded(spark: SparkSession, tmp_path: Path) -> None:
    """Position-delete files stay until a vector takes their place; rows have IDs from the next snapshot on."""
    table = SparkTable(spark, tmp_path)
    table.sql(
        "CREATE TABLE {} (id bigint, region string, note string) USING iceberg"
        f" TBLPROPERTIES ('format-version' = '2', {_MODES})"
    )
    for begin in (0, 40):
        table.sql(f"INSERT INTO {{}} SELECT /*+ COALESCE(1) */ id, 'eu', 'new' FROM range({begin}, {begin + 40})")
    table.sql("DELETE FROM {} WHERE id % 5 = 0")
    table.sql("ALTER TABLE {} SET TBLPROPERTIES ('format-version' = '3')")
    rows = table.require_equal()
    assert {row["_row_id"] for row in rows} == {None}
    table.sql("DELETE FROM {} WHERE id = 41")
    rows = table.require_equal()
    assert None not in {row["_row_id"] for row in rows}
    assert [row["id"] for row in rows] == [number for number in range(80) if number % 5 and number != 41]
    files = read_plan(read_any_version(table.newest, STORAGE), STORAGE).files
    kinds = sorted(tuple(delete.format for delete in file.position_deletes) for file in files)
    assert kinds == [("PARQUET",), ("PUFFIN",)]
    table.sql("UPDATE {} SET note = 'changed' WHERE id IN (1, 42)")
    table.require_equal()
