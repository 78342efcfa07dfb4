"""The Java that runs Spark, and the jars that Spark needs to read and rewrite Iceberg tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mirror_pump.engine.spark_runtime.java import find_java_home, java_version
from mirror_pump.engine.spark_runtime.session import maven_packages
from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Site, ok, warning
from mirror_pump.pipeline.lake_storage import lake_storage, reachable_warehouses

_IVY_JARS = Path(".ivy2.5.2") / "jars"
"""Below the home directory: where Spark 4.1 keeps what it has from Maven."""


def _java(site: Site) -> Iterator[Finding]:
    del site
    home = find_java_home()
    yield ok(f"Java {java_version(home)} in {home}")


def _jars(site: Site) -> Iterator[Finding]:
    directory = Path.home() / _IVY_JARS
    if site.mirror is None:
        warehouses = [site.lake.warehouse or ""]
    else:
        warehouses = [warehouse.root for warehouse in reachable_warehouses(lake_storage(site.mirror))]
    packages = maven_packages(*warehouses)
    missing = [package for package in packages if not (directory / _jar_name(package)).exists()]
    if not missing:
        yield ok(f"{len(packages)} jars are in {directory}")
        return
    command = (
        "python -c 'from pyspark.sql import SparkSession as S;"
        f' S.builder.master("local[1]").config("spark.jars.packages", "{",".join(packages)}").getOrCreate()\''
    )
    yield warning(
        f"{', '.join(missing)} not in {directory}: maintenance, and verify of large tables, take them from Maven when"
        " they first need them. The pump itself does without",
        f"where Maven can be reached, as the pump's user: {command}",
    )


def _jar_name(package: str) -> str:
    """The file name that Spark gives a package `group:name:version`."""
    group, name, version = package.split(":")
    return f"{group}_{name}-{version}.jar"


JAVA = DoctorCheck("java", _java)
JARS = DoctorCheck("jars", _jars)
