"""A table with a variant column for tests/support/engine_runs.py. Spark makes it: the mirror writes no such columns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from decoders.columns import ColumnType, Kind
from mirror_pump.engine.spark_runtime.java import find_java_home
from mirror_pump.lake.format.data_files import VECTOR_VERSION
from mirror_pump.ops.reads.engine_answers import Feature
from tests.support.engine_process import SPARK_JARS
from tests.support.engine_tables import KnownTable, Question

_DOCUMENTS = (
    '{"a": [1, 2.50, null, true, "x"], "b": {"c": 12345678901234567890123456789012345678}}',
    "null",
    '"grüße"',
    "[]",
    "-0.125",
)
"""The last row has NULL."""


def variant_table(directory: Path) -> KnownTable:
    """Makes the table below a directory, in a Spark of its own."""
    environment = {**os.environ, "JAVA_HOME": str(find_java_home())}
    environment.pop("SPARK_HOME", None)
    subprocess.run(
        [sys.executable, __file__, directory.as_uri(), json.dumps(_DOCUMENTS)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=300,
    )
    location = directory / "variants" / "t" / "metadata" / "v2.metadata.json"
    count = len(_DOCUMENTS)
    long, text = ColumnType(Kind.LONG), ColumnType(Kind.STRING)
    rows = (*enumerate(_DOCUMENTS), (count, None))
    questions = (
        Question("rows without the column", {"id": long}, tuple((number,) for number in range(count + 1))),
        Question("all rows", {"id": long, "doc": text}, rows, documents=frozenset({"doc"})),
    )
    return KnownTable("v3-variant", Feature.VARIANT, VECTOR_VERSION, location.as_uri(), questions)


def main(warehouse: str, documents: list[str]) -> None:
    """Makes it in this process."""
    from pyspark.sql import SparkSession

    catalog = "spark.sql.catalog.own"
    settings = {
        "spark.ui.enabled": "false",
        "spark.jars.packages": SPARK_JARS["4"],
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": warehouse,
    }
    builder = SparkSession.builder.master("local[1]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sql("CREATE TABLE own.variants.t (id bigint, doc variant) TBLPROPERTIES ('format-version' = '3')")
    rows = session.createDataFrame([*enumerate(documents), (len(documents), None)], "id bigint, doc string")
    rows.coalesce(1).selectExpr("id", "parse_json(doc) AS doc").writeTo("own.variants.t").append()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
