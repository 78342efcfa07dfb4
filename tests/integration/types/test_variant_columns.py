"""`register --column doc=variant`: documents of json and jsonb in variant columns, whatever way they take.

The oracle is PostgreSQL: what it prints of a document's jsonb. Spark reads the columns beside the mirror's own decoder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from decoders.variant_texts import document_text
from mirror_pump.lake.storage import local_path
from mirror_pump.source.relations.column_choices import parse_choices
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from pathlib import Path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCUMENTS = (
    '{"a": [1, 2.50, null, true, "x"], "b": {"c": 12345678901234567890123456789012345678}}',
    '{"b": 1, "a": {}, "": [], "grüße": "\\u00fc\\n\\"😀"}',
    "null",
    '"text"',
    "[]",
    "-0.125",
    "1.000",
    "1e30",
    "123456789012345678901234567890123456789",
    '{"deep": [[[[{"n": 0.00000000000000000000000000000000000001}]]]]}',
    '{"long": "' + "x" * 9000 + '"}',
)
ONLY_JSON = ('{"a": 1, "a": 2}', '{ "b":1,   "a":"\\u0000" }', '"\\ud800"', '  {"z": 1, "a": [ 1 ]}')


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, doc jsonb, text json, note text)")
    return Mirror.create(database, warehouse, ThreadTaskRunner())


def register(mirror: Mirror, *columns: str, table: str = "public.t") -> None:
    mirror.register(table, choices=parse_choices(columns or ["doc=variant", "text=variant"], []), format_version=3)


def data_files(warehouse: str) -> Iterator[Path]:
    root = local_path(warehouse)
    assert root is not None
    yield from root.rglob("data/*.parquet")


def assert_annotated(warehouse: str) -> None:
    """Every data file says that the columns are variants."""
    files = 0
    for path in data_files(warehouse):
        schema = str(pq.ParquetFile(path).schema)
        if "doc" in schema:
            assert "doc (Variant(1))" in schema, schema
            files += 1
    assert files


def test_documents_by_copy_and_stream(mirror: Mirror, database: Database, warehouse: str, spark: SparkSession) -> None:
    documents = [*DOCUMENTS, None]
    for number, text in enumerate(documents):
        database.execute(f"INSERT INTO t VALUES ({number}, $a${text}$a$, $a${text}$a$)" if text else f"INSERT INTO t VALUES ({number})")
    register(mirror)
    with mirror.pumping():
        mirror.await_live("public.t")
        for number, text in enumerate([*DOCUMENTS, None], 100):
            database.execute(f"INSERT INTO t VALUES ({number}, $a${text}$a$, $a${text}$a$)" if text else f"INSERT INTO t VALUES ({number})")
        for number, text in enumerate(ONLY_JSON, 200):
            database.execute(f"INSERT INTO t VALUES ({number}, NULL, $a${text}$a$)")
        mirror.await_frontier()
        database.execute("UPDATE t SET note = 'x' WHERE id % 2 = 0", "DELETE FROM t WHERE id = 3")
        mirror.await_frontier()
    assert_annotated(warehouse)
    frame = spark.read.format("iceberg").load(mirror.location("public.t"))
    frame.printSchema()
    for row in frame.orderBy("id").collect():
        print(row.asDict().get("id"), row["doc"] and document_text(row["doc"].metadata, row["doc"].value)[:100], row)
    rows = {row["id"]: row for row in frame.collect()}
    print(frame.selectExpr("id", "to_json(doc)", "schema_of_variant(doc)").orderBy("id").collect())
    assert 0
