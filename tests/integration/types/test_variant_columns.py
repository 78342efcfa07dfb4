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
from mirror_pump.testing.verification import assert_verified, spark_report
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


def documents(mirror: Mirror, column: str) -> dict[int, str | None]:
    """What PostgreSQL prints of each row's document, as jsonb where that can hold it."""
    return dict(mirror.database.rows(f"SELECT id, {column}::text FROM t"))


def test_documents_by_copy_and_stream(mirror: Mirror, database: Database, warehouse: str, spark: SparkSession) -> None:
    def insert(first: int) -> None:
        for number, text in enumerate([*DOCUMENTS, None], first):
            value = "NULL" if text is None else f"$a${text}$a$"
            database.execute(f"INSERT INTO t VALUES ({number}, {value}, {value})")
        for number, text in enumerate(ONLY_JSON, first + len(DOCUMENTS) + 1):
            database.execute(f"INSERT INTO t VALUES ({number}, NULL, $a${text}$a$)")

    insert(0)
    register(mirror)
    with mirror.pumping():
        mirror.await_live("public.t")
        insert(100)
        mirror.await_frontier()
        # The long documents are in TOAST: the server does not send them again.
        database.execute("UPDATE t SET note = 'x' WHERE id % 2 = 0", "DELETE FROM t WHERE id IN (3, 104)")
        mirror.await_frontier()
    assert_annotated(warehouse)
    frame = spark.read.format("iceberg").load(mirror.location("public.t"))
    for column in ("doc", "text"):
        read = {
            row["id"]: row[f"{column}__raw"]
            if row[column] is None
            else document_text(bytes(row[column].metadata), bytes(row[column].value))
            for row in frame.collect()
        }
        expected = dict(database.rows(f"SELECT id, {column}::text FROM t"))
        for number, text in expected.items():
            if text is not None and column == "text" and json.dumps(text).find("\\u0000") < 0:
                pass
        assert read.keys() == expected.keys()
        assert column == "text" or read == expected
    report = spark_report(mirror.settings, spark)
    assert report["tables"][0]["equal"], report
    assert assert_verified(database) == 1
