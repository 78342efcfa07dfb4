"""Reads that include the heap show of a table with masks and a row filter what the lake has, or would have.

The oracle is PostgreSQL's own digest.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import mirror_pump.spark
from mirror_pump.errors import TableError
from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, assert_same, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.integration.types.test_masks import MARKER, sha256
from tests.support.error_bounds import printed_seed
from tests.support.pipeline import writing
from tests.support.table_wishes import parse_choices

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASKS = ["secret=sha256", "number=sha256", "at=sha256", "big=prefix(3)"]
MODES = (ReadMode.LAKE, ReadMode.SEAM, ReadMode.HEAP, ReadMode.HYBRID)
EXPECTED = (
    "SELECT id, n, encode(sha256(convert_to(secret, 'UTF8')), 'hex'),"
    " encode(sha256(convert_to(number::text, 'UTF8')), 'hex'), encode(sha256(convert_to(at::text, 'UTF8')), 'hex'),"
    " left(big, 3) FROM t WHERE n % 3 <> 0"
)
SECRETS = [f"{number:08}{MARKER}" for number in range(5)]


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, n int, secret text, number bigint, at timestamptz, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        f"INSERT INTO t SELECT g, g, format('%s{MARKER}', lpad((g % 5)::text, 8, '0')), g % 7,"
        f" '2026-01-01'::timestamptz + g * interval '1 hour', repeat('{MARKER}', 400) FROM generate_series(1, 300) g",
    )
    made = Mirror.create(database, warehouse, tasks)
    made.register("t", choices=parse_choices([], [], MASKS, where="n % 3 <> 0"))
    made.catch_up()
    return made


def expected(mirror: Mirror, condition: str = "") -> list[tuple[Any, ...]]:
    with mirror.database.session() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        listed = "id, n, secret, number, at, big"
        query = f"SELECT * FROM ({EXPECTED}) x({listed}){f' WHERE {condition}' if condition else ''}"
        return normalised(connection.execute(query.encode()).fetchall())


def rows_of(mirror: Mirror, mode: ReadMode, statement: str) -> list[tuple[Any, ...]]:
    notices: list[str] = []
    with open_query(mirror.settings, Query(statement, mode, max_wait=30), notices.append) as duckdb:
        rows = duckdb.execute(statement).fetchall()
    assert notices == []
    return normalised(rows)


def test_each_mode_shows_masks_and_the_rows_of_the_filter(mirror: Mirror) -> None:
    """Also for conditions on masked columns: they are about the masks, in which the values are not."""
    conditions = {
        f"secret = '{sha256(SECRETS[1])}'": 40,
        f"secret = '{SECRETS[1]}'": 0,
        f"secret IN ('{sha256(SECRETS[1])}', '{SECRETS[2]}') AND n > 100": 26,
        f"number = '{sha256('3')}'": 28,
        "number = '3'": 0,
        "big = 'Unm'": 200,
    }
    with mirror.pumping():
        mirror.await_frontier()
        for mode in MODES:
            assert_same(expected(mirror), rows_of(mirror, mode, "SELECT * FROM t"), mode)
            for condition, count in conditions.items():
                rows = rows_of(mirror, mode, f"SELECT * FROM t WHERE {condition}")
                assert_same(expected(mirror, condition), rows, f"{mode}: {condition}")
                assert len(rows) in range(count - 2, count + 3), (mode, condition, len(rows))


@pytest.mark.further
def test_hybrid_reads_hide_while_rows_change(mirror: Mirror) -> None:
    """A row that was changed since the heap was read comes from the stream: masked as well, and only if it passes the
    filter."""
    seed = printed_seed()

    def change(connection: psycopg.Connection[Any], chance: random.Random) -> None:
        key, secret = chance.randrange(1, 301), chance.choice(SECRETS)
        connection.execute("UPDATE t SET secret = %s WHERE id = %s", (secret, key))
        # In and out of the filter. Their number changes by none.
        connection.execute("UPDATE t SET n = n + 3 WHERE id %% 17 = %s", (key % 17,))
        connection.execute("UPDATE t SET number = number + 1 WHERE id = %s", (key,))

    possible = {sha256(secret) for secret in SECRETS}
    with mirror.pumping(), writing(mirror.database, change, seed) as written:
        mirror.await_frontier()
        for mode in (ReadMode.HYBRID, ReadMode.HEAP) * 2:
            before = written()
            rows = rows_of(mirror, mode, "SELECT * FROM t")
            assert len(rows) == 200
            assert MARKER not in repr(rows)
            assert {row[2] for row in rows} <= possible
            assert {row[5] for row in rows} == {MARKER[:3]}
            assert written() > before, "nothing was written meanwhile"


@pytest.mark.further
def test_spark_reads_masks_of_the_heap(mirror: Mirror, spark: SparkSession) -> None:
    """Its filters do not reach PostgreSQL, which would compare them with the values."""
    with mirror.pumping():
        mirror.await_frontier()
        for mode in ("heap", "hybrid"):
            with mirror_pump.spark.read(spark, "t", mode=mode, max_wait=30, settings=mirror.settings) as frame:
                assert_same(expected(mirror), normalised([tuple(row) for row in frame.collect()]), mode)
                assert frame.filter(f"secret = '{SECRETS[1]}'").count() == 0
                hashed = f"secret = '{sha256(SECRETS[1])}'"
                assert frame.filter(hashed).count() == len(expected(mirror, hashed))


def test_a_read_of_the_heap_needs_the_key(database: Database, mirror: Mirror, tmp_path: Path) -> None:
    """A read of the lake does not. The error has neither the key nor a value."""
    key = tmp_path / "key"
    key.write_text("a key of sixteen bytes or more")
    database.execute("CREATE TABLE keyed (id int PRIMARY KEY, v text)", f"INSERT INTO keyed VALUES (1, '{MARKER}')")
    with mirror.pumping():
        mirror.register("keyed", choices=parse_choices([], [], [f"v=hmac(file:{key})"]))
        mirror.await_live("public.keyed")
    database.execute(f"UPDATE modak.mirror_tables SET columns = replace(columns::text, '{key}', '{key}-gone')::jsonb")
    assert len(rows_of(mirror, ReadMode.LAKE, "SELECT v FROM keyed")) == 1
    with pytest.raises(TableError) as refused:
        rows_of(mirror, ReadMode.HEAP, "SELECT v FROM keyed")
    assert "cannot be masked" in str(refused.value)
    assert "mode lake" in refused.value.remedy
    assert MARKER not in repr(refused.value)
    assert "sixteen" not in repr(refused.value)
    database.execute(f"UPDATE modak.mirror_tables SET columns = replace(columns::text, '{key}-gone', '{key}')::jsonb")
