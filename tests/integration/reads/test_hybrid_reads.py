"""Hybrid reads: during writes, they show one state that the database had. Also: what happens if the frontier does not
arrive in time."""

from __future__ import annotations

import random
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import mirror_pump.spark
from mirror_pump.errors import UsageError
from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.ops.register.registration import register
from mirror_pump.source.catalog.consistent_snapshot import ConsistentSnapshot
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, assert_same, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.pipeline import writing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 400


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    made = Mirror.create(database, warehouse, tasks)
    database.execute(
        "CREATE TABLE public.t (id bigint PRIMARY KEY, n bigint NOT NULL, big text)",
        "CREATE TABLE public.other (id bigint PRIMARY KEY, n bigint NOT NULL, big text)",
        "INSERT INTO public.t SELECT g, 0, repeat(md5(g::text), 100) FROM generate_series(1, 400) g",
        "INSERT INTO public.other SELECT g, 0, NULL FROM generate_series(1, 400) g",
    )
    made.register("public.t", "public.other")
    made.catch_up()
    return made


def transfer(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    """Moves an amount between a row of one table and one of the other, or a row across the split: sums do not
    change."""
    give, take = chance.randrange(1, ROWS + 1), chance.randrange(1, ROWS + 1)
    amount = chance.randrange(-9, 10)
    connection.execute("UPDATE public.t SET n = n + %s WHERE abs(id) = %s", (amount, give))
    connection.execute("UPDATE public.other SET n = n - %s WHERE abs(id) = %s", (amount, take))
    if chance.randrange(3) == 0:
        # The whole row moves across the split; its large value does not change.
        connection.execute("UPDATE public.t SET id = -id WHERE id = %s OR id = -%s::bigint", (take, take))


@pytest.mark.parametrize("reads", [pytest.param(3, id="short"), pytest.param(30, id="long", marks=pytest.mark.soak)])
def test_a_hybrid_read_is_one_state_of_all_tables_while_they_change(mirror: Mirror, reads: int) -> None:
    seed = random.SystemRandom().randrange(2**32)
    statement = (
        "SELECT (SELECT sum(n) FROM public.t) + (SELECT sum(n) FROM other), (SELECT count(*) FROM t),"
        " (SELECT count(DISTINCT abs(id)) FROM t), (SELECT count(*) FROM public.other),"
        " (SELECT count(*) FROM t WHERE big = repeat(md5(abs(id)::text), 100))"
    )
    notices: list[str] = []
    with mirror.pumping(), writing(mirror.database, transfer, seed) as written:
        mirror.await_frontier()
        for _ in range(reads):
            before = written()
            query = Query(statement, ReadMode.HYBRID, max_wait=30)
            with open_query(mirror.settings, query, notices.append) as duckdb:
                (found,) = duckdb.execute(statement).fetchall()
            assert found == (0, ROWS, ROWS, ROWS, ROWS), f"seed {seed}"
            assert written() > before, "nothing was written meanwhile"
    assert notices == []
    assert mirror.database.rows("SELECT * FROM modak.read_pins") == []
    assert (
        len(mirror.database.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")) == 1
    )


def test_a_hybrid_read_sees_what_was_committed_before_it_in_both_engines(mirror: Mirror, spark: SparkSession) -> None:
    with mirror.pumping():
        mirror.database.execute(
            "UPDATE public.t SET n = 7 WHERE id IN (5, 395)",
            "DELETE FROM public.t WHERE id IN (6, 396)",
            "INSERT INTO public.t VALUES (1000, 1, 'new'), (-1000, 1, 'new')",
        )
        with mirror_pump.spark.read(
            spark, "public.t", "hybrid", max_wait=30, split=300, settings=mirror.settings
        ) as frame:
            assert frame.read.lake is not None
            assert frame.read.heap is not None
            mirror.database.execute("DELETE FROM public.t WHERE id % 2 = 0")
            found = normalised([tuple(row) for row in frame.collect()])
            heap = {row[0] for row in frame.where("id >= 300").collect()}
        assert len(found) == ROWS
        assert {row[0] for row in found} == (set(range(1, ROWS + 1)) - {6, 396}) | {1000, -1000}
        assert {row[0] for row in found if row[1] == 7} == {5, 395}
        assert heap == {row[0] for row in found if row[0] >= 300}
        with pytest.raises(UsageError, match="not a valid bigint"):
            mirror_pump.spark.read(spark, "public.t", "hybrid", split="soon", settings=mirror.settings)


def test_without_a_pump_a_hybrid_read_falls_back_to_the_heap_and_says_so(mirror: Mirror, spark: SparkSession) -> None:
    mirror.database.execute("INSERT INTO public.t VALUES (1000, 1, 'new')")
    with pytest.warns(RuntimeWarning, match="read from the heap, not from the lake: frontier .* has not passed"):
        frame = mirror_pump.spark.read(spark, "public.t", "hybrid", max_wait=2, settings=mirror.settings)
    with frame:
        assert frame.read.lake is None
        assert_same(mirror.heap("public.t"), normalised([tuple(row) for row in frame.collect()]), "from the heap")


@pytest.mark.further
def test_a_transaction_that_stays_open_makes_a_hybrid_read_fall_back(mirror: Mirror) -> None:
    notices: list[str] = []
    with mirror.pumping(), closing(mirror.database.connect(autocommit=False)) as holder:
        holder.execute("INSERT INTO public.t VALUES (2000, 1, 'not committed')")
        query = Query("FROM t", ReadMode.HYBRID, max_wait=0.5)
        with open_query(mirror.settings, query, notices.append) as duckdb:
            assert duckdb.execute("SELECT count(*) FROM t").fetchone() == (ROWS,)
    assert "no consistent point was reached" in notices[0]


@pytest.mark.further
def test_a_table_that_is_truncated_meanwhile_is_read_from_the_heap(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the consistent point and the locks: the older snapshot would find an empty heap without noticing."""
    opened = ConsistentSnapshot

    def truncating(*arguments: Any, **options: Any) -> Any:
        if options.get("snapshot") is not None:
            mirror.database.execute("TRUNCATE public.t")
            mirror.database.execute("INSERT INTO public.t VALUES (1, 1, 'after')")
        return opened(*arguments, **options)

    monkeypatch.setattr("mirror_pump.ops.reads.hybrid_reads.ConsistentSnapshot", truncating)
    notices: list[str] = []
    with mirror.pumping():
        query = Query("FROM t", ReadMode.HYBRID, max_wait=30)
        with open_query(mirror.settings, query, notices.append) as duckdb:
            assert duckdb.execute("FROM t").fetchall() == [(1, 1, "after")]
    assert notices == ["read from the heap, not from the lake: public.t was truncated or rewritten during the read"]


def test_a_command_in_the_process_of_a_spark_leaves_it_alone(mirror: Mirror, spark: SparkSession) -> None:
    """A program that has a Spark may use the mirror's functions: these start none of their own, and stop none."""
    mirror.database.execute("CREATE TABLE more (id int PRIMARY KEY)", "INSERT INTO more SELECT generate_series(1, 50)")
    outcomes = register(mirror.settings, ["more"], wait=True, on_progress=lambda _: None)
    assert [outcome.error for outcome in outcomes] == [None]
    assert spark.range(3).count() == 3
    mirror.assert_equal("public.more")
