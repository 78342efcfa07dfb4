"""Raw text columns during everything that can happen to a row: copy, stream, TOAST, restarts, maintenance, verify."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from mirror_pump.errors import TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.format.raw_text_columns import RAW_TEXT_IDS_FROM
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import TableId
from mirror_pump.ops.verify.compare_spark import compare
from mirror_pump.ops.verify.comparison_engines import ComparisonEngine
from mirror_pump.ops.verify.verification import verify
from mirror_pump.source.stream.publication import record_published
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import lake_session, read_duckdb
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTIAL = ("m", "d", "ts", "tz", "a", "k")
"""Columns of `create` that may need a raw text column."""


def create(database: Database, name: str = "t") -> None:
    with database.connect() as connection:
        connection.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, m numeric(10, 2), d date, ts timestamp, tz timestamptz, a int[],"
            " k numeric(5, 1)[], v text)".encode()
        )


def raw_text_columns(mirror: Mirror, table: str = "public.t") -> set[str]:
    """Names of the lake table's raw text columns."""
    fields = LakeTable.load(mirror.location(table), StorageOptions()).schema.fields
    return {field.name for field in fields if field.field_id >= RAW_TEXT_IDS_FROM}


def heap(database: Database, table: str = "t") -> list[tuple[Any, ...]]:
    columns = ", ".join(f"{name}::text" for name in PARTIAL)
    with database.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.execute(f"SELECT id, {columns}, v FROM {table} ORDER BY id".encode()).fetchall()


def lake(mirror: Mirror, table: str = "public.t") -> list[tuple[Any, ...]]:
    """The lake's rows with the raw text in place of the value, as Postgres prints it. No row may have both."""
    present = raw_text_columns(mirror, table)
    rows = read_duckdb(mirror.location(table), "SELECT * FROM lake ORDER BY id").to_pylist()
    result = []
    for row in rows:
        cells = []
        for name in PARTIAL:
            typed, raw = row[name], row[f"{name}__raw"] if f"{name}__raw" in present else None
            assert typed is None or raw is None, f"{name} of row {row['id']} is there twice: {typed}, {raw}"
            cells.append(_text(typed) if raw is None else raw)
        result.append((row["id"], *cells, row["v"]))
    return result


def _text(value: Any) -> str | None:
    if isinstance(value, list):
        return "{" + ",".join("NULL" if element is None else str(element) for element in value) + "}"
    return None if value is None else str(value).replace("+00:00", "+00")


def assert_same(mirror: Mirror, table: str = "t") -> None:
    assert lake(mirror, f"public.{table}") == heap(mirror.database, table)


ODD = {
    "m": ("'NaN'",),
    "d": ("'infinity'", "'-infinity'"),
    "ts": ("'infinity'", "'294276-12-31 23:59:59.999999'"),
    "tz": ("'-infinity'", "'294276-12-31 23:59:59.999999+00'"),
    "a": ("'{{1,2},{3,NULL}}'", "'[0:1]={1,2}'", "array_fill(7, ARRAY[60, 60])"),
    "k": ("'{1.5,NaN}'", "'{{NaN}}'"),
}
EVEN = {
    "m": ("1.50", "NULL"),
    "d": ("'2026-01-02'", "NULL"),
    "ts": ("'2026-01-02 03:04:05'", "NULL"),
    "tz": ("'2026-01-02 03:04:05+00'", "NULL"),
    "a": ("'{1,NULL}'", "'{}'", "NULL"),
    "k": ("'{1.5,2.0}'", "NULL"),
}


def test_a_raw_text_column_comes_with_the_first_value_that_needs_it(
    database: Database, warehouse: str, spark: SparkSession
) -> None:
    create(database)
    database.execute(
        "INSERT INTO t SELECT g, g, '2026-01-01', now(), now(), '{1}', '{2.5}', 'v' FROM generate_series(1, 9) g"
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    with mirror.pumping():
        mirror.register("t")
        mirror.await_live("public.t")
        assert raw_text_columns(mirror) == set()
        database.execute("UPDATE t SET m = 'NaN' WHERE id = 3")
        mirror.await_frontier()
        assert raw_text_columns(mirror) == {"m__raw"}
        database.execute(
            "UPDATE t SET d = 'infinity', m = 4 WHERE id = 3", "UPDATE t SET ts = '-infinity' WHERE id < 3"
        )
        mirror.await_frontier()
        assert raw_text_columns(mirror) == {"m__raw", "d__raw", "ts__raw"}
    # Another pump, which knows the table from its metadata file only.
    with mirror.pumping():
        database.execute("UPDATE t SET a = '{{1},{2}}' WHERE id = 5", "UPDATE t SET d = '2026-02-02' WHERE id = 3")
        mirror.await_frontier()
        assert raw_text_columns(mirror) == {"m__raw", "d__raw", "ts__raw", "a__raw"}
        assert mirror.state("public.t") == "live"
    session = lake_session(spark, database.dsn, warehouse)
    rows = session.sql(
        "SELECT id, m, m__raw, ts__raw, a, a__raw FROM lake.public.t WHERE id IN (2, 5) ORDER BY id"
    ).collect()
    assert [tuple(row)[3:] for row in rows] == [("-infinity", [1], None), (None, None, "{{1},{2}}")]
    # Earlier snapshots are read with their own columns.
    first = session.sql("SELECT snapshot_id FROM lake.public.t.snapshots ORDER BY committed_at").collect()[1][0]
    assert "m__raw" not in session.sql(f"SELECT * FROM lake.public.t VERSION AS OF {first}").columns


@pytest.mark.soak
@pytest.mark.parametrize("seed", [random.SystemRandom().randrange(2**32)])
def test_random_changes_with_odd_values(database: Database, warehouse: str, seed: int) -> None:
    """Odd values are added and removed, move to other keys, and stay unchanged as TOAST values, in the copy and in the
    stream."""
    chance = random.Random(seed)
    for table in ("t", "u"):
        create(database, table)
    database.execute(
        "ALTER TABLE t ALTER COLUMN a SET STORAGE EXTERNAL",
        "ALTER TABLE u REPLICA IDENTITY FULL",
    )

    def value(name: str) -> str:
        return chance.choice(ODD[name] if chance.random() < 0.2 else EVEN[name])

    def change(connection: psycopg.Connection[Any]) -> None:
        table = chance.choice("tu")
        key = chance.randrange(60)
        name = chance.choice(PARTIAL)
        match chance.randrange(6):
            case 0:
                cells = ", ".join(value(text) for text in PARTIAL)
                query = f"INSERT INTO {table} VALUES ({key}, {cells}, 'i')"
                query += f" ON CONFLICT (id) DO UPDATE SET {name} = EXCLUDED.{name}"
            case 1:
                query = f"UPDATE {table} SET {name} = {value(name)} WHERE id % 7 = {key % 7}"
            case 2:
                # Nothing but the text: large arrays are not sent, and stay where they are.
                query = f"UPDATE {table} SET v = v || '{key}' WHERE id BETWEEN {key} AND {key + 9}"
            case 3:
                query = f"UPDATE {table} SET id = id + 1000 WHERE id = {key}"
                query += f" AND NOT EXISTS (SELECT FROM {table} WHERE id = {key + 1000})"
            case 4:
                query = f"UPDATE {table} SET id = id - 1000 WHERE id = {key + 1000}"
                query += f" AND NOT EXISTS (SELECT FROM {table} WHERE id = {key})"
            case _:
                query = f"DELETE FROM {table} WHERE id = {key}"
        connection.execute(query.encode())

    gate = GatedCopies(ThreadTaskRunner())
    mirror = Mirror.create(database, warehouse, gate, segment_bytes=2000, copy_chunk_bytes=8192)
    with database.connect() as connection:
        for _ in range(300):
            change(connection)
        gate.hold()
        with mirror.pumping():
            mirror.register("t", "u")
            # Changes before any chunk of the copy is published, and after some are.
            for round_ in range(6):
                for _ in range(40):
                    change(connection)
                gate.let_go(round_)
            gate.let_go()
            mirror.await_live("public.t", "public.u")
            for _ in range(4):
                for _ in range(60):
                    change(connection)
                mirror.await_frontier()
                assert_same(mirror, "t")
                assert_same(mirror, "u")
        assert raw_text_columns(mirror), "the seed brought no odd value"
    mirror.assert_sound()


@pytest.mark.further
def test_unchanged_large_values_keep_their_raw_text(database: Database, warehouse: str) -> None:
    create(database)
    database.execute(
        "ALTER TABLE t ALTER COLUMN a SET STORAGE EXTERNAL",
        "INSERT INTO t (id, a, v) SELECT g, array_fill(g, ARRAY[50, 50]), 'v' FROM generate_series(1, 5) g",
        "INSERT INTO t (id, a, v) SELECT g, array_fill(g, ARRAY[3000]), 'v' FROM generate_series(6, 9) g",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), segment_bytes=500)
    with mirror.pumping():
        mirror.register("t")
        mirror.await_live("public.t")
        for _ in range(3):
            database.execute("UPDATE t SET v = v || '!'", "UPDATE t SET id = id + 100 WHERE id % 2 = 0")
            mirror.await_frontier()
            assert_same(mirror)
        database.execute("UPDATE t SET a = '{1}' WHERE id % 3 = 0", "UPDATE t SET v = v || '?'")
        mirror.await_frontier()
        assert_same(mirror)


def test_names_of_raw_text_columns_give_way(database: Database, warehouse: str) -> None:
    database.execute(
        'CREATE TABLE t (id int PRIMARY KEY, m numeric(5,2), m__raw text, "M__RAW_" text, "m " date)',
        "INSERT INTO t VALUES (1, 'NaN', 'own', 'too', 'infinity')",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    with mirror.pumping():
        mirror.register("t")
        mirror.await_live("public.t")
        database.execute("INSERT INTO t VALUES (2, 'NaN', NULL, NULL, '-infinity')")
        mirror.await_frontier()
    rows = read_duckdb(mirror.location("public.t"), "SELECT * FROM lake ORDER BY id").to_pylist()
    assert [(row["m__raw"], row["M__RAW_"], row["m__raw__"], row["m __raw"]) for row in rows] == [
        ("own", "too", "NaN", "infinity"),
        (None, None, "NaN", "-infinity"),
    ]


def test_a_key_that_iceberg_cannot_hold_fails_the_table_with_a_remedy(database: Database, warehouse: str) -> None:
    database.execute(
        "CREATE TABLE copied (d date, n int, PRIMARY KEY (d, n))",
        "INSERT INTO copied VALUES ('infinity', 1)",
        "CREATE TABLE streamed (d date, n int, PRIMARY KEY (d, n))",
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    with mirror.pumping():
        mirror.register("streamed", "other")
        mirror.await_live("public.streamed", "public.other")
        # It may fail before the command has returned, which then says so.
        with suppress(TableError):
            mirror.register("copied")
        database.execute("INSERT INTO streamed VALUES ('-infinity', 1)", "INSERT INTO other VALUES (1)")
        mirror.await_frontier()
        await_true(lambda: mirror.state("public.copied") == "failed", 30, "copied fails")
        assert mirror.state("public.streamed") == "failed"
        for table in ("copied", "streamed"):
            assert "key column d" in mirror.error(f"public.{table}")
            assert "--column d=string" in mirror.error(f"public.{table}")
        mirror.assert_equal("public.other")


@pytest.mark.unverified("the lake lacks changes on purpose")
def test_verify_finds_a_changed_raw_text(database: Database, warehouse: str, spark: SparkSession) -> None:
    """A heap value changed without the stream: verify must see it, although both typed values are NULL."""
    create(database)
    database.execute(
        "INSERT INTO t (id, d, m) VALUES (1, 'infinity', 'NaN'), (2, '-infinity', 1), (3, NULL, 2)",
        "INSERT INTO t (id, d, ts) VALUES (4, '4714-11-24 BC', '294246-12-31 23:59:59.999999')",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    with mirror.pumping():
        mirror.register("t")
        mirror.await_live("public.t")
    # Removed from the publication during four changes, without the pump's notice: as if the stream had lost them.
    publication = mirror.settings.publication
    with database.connect() as connection:
        connection.execute(f'ALTER PUBLICATION "{publication}" DROP TABLE t'.encode())
        connection.execute("UPDATE t SET d = '-infinity' WHERE id = 1")
        connection.execute("UPDATE t SET d = NULL WHERE id = 2")
        connection.execute("UPDATE t SET ts = 'infinity' WHERE id = 3")
        connection.execute("UPDATE t SET d = '5874897-12-31' WHERE id = 4")
        connection.execute(f'ALTER PUBLICATION "{publication}" ADD TABLE t'.encode())
        rows = connection.execute("SELECT 't'::regclass::oid::bigint").fetchall()
        record_published(connection, mirror.settings.slot, [TableId(oid) for (oid,) in rows])
    with mirror.pumping():
        report = verify(mirror.settings, engine=ComparisonEngine(mirror.runner, partial(compare, spark)))
    table = report.tables[0].to_json()
    assert table["different_rows"] == 4, table
    shown = {difference["key"]["id"]: difference["columns"] for difference in table["differences"]}
    assert shown["1"] == {"d__raw": {"heap": "-infinity", "lake": "infinity"}}
    assert shown["2"] == {"d__raw": {"heap": None, "lake": "-infinity"}}
    assert shown["4"] == {"d": {"heap": "+5874897-12-31", "lake": "-4713-11-24"}}
    assert shown["3"] == {"ts__raw": {"heap": "infinity", "lake": None}}


@pytest.mark.further
def test_raw_text_columns_follow_their_columns(database: Database, warehouse: str, spark: SparkSession) -> None:
    """Renamed, swapped, widened, dropped, copied again: the text stays with the column that it belongs to."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a date, b date, m numeric(6, 2), gone date)",
        "INSERT INTO t VALUES (1, 'infinity', '-infinity', 'NaN', 'infinity')",
        "INSERT INTO t VALUES (2, '2026-01-01', '2026-02-02', 1, NULL)",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())

    def rows() -> list[dict[str, Any]]:
        mirror.await_frontier()
        await_true(lambda: mirror.state("public.t") == "live", 60, "t is live")
        found = read_duckdb(mirror.location("public.t"), "SELECT * FROM lake ORDER BY id").to_pylist()
        return [{name: _text(value) for name, value in row.items()} for row in found]

    with mirror.pumping():
        mirror.register("t")
        mirror.await_live("public.t")
        database.execute("ALTER TABLE t RENAME COLUMN a TO first")
        before = rows()[0]
        assert (before["first__raw"], before["b__raw"], before["gone__raw"]) == ("infinity", "-infinity", "infinity")
        assert "a__raw" not in before
        with database.connect() as connection, connection.transaction():
            connection.execute("ALTER TABLE t RENAME COLUMN first TO x")
            connection.execute("UPDATE t SET x = 'infinity', b = '-infinity' WHERE id = 2")
            connection.execute("ALTER TABLE t RENAME COLUMN b TO first")
            connection.execute("ALTER TABLE t RENAME COLUMN x TO b")
            connection.execute("UPDATE t SET first = '2026-03-03' WHERE id = 1")
        assert [(row["b"], row["b__raw"], row["first"], row["first__raw"]) for row in rows()] == [
            (None, "infinity", "2026-03-03", None),
            (None, "infinity", None, "-infinity"),
        ]
        database.execute("ALTER TABLE t DROP COLUMN gone", "ALTER TABLE t ADD COLUMN gone date")
        assert all(row["gone"] is None and row.get("gone__raw") is None for row in rows())
        database.execute("UPDATE t SET gone = '-infinity' WHERE id = 2")
        assert [row["gone__raw"] for row in rows()] == [None, "-infinity"]
        # Copied again, with a type that can hold more.
        database.execute("ALTER TABLE t ALTER COLUMN m TYPE numeric(8, 4)", "ALTER TABLE t ADD COLUMN b__raw text")
        database.execute("INSERT INTO t (id, b, m, b__raw) VALUES (3, 'infinity', 'NaN', 'own')")
        assert [(row["m"], row["m__raw"], row["b__raw"], row["b__raw_"]) for row in rows()] == [
            (None, "NaN", None, "infinity"),
            ("1.0000", None, None, "infinity"),
            (None, "NaN", "own", "infinity"),
        ]
    session = lake_session(spark, database.dsn, warehouse)
    found = session.sql("SELECT id, b__raw, b__raw_, m__raw, gone__raw FROM lake.public.t ORDER BY id").collect()
    assert [tuple(row) for row in found] == [
        (1, None, "infinity", "NaN", None),
        (2, None, "infinity", None, "-infinity"),
        (3, "own", "infinity", "NaN", None),
    ]


def test_large_values_under_keys_beyond_pythons_calendar(database: Database, warehouse: str) -> None:
    """Looked up in the lake by such a key, and in the heap while the copy has not reached the row."""
    database.execute(
        "CREATE TABLE t (d date, ts timestamp, tz timestamptz, n int, big text, PRIMARY KEY (d, ts, tz))",
        "ALTER TABLE t ALTER COLUMN big SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT d, ts, ts AT TIME ZONE 'UTC', 0, repeat(md5(d::text), 100)"
        " FROM (VALUES ('4714-11-24 BC'::date), ('5874897-12-31'), ('2026-01-01')) x(d),"
        " (VALUES ('4714-11-24 00:00:00.000001 BC'::timestamp), ('294246-12-31 23:59:59.999999'),"
        " ('0001-02-29 01:02:03.4 BC'), ('2026-01-02 03:04:05.678')) y(ts)",
    )
    gate = GatedCopies(ThreadTaskRunner())
    mirror = Mirror.create(database, warehouse, gate)

    def assert_equal() -> None:
        query = "SELECT {} AS d, {} AS ts, {} AS tz, n, md5(big) AS big FROM {}"
        micros = "(extract(epoch FROM {}) * 1000000)::bigint"
        heap = query.format("d - '1970-01-01'::date", micros.format("ts"), micros.format("tz"), "t")
        found = query.format("(d - DATE '1970-01-01')::bigint", "epoch_us(ts)", "epoch_us(tz)", "lake")
        with database.connect() as connection:
            wanted = connection.execute(heap.encode()).fetchall()
        rows = read_duckdb(mirror.location("public.t"), found).to_pylist()
        assert sorted(tuple(row.values()) for row in rows) == sorted(wanted)

    gate.hold()
    with mirror.pumping():
        mirror.register("t")
        await_true(lambda: database.rows("SELECT FROM modak.copy_chunks"), 30, "the copy is planned")
        database.execute("UPDATE t SET n = 1")
        mirror.await_frontier()
        gate.let_go()
        mirror.await_live("public.t")
        assert_equal()
        database.execute("UPDATE t SET n = 2", "UPDATE t SET d = d - 1 WHERE d > '2000-01-01'", "UPDATE t SET n = 3")
        mirror.await_frontier()
        assert_equal()
    assert mirror.error("public.t") == ""
