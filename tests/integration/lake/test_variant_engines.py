"""Documents of every size and form in a data file: what Spark and DuckDB make of the variants."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from mirror_pump.tables.catalogs.path_catalog import PathCatalog
from mirror_pump.tables.table.column_texts import schema_of
from mirror_pump.tables.table.table import Table
from mirror_pump.testing.lake import read_duckdb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_INTEGERS = [
    0, -1, 127, 128, -128, -129, 32767, 32768, 2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1,
    10**18, 10**38 - 1, 1 - 10**38,
]  # fmt: skip
_FRACTIONS = [
    "0.0", "1.50", "-0.05", "99999999.9", "9999999999.9", "0.000000001", "0.0000000001", "1." + "0" * 37,
    "0." + "0" * 37 + "1", "-" + "9" * 34 + ".9999",
]  # fmt: skip
_DOCUMENTS = {
    "null": "null",
    "integers": json.dumps(_INTEGERS),
    "fractions": f"[{', '.join(_FRACTIONS)}]",
    "strings": json.dumps(["x" * length for length in (0, 1, 63, 64, 65, 255, 256, 65_536, 70_000)]),
    "characters": json.dumps({"\U0001f600": 1, "\uffff": 2, "e\u0301": 3, "é": 4, "": 5, 'a"\\\n\x01': "\x01\b\f\x7f"}),
    "sizes": json.dumps({"a": "x" * 300, "b": ["y" * 70_000, 1], "c": {"d": []}, "e": {}}),
    "levels": "[" * 500 + "]" * 500,
    "levels of objects": '{"a":' * 499 + "1" + "}" * 499,
    "many fields": json.dumps({f"k{number}": number for number in range(300)}),
    "70,000 fields": json.dumps({f"k{number}": number for number in range(70_000)}),
    "70,000 elements": json.dumps([*range(70_000)]),
    "long": json.dumps("x" * (17 << 20)),
}
_SLOW_IN_DUCKDB = {"70,000 fields"}
"""Its time grows with the square of the number of fields."""


def written(directory: Path, documents: dict[str, str]) -> Table:
    """A table with the documents, `doc`, under their names."""
    schema = schema_of(["name string", "doc variant"])
    table = Table.create(PathCatalog(directory.as_uri()), "db.t", schema, format_version=3)
    table.append(pa.table({"name": [*documents], "doc": [*documents.values()]}))
    return table


def equal(text: str | None, document: str) -> bool:
    """Whether both are the same JSON. Spark leaves out zeros at the end of a fraction."""
    if text is None:
        return False

    def parsed(text: str) -> Any:
        return json.loads(text, parse_float=Decimal)

    if document.startswith(("[[[", '{"a":{')):
        # Too deep for Python.
        return text.replace(" ", "") == document
    return bool(parsed(text) == parsed(document))


@pytest.mark.further
def test_spark_reads_all(tmp_path: Path, spark: SparkSession) -> None:
    table = written(tmp_path, _DOCUMENTS)
    frame = spark.read.format("iceberg").load(table.location)
    texts = {row["name"]: row["text"] for row in frame.selectExpr("name", "to_json(doc) AS text").collect()}
    assert [name for name, document in _DOCUMENTS.items() if not equal(texts[name], document)] == []
    lookups = {
        "70,000 fields": ("$.k65535", "int", 65_535),
        "70,000 elements": ("$[69999]", "int", 69_999),
        "many fields": ("$.k299", "int", 299),
        "sizes": ("$.b[1]", "int", 1),
        "integers": ("$[16]", "decimal(38,0)", Decimal(10**38 - 1)),
        "fractions": ("$[1]", "decimal(3,2)", Decimal("1.50")),
    }
    for name, (path, lake_type, value) in lookups.items():
        (row,) = frame.where(f"name = '{name}'").selectExpr(f"variant_get(doc, '{path}', '{lake_type}') AS x").collect()
        assert row["x"] == value, name


def test_duckdb_reads_all(tmp_path: Path) -> None:
    documents = {name: document for name, document in _DOCUMENTS.items() if name not in _SLOW_IN_DUCKDB}
    table = written(tmp_path, documents)
    rows = read_duckdb(table.metadata_location, "SELECT name, doc::json::varchar FROM lake")
    texts = dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    # It leaves out the zero before a point.
    texts["fractions"] = re.sub(r"(?<![0-9])\.", "0.", texts["fractions"])
    assert [name for name, text in texts.items() if not equal(text, documents[name])] == []
    fractions = read_duckdb(table.metadata_location, "SELECT doc[3]::decimal(5, 2) FROM lake WHERE name = 'fractions'")
    assert fractions.column(0).to_pylist() == [Decimal("-0.05")]
