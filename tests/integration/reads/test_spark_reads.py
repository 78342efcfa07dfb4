"""mirror_pump.spark.read: in each mode the rows of the shadow table; pushed filters; one snapshot; releases."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame

import mirror_pump.spark
from mirror_pump.errors import SourceError
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.spark import PinnedDataFrame
from mirror_pump.testing.mirror import Row, assert_same, await_true, normalised
from tests.support.typed_events import EVENTS, TypedEvents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PinnedRead = Callable[..., PinnedDataFrame]


@pytest.fixture
def read(spark: SparkSession, events: TypedEvents) -> PinnedRead:
    def reading(*arguments: Any, limits: InternalLimits | None = None, **options: Any) -> PinnedDataFrame:
        settings = events.mirror.settings
        if limits is not None:
            settings = settings.model_copy(update={"limits": limits})
        return mirror_pump.spark.read(spark, EVENTS, *arguments, settings=settings, **options)

    return reading


def rows(frame: DataFrame) -> list[Row]:
    # The session's time zone is UTC. Otherwise Python would give local times.
    return normalised([tuple(row) for row in frame.collect()])


@pytest.mark.further
def test_seam_reads_are_exact_with_odd_values_on_every_side(events: TypedEvents, read: PinnedRead) -> None:
    events.upsert(10, 10, n="'NaN'")
    events.upsert(50, 51, day="'infinity'")
    events.delete(20, 20)
    events.both("UPDATE {} SET t = 'corrected in the sealed partition', local = '1500-02-28 01:02:03' WHERE at = 150")
    events.both("UPDATE {} SET at = 155 WHERE at = 250")
    events.both("UPDATE {} SET at = 255 WHERE at = 170")
    events.both("UPDATE {} SET n = 'NaN', day = '-infinity' WHERE at = 260")
    events.both("UPDATE {} SET seen = '1582-10-10 10:10:10.000001+00', local = '1582-10-10' WHERE at = 270")
    events.both("UPDATE {} SET tags = '{}', words = NULL, f = 'NaN', t = NULL WHERE at = 280")
    with read() as frame:
        assert frame.schema["n__raw"].dataType.typeName() == "string"
        assert_same(events.truth(raw_texts=True), rows(frame), "the cut-line at 200")
        assert frame.where("at = 270").count() == 1
        assert frame.where("n__raw = 'NaN'").count() == 2
    assert events.pins() == []


@pytest.mark.further
def test_filters_and_columns_are_pushed_to_both_sides(
    spark: SparkSession, events: TypedEvents, read: PinnedRead
) -> None:
    # Otherwise the plan names only the first of them.
    spark.conf.set("spark.sql.maxMetadataStringLength", "10000")
    with read() as frame:
        narrow = frame.where("at >= 150 and seen >= timestamp'2026-01-01 00:00:00Z' and t < 'row 3'").select("id", "t")
        plan = narrow._jdf.queryExecution().executedPlan().toString()
        assert "JDBCRelation" in plan
        found = re.search(r"PushedFilters: \[(.*)\], ReadSchema: struct<([^>]*)>", plan)
        assert found is not None, plan
        assert "*GreaterThanOrEqual(at,150)" in found[1]
        assert "*GreaterThanOrEqual(seen," in found[1]
        assert "*LessThan(t,row 3)" in found[1]
        assert {part.partition(":")[0] for part in found[2].split(",")} == {"id", "t"}
        scan = re.search(r"BatchScan [^\n]*metadata\.json\[([^\]]*)\]([^\n]*)", plan)
        assert scan is not None, plan
        assert {part.partition("#")[0].strip() for part in scan[1].split(",")} == {"at", "id", "seen", "t"}
        assert re.search(r"filters=[^\n]*at >= 150[^\n]*t < ", scan[2]), scan[2]
        wanted = [row[1] for row in events.truth() if row[0] >= 150 and row[13] < "row 3"]
        assert wanted
        assert sorted(row[0] for row in narrow.collect()) == sorted(wanted)


@pytest.mark.further
def test_a_pushed_filter_means_what_it_means_to_spark(
    spark: SparkSession, events: TypedEvents, read: PinnedRead
) -> None:
    """On the heap's side, Postgres evaluates the filters that Spark pushes, with its own collations, time zones and
    literals."""
    events.both("UPDATE {} SET t = upper(t) || 'ä' WHERE at IN (210, 310)")
    events.both("UPDATE {} SET f = 'NaN', n = -1.005, kept = CASE WHEN at > 220 THEN false END WHERE at IN (220, 230)")
    with read(mode="heap") as frame:
        here = spark.createDataFrame(frame.collect(), frame.schema)
        conditions = (
            "t < 'row'",
            "t >= 'a'",
            "t LIKE 'ROW%'",
            "t <=> NULL or t = 'row 240'",
            "u = '00000000-0000-0000-0000-0000000000fa'",
            "n < 1.10",
            "n in (1.10, -1.01)",
            "f > 1e300",
            "f = -0.0",
            "day = date'2026-01-01'",
            "seen = timestamp'2026-01-01 04:10:00.000001Z'",
            "seen < timestamp'2026-01-01 04:10:00.000001Z'",
            "local >= timestamp_ntz'2026-01-01 04:10:00.000001'",
            "b = X'00FF'",
            "kept",
            "not kept",
            "kept is null",
            "j like '%240%'",
            "tags[0] = 250",
        )
        # All in one query: filters are pushed to each branch of the union separately.
        pushed, computed = (
            reduce(
                DataFrame.unionAll,
                [of.where(condition).selectExpr(f"{at} AS at", "id") for at, condition in enumerate(conditions)],
            )
            for of in (frame, here)
        )
        assert pushed._jdf.queryExecution().executedPlan().toString().count("JDBCRelation") == len(conditions)
        found, wanted = ([(conditions[row[0]], row[1]) for row in frame.collect()] for frame in (pushed, computed))
        assert {condition for condition, _ in wanted} == set(conditions)
        assert sorted(found) == sorted(wanted)


@pytest.mark.further
def test_a_session_of_another_time_zone_reads_the_same(
    spark: SparkSession, events: TypedEvents, read: PinnedRead
) -> None:
    with read() as frame:
        wanted = frame.selectExpr("id", "unix_micros(seen)", "cast(local as string)").collect()
        try:
            spark.conf.set("spark.sql.session.timeZone", "America/New_York")
            found = frame.selectExpr("id", "unix_micros(seen)", "cast(local as string)").collect()
            assert frame.where("seen = timestamp'2026-01-01 04:10:00.000001Z'").count() == 1
            assert frame.where("local = timestamp_ntz'2026-01-01 04:10:00.000001'").count() == 1
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
        assert sorted(map(tuple, found)) == sorted(map(tuple, wanted))


def test_all_partitions_of_a_read_see_one_snapshot(events: TypedEvents, read: PinnedRead) -> None:
    events.both(
        "INSERT INTO {} SELECT 200 + g % 200, g, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
        " repeat('x', 200) FROM generate_series(10000, 13000) g"
    )
    wanted = events.truth()
    with read(partitions=4, limits=InternalLimits(spark_partition_blocks=1)) as frame:
        heap = frame.where("at >= 200").select("id", "n")
        assert heap.rdd.getNumPartitions() >= 4
        found = []
        for number in range(heap.rdd.getNumPartitions()):
            part = heap.rdd.mapPartitionsWithIndex(lambda at, rows, number=number: rows if at == number else iter(()))
            found += [tuple(row) for row in part.collect()]
            events.both(f"UPDATE {{}} SET n = {number} WHERE at >= 200")
            events.both("DELETE FROM {} WHERE id = (SELECT min(id) FROM public.shadow WHERE id >= 10000)")
        assert sorted(found) == sorted((row[1], row[2]) for row in wanted if row[0] >= 200)


def test_the_lake_is_read_as_of_the_frontier_and_the_heap_as_of_now(events: TypedEvents, read: PinnedRead) -> None:
    with read(mode="lake") as before:
        events.insert((399, 1))
        events.mirror.catch_up()
        with read(mode="lake") as after, read(mode="heap") as heap:
            assert after.count() == before.count() + 1
            assert rows(heap) == [row for row in events.truth() if row[0] >= 100]
            # The published snapshot, and the head of main for reads of the lake alone.
            assert len(events.pins()) == 5


@pytest.mark.further
def test_a_read_that_waits_in_vain_says_so(events: TypedEvents, read: PinnedRead) -> None:
    with pytest.raises(SourceError, match="has not passed"):
        read(mode="lake", min_lsn="7FFFFFFF/0", max_wait=0.2)
    assert events.pins() == []


@pytest.mark.further
def test_what_is_read_is_released_when_its_session_stops(events: TypedEvents, spark: SparkSession) -> None:
    frame = mirror_pump.spark.read(spark, EVENTS, settings=events.mirror.settings)
    moment = frame._moments[0]
    assert len(events.pins()) == 1
    moment._stopped = lambda: True
    await_true(lambda: events.pins() == [], 20, "the pin is gone")
    with pytest.raises(SourceError, match="released"):
        frame.check()
