"""How tests start Spark's Java: with little compilation, and with its classes from an archive.

Loading and verifying Spark's classes is half of the CPU that its start costs. `make test` makes the archive, and makes
it anew for another Java, Spark or checkout: `python -m tests.spark_java`. Without an archive, or with one that does not
fit, Java starts as well, only slower, and says nothing.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from pathlib import Path

from mirror_pump.engine.spark_runtime.java import find_java_home

_ROOT = Path(__file__).parents[1]
ARCHIVE = _ROOT / "build" / "spark.jsa"
"""Classes in Java's memory layout; empty if this Java cannot make an archive."""
_ORIGIN = ARCHIVE.with_suffix(".origin")
"""What the archive was made of."""
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


def _origin() -> str:
    """This program, and the Java and the jars: Java tells by their paths, sizes and times whether the archive fits."""
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    files = [Path(__file__), find_java_home() / "bin" / "java", *sorted(Path(spark.origin).parent.glob("jars/*.jar"))]
    sizes = [(path.resolve(), path.stat()) for path in files]
    return "".join(f"{path} {stat.st_size} {stat.st_mtime_ns}\n" for path, stat in sizes)


def main() -> None:
    """Makes ARCHIVE of the classes that a pump's Spark and a query use, unless there is one that fits."""
    origin = _origin()
    if ARCHIVE.exists() and _ORIGIN.exists() and _ORIGIN.read_text() == origin:
        return
    print("making an archive of the classes of Spark ...", file=sys.stderr)
    from mirror_pump.engine.spark_runtime.session import SparkSettings, end_java, spark_session

    ARCHIVE.parent.mkdir(exist_ok=True)
    ARCHIVE.unlink(missing_ok=True)
    # Also if this Java cannot make one: the next run does not try again.
    _ORIGIN.write_text(origin)
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
