"""Downloads the jars that `maintain` and `verify` need into the directory that is given: a step of the image."""

from __future__ import annotations

import sys

from mirror_pump.engine.spark_runtime.session import CATALOG, SparkSettings, spark_session, storage_conf


def main() -> None:
    """Start a Spark with all jars, which downloads them, and end it."""
    # The jars for S3 are named only with a warehouse in S3.
    packages = storage_conf(CATALOG, "s3://bucket/prefix", {})["spark.jars.packages"]
    conf = {"spark.jars.packages": packages, "spark.jars.ivy": sys.argv[1]}
    spark_session(SparkSettings(master="local[1]", app_name="fetch-jars", conf=conf)).stop()


if __name__ == "__main__":
    main()
