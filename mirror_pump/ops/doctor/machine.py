"""This machine: the Java that runs Spark, the jars that Spark needs for Iceberg tables, and free space."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mirror_pump.engine.lake_storage import lake_storage, reachable_warehouses
from mirror_pump.engine.spark_runtime.java import find_java_home, ivy_jars, java_version
from mirror_pump.engine.spark_runtime.session import maven_packages
from mirror_pump.lake.storage import local_path
from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Site, failed, ok, warning


def _java(site: Site) -> Iterator[Finding]:
    del site
    home = find_java_home()
    yield ok(f"Java {java_version(home)} in {home}")


def _jars(site: Site) -> Iterator[Finding]:
    directory = ivy_jars()
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

_GIB = 2**30
_LEAST = _GIB
"""Bytes. A few batches, a merge and Spark's scratch files take some hundred MB."""
_SCARCE_SHARE = 0.1
"""Of the file system. Where that is more than _PLENTY, it is no reason to warn."""
_PLENTY = 50 * _GIB


def _disk(site: Site) -> Iterator[Finding]:
    """Free space of the file systems that this machine's part of the mirror writes to.

    The server's own disk cannot be seen through SQL: max_slot_wal_keep_size protects it.
    """
    for purpose, path in _places(site):
        existing = _existing(path)
        usage = shutil.disk_usage(existing)
        yield space_finding(purpose, existing, usage.free, usage.total)


def _places(site: Site) -> Iterator[tuple[str, Path]]:
    warehouse = site.lake.warehouse
    local = None if warehouse is None else local_path(warehouse)
    if local is not None:
        yield "the warehouse", local
    for directory in (os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).split(","):
        yield "Spark's scratch files", Path(directory)


def _existing(path: Path) -> Path:
    """The directory, or the nearest one above it that exists: it will be made there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def space_finding(purpose: str, path: Path, free: int, total: int) -> Finding:
    """The finding for a file system with `free` bytes of `total`."""
    message = f"{free / _GIB:.1f} GiB of {total / _GIB:.1f} GiB are free for {purpose} ({path})"
    remedy = f"make room there: du -xh --max-depth=1 '{path}' | sort -h"
    if free < _LEAST:
        return failed(message, remedy)
    if free < min(_SCARCE_SHARE * total, _PLENTY):
        return warning(message, remedy)
    return ok(message)


DISK = DoctorCheck("disk", _disk)
