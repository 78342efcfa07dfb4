"""Settings for reading the mirror with other engines, to paste. Tests run all of them, Trino's in `make trino`.

Snippets never contain a password: they read it from the environment variable PGPASSWORD, as libpq does.
"""

from __future__ import annotations

import pprint
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from psycopg.conninfo import make_conninfo

from mirror_pump.database.quoting import identifier, literal, spark_identifier
from mirror_pump.database.search_path import PINNED_PATH
from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.engine.spark_runtime.session import (
    CATALOG,
    LibpqAccess,
    jdbc_catalog,
    libpq_access,
    maven_packages,
    storage_conf,
)
from mirror_pump.errors import LakeError, TableError, UsageError, one_line_of
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.document.snapshot_summary import ARCHIVE_CUT_LINE, COPYING_PROPERTY, FRONTIER_PROPERTY
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.ops.reads.catalog_snippets import CatalogAddress, catalog_snippet, python_text
from mirror_pump.ops.reads.cloud_engines import CLOUD_ENGINES, LakeNames, cloud_statements
from mirror_pump.ops.reads.cloud_refusals import refuse_location, refuse_table, way_of
from mirror_pump.ops.reads.engine_remarks import engine_remarks
from mirror_pump.ops.reads.reader_roles import may_read, may_write, reader_roles
from mirror_pump.ops.setup.stored_settings import remembered_storage
from mirror_pump.settings.config import Settings
from mirror_pump.settings.credentials import is_secret
from mirror_pump.settings.storage_profiles import DEFAULT_PROFILE, StorageProfile
from mirror_pump.source.catalog.profiles import find_profile, read_profiles
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect, parsed_dsn, source_errors
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.rows import fetch_row
from mirror_pump.storage_kinds import kind_of
from sql import queries
from sql.mirror_names import SCHEMA, of_mirror

_SQL = queries("names")

PASSWORD = "PGPASSWORD"  # noqa: S105 - the name of the variable, not a password


_PLACEHOLDER = "lake_reader"
"""The role in snippets of a mirror without a reader's role."""
_NO_READER = f"""\
# No role may read the mirror and no more yet. Make one first, or name one:
# `mirror-pump connect --engine ENGINE --user ROLE`
#   CREATE ROLE {_PLACEHOLDER} LOGIN PASSWORD '...';
#   mirror-pump reader {_PLACEHOLDER}
"""
_MAY_WRITE = """\
# {user} may change the catalog. The pump undoes what an engine changes in rows of mirrored tables, so read as a role
# that may not: `mirror-pump reader ROLE` makes it one.
"""
_OTHERS = """\
# This reads the tables of storage profile {profile}. Those of others ({others}) need settings of their own, and in
# Spark a session of their own: mirror-pump connect --engine ENGINE --profile NAME.
"""
_EXAMPLE = ("public", "your_table")
"""The table name that snippets show when the mirror has no table yet."""


def snippet(
    settings: Settings,
    engine: str,
    user: str | None = None,
    warn: Callable[[str], None] = lambda _: None,
    profile: str = DEFAULT_PROFILE,
    table: str | None = None,
) -> str:
    """Return the settings to paste into `engine` (spark, duckdb, pyiceberg, trino), for tables of a storage profile,
    after what the engine cannot do with the table that they name: `table`, as Postgres reads it, or the first.

    The snippet connects as `user`. If that is None, it connects as a reader's role: the DSN's user if it is one, else
    the first by name. `settings` must be completed. Raises UsageError if the role does not exist, and TableError if
    `table` is not mirrored. Calls `warn` if the role cannot read the catalog.
    """
    dsn = settings.require_dsn()
    with (
        connect(dsn, autocommit=True, application_name="mirror-pump-connect") as connection,
        source_errors("reading the lake's tables"),
    ):
        settings = _of_profile(settings, find_profile(connection, profile))
        others = [other.name for other in read_profiles(connection) if other.warehouse and other.name != profile]
        example = _example(connection, settings, engine, table)
        if user is not None and not may_read(connection, user):
            warn(f"{user} cannot read the mirror's catalog yet: run `mirror-pump reader {shlex.quote(user)}`")
        readers = reader_roles(connection)
        advice = _MAY_WRITE.format(user=user) if user is not None and may_write(connection, user) else ""
    if user is None:
        user, advice = (readers[0], "") if readers else (_PLACEHOLDER, _NO_READER)
    dsn = make_conninfo(_without_password(dsn), user=user)
    if others:
        advice += _OTHERS.format(profile=profile, others=", ".join(others))
    text = _snippet(settings, engine, dsn, example.namespace, example.name, only=bool(others))
    return example.remarks + advice + text


def rest_snippet(
    settings: Settings,
    engine: str,
    uri: str,
    warehouse: str,
    profile: str = DEFAULT_PROFILE,
    table: str | None = None,
) -> str:
    """Return the settings to paste into `engine`, one of catalog_snippets.ENGINES, to read the mirror by the REST
    catalog at `uri`, attached as `warehouse`. `table`: as for `snippet`. `settings` must be completed. Raises
    UsageError, and TableError."""
    with (
        connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-connect") as connection,
        source_errors("reading the lake's tables"),
    ):
        settings = _of_profile(settings, find_profile(connection, profile))
        example = _example(connection, settings, engine, table)
    root = settings.require_warehouse()
    address = CatalogAddress(
        uri.rstrip("/"), warehouse, example.namespace, example.name, kind_of(root), _described(settings)
    )
    return example.remarks + catalog_snippet(engine, address)


def cloud_snippet(
    settings: Settings,
    engine: str,
    uri: str | None = None,
    warehouse: str = "mirror",
    warn: Callable[[str], None] = lambda _: None,
    profile: str = DEFAULT_PROFILE,
    table: str | None = None,
) -> str:
    """Return the statements to paste into `engine`, one of CLOUD_ENGINES: by the REST catalog at `uri`, attached as
    `warehouse`, or without one by the engine's other way. `table`: as for `snippet`. `settings` must be completed.
    Raises UsageError and TableError, also if the engine does not read the table. Calls `warn` if the table's deletes
    cannot be looked at from here."""
    cloud = CLOUD_ENGINES[engine]
    way = way_of(cloud, uri)
    with (
        connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-connect") as connection,
        source_errors("reading the lake's tables"),
    ):
        settings = _of_profile(settings, find_profile(connection, profile))
        refuse_location(cloud, settings.require_warehouse(), settings.storage_endpoint)
        example = _example(connection, settings, engine, table)
    if example.registered is not None:
        summary = None
        try:
            snapshot = read_metadata(example.metadata_location, lake_storage(settings)).current_snapshot
            summary = None if snapshot is None else snapshot.summary
        except LakeError as error:
            warn(f"the deletes of {example.registered.name} were not looked at: {one_line_of(error)}")
        refuse_table(cloud, example.registered, summary)
    names = LakeNames(
        example.namespace,
        example.name,
        settings.require_warehouse(),
        example.metadata_location,
        (uri or "").rstrip("/"),
        warehouse,
    )
    return example.remarks + cloud_statements(cloud, way, names)


@dataclass(frozen=True)
class _NamedTable:
    """The table that settings name."""

    namespace: str
    name: str
    remarks: str = ""
    """What the engine cannot do with it, as comments."""
    metadata_location: str = "<metadata file>"
    registered: MirroredTable | None = None
    """None if it is not mirrored, or there is no table yet."""


def _example(connection: PgConnection, settings: Settings, engine: str, table: str | None) -> _NamedTable:
    table_id = None if table is None else resolve_name(connection, table)[1]
    parameters = {"root": f"{settings.require_warehouse()}/", "table_id": table_id}
    row = fetch_row(connection, _LakeTableRow, _SQL["lake_tables"], parameters)
    if row is None:
        if table is not None:
            raise TableError(f"{table} is not mirrored", "`mirror-pump status` lists the tables that are.")
        return _NamedTable(*_EXAMPLE)
    registered = None if row.table_id is None else load_table(connection, row.table_id)
    remarks = () if registered is None else engine_remarks(engine, registered)
    # In all languages of the settings a comment begins like this, but in SQL. A name may have line breaks.
    comment = "--" if engine == "clickhouse" or engine in CLOUD_ENGINES else "#"
    lines = "".join(f"{comment} {' '.join(remark.splitlines())}.\n" for remark in remarks)
    return _NamedTable(row.table_namespace, row.table_name, lines, row.metadata_location, registered)


@dataclass(frozen=True)
class _LakeTableRow:
    """A row of the query `lake_tables`."""

    table_namespace: str
    table_name: str
    metadata_location: str
    table_id: TableId | None


def _of_profile(settings: Settings, profile: StorageProfile) -> Settings:
    """The settings with the warehouse of a profile, and how it is reached, as far as the catalog knows."""
    if profile.name == DEFAULT_PROFILE:
        return settings
    update: dict[str, str | None] = {"warehouse": profile.warehouse}
    for key, field in remembered_storage(profile.warehouse).items():
        option = profile.options.get(key)
        update[field] = option if option is not None or profile.credential_ref is not None else getattr(settings, field)
    return settings.model_copy(update=update)


def _snippet(settings: Settings, engine: str, dsn: str, namespace: str, name: str, *, only: bool) -> str:
    """`only`: there are tables that these settings do not reach."""
    warehouse = settings.require_warehouse()
    if engine == "spark":
        return _spark(settings, libpq_access(dsn), namespace, name, jdbc_catalog(CATALOG, dsn, warehouse))
    if engine == "duckdb":
        return _duckdb(settings, dsn, namespace, name, only=only)
    if engine == "pyiceberg":
        return _pyiceberg(settings, libpq_access(dsn), namespace, name)
    if engine == "trino":
        return _trino(settings, libpq_access(dsn), namespace, name)
    raise UsageError(
        f"{engine} has no client of Iceberg's JDBC catalog",
        "give --rest URI for its settings by the REST catalog (`mirror-pump serve`)",
    )


def _described(settings: Settings) -> dict[str, str]:
    """How the warehouse's store is reached, as FileIO properties without secrets."""
    return {key: value for key, value in settings.storage_properties.items() if not is_secret(key)}


def _without_password(dsn: str) -> str:
    values = {key: value for key, value in parsed_dsn(dsn).items() if key not in ("password", "passfile")}
    return make_conninfo("", **values)


def _spark(settings: Settings, access: LibpqAccess, namespace: str, name: str, catalog: Mapping[str, str]) -> str:
    prefix = f"spark.sql.catalog.{CATALOG}"
    secret = f"{prefix}.jdbc.password"
    conf = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        **{key: value for key, value in catalog.items() if key != secret},
    }
    storage = storage_conf(CATALOG, settings.require_warehouse(), _described(settings))
    packages = ",".join(maven_packages(settings.require_warehouse()))
    conf = {"spark.jars.packages": packages, **conf, **storage}
    lines = "\n".join(f"    .config({python_text(key)}, {python_text(value)})" for key, value in conf.items())
    query = f"SELECT * FROM {CATALOG}.{spark_identifier(namespace)}.{spark_identifier(name)} LIMIT 10"
    return f"""\
# Python, with pyspark 4.1 and Java 17 or newer. The password of {access.user} is expected in ${PASSWORD}.
import os
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder
{lines}
    .config({python_text(secret)}, os.environ.get({python_text(PASSWORD)}, ""))
    .getOrCreate()
)
spark.sql({python_text(query)}).show()"""


def _duckdb(settings: Settings, conninfo: str, namespace: str, name: str, *, only: bool) -> str:
    # Spark writes file:/ where others write file:///.
    root = settings.require_warehouse().removeprefix("file://")
    within = f'\n            " AND position({literal(root + "/")} IN metadata_location) > 0"' if only else ""
    query = f"SELECT * FROM {identifier(namespace)}.{identifier(name)} LIMIT 10"
    options = f"{parsed_dsn(conninfo).get('options') or ''} -c search_path={PINNED_PATH}".strip()
    conninfo = make_conninfo(conninfo, options=options)
    return f"""\
# Python, with duckdb 1.5 and psycopg. The password is expected in ${PASSWORD}.
# DuckDB cannot read a JDBC catalog, so each table becomes a view of its metadata file. The views stay at the frontier
# at which they were made: run open_lake() again for a newer one. If maintenance runs, do so once an hour: it deletes
# older metadata files (metadata_grace_hours of `mirror-pump policy get TABLE`), and a view of a deleted one fails.
import duckdb
import psycopg


def open_lake(connection: duckdb.DuckDBPyConnection) -> None:
    with psycopg.connect({python_text(conninfo)}) as catalog:
        tables = catalog.execute(
            "SELECT table_namespace, table_name, metadata_location"
            " FROM {of_mirror(SCHEMA, settings.mirror)}.iceberg_tables WHERE catalog_name = 'lake'"{within}
        ).fetchall()
    for namespace, name, location in tables:
        schema, view = ('"' + part.replace('"', '""') + '"' for part in (namespace, name))
        source = location.replace("'", "''")
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {{schema}}")
        connection.execute(f"CREATE OR REPLACE VIEW {{schema}}.{{view}} AS FROM iceberg_scan('{{source}}')")


connection = duckdb.connect()
connection.execute("INSTALL iceberg; LOAD iceberg")
{_duckdb_secret(settings)}open_lake(connection)
connection.sql({python_text(query)}).show()"""


def _duckdb_secret(settings: Settings) -> str:
    kind = kind_of(settings.require_warehouse())
    if kind is None:
        return ""
    secret = kind.duckdb_snippet(settings.require_warehouse(), _described(settings))
    return f"connection.execute({python_text(secret)})\n"


def _pyiceberg(settings: Settings, access: LibpqAccess, namespace: str, name: str) -> str:
    user = quote(access.user, safe="")
    (host, port), *_ = access.hosts
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    database = quote(access.database, safe="")
    path = quote(f"-csearch_path={access.catalog_path}", safe="")
    # libpq reads the password from the environment, so the URI needs none.
    properties = {
        "type": "sql",
        "uri": f"postgresql+psycopg://{user}@{authority}/{database}?options={path}",
        "warehouse": settings.require_warehouse(),
        "init_catalog_tables": "false",
    }
    kind = kind_of(settings.require_warehouse())
    if kind is not None:
        properties |= kind.pyiceberg_properties(settings.require_warehouse(), _described(settings))
    return f"""\
# Python, with pyiceberg[sql-postgres,pyarrow] and psycopg. The password of {access.user} is expected in ${PASSWORD}.
# pyiceberg 0.12 refuses snapshots with equality deletes. The mirror writes these for tables whose key index exceeds
# --index-memory, and while a compaction runs, and later converts them to position deletes. So this reads the newest
# snapshot that has none: usually the current one, but an older one while such deletes keep coming.
from datetime import datetime

from pyiceberg.catalog import load_catalog

catalog = load_catalog({python_text(CATALOG)}, **{pprint.pformat(properties, sort_dicts=False, width=100)})
table = catalog.load_table(({python_text(namespace)}, {python_text(name)}))
readable, copying, frontier = [], False, None
for snapshot in sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number):
    summary = snapshot.summary
    if summary.get("{ARCHIVE_CUT_LINE}") is not None:
        continue  # It belongs to the branch `cold` (heap retention), which holds only a part of the rows.
    # Until a table is copied, its snapshots hold only a part of the rows. A snapshot that only rewrites files keeps the
    # frontier of the one before it.
    if summary.get("{COPYING_PROPERTY}") or snapshot.parent_snapshot_id is None:
        copying, frontier = True, None
    if summary.get("{FRONTIER_PROPERTY}"):
        copying, frontier = False, summary.get("{FRONTIER_PROPERTY}")
    if not copying and int(summary.get("total-equality-deletes") or 0) == 0:
        readable.append((snapshot, frontier))
if copying:
    raise SystemExit("the table is still being copied: `mirror-pump status` shows its progress")
if not readable:
    raise SystemExit("every snapshot has equality deletes: give the pump more --index-memory, or read with Spark")
newest, frontier = readable[-1]
print("frontier", frontier, "of", datetime.fromtimestamp(newest.timestamp_ms / 1000))
rows = table.scan(snapshot_id=newest.snapshot_id).to_arrow()
print(rows.num_rows)"""


def _trino(settings: Settings, access: LibpqAccess, namespace: str, name: str) -> str:
    properties = {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "jdbc",
        "iceberg.jdbc-catalog.catalog-name": CATALOG,
        "iceberg.jdbc-catalog.driver-class": "org.postgresql.Driver",
        "iceberg.jdbc-catalog.connection-url": access.jdbc_url(),
        "iceberg.jdbc-catalog.connection-user": access.user,
        "iceberg.jdbc-catalog.connection-password": f"${{ENV:{PASSWORD}}}",
        "iceberg.jdbc-catalog.schema-version": "V1",
        "iceberg.jdbc-catalog.default-warehouse-dir": settings.require_warehouse(),
        # The role may not write the catalog, but Trino would write files first.
        "iceberg.security": "read_only",
    }
    kind = kind_of(settings.require_warehouse())
    properties |= {"fs.hadoop.enabled": "true"} if kind is None else kind.trino_properties(_described(settings))
    lines = "\n".join(f"{key}={value}" for key, value in properties.items())
    return f"""\
# etc/catalog/{CATALOG}.properties of every Trino node. The password of {access.user} is expected in ${PASSWORD}.
{lines}

# Then:  SELECT * FROM {CATALOG}.{identifier(namespace)}.{identifier(name)} LIMIT 10;"""
