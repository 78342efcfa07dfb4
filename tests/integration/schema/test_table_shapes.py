"""Tables as users have them: odd names, partitions, dropped and generated columns, several writers at once."""

from __future__ import annotations

import random
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.lake import lake_session
from mirror_pump.testing.mirror import Mirror, assert_same, normalised, paced
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.pipeline import change_rows, writing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.further
def test_names_that_need_quotes(database: Database, warehouse: str, spark: SparkSession) -> None:
    database.execute(
        'CREATE SCHEMA "Sales Dept"',
        'CREATE TABLE "Sales Dept"."Order ""line"" s" ("Id" int, "select" text, "qu""ote" int, "üñ" text,'
        ' PRIMARY KEY ("Id", "select"))',
        """INSERT INTO "Sales Dept"."Order ""line"" s" VALUES (1, 'a', 1, 'x'), (2, '', NULL, NULL)""",
        'CREATE TABLE "UPPER" (id int PRIMARY KEY)',
        "CREATE TABLE upper (id int PRIMARY KEY, v text)",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    with mirror.pumping():
        mirror.register('"Sales Dept"."Order ""line"" s"', '"UPPER"', "upper")
        mirror.await_live('Sales Dept.Order "line" s', "public.UPPER", "public.upper")
        database.execute(
            """UPDATE "Sales Dept"."Order ""line"" s" SET "select" = 'b', "üñ" = 'y' WHERE "Id" = 1""",
            """INSERT INTO "Sales Dept"."Order ""line"" s" VALUES (3, 'c', 3, 'z')""",
            'INSERT INTO "UPPER" VALUES (1), (2)',
            "INSERT INTO upper VALUES (7, 'lower')",
        )
        mirror.await_frontier()
        for table, lake in (
            ('"Sales Dept"."Order ""line"" s"', 'Sales Dept.Order "line" s'),
            ('"UPPER"', "public.UPPER"),
            ("upper", "public.upper"),
        ):
            assert_same(mirror.heap(table), mirror.lake(lake), table)
    session = lake_session(spark, database.dsn, warehouse)
    rows = session.sql('SELECT * FROM lake.`Sales Dept`.`Order "line" s`').collect()
    assert normalised([tuple(row) for row in rows]) == mirror.heap('"Sales Dept"."Order ""line"" s"')
    assert session.sql("SELECT count(*) FROM lake.public.UPPER").collect()[0][0] == 2


def test_a_partitioned_table_is_one_table(database: Database, warehouse: str) -> None:
    database.execute(
        "CREATE TABLE p (id int, day date, v text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM ('2026-02-01') TO ('2026-03-01') PARTITION BY LIST (id)",
        "CREATE TABLE p2a PARTITION OF p2 FOR VALUES IN (1, 2, 3)",
        # Another order of columns, and a dropped one: the partitioned table's columns count.
        "CREATE TABLE p2b (v text, gone int, day date NOT NULL, id int NOT NULL)",
        "ALTER TABLE p2b DROP COLUMN gone",
        "ALTER TABLE p2 ATTACH PARTITION p2b DEFAULT",
        "INSERT INTO p SELECT g, '2026-01-01'::date + g % 59, 'v' FROM generate_series(1, 500) g",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), copy_chunk_bytes=8192)
    with mirror.pumping():
        mirror.register("p")
        mirror.await_live("public.p")
        mirror.assert_equal("public.p")
        database.execute(
            "UPDATE p SET v = 'u' WHERE id % 5 = 0",
            # Across partitions: a delete in one and an insert in another, with the same key and with another.
            "UPDATE p SET day = '2026-02-10' WHERE day = '2026-01-10'",
            "UPDATE p SET day = '2026-01-11', id = id + 1000 WHERE day = '2026-02-11'",
            "DELETE FROM p WHERE id BETWEEN 100 AND 120",
            "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')",
            "INSERT INTO p SELECT g, '2026-03-02', 'new' FROM generate_series(2000, 2050) g",
            "UPDATE p SET day = '2026-03-05' WHERE id = 1",
        )
        mirror.await_frontier()
        mirror.assert_equal("public.p")
        database.execute("TRUNCATE p", "INSERT INTO p VALUES (1, '2026-01-01', 'after')")
        mirror.await_frontier()
        mirror.assert_equal("public.p")
    mirror.assert_sound()


def test_columns_that_are_not_sent(database: Database, warehouse: str) -> None:
    """Dropped and generated ones; and columns in another order than the key's."""
    kind = "STORED" if major_version() < 18 else "VIRTUAL"
    database.execute(
        "CREATE DOMAIN amount AS numeric(10, 2) CHECK (value >= 0)",
        "CREATE TYPE mood AS ENUM ('ok', 'not ok')",
        f"CREATE TABLE t (v text, gone int, b int, total amount, double int GENERATED ALWAYS AS (b * 2) {kind},"
        " m mood DEFAULT 'ok', a int, PRIMARY KEY (a, b))",
        "ALTER TABLE t DROP COLUMN gone",
        "INSERT INTO t (a, b, v, total) SELECT g, -g, 'v', g FROM generate_series(1, 100) g",
        "CREATE TABLE only_key (a int, b text, PRIMARY KEY (b, a))",
        "INSERT INTO only_key SELECT g, g FROM generate_series(1, 20) g",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    with mirror.pumping():
        mirror.register("t", "only_key")
        mirror.await_live("public.t", "public.only_key")
        database.execute(
            "UPDATE t SET total = total + 1, m = 'not ok' WHERE a % 2 = 0",
            "UPDATE t SET b = b - 1000 WHERE a % 3 = 0",
            "DELETE FROM t WHERE a % 7 = 0",
            "INSERT INTO t (a, b) VALUES (-1, 0)",
            "UPDATE only_key SET a = a + 100 WHERE a < 10",
            "DELETE FROM only_key WHERE b = '15'",
            "INSERT INTO only_key VALUES (15, '15')",
        )
        mirror.await_frontier()
        mirror.assert_equal("public.only_key")
        with database.connect() as connection:
            heap = connection.execute("SELECT v, b, total, m, a FROM t").fetchall()
        assert_same(normalised(heap), mirror.lake("public.t"), "public.t without its generated column")


@pytest.mark.further
def test_a_value_of_many_megabytes(database: Database, warehouse: str) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, v text, b bytea)")
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), segment_bytes=100_000, batch_bytes=100_000)
    with mirror.pumping():
        mirror.register("t")
        mirror.await_live("public.t")
        database.execute(
            "INSERT INTO t SELECT g, 0, repeat(md5(g::text), 400000), '\\x0102' FROM generate_series(1, 3) g",
            "UPDATE t SET n = 1",
            "UPDATE t SET id = 10, b = NULL WHERE id = 2",
            "INSERT INTO t VALUES (20, 0, '', '')",
        )
        mirror.await_frontier()
        mirror.assert_equal("public.t")


@pytest.mark.further
def test_several_writers_contend_for_the_same_rows(database: Database, warehouse: str) -> None:
    """Commits in another order than the changes were made, deadlocks, and pumps that start and stop."""
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, n int, v text, big text)",
        "INSERT INTO t SELECT g, 0, 'v', NULL FROM generate_series(1, 300) g",
        "CREATE TABLE u (LIKE t INCLUDING ALL)",
    )
    seed = random.SystemRandom().randrange(2**32)
    print(f"writers' seed: {seed}")
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), segment_bytes=30_000)
    mirror.register("t", "u")
    with ExitStack() as writers:
        counts = [
            writers.enter_context(writing(database, change_rows(table, 300), seed + number))
            for number, table in enumerate(("t", "t", "t", "u"))
        ]
        for round_ in range(4):
            with mirror.with_options(limits=paced((0.0, 0.05, 0.3, 1.0)[round_])).pumping():
                mirror.await_live("public.t", "public.u")
                goal = min(count() for count in counts) + 10
                threading.Event().wait(0.01)
                while min(count() for count in counts) < goal:
                    mirror.await_frontier()
    mirror.catch_up()
    mirror.assert_equal("public.t", "public.u")
    mirror.assert_sound()
