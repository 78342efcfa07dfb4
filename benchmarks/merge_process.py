"""The process in which Iceberg's Spark merges the same corrections as a fold: requests on stdin, answers on stdout.

The first request has `dsn`, `warehouse`, `log` and `rows`; its answer, the `version`, comes when there is a copy of
public.aging in a catalog of its own. Each further one names a Parquet file of `corrections`, with the table's columns
and `op`, and how many first rows of it to merge into the copy; its answer has the `seconds`, and the sums of the
copy. A failure is an answer with `error`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.answering import AnswerRequest, answer_requests

_MEMORY = "2g"
_COPY = "own.bench.aging"
_MERGE = f"""
MERGE INTO {_COPY} t USING corrections c ON t.id = c.id
WHEN MATCHED AND c.op = 1 THEN DELETE
WHEN MATCHED THEN UPDATE SET t.branch = c.branch, t.balance = c.balance, t.note = c.note, t.updated = c.updated
WHEN NOT MATCHED AND c.op = 0 THEN
     INSERT (id, branch, balance, note, updated) VALUES (c.id, c.branch, c.balance, c.note, c.updated)
"""
SUMS = "SELECT count(*), sum(id), sum(balance), sum(length(note)) FROM {}"


def main() -> None:
    answer_requests(_prepared)


def _prepared(request: dict[str, Any]) -> tuple[str, AnswerRequest]:
    """Copies the table, with Iceberg's recommended settings for frequent merges: position deletes, and files are left
    in place."""
    from mirror_pump.engine.spark_runtime.session import ICEBERG_PACKAGE, SparkSettings, jdbc_catalog, spark_session

    session = spark_session(
        SparkSettings(app_name="bench-fold", log=Path(request["log"]), driver_memory=_MEMORY),
        {
            **jdbc_catalog("lake", request["dsn"], request["warehouse"]),
            "spark.sql.catalog.own": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.own.type": "hadoop",
            "spark.sql.catalog.own.warehouse": f"{request['warehouse']}-merged",
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        },
    )
    session.sql(
        f"CREATE TABLE {_COPY} USING iceberg TBLPROPERTIES ('format-version' = '2', 'write.merge.mode' ="
        " 'merge-on-read', 'write.parquet.compression-level' = '1') AS SELECT * FROM lake.public.aging"
    )

    def merge(request: dict[str, Any]) -> dict[str, Any]:
        rows = session.read.parquet(request["corrections"]).limit(request["rows"])
        rows.createOrReplaceTempView("corrections")
        began = time.perf_counter()
        session.sql(_MERGE)
        seconds = time.perf_counter() - began
        sums = session.sql(SUMS.format(_COPY)).collect()[0]
        return {"seconds": seconds, "result": [str(value) for value in sums]}

    return f"Spark {session.version} with Iceberg {ICEBERG_PACKAGE.rpartition(':')[2]}", merge


if __name__ == "__main__":
    main()
