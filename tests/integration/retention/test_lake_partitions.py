"""A table with heap retention whose lake table is partitioned: every file has one lake partition, all engines read the
same rows, and open fewer files."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.table import FileScanTask, StaticTable

from mirror_pump.errors import TableError, UsageError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection, lake_session, read_spark
from mirror_pump.testing.mirror import Mirror, Row, Steps, assert_same, await_true, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.cli import RunCommand
from tests.support.events_table import EventsTable, RetentionTables, delete, upsert
from tests.support.lake_partitions import WIDTH, assert_divided, partition_of
from tests.support.maintenance import Maintained
from tests.support.pipeline import writing
from tests.support.retention_table import at_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNFOLDED = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"


def lake_of(mirror: Mirror) -> LakeTable:
    return LakeTable.load(mirror.location("public.events"), StorageOptions())


def planned(location: str, condition: str) -> set[int]:
    """The lake partitions of the files that pyiceberg opens for rows that meet a condition."""
    tasks = StaticTable.from_metadata(location).scan(row_filter=condition).plan_files()
    return {task.file.partition[0] for task in tasks}


def published(events: EventsTable) -> str:
    """The metadata file that readers are told to use."""
    ((location,),) = events.database.rows("SELECT lake_props ->> 'metadata_location' FROM modak.cutline")
    return str(location)


def assert_files_of(partitions: set[int], rows: set[int], times: range) -> None:
    """Files of the partitions that have rows in `times`, and of no others than those of `times`."""
    assert {partition_of(at) for at in rows if at in times} <= partitions <= {partition_of(at) for at in times}


def fold_all(events: EventsTable) -> None:
    await_true(lambda: events.database.rows(_UNFOLDED) == [(0,)], 60, "all corrections are folded")


@pytest.mark.further
def test_rows_are_exact_under_writers_late_rows_folds_and_drops(
    retention_tables: RetentionTables, database: Database, spark: SparkSession
) -> None:
    events = retention_tables.automatic(lake_partition=str(WIDTH), fold_age=0.05, convert_age=0.2)
    mirror = events.mirror
    with duckdb_connection() as duckdb:
        with mirror.pumping(), writing(database, events.write, random.getrandbits(32)) as written:
            mirror.await_live("public.events")

            def gone() -> bool:
                events.assert_exact(duckdb)
                return events.states()["p1"] == "dropped"

            await_true(gone, 90, f"p1 dropped: {events.explained()}")
            count = written()
            await_true(lambda: written() > count + 30, 60, "corrections below the cut-line")
            events.assert_exact(duckdb)
        with mirror.pumping():
            fold_all(events)
            mirror.await_frontier()
            events.assert_exact(duckdb)
            assert_verified(database)
            # Without a pump that replaces files meanwhile.
    main, archive = mirror.location("public.events"), published(events)
    # Random deletes may have emptied a partition, or the part of it that a condition asks for.
    rows = {at for (at,) in database.rows("SELECT DISTINCT at FROM model")}
    assert_files_of(set(assert_divided(main)), rows, range(400))
    assert_files_of(set(assert_divided(archive)), rows, range(200))
    if not lake_of(mirror).equality_deletes:
        assert_files_of(planned(main, "at >= 65 AND at < 95"), rows, range(65, 95))
    assert_files_of(planned(archive, "at < 30"), rows, range(30))
    assert_files_of(planned(archive, "at >= 150"), rows, range(150, 200))
    read = StaticTable.from_metadata(archive).scan(row_filter="at >= 30 AND at < 60").to_arrow()
    wanted = database.rows("SELECT at, id, n, v FROM model WHERE at >= 30 AND at < 60")
    assert normalised([tuple(row[name] for name in ("at", "id", "n", "v")) for row in read.to_pylist()]) == (
        normalised(wanted)
    )
    session = lake_session(spark, database.dsn, mirror.settings.require_warehouse())
    model = normalised(database.rows("SELECT at, id, n, v FROM model"))
    assert_same(model, normalised(read_spark(session, "public.events")), "by Spark")
    archived = normalised(read_spark(session, "public.events.branch_cold"))
    assert_same([row for row in model if row[0] < 200], archived, "below the cut-line by Spark")
    assert database.rows("SELECT partition_scheme FROM modak.tables") == [
        ({"field_id": 1, "transform": f"truncate[{WIDTH}]"},)
    ]


@pytest.mark.soak
def test_columns_types_and_truncates_keep_the_partitions_and_spark_reads_them(
    retention_tables: RetentionTables, database: Database, spark: SparkSession
) -> None:
    """A column with the name of the partition field and a default, a wider type, a TRUNCATE."""
    events = retention_tables.automatic(lake_partition=str(WIDTH), fold_age=0.05, convert_age=0.2)
    mirror = events.mirror
    with mirror.pumping(), duckdb_connection() as duckdb:
        events.await_state(p0="dropped", p1="dropped")
        database.execute("ALTER TABLE events ADD COLUMN at_trunc int DEFAULT 7")
        await_true(lambda: mirror.state("public.events") == "filling", 60, "the table is being filled")
        mirror.await_live("public.events")
        with database.connect(autocommit=False) as connection:
            upsert(connection, 4, 2, "changed")
            upsert(connection, 133, 1, "new")
            delete(connection, 5, 2)
        fold_all(events)
        events.assert_exact(duckdb)
        database.execute(
            "ALTER TABLE events ALTER COLUMN n TYPE bigint", "ALTER TABLE model ALTER COLUMN n TYPE bigint"
        )
        mirror.await_frontier()
        events.assert_exact(duckdb)
        database.execute("TRUNCATE p2", "DELETE FROM model WHERE at >= 200 AND at < 300")
        database.execute(
            "INSERT INTO events VALUES (250, 1, 1, 'again')", "INSERT INTO model VALUES (250, 1, 1, 'again')"
        )
        mirror.await_frontier()
        mirror.await_live("public.events")
        events.assert_exact(duckdb)
        await_true(lambda: not lake_of(mirror).equality_deletes, 60, "equality deletes are converted")
    mirror.catch_up()
    assert_divided(mirror.location("public.events"))
    lake = lake_of(mirror)
    assert [field["name"] for field in lake.metadata.default_spec.fields] == ["at_trunc_"]
    session = lake_session(spark, database.dsn, mirror.settings.require_warehouse())
    wanted = normalised(database.rows("SELECT at, id, n, v FROM model"))
    assert_same(wanted, normalised(read_spark(session, "public.events", "at, id, n, v")), "by Spark")
    below = [row for row in wanted if row[0] < 200]
    archived = read_spark(session, "public.events.branch_cold", "at, id, n, v, at_trunc")
    assert_same(below, normalised([row[:4] for row in archived]), "below the cut-line by Spark")
    assert {row[4] for row in archived} == {7}


class _Reads:
    """Reads rows of one day of public.events, and counts the files that engines open for it."""

    def __init__(self, mirror: Mirror, session: SparkSession) -> None:
        self.location = mirror.location("public.events")
        self.session = session

    CONDITION = "\"at\" >= TIMESTAMPTZ '2026-02-03 00:00:00+00' AND \"at\" < TIMESTAMPTZ '2026-02-04 00:00:00+00'"
    DAY = 20_487
    """Days from 1970-01-01 to 2026-02-03."""

    def tasks(self) -> list[FileScanTask]:
        return list(StaticTable.from_metadata(self.location).scan().plan_files())

    def by_duckdb(self) -> tuple[list[Row], int]:
        with duckdb_connection() as duckdb:
            query = f"SELECT * FROM iceberg_scan('{self.location}') WHERE {self.CONDITION}"
            plan = duckdb.execute(f"EXPLAIN (ANALYZE) {query}").fetchall()[0][1]
            files = [
                int(line.split("Total Files Read:")[1].split()[0])
                for line in plan.splitlines()
                if "Files Read:" in line
            ]
            rows = duckdb.execute(query).to_arrow_table().to_pylist()
            return normalised([tuple(row.values()) for row in rows]), sum(files)

    def by_pyiceberg(self) -> tuple[list[Row], int]:
        scan = StaticTable.from_metadata(self.location).scan(
            row_filter="at >= '2026-02-03T00:00:00+00:00' AND at < '2026-02-04T00:00:00+00:00'"
        )
        rows = [tuple(row[name] for name in ("id", "at", "v")) for row in scan.to_arrow().to_pylist()]
        return normalised(rows), len(list(scan.plan_files()))

    def by_spark(self) -> tuple[list[Row], int]:
        self.session.conf.set("spark.sql.adaptive.enabled", "false")
        frame = self.session.sql(
            "SELECT id, at, v FROM lake.public.events WHERE at >= TIMESTAMP '2026-02-03 00:00:00 UTC'"
            " AND at < TIMESTAMP '2026-02-04 00:00:00 UTC'"
        )
        rows = [tuple(row) for row in frame.collect()]
        leaf: Any = frame._jdf.queryExecution().executedPlan().collectLeaves().head()
        return normalised(rows), int(leaf.metrics().apply("resultDataFiles").value())


@pytest.mark.further
def test_every_engine_opens_the_files_of_a_day_only_before_and_after_compaction(
    database: Database, warehouse: str, spark: SparkSession, tasks: ThreadTaskRunner
) -> None:
    """Rows come in no order of time: without lake partitions each file would hold every day."""
    database.execute(
        "CREATE TABLE events (id bigint, at timestamptz, v text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
        "CREATE TABLE e1 PARTITION OF events FOR VALUES FROM ('2026-02-01 00:00:00+00') TO ('2026-02-08 00:00:00+00')",
        "CREATE TABLE e2 PARTITION OF events FOR VALUES FROM ('2026-02-08 00:00:00+00') TO ('2026-02-15 00:00:00+00')",
    )
    mirror = Mirror.create(database, warehouse, tasks, batch_bytes=1, merge_bytes=0, convert_age=0.1)
    mirror.register("events", retention=at_once("1000 weeks", lake_partition="day"))
    with mirror.pumping():
        mirror.await_live("public.events")
        for turn in range(6):
            first = turn * 140
            database.execute(
                f"INSERT INTO events SELECT g, '2026-02-01 00:30:00+00'::timestamptz + g % 14 * interval '1 day', 'v'"
                f" FROM generate_series({first}, {first + 139}) g",
                f"UPDATE events SET v = 'w' WHERE id % 10 = {turn}",
                f"UPDATE events SET at = at + interval '1 day' WHERE id = {first + 2}",
                f"DELETE FROM events WHERE id = {first + 16}",
            )
        mirror.await_frontier()
        await_true(lambda: not lake_of(mirror).equality_deletes, 60, "equality deletes are converted")
    mirror.assert_equal("public.events")
    maintained = Maintained(mirror, spark)
    wanted = normalised(database.rows("SELECT id, at, v FROM events WHERE at >= '2026-02-03Z' AND at < '2026-02-04Z'"))
    assert len(wanted) > 40
    before = lake_of(mirror).data_files
    for compacted in (False, True):
        reads = _Reads(mirror, maintained.session)
        in_day = sum(task.file.partition[0] == _Reads.DAY for task in reads.tasks())
        assert (in_day == 1) if compacted else (6 <= in_day < before / 7)
        assert (reads.by_pyiceberg(), reads.by_spark()) == ((wanted, in_day), (wanted, in_day))
        rows, files = reads.by_duckdb()
        assert rows == wanted
        # It goes by the bounds of columns, which placeholder files do not have.
        assert files <= in_day + sum(not file.records for file in lake_of(mirror).live_data_files())
        if not compacted:
            maintained.maintain("public.events")
            maintained.assert_equal("public.events")
            assert lake_of(mirror).data_files < before / 3
            assert lake_of(mirror).position_deletes == 0
    # Nothing is left to do, though the table has fourteen small files.
    figures = maintained.backlog("public.events").figures
    assert (figures.data_files, figures.small_files) == (14, 1)
    done = maintained.maintain("public.events").done
    assert not any("rewrite" in operation for operation in done), done
    with mirror.pumping():
        database.execute("UPDATE events SET v = 'after' WHERE id % 7 = 0", "DELETE FROM events WHERE id % 11 = 0")
        mirror.await_frontier()
    maintained.assert_equal("public.events")


@pytest.mark.further
def test_a_batch_or_fold_of_many_partitions_is_reported(retention_tables: RetentionTables, database: Database) -> None:
    limits = InternalLimits(scattered_partitions=10)
    events = retention_tables.automatic(lake_partition="10", fold_age=0.05, limits=limits)
    steps = Steps()
    with events.mirror.pumping(steps):
        events.await_state(p0="dropped", p1="dropped")
        assert steps.count(Step.PARTITIONS_SCATTERED) == 0, "copies are not reported"
        with database.connect(autocommit=False) as connection:
            for at in range(0, 200, 10):
                upsert(connection, at + 1, 77, "late")
        await_true(lambda: steps.count(Step.PARTITIONS_SCATTERED), 60, "the fold is reported")
        database.execute(
            "UPDATE events SET n = 1 WHERE at < 250", "UPDATE model SET n = 1 WHERE at BETWEEN 200 AND 249"
        )
        events.mirror.await_frontier()
        assert set(steps.details(Step.PARTITIONS_SCATTERED, "partitions")) == {20}
        database.execute("UPDATE events SET n = 2 WHERE at >= 200", "UPDATE model SET n = 2 WHERE at >= 200")
        await_true(lambda: steps.count(Step.PARTITIONS_SCATTERED) >= 2, 60, "the batch is reported")
        assert set(steps.details(Step.PARTITIONS_SCATTERED, "partitions")) == {20}, "twenty again"
        fold_all(events)
        events.assert_exact()


def test_what_is_refused(database: Database, warehouse: str, tasks: ThreadTaskRunner, run: RunCommand) -> None:
    mirror = Mirror.create(database, warehouse, tasks)
    database.execute(
        "CREATE TABLE plain (id int PRIMARY KEY)",
        "CREATE TABLE days (at date, id int, PRIMARY KEY (at, id)) PARTITION BY RANGE (at)",
        "CREATE TABLE d1 PARTITION OF days FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
        "CREATE TABLE numbers (at int, id int, PRIMARY KEY (at, id)) PARTITION BY RANGE (at)",
    )
    plain = run("register", "plain", "--lake-partition", "day", "--slot", mirror.settings.slot)
    assert plain.exit_code == 2
    assert (
        "--lake-partition requires --heap-retention or --mode tiered: a plain mirrored table has no tier key"
        in plain.stderr
    )
    retention = ("--heap-retention", "4 weeks", "--slot", mirror.settings.slot, "--dry-run")
    shown = run("register", "days", *retention, "--lake-partition", "width")
    assert (shown.exit_code, "lake table: partitioned by month of at" in shown.stdout) == (0, True)
    with pytest.raises(UsageError, match="'hour' is no unit of a date"):
        mirror.register("days", retention=at_once("4 weeks", lake_partition="hour"))
    with pytest.raises(TableError, match="numbers has no partition whose width"):
        mirror.register("numbers", retention=at_once("4", lake_partition="width"))
    mirror.register("days", retention=at_once("4 weeks", lake_partition="month"))
    mirror.register("numbers", retention=at_once("4"))
    mirror.register("days", retention=at_once("4 weeks", lake_partition="width"))
    for table, choice, layout in (
        ("days", "day", "--heap-retention '28 days' --lake-partition month"),
        ("numbers", "100", "--heap-retention 4"),
        ("numbers", "width", "--heap-retention 4"),
    ):
        with pytest.raises(TableError, match=f"public.{table} is registered with {layout}"):
            mirror.register(table, retention=at_once("4", lake_partition=choice))
    assert database.rows("SELECT table_name, partition_scheme FROM modak.tables ORDER BY 1") == [
        ("days", {"field_id": 1, "transform": "month"}),
        ("numbers", {}),
    ]
