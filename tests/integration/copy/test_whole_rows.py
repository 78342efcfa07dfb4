"""Tables without a key and with REPLICA IDENTITY FULL: the lake has each row as often as the heap has it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from mirror_pump.model import SnapshotPlan
from mirror_pump.ops.resync.pausing import pause, resume
from mirror_pump.ops.resync.snapshots import rest
from mirror_pump.ops.verify.verification import verify
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true, paced
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.killed_pump import die
from tests.support.pipeline import writing
from tests.support.resyncs import resynced
from tests.support.table_wishes import parse_choices

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def change_rows(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    """Inserts, updates and deletes of single rows among many that are equal."""
    for _ in range(chance.randrange(1, 5)):
        n, v = chance.randrange(5), chance.choice([None, "a", "b", "v" * 40])
        chosen = (
            f"ctid = ANY (ARRAY(SELECT ctid FROM bag WHERE n = {chance.randrange(5)} LIMIT {chance.randrange(1, 4)}"
            " FOR UPDATE))"
        )
        match chance.randrange(6):
            case 0 | 1:
                connection.execute(
                    "INSERT INTO bag SELECT %s, %s, CASE WHEN %s THEN repeat(md5(%s), 100) END, %s"
                    " FROM generate_series(1, %s)",
                    (
                        n,
                        v,
                        chance.random() < 0.3,
                        str(chance.randrange(2)),
                        chance.choice(["NaN", "-0", "0", "1.5", None]),
                        chance.randrange(1, 4),
                    ),
                )
            case 2:
                connection.execute(f"UPDATE bag SET n = %s WHERE {chosen}", (n,))
            case 3:
                connection.execute(f"UPDATE bag SET v = %s WHERE {chosen}", (v,))
            case 4:
                connection.execute(f"UPDATE bag SET v = v WHERE {chosen}")
            case _:
                connection.execute(f"DELETE FROM bag WHERE {chosen}")
    if chance.random() < 0.2:
        connection.rollback()


@pytest.fixture
def bag(database: Database) -> Database:
    """Table bag, with many equal rows."""
    database.execute(
        "CREATE TABLE bag (n int, v text, big text, f float8)",
        "ALTER TABLE bag ALTER COLUMN big SET STORAGE EXTERNAL",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag SELECT g % 5, repeat('v', 40), CASE WHEN g % 100 = 0 THEN repeat(md5('1'), 100) END, 1.5"
        " FROM generate_series(1, 20000) g",
    )
    return database


def _equal(mirror: Mirror, table: str = "bag") -> None:
    (report,) = verify(mirror.settings, [table]).tables
    assert report.comparison is not None, report
    assert report.comparison.different_rows == 0, report
    mirror.assert_equal(f"public.{table}")
    mirror.assert_sound()


@pytest.mark.parametrize(
    "event",
    [
        "a restart",
        *(
            pytest.param(event, marks=pytest.mark.further)
            for event in ("", "TRUNCATE bag", "VACUUM FULL bag", "ALTER TABLE bag ADD extra int DEFAULT 1", "a resync")
        ),
    ],
)
def test_rows_are_copied_or_streamed_and_deleted_once(
    bag: Database, warehouse: str, tasks: ThreadTaskRunner, event: str
) -> None:
    """While rows are changed all the time, also before their chunk is copied. The copy begins again at each event."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"writer's seed: {seed}")
    # Odd seeds have rows of any number read by the row reader.
    limits = paced(0.1).model_copy(update={"rows_read_at_once": 0 if seed % 2 else 200_000})
    mirror = Mirror.create(bag, warehouse, tasks, limits=limits, copy_chunk_bytes=1 << 16, copy_workers=2)
    steps = Steps()
    with writing(bag, change_rows, seed) as written:
        with mirror.pumping(steps):
            mirror.register("bag")
            await_true(lambda: steps.count(Step.CHUNK_COPIED) >= 2, 60, "two chunks are copied")
            if event == "a resync":
                mirror.await_live("public.bag")
                resynced(mirror, "bag")
            elif event and event != "a restart":
                bag.execute(event)
            elif not event:
                mirror.await_live("public.bag")
        with mirror.pumping(steps):
            mirror.await_live("public.bag", seconds=120)
            after = written()
            await_true(lambda: written() > after + 10, 60, "rows of the live table are changed")
            # Compared while it is written to: what happened since the heap was read is applied to it.
            (report,) = verify(mirror.settings, ["bag"]).tables
            assert report.comparison is not None, report
            assert report.comparison.different_rows == 0, report
    with mirror.pumping():
        mirror.await_frontier()
    _equal(mirror)


@pytest.mark.further
def test_one_of_many_equal_rows_goes(bag: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """Of 10,000 equal rows three are deleted and two updated; a row that comes and goes in one transaction; and an
    update that leaves out a large value, which does not change."""
    bag.execute("TRUNCATE bag", "INSERT INTO bag SELECT 1, 'same', NULL, 0 FROM generate_series(1, 10000)")
    mirror = Mirror.create(bag, warehouse, tasks)
    mirror.register("bag")
    mirror.catch_up()
    first = "ctid = ANY (ARRAY(SELECT ctid FROM bag LIMIT {}))"
    bag.execute(
        f"DELETE FROM bag WHERE {first.format(3)}",
        f"UPDATE bag SET f = '-0' WHERE {first.format(2)}",
        "INSERT INTO bag VALUES (2, 'large', repeat(md5('x'), 200), 1), (2, 'large', repeat(md5('x'), 200), 1)",
    )
    mirror.catch_up()
    _equal(mirror)
    with bag.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO bag VALUES (1, 'same', NULL, 0), (3, 'brief', NULL, 0)")
        connection.execute(f"DELETE FROM bag WHERE n = 3 OR {first.format(1)}")
        connection.execute("UPDATE bag SET v = 'small' WHERE ctid = (SELECT min(ctid) FROM bag WHERE n = 2)")
        connection.commit()
    mirror.catch_up()
    _equal(mirror)
    assert bag.rows("SELECT v, count(*) FROM bag GROUP BY v ORDER BY v") == [("large", 1), ("same", 9997), ("small", 1)]
    bag.execute("DELETE FROM bag")
    mirror.catch_up()
    _equal(mirror)


@pytest.mark.further
def test_the_pump_is_killed_at_each_step(bag: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """Deletes that wait for a chunk are lost with the process, and the copy begins again. No row goes twice."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed: {seed}")
    mirror = Mirror.create(bag, warehouse, tasks, copy_chunk_bytes=1 << 16, copy_workers=2)
    mirror.register("bag")
    with writing(bag, change_rows, seed) as written:
        for step, nth in (
            (Step.COPY_PLANNED, 1),
            (Step.CHUNK_COPIED, 2),
            (Step.PUBLISHED, 3),
            (Step.STAGED, 4),
            (Step.WRITTEN, 5),
            (Step.PUBLISHED, 20),
            (Step.ACKNOWLEDGED, 2),
        ):
            die(mirror, step, nth, once="false", copy_chunk_bytes=1 << 16)
        with mirror.pumping():
            mirror.await_live("public.bag", seconds=120)
            after = written()
            await_true(lambda: written() > after + 10, 60, "rows of the live table are changed")
        for step in (Step.STAGED, Step.PUBLISHED, Step.ACKNOWLEDGED):
            die(mirror, step, 3, once="false")
    with mirror.pumping():
        mirror.await_frontier()
    _equal(mirror)


@pytest.mark.further
def test_files_are_merged_between_deletes(bag: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """The pump merges small files, while rows in them are deleted."""
    mirror = Mirror.create(bag, warehouse, tasks)
    mirror.register("bag")
    steps = Steps()
    with mirror.pumping(steps):
        mirror.await_live("public.bag")

        def merged() -> bool:
            bag.execute(
                "INSERT INTO bag VALUES (1, 'a', NULL, NULL), (1, 'a', NULL, NULL), (NULL, NULL, NULL, NULL)",
                "DELETE FROM bag WHERE ctid = ANY (ARRAY(SELECT ctid FROM bag ORDER BY random() LIMIT 2))",
            )
            mirror.await_frontier()
            return steps.count(Step.MERGED) > 1

        await_true(merged, 60, "files are merged")
        bag.execute("DELETE FROM bag WHERE v = 'a' AND ctid = (SELECT max(ctid) FROM bag WHERE v = 'a')")
        mirror.await_frontier()
    _equal(mirror)


@pytest.mark.further
def test_columns_and_identity_change_later(bag: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """Rows from before an added column have its default. A table that gets a key is like any other; one whose old rows
    are not sent any more fails."""
    bag.execute(
        "CREATE TABLE other (LIKE bag)", "ALTER TABLE other REPLICA IDENTITY FULL", "INSERT INTO other VALUES (1)"
    )
    mirror = Mirror.create(bag, warehouse, tasks)
    mirror.register("bag")
    mirror.register("other")
    third = "ctid = ANY (ARRAY(SELECT ctid FROM bag ORDER BY random() LIMIT 3))"
    with mirror.pumping():
        mirror.await_live("public.bag", "public.other")
        bag.execute(
            f"DELETE FROM bag WHERE {third}",
            "ALTER TABLE bag ADD COLUMN added int DEFAULT 7",
            f"DELETE FROM bag WHERE {third}",
            f"UPDATE bag SET added = 8 WHERE {third}",
            "ALTER TABLE bag RENAME COLUMN v TO w",
            f"UPDATE bag SET w = 'new' WHERE {third}",
            "ALTER TABLE bag DROP COLUMN big",
            f"DELETE FROM bag WHERE {third}",
            "ALTER TABLE bag ALTER COLUMN n TYPE bigint",
            f"DELETE FROM bag WHERE {third}",
        )
        mirror.await_frontier()
        mirror.await_live("public.bag")
        _equal(mirror)
        bag.execute("ALTER TABLE bag ADD COLUMN id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
        bag.execute("UPDATE bag SET w = 'updated' WHERE id = 1", "DELETE FROM bag WHERE id = 2")
        mirror.await_frontier()
        mirror.await_live("public.bag")
        mirror.await_frontier()
        _equal(mirror)
        before = mirror.lake("public.other")
        bag.execute("ALTER TABLE other REPLICA IDENTITY DEFAULT", "INSERT INTO other VALUES (2)")
        mirror.await_frontier()
        assert mirror.state("public.other") == "failed"
        assert "no primary key" in mirror.error("public.other")
        assert mirror.lake("public.other") == before
    mirror.assert_equal("public.bag")
    mirror.assert_sound()


@pytest.mark.further
def test_it_is_sorted_in_the_lake_and_paused(bag: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """Rows are found wherever they were written; what happened during a pause is made up for."""
    delete = "DELETE FROM bag WHERE ctid = ANY (ARRAY(SELECT ctid FROM bag ORDER BY random() LIMIT 3))"
    mirror = Mirror.create(bag, warehouse, tasks)
    with mirror.pumping():
        mirror.register("bag", choices=parse_choices((), (), sort_by="n, v"))
        mirror.await_live("public.bag")
        bag.execute("INSERT INTO bag VALUES (3, 'z', NULL, 1), (1, 'z', NULL, 1), (3, 'z', NULL, 1)", delete)
        bag.execute("DELETE FROM bag WHERE ctid = (SELECT max(ctid) FROM bag WHERE n = 3 AND v = 'z')")
        mirror.await_frontier()
        _equal(mirror)
        pause(mirror.settings, "bag")
        bag.execute(delete, "INSERT INTO bag VALUES (9, 'paused', NULL, 1), (9, 'paused', NULL, 1)")
        resume(mirror.settings, "bag")
        bag.execute(delete)
        mirror.await_live("public.bag")
        mirror.await_frontier()
        _equal(mirror)


@pytest.mark.further
def test_it_is_copied_on_request_only(bag: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """Between two copies nothing is followed. Each copy has all rows once."""
    mirror = Mirror.create(bag, warehouse, tasks, copy_chunk_bytes=1 << 16)
    mirror.register("bag", snapshots=SnapshotPlan(None))
    for number in range(3):
        mirror.catch_up()
        rest(mirror.settings)
        mirror.assert_equal("public.bag")
        copied = mirror.lake("public.bag")
        bag.execute(
            f"INSERT INTO bag SELECT {number}, 'later' FROM generate_series(1, 3)",
            "DELETE FROM bag WHERE ctid = ANY (ARRAY(SELECT ctid FROM bag ORDER BY random() LIMIT 3000))",
        )
        mirror.catch_up()
        assert mirror.lake("public.bag") == copied
        assert resume(mirror.settings, "bag").snapshot_only
    mirror.catch_up()
    rest(mirror.settings)
    mirror.assert_equal("public.bag")


@pytest.mark.further
def test_spark_compacts_it_between_deletes(
    bag: Database, warehouse: str, tasks: ThreadTaskRunner, lake: SparkSession
) -> None:
    """Its files are exchanged for others, and position deletes with them. Each later delete hides one row of the
    present files."""
    mirror = Mirror.create(bag, warehouse, tasks, copy_chunk_bytes=1 << 16)
    some = "ctid = ANY (ARRAY(SELECT ctid FROM bag ORDER BY random() LIMIT 500))"
    everything = "options => map('rewrite-all', 'true')"
    with mirror.pumping():
        mirror.register("bag")
        mirror.await_live("public.bag")
        for compaction in (
            f"CALL lake.system.rewrite_data_files(table => 'public.bag', {everything})",
            f"CALL lake.system.rewrite_position_delete_files(table => 'public.bag', {everything})",
            f"CALL lake.system.rewrite_data_files('public.bag', strategy => 'sort', sort_order => 'n', {everything})",
        ):
            bag.execute(f"DELETE FROM bag WHERE {some}", f"UPDATE bag SET f = 2 WHERE {some}")
            mirror.await_frontier()
            lake.sql(compaction).collect()
            bag.execute(f"UPDATE bag SET f = 3 WHERE {some}", f"DELETE FROM bag WHERE {some}")
            mirror.await_frontier()
            _equal(mirror)
