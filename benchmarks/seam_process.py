"""The process in which one engine reads public.aging: requests on stdin, answers on stdout, each a line of JSON.

The first request names the `engine` (spark or duckdb), with `dsn`, `warehouse` and `log`; its answer has the engine's
`version`. Each further one has a `mode` (seam or heap) and a `query`: `sums`, of every column, tied to the key, or
`scan`, of all rows, which are discarded. Its answer has `seconds`, from the request for the table to the release of its
pins, and the `result`: CHECKS of engines.py, or the number of rows. A failure is an answer with `error`.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.aging import TABLE
from benchmarks.answering import AnswerRequest, answer_requests
from benchmarks.engines import DUCKDB, SPARK, Checks, checks

SUMS, SCAN = "sums", "scan"
_BATCH_ROWS = 100_000
_SPARK_MEMORY = "2g"

TimedRead = Callable[[str, str], Checks | int]
"""By mode and query."""


def main() -> None:
    answer_requests(_prepared)


def _prepared(request: dict[str, Any]) -> tuple[str, AnswerRequest]:
    version, read = (_spark if request["engine"] == "spark" else _duckdb)(request)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        result = read(request["mode"], request["query"])
        return {"seconds": time.perf_counter() - began, "result": result}

    return version, answer


def _spark(request: dict[str, Any]) -> tuple[str, TimedRead]:
    """mirror_pump.spark.read, in a session as `mirror-pump connect --engine spark` describes it."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    import mirror_pump.spark
    from mirror_pump.engine.spark_runtime.session import ICEBERG_PACKAGE, SparkSettings, jdbc_catalog, spark_session

    session = spark_session(
        SparkSettings(app_name="bench-seam", log=Path(request["log"]), driver_memory=_SPARK_MEMORY),
        jdbc_catalog("lake", request["dsn"], request["warehouse"]),
    )

    def read(mode: str, query: str) -> Checks | int:
        with mirror_pump.spark.read(session, TABLE, mode, dsn=request["dsn"]) as frame:
            if query == SUMS:
                frame.createOrReplaceTempView("aging")
                return checks(session.sql(SPARK.scan("aging")).collect()[0])
            seen = Observation()
            frame.observe(seen, f.count(f.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
            return int(seen.get["rows"])

    return f"Spark {session.version} with Iceberg {ICEBERG_PACKAGE.rpartition(':')[2]}", read


def _duckdb(request: dict[str, Any]) -> tuple[str, TimedRead]:
    """What `mirror-pump sql` does, without starting its process: a DuckDB for each query."""
    from mirror_pump.ops.reads.query import Query, open_query
    from mirror_pump.ops.reads.table_reads import ReadMode
    from mirror_pump.ops.setup.stored_settings import complete
    from mirror_pump.settings.config import load_settings

    settings = complete(load_settings({"dsn": request["dsn"]}))

    def read(mode: str, query: str) -> Checks | int:
        statement = DUCKDB.scan(TABLE) if query == SUMS else f"SELECT * FROM {TABLE}"
        with open_query(settings, Query(statement, ReadMode(mode)), print) as connection:
            result = connection.execute(statement)
            if query == SUMS:
                return checks(result.fetchall()[0])
            rows: int = sum(batch.num_rows for batch in result.to_arrow_reader(_BATCH_ROWS))
            return rows

    return f"DuckDB {importlib.metadata.version('duckdb')}", read


if __name__ == "__main__":
    main()
