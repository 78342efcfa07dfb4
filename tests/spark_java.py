"""How tests start Spark's Java: with little compilation, and with its classes from an archive.

Loading and verifying Spark's classes is half of the CPU that its start costs. `make test` makes the archive once:
`python -m tests.spark_java`. Without an archive, or with one of another Java or Spark, Java starts as well, only
slower.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

_ROOT = Path(__file__).parents[1]
ARCHIVE = _ROOT / "build" / "spark.jsa"
"""Classes in Java's memory layout; empty if this Java cannot make an archive."""
_DEFAULTS = _ROOT / "tests" / "spark-defaults.conf"

_FEW_CYCLES = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A test's JVM lives for seconds and sees a few rows, so compiling costs more CPU than it saves."""


def options(archive_option: str | None = None) -> str:
    """Options of Java."""
    if archive_option is None:
        archived = ARCHIVE.exists() and ARCHIVE.stat().st_size > 0
        # No warning about an archive that does not fit, since every line that Java prints becomes a line of the log.
        archive_option = f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if archived else ""
    return f"{_FEW_CYCLES} {archive_option}".strip()


def environment(archive_option: str | None = None) -> dict[str, str]:
    """Variables by which every Spark of this process and of those that it starts gets the settings of tests."""
    chosen = options(archive_option)
    arguments = ["--properties-file", str(_DEFAULTS), "--conf", f"spark.driver.defaultJavaOptions={chosen}"]
    return {
        "PYSPARK_SUBMIT_ARGS": shlex.join([*arguments, "pyspark-shell"]),
        # Spark puts this directory on the class path; Java uses no archive if a directory with files is there.
        "SPARK_CONF_DIR": str(_ROOT / "build" / "no-spark-conf"),
    }


def main() -> None:
    """Makes ARCHIVE of the classes that a pump's Spark and a query use."""
    from mirror_pump.engine.spark_runtime.session import SparkSettings, end_java, spark_session

    ARCHIVE.parent.mkdir(exist_ok=True)
    ARCHIVE.unlink(missing_ok=True)
    os.environ |= environment(f"-XX:ArchiveClassesAtExit={ARCHIVE}")
    log = ARCHIVE.with_suffix(".log")
    session = spark_session(SparkSettings(master="local[2]", app_name="class-archive", jars=False, log=log))
    try:
        assert session.sparkContext.parallelize([1, 2], 2).map(abs).collect() == [1, 2]
        assert session.sql("SELECT id % 2 AS k, count(*) FROM range(9) GROUP BY 1").count() == 2
    finally:
        session.stop()
        # Java writes the archive at its end.
        end_java()
    ARCHIVE.touch()


if __name__ == "__main__":
    main()
