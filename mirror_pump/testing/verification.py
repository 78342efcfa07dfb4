"""The check at the end of tests: the product's own `verify` for every live table, with DuckDB.

Users' small tables are compared by DuckDB in the same way. Only the engine is shared between checks. Large tables are
compared by DuckDB as well, since starting Spark would take ten seconds per test.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg

from mirror_pump.database.quoting import identifier
from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner
from mirror_pump.errors import MirrorPumpError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableId, TableState
from mirror_pump.ops.verify import compare_duckdb, compare_spark
from mirror_pump.ops.verify.comparison_engines import ComparisonEngine
from mirror_pump.ops.verify.verification import compare_at, verify
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.tables import load_tables
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.stream.leader import is_led
from mirror_pump.source.stream.publication import PublicationCheck
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection, metadata_location, read_duckdb
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from sql import queries
from sql.mirror_names import SCHEMA, marked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BARELY: dict[str, Any] = {"index_memory": 0, "merge_bytes": 0, "convert_age": 3600.0}
"""Settings of a pump that only follows the stream: it runs for a fraction of a second."""

_AT_REST = frozenset({TableState.LIVE, TableState.FAILED, TableState.DROPPED})

_SHAPES = queries("shape")

_PENDING = """
SELECT p.lsn
  FROM modak.mirror_slots s CROSS JOIN pg_logical_slot_peek_binary_changes(s.slot_name::name, NULL, NULL,
         'proto_version', '1', 'publication_names', %(publication)s, 'messages', 'true') p
 WHERE s.slot_name = %(slot)s AND p.lsn > '0/0'::pg_lsn + s.applied_lsn LIMIT 1
"""
"""What the pump would get behind the frontier: it asks for the same. The slot stays where it is."""


def assert_verified(database: Database) -> int:
    """Fails unless every live table of every mirror in the database equals its heap. Returns the number of tables.

    If no pump runs and the lake is behind, starts one for the duration of the check. A mirror without its slot cannot
    be compared and is left out.
    """
    mirrors = [database, *(replace(database, mirror=name) for name in _names(database))]
    return sum(_verified(mirror, *stream) for mirror in mirrors for stream in _streams(mirror))


def spark_report(settings: Settings, spark: SparkSession) -> dict[str, Any]:
    """The output of `mirror-pump verify --json`, computed in the same way, except that it uses a running Spark."""
    runner = SparkTaskRunner(spark, 2)
    return verify(settings, engine=ComparisonEngine(runner, partial(compare_spark.compare, spark))).to_json()


def _names(database: Database) -> list[str]:
    """The names of the mirrors that have one."""
    query = "SELECT nspname FROM pg_namespace WHERE starts_with(nspname, 'modak_')"
    return [schema.removeprefix("modak_") for (schema,) in database.rows(query)]


def _streams(database: Database) -> list[tuple[str, str, str]]:
    """Slot, publication and warehouse of the mirror's streams, of those that have live tables and still have their
    slot."""
    if database.rows(f"SELECT to_regclass('{SCHEMA}.mirror_slots')::text") == [(None,)]:
        return []
    return database.rows(
        f"SELECT s.slot_name, s.publication_name, p.warehouse FROM {SCHEMA}.mirror_slots s"
        f"  JOIN {SCHEMA}.storage_profiles p ON p.profile_name = 'default'"
        "  JOIN pg_replication_slots r USING (slot_name)"
        f" WHERE EXISTS (SELECT FROM {SCHEMA}.mirror_tables m WHERE m.slot_name = s.slot_name AND m.state = 'live')"
        "   AND r.wal_status <> 'lost' ORDER BY 1"
    )


def _verified(database: Database, slot: str, publication: str, warehouse: str) -> int:
    settings = Settings(
        dsn=database.dsn,
        mirror=database.mirror,
        slot=slot,
        publication=publication,
        warehouse=warehouse,
        storage_fsync=False,
        **_BARELY,
    )
    tasks = ThreadTaskRunner()
    try:
        with duckdb_connection() as duckdb:
            engine = ComparisonEngine(tasks, partial(compare_duckdb.compare, duckdb))
            with database.session() as connection:
                # As the product's connections: JSON of the catalog is read as UTF-8, whatever the database's encoding.
                connection.execute("SET client_encoding = 'UTF8'")
                led = is_led(connection, slot)
                equal = None if led else equal_at_rest(connection, settings, engine)
            if equal is not None:
                return equal
            with nullcontext() if led else Mirror(database, settings, tasks).pumping():
                report = verify(settings, engine=engine)
    finally:
        tasks.close()
    # No pump completes copies that are still running, so only tables that can be compared count.
    compared = [table for table in report.tables if table.comparison is not None]
    different = [table for table in compared if not table.equal]
    if different:
        shown = "\n".join(f"{table.to_json()}; {_explained(database, table.table)}" for table in different)
        raise AssertionError(f"heap and lake differ at frontier {report.frontier}:\n{shown}")
    return len(compared)


def equal_at_rest(connection: PgConnection, settings: Settings, engine: ComparisonEngine) -> int | None:
    """The number of live tables, if no pump has to run to see that all of them equal their heaps; else None, and only a
    verification with a pump can tell what is the matter.

    The heap is read in a database snapshot. After that was taken, the slot is read without moving it: if it has nothing
    behind the frontier that a pump would get, then the heap in the snapshot is the heap at the frontier, which the lake
    must be as well. Nothing else may be under way either: a copy, a schema change without a note in the stream, a
    change of the publication. No pump may lead meanwhile. The connection is in autocommit mode.
    """
    slot = settings.slot
    with suppress(MirrorPumpError, psycopg.Error), _without_mistakes():
        tables = load_tables(connection, slot)
        live = [table for table in tables if table.state is TableState.LIVE]
        if any(table.state not in _AT_REST for table in tables):
            return None
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            ((snapshot,),) = connection.execute("SELECT pg_export_snapshot()").fetchall()
            if not _is_behind(connection, settings, [table.table_id for table in tables]):
                reports = compare_at(settings, snapshot, live, engine)
                if all(report.equal for report in reports.values()):
                    return len(live)
    return None


@contextmanager
def _without_mistakes() -> Iterator[None]:
    """A statement that the driver cannot even send is a mistake of this module: were it taken for a mirror that cannot
    be compared, each test would start a pump at its end."""
    try:
        yield
    except psycopg.ProgrammingError as error:
        if error.sqlstate is None:
            raise AssertionError(f"the check at the end of tests is wrong: {error}") from error
        raise


def _is_behind(connection: PgConnection, settings: Settings, table_ids: Sequence[TableId]) -> bool:
    """Whether a pump would find anything to do before the lake is what the heap is."""
    slot = settings.slot
    parameters = {"slot": slot, "table_ids": list(table_ids), "publication": identifier(settings.publication)}
    check = PublicationCheck(slot)
    if check.altered_tables(connection):
        return True
    check.refuse_changed(connection.cursor())
    return bool(
        connection.execute(_SHAPES["differing"], parameters).fetchall()
        or connection.execute(_SHAPES["tiered_differing"], parameters).fetchall()
        or connection.execute(marked(_PENDING), parameters).fetchall()
    )


def _explained(database: Database, table: str) -> str:
    """The table's present snapshots and files, and the number of rows that a second read finds. This tells whether the
    files are wrong or were read wrongly."""
    try:
        location = metadata_location(database.dsn, table)
    except LookupError as error:
        # Its name is printed in quotes, or another one in the catalog.
        return str(error)
    lake = LakeTable.load(location, StorageOptions(fsync=False))
    listing = Listing(lake.storage)
    files = [file for group in listing.files(lake.manifests).values() for file in group]
    shown = [f"{file.content.name} {file.path} number {file.sequence_number}, {file.records} rows" for file in files]
    snapshots = [
        f"{snapshot.sequence_number}: {dict(snapshot.summary.entries)}" for snapshot in lake.metadata.snapshots
    ]
    again = read_duckdb(location).num_rows
    return "\n  ".join((f"read again, {location} has {again} rows", *shown, *snapshots))
