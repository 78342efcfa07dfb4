"""The check at the end of tests: the product's own `verify` for every live table, with DuckDB.

Users' small tables are compared by DuckDB in the same way. Only the engine is shared between checks. Large tables are
compared by DuckDB as well, since starting Spark would take ten seconds per test.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from mirror_pump.config import Settings
from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.verify import compare_duckdb, compare_spark
from mirror_pump.ops.verify.comparison_engines import ComparisonEngine
from mirror_pump.ops.verify.verification import verify
from mirror_pump.source.connect import connect
from mirror_pump.source.stream.leader import is_led
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection, metadata_location, read_duckdb
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BARELY: dict[str, Any] = {"batch_age": 0.0, "index_memory": 0, "merge_bytes": 0, "convert_age": 3600.0}
"""Settings of a pump that only follows the stream: it runs for a fraction of a second."""


def assert_verified(database: Database) -> int:
    """Fails unless every live table of every mirror in the database equals its heap. Returns the number of tables.

    If no pump runs, starts one for the duration of the check. A mirror without its slot cannot be compared and is left
    out.
    """
    return sum(_verified(database, *mirror) for mirror in _mirrors(database))


def spark_report(settings: Settings, spark: SparkSession) -> dict[str, Any]:
    """The output of `mirror-pump verify --json`, computed in the same way, except that it uses a running Spark."""
    runner = SparkTaskRunner(spark, 2)
    return verify(settings, engine=ComparisonEngine(runner, partial(compare_spark.compare, spark))).to_json()


def _mirrors(database: Database) -> list[tuple[str, str, str]]:
    """Slot, publication and warehouse of each mirror that has live tables and still has its slot."""
    if database.rows("SELECT to_regclass('modak.mirror_slots')::text") == [(None,)]:
        return []
    return database.rows(
        "SELECT s.slot_name, s.publication_name, p.warehouse FROM modak.mirror_slots s"
        "  JOIN modak.storage_profiles p ON p.profile_name = 'default' JOIN pg_replication_slots r USING (slot_name)"
        " WHERE EXISTS (SELECT FROM modak.mirror_tables m WHERE m.slot_name = s.slot_name AND m.state = 'live')"
        "   AND r.wal_status <> 'lost' ORDER BY 1"
    )


def _verified(database: Database, slot: str, publication: str, warehouse: str) -> int:
    settings = Settings(
        dsn=database.dsn, slot=slot, publication=publication, warehouse=warehouse, storage_fsync=False, **_BARELY
    )
    tasks = ThreadTaskRunner()
    try:
        with connect(database.dsn, autocommit=True) as connection:
            led = is_led(connection, slot)
        with nullcontext() if led else Mirror(database, settings, tasks).pumping(), duckdb_connection() as duckdb:
            report = verify(settings, engine=ComparisonEngine(tasks, partial(compare_duckdb.compare, duckdb)))
    finally:
        tasks.close()
    # Nobody completes copies that are still running, so only tables that can be compared count.
    compared = [table for table in report.tables if table.comparison is not None]
    different = [table for table in compared if not table.equal]
    if different:
        shown = "\n".join(f"{table.to_json()}; {_explained(database, table.table)}" for table in different)
        raise AssertionError(f"heap and lake differ at frontier {report.frontier}:\n{shown}")
    return len(compared)


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
    files = [file for found in listing.files(lake.manifests).values() for file in found]
    shown = [f"{file.content.name} {file.path} number {file.sequence_number}, {file.records} rows" for file in files]
    snapshots = [
        f"{snapshot.sequence_number}: {dict(snapshot.summary.entries)}" for snapshot in lake.metadata.snapshots
    ]
    again = read_duckdb(location).num_rows
    return "\n  ".join((f"read again, {location} has {again} rows", *shown, *snapshots))
