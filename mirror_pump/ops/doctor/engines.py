"""Whether the catalog can be reached by the settings that each engine gets: as `mirror-pump connect` prints them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from mirror_pump.engine.lake_storage import lake_storage, reachable_warehouses
from mirror_pump.engine.spark_runtime.session import CATALOG, LibpqAccess, libpq_access
from mirror_pump.errors import MirrorPumpError, one_line_of
from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Outcome, Site, failed, failure, ok, warning
from mirror_pump.ops.duckdb_connection import open_duckdb, reach_storage
from mirror_pump.settings.config import Settings
from sql.mirror_names import SCHEMA, of_mirror

_DEADLINE = 60.0
"""Seconds. Importing pyiceberg and SQLAlchemy takes one or two of them."""
_CONNECT_TIMEOUT = 10
_POINTERS = f"SELECT count(*) FROM {SCHEMA}.iceberg_tables WHERE catalog_name = 'lake'"


def _run(site: Site) -> Iterator[Finding]:
    mirror = site.require_mirror()
    for engines, attempt in (("Spark and Trino", _jdbc), ("pyiceberg", _pyiceberg), ("DuckDB", _duckdb)):
        try:
            yield attempt(mirror)
        except MirrorPumpError as error:
            yield failed(f"{engines}: {error}", error.remedy)
        except Exception as error:  # noqa: BLE001 - an engine's own errors; the others are still tried
            remedy = "compare what `mirror-pump connect --engine pyiceberg` prints with the DSN"
            yield failed(f"{engines}: {one_line_of(error)}", remedy)


def _jdbc(mirror: Settings) -> Finding:
    """Without a JVM: over TCP, with the host, user and password that the JDBC driver gets."""
    access = libpq_access(mirror.require_dsn())
    try:
        count = _count_by_tcp(access)
    except psycopg.Error as error:
        detail = one_line_of(error)
        return failed(
            f"Spark and Trino: the catalog cannot be reached as they would: {detail}",
            "give host, port, user and password in the DSN; Spark and Trino know no .pgpass and no Unix socket",
        )
    return ok(f"Spark and Trino: the catalog's {count} tables can be reached by TCP, as JDBC does")


def _count_by_tcp(access: LibpqAccess) -> int:
    (host, port), *_ = access.hosts
    parameters: dict[str, Any] = {
        "host": host,
        "port": port,
        "dbname": access.database,
        "user": access.user,
        "password": access.password,
        # JDBC reads no password file.
        "passfile": "/nonexistent",
        "connect_timeout": _CONNECT_TIMEOUT,
        "application_name": "mirror-pump-doctor",
        "options": f"-c search_path={access.catalog_path}",
        **access.parameters,
    }
    with psycopg.connect(**parameters) as connection:
        ((count,),) = connection.execute(of_mirror(_POINTERS, access.mirror)).fetchall()
    return int(count)


def _pyiceberg(mirror: Settings) -> Finding:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NotInstalledError

    try:
        catalog = load_catalog(
            CATALOG,
            type="sql",
            uri=libpq_access(mirror.require_dsn()).sqlalchemy_url(),
            warehouse=mirror.require_warehouse(),
            init_catalog_tables="false",
            **mirror.storage_properties,
        )
    except NotInstalledError:
        return Finding(
            Outcome.SKIPPED,
            "pyiceberg: not tried, since SQLAlchemy is not installed here. Only programs that read by pyiceberg's"
            " SqlCatalog need it",
            "pip install sqlalchemy, if one of these runs in this environment",
        )
    tables = [table for namespace in catalog.list_namespaces() for table in catalog.list_tables(namespace)]
    return ok(f"pyiceberg: the catalog lists {len(tables)} tables")


def _duckdb(mirror: Settings) -> Finding:
    try:
        connection = open_duckdb()
    except MirrorPumpError as error:
        # An extra that only some need.
        return warning(f"DuckDB: {error}; `mirror-pump sql` and quick comparisons need it", error.remedy)
    with connection:
        try:
            reach_storage(connection, reachable_warehouses(lake_storage(mirror)))
        except MirrorPumpError as error:
            return failure(error)
    return ok("DuckDB: its extensions are there")


ENGINES = DoctorCheck("engines", _run, needs=("catalog",), deadline=_DEADLINE)
