"""Comparisons of a statement reach PostgreSQL, and no row that matters stays there."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest

from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.heap.heap_side import CHUNK_BYTES, heap_side
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true, normalised
from tests.support.pipeline import in_thread
from tests.support.typed_events import EVENTS, TypedEvents

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from mirror_pump.testing.tasks import ThreadTaskRunner

_COLUMNS = {
    "i": "smallint",
    "n": "bigint",
    "d": "date",
    "t": "timestamp",
    "z": "timestamptz",
    "u": "uuid",
    "s": "text",
    "v": "varchar(40)",
    "c": "char(4)",
    "x": "numeric(20,3)",
}
_VALUES = {
    "i": ["-32768", "-1", "0", "5", "32767"],
    "n": ["-9223372036854775808", "0", "5", "9223372036854775807"],
    "d": ["0001-01-01", "0044-03-15 BC", "2026-01-03", "infinity", "-infinity", "5874897-12-31"],
    "t": ["0001-01-01", "2026-01-03 10:00:00.123456", "294276-12-31 23:59:59", "infinity", "-infinity"],
    "z": ["1890-01-01 00:00:00+00", "2026-01-03 10:00:00+00", "2026-01-03 10:00:00+02", "infinity", "20000-01-01+00"],
    "u": ["5f0c7e3e-0000-4000-8000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "s": ["", "a", "A", "a'b", "i=5", "x AND i=5", "ä", "日本", "a ", "Z", "_"],
    "v": ["", "a", "straße", "'", "x' OR i=5"],
    "c": ["", "a", "a b", "abcd"],
    "x": ["0", "-1.5", "NaN", "12345678901234567.891"],
}
_CONSTANTS = {
    "d": ["DATE '2026-01-03'", "DATE '0001-01-01'", "'infinity'::DATE"],
    "t": ["TIMESTAMP '2026-01-03 10:00:00.123456'", "TIMESTAMP '-infinity'", "DATE '2026-01-03'"],
    "z": ["TIMESTAMPTZ '2026-01-03 10:00:00+00'", "TIMESTAMPTZ '1890-01-01 00:00:00+00:17'", "'2026-01-03 08:00'"],
    "u": ["'5f0c7e3e-0000-4000-8000-000000000000'", "'FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF'"],
    "x": ["-1.5", "0"],
    "i": ["-32768", "5", "5.0", "'0'", "40000"],
    "n": ["5", "-9223372036854775808", "9223372036854775807", "18446744073709551615"],
}


def _constants(column: str) -> list[str]:
    texts = ["'" + text.replace("'", "''") + "'" for text in [*_VALUES[column], "m"]]
    return _CONSTANTS.get(column) or texts


def _predicate(chance: random.Random, depth: int = 2) -> str:
    if depth and chance.random() < 0.45:
        left, right = (_predicate(chance, depth - 1) for _ in range(2))
        return f"({left} {chance.choice(['AND', 'AND', 'OR'])} {right})"
    column = chance.choice(list(_COLUMNS))
    constants = _constants(column)
    form = chance.randrange(8)
    if form == 0:
        return f"{column} IN ({', '.join(chance.sample(constants, min(len(constants), 2)))})"
    if form == 1:
        return f"{column} BETWEEN {chance.choice(constants)} AND {chance.choice(constants)}"
    if form == 2:
        return f"{column} IS {chance.choice(['', 'NOT '])}NULL"
    if form == 3:
        return f"NOT ({column} = {chance.choice(constants)})"
    return f"{column} {chance.choice(['=', '<', '<=', '>', '>=', '<>'])} {chance.choice(constants)}"


@pytest.fixture
def odd(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """A table with all that engines may compare differently."""
    columns = ", ".join(f"{name} {type_sql}" for name, type_sql in _COLUMNS.items())
    chance = random.Random(7)
    database.execute(
        f"CREATE TABLE public.odd (id int PRIMARY KEY, {columns})",
    )
    with database.session(autocommit=False) as connection:
        for number in range(300):
            row = [chance.choice([None, *_VALUES[name], *_VALUES[name]]) for name in _COLUMNS]
            casts = ", ".join(f"%s::text::{type_sql}" for type_sql in _COLUMNS.values())
            connection.execute(f"INSERT INTO public.odd VALUES (%s, {casts})".encode(), [number, *row])
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("public.odd")
    return mirror


def _sent(duckdb: DuckDBPyConnection) -> int:
    """The number of rows that came from the heaps."""
    names = duckdb.execute(
        "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'mirror_pump_read' AND table_name LIKE 'heap%'"
    ).fetchall()
    return sum(duckdb.execute(f"SELECT count(*) FROM mirror_pump_read.{name}").fetchall()[0][0] for (name,) in names)


@pytest.mark.parametrize("statements", [12, pytest.param(1_000, marks=pytest.mark.soak)])
def test_each_row_that_a_statement_finds_is_sent(odd: Mirror, statements: int) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    fewer = 0
    with open_query(odd.settings, Query("FROM odd", ReadMode.HEAP), print) as whole:
        for _ in range(statements):
            statement = f"SELECT id FROM odd WHERE {_predicate(chance)}"
            if chance.random() < 0.3:
                statement += f" UNION ALL SELECT id FROM odd o WHERE {_predicate(chance)}"
            with open_query(odd.settings, Query(statement, ReadMode.HEAP), print) as duckdb:
                found = normalised(duckdb.execute(statement).fetchall())
                fewer += _sent(duckdb) < 300
            assert found == normalised(whole.execute(statement).fetchall()), statement
    assert fewer or statements < 100, "comparisons stayed in DuckDB"


def test_comparisons_are_made_by_postgres(odd: Mirror) -> None:
    for condition, sent in {
        "id = 5": 1,
        "id IN (5, 9, 200)": 3,
        "id >= 10 AND id < 20 AND x > 0": 10,
        "id = 5 OR id = 9": 2,
        "id = 3 AND s = 'ä'": 1,
        "u = '5f0c7e3e-0000-4000-8000-000000000000' AND id < 0": 0,
        "z >= '2026-01-03' AND id < 0": 0,
        "s > 'a'": 300,
        "id + i = 5": 300,
    }.items():
        statement = f"SELECT count(*) FROM odd WHERE {condition}"
        with open_query(odd.settings, Query(statement, ReadMode.HEAP), print) as duckdb:
            assert _sent(duckdb) == sent, condition


def test_only_what_every_use_of_a_table_leaves_out_stays_in_postgres(odd: Mirror) -> None:
    for statement, sent in {
        "SELECT (SELECT count(*) FROM odd WHERE id = 5), (SELECT max(id) FROM public.odd WHERE id < 3)": 4,
        "SELECT count(*) FROM odd a JOIN odd b ON a.i = b.i WHERE a.id = 5": 300,
        "WITH o AS (FROM odd) SELECT * FROM o WHERE id BETWEEN 7 AND 8": 2,
    }.items():
        with open_query(odd.settings, Query(statement, ReadMode.HEAP), print) as duckdb:
            assert _sent(duckdb) == sent, statement


def test_a_name_that_looks_like_a_condition_is_no_condition(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    database.execute(
        'CREATE TABLE public.named (id int PRIMARY KEY, "id=3 AND id" int)',
        "INSERT INTO public.named SELECT g, g % 4 FROM generate_series(1, 20) g",
    )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("public.named")
    statement = 'SELECT count(*) FROM named WHERE "id=3 AND id" = 2'
    with open_query(mirror.settings, Query(statement, ReadMode.HEAP), print) as duckdb:
        assert duckdb.execute(statement).fetchall() == [(5,)]


@pytest.mark.further
def test_the_heap_of_a_table_with_retention_is_searched(events: TypedEvents) -> None:
    statement = f"SELECT n FROM {EVENTS} WHERE at >= 300 AND at < 330 AND id IS NOT NULL ORDER BY 1".replace(
        "at ", '"at" '
    )
    with open_query(events.mirror.settings, Query(statement), print) as duckdb:
        assert _sent(duckdb) == 3
        wanted = events.mirror.database.rows(f"SELECT n FROM {EVENTS} WHERE at >= 300 AND at < 330 ORDER BY 1")
        assert duckdb.execute(statement).fetchall() == wanted


def test_few_rows_of_a_large_heap_are_found_by_its_index(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    # Few rows fill many blocks.
    database.execute(
        "CREATE TABLE public.large (id int PRIMARY KEY, v text) WITH (fillfactor = 10)",
        "INSERT INTO public.large SELECT g, repeat('v', 700) FROM generate_series(1, 13000) g",
        "VACUUM ANALYZE public.large",
    )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("public.large")
    with database.session(autocommit=False) as connection:
        ((table_id,),) = connection.execute("SELECT 'public.large'::regclass::oid::bigint").fetchall()
        table = load_table(connection, table_id)
        assert table is not None
        assert connection.execute("SELECT pg_table_size('public.large')").fetchall()[0][0] > CHUNK_BYTES
        whole = heap_side(connection, "", table, "")
        few = heap_side(connection, "", table, "", rare_condition="id = 5")
        many = heap_side(connection, "", table, "", rare_condition="v > ''")
    assert len(whole.chunks) == len(many.chunks) > 1
    assert [(chunk.lo_block, chunk.hi_block) for chunk in few.chunks] == [(0, None)]


def test_ddl_of_a_partitioned_table_meets_no_deadlock_with_a_read(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    """It locks the table first, a read only the partitions."""
    database.execute(
        "CREATE TABLE p (id int PRIMARY KEY, d date) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (50)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (50) TO (100)",
        "INSERT INTO p VALUES (1, '2026-01-01'), (51, 'infinity')",
    )
    Mirror.create(database, warehouse, tasks).register("p")
    waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'p1'::regclass AND NOT granted"
    with database.session(autocommit=False) as reader, database.session(autocommit=False) as ddl:
        ((table_id,),) = reader.execute("SELECT 'p'::regclass::oid::bigint").fetchall()
        table = load_table(reader, table_id)
        assert table is not None
        reader.execute("LOCK TABLE ONLY p1, ONLY p2 IN ACCESS SHARE MODE")
        ddl.execute("LOCK TABLE ONLY p IN ACCESS EXCLUSIVE MODE")

        def detach(_: threading.Event) -> None:
            ddl.execute("LOCK TABLE ONLY p1 IN ACCESS EXCLUSIVE MODE")

        with in_thread(detach, "ddl"):
            await_true(lambda: database.rows(waiting) == [(1,)], 20, "it waits for the read")
            assert heap_side(reader, "", table, "").raw_text_columns == {"d"}
            assert heap_side(reader, "", table, "id < 50").raw_text_columns == frozenset()
            reader.rollback()
