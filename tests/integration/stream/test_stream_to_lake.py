"""The stream into the lake: the cost of inserts, keys that change, one large transaction, common types, idle times."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.table import StaticTable

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection, lake_session, read_duckdb
from mirror_pump.testing.mirror import Mirror, Steps, paced
from mirror_pump.testing.tasks import ThreadTaskRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def delete_files(mirror: Mirror, table: str) -> int:
    """Delete files in all manifests of the table's current snapshot, as pyiceberg reads them."""
    lake = StaticTable.from_metadata(mirror.location(table))
    snapshot = lake.current_snapshot()
    assert snapshot is not None
    entries = [entry for manifest in snapshot.manifests(lake.io) for entry in manifest.fetch_manifest_entry(lake.io)]
    summary = snapshot.summary
    assert summary is not None
    counted = sum(entry.data_file.content.value != 0 for entry in entries)
    assert int(summary["total-delete-files"] or 0) == counted, "the summary says what is there"
    return counted


@pytest.mark.further
def test_inserts_alone_leave_no_delete_file(database: Database, warehouse: str) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g, g FROM generate_series(1, 1000) g"
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), segment_bytes=2000, batch_bytes=10_000)
    mirror.register("t")
    mirror.catch_up()
    assert delete_files(mirror, "public.t") == 0, "a copy of a table at rest needs none"
    with mirror.pumping():
        for first in range(2000, 2500, 50):
            with database.connect() as connection:
                connection.execute("INSERT INTO t SELECT g, g FROM generate_series(%s::int, %s) g", (first, first + 49))
        database.execute("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING")
        mirror.await_frontier()
        assert delete_files(mirror, "public.t") == 0
        mirror.assert_equal("public.t")
        # Also after a restart, and for keys that a rolled back transaction had inserted.
    with database.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO t SELECT g, 'gone' FROM generate_series(5000, 5100) g")
        connection.rollback()
    database.execute("INSERT INTO t SELECT g, 'here' FROM generate_series(5000, 5100) g")
    mirror.catch_up()
    assert delete_files(mirror, "public.t") == 0
    mirror.assert_equal("public.t")
    # One update, one delete: one small file each. So the count above could fail.
    database.execute("UPDATE t SET v = 'u' WHERE id = 1")
    mirror.catch_up()
    assert delete_files(mirror, "public.t") == 1
    mirror.assert_equal("public.t")


def test_a_pump_that_has_nothing_to_copy_or_fold_has_few_connections(database: Database, warehouse: str) -> None:
    """Of the loop, the publisher, the receiver's lookups, the listener, the watcher and retention; all others share
    one."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("t")
    mirror.catch_up()
    with mirror.pumping():
        database.execute("INSERT INTO t VALUES (2)")
        mirror.await_frontier()
        ((sessions,),) = database.rows(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'mirror-pump'"
        )
    assert 4 <= sessions <= 7


IDENTITIES = {"by_key": "DEFAULT", "by_row": "FULL", "by_index": "USING INDEX by_index_k"}
"""A table for each replica identity."""


def test_a_changed_key_leaves_no_stale_row(database: Database, warehouse: str, spark: SparkSession) -> None:
    def run(*statements: str) -> None:
        """Executes the statements on each table."""
        with database.session() as connection:
            for table in IDENTITIES:
                for statement in statements:
                    connection.execute(statement.replace("{t}", table).encode())

    run(
        "CREATE TABLE {t} (id int PRIMARY KEY, k text NOT NULL, big text)",
        "CREATE UNIQUE INDEX {t}_k ON {t} (k)",
        "ALTER TABLE {t} ALTER COLUMN big SET STORAGE EXTERNAL",
        "INSERT INTO {t} SELECT g, 'k' || g, repeat(md5(g::text), 100) FROM generate_series(1, 60) g",
    )
    with database.connect() as connection:
        for table, identity in IDENTITIES.items():
            connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY {identity}".encode())
    tables = [f"public.{table}" for table in IDENTITIES]
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), segment_bytes=500)
    with mirror.pumping():
        mirror.register(*tables)
        mirror.await_live(*tables)
        run("UPDATE {t} SET id = id + 1000, k = k || '!' WHERE id <= 20")
        mirror.await_frontier()
        assert {table: len(mirror.lake(table)) for table in tables} == dict.fromkeys(tables, 60)
        mirror.assert_equal(*tables)
        # A ring, within one transaction and then across batches: afterwards each key belongs to another row.
        run(
            "UPDATE {t} SET id = -id, k = '-' || k WHERE id BETWEEN 30 AND 40;"
            "UPDATE {t} SET id = 30 + (-id - 30 + 1) % 11, k = 'k' || (30 + (-id - 30 + 1) % 11) WHERE id < 0"
        )
        mirror.await_frontier()
        mirror.assert_equal(*tables)
        run("UPDATE {t} SET id = 5000, k = 'first' WHERE id = 50")
        mirror.await_frontier()
        run("UPDATE {t} SET id = 50, k = 'k50' WHERE id = 51", "UPDATE {t} SET id = 51, k = 'k51' WHERE id = 5000")
        mirror.await_frontier()
        mirror.assert_equal(*tables)
    session = lake_session(spark, database.dsn, warehouse)
    for table in tables:
        counted = session.sql(f"SELECT count(*), count(DISTINCT id), count(DISTINCT k) FROM lake.{table}").collect()
        assert counted[0] == (60, 60, 60), table


@pytest.mark.further
@pytest.mark.slow
def test_a_large_transaction_is_one_step_of_the_frontier(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    """100,000 rows in two tables, cut into some hundred segments, between transactions that are batches by
    themselves."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "CREATE TABLE u (id int PRIMARY KEY, v int)",
    )
    seen: list[tuple[int, int, int]] = []
    with duckdb_connection() as duckdb, database.connect() as probe:

        def look(step: Step, details: dict[str, object]) -> None:
            if step is not Step.PUBLISHED:
                return
            rows = probe.execute("SELECT lake_props ->> 'metadata_location' FROM modak.cutline ORDER BY table_id")
            counts = [
                duckdb.execute(f"SELECT count(*), count(DISTINCT id) FROM iceberg_scan('{row[0]}')").fetchone()
                for row in rows
            ]
            for count in counts:
                assert count is not None
                assert count[0] == count[1]
            seen.append((int(str(details["frontier"])), *(count[0] for count in counts if count)))

        steps = Steps(look)
        mirror = Mirror.create(database, warehouse, tasks, segment_bytes=100_000, batch_bytes=100_000, limits=paced(0))
        with mirror.pumping(steps):
            mirror.register("t", "u")
            mirror.await_live("public.t", "public.u")
            with database.connect() as connection:
                for number in range(-3, 0):
                    connection.execute("INSERT INTO t VALUES (%s, 0)", (number,))
                before = mirror.await_frontier()
                with connection.transaction():
                    connection.execute("INSERT INTO t SELECT g, 0 FROM generate_series(1, 50000) g")
                    connection.execute("INSERT INTO u SELECT g, 0 FROM generate_series(1, 48000) g")
                    connection.execute("DELETE FROM t WHERE id BETWEEN 1 AND 2000")
                after = database.lsn()
                connection.execute("INSERT INTO u VALUES (-1, 0)")
            mirror.await_frontier(seconds=120)
        large = [point for point in seen if point[0] > before]
        assert {count for _, count, _ in large} <= {3, 48_003}, "all of it or nothing"
        assert {count for _, _, count in large} <= {0, 48_000, 48_001}
        assert all((t > 3) == (u > 0) for _, t, u in large), "in both tables at once"
        # A merge may follow at the same frontier.
        assert len({frontier for frontier, t, _ in large if frontier <= after and t > 3}) == 1
        segments = max(int(str(number)) for number in steps.details(Step.RECEIVED, "segments"))
        assert segments > 40, "it was cut into many pieces"
    mirror.assert_equal("public.t", "public.u")
    mirror.assert_sound()


VALUES = [
    ("bool", ["true", "false"]),
    ("int2", ["-32768", "32767"]),
    ("int4", ["-2147483648", "2147483647", "0"]),
    ("int8", ["-9223372036854775808", "9223372036854775807"]),
    ("oid", ["0", "4294967295"]),
    ("float4", ["1.1", "-0", "NaN", "Infinity", "-Infinity", "3.4028235e+38", "1e-45"]),
    ("float8", ["0.1", "-0", "NaN", "-Infinity", "1.7976931348623157e308", "5e-324"]),
    ("numeric(14,2)", ["999999999999.99", "-0.01", "0"]),
    ("numeric(38,10)", ["1234567890123456789012345678.0123456789", "-0.0000000001"]),
    ("numeric", ["123456789012345678901234567890.123456789", "NaN", "1e-20"]),
    ("text", ["", "a'b\\\\c", "ünï \U0001f6b0", "\t\n\x01", "null", "x" * 3000]),
    ("varchar(10)", ["", "abc"]),
    ("char(5)", ["ab", ""]),
    ("bytea", ["\\x", "\\x00ff10"]),
    ("uuid", ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-4fff-8fff-ffffffffffff"]),
    ("date", ["1970-01-01", "0001-01-01", "9999-12-31", "2024-02-29"]),
    ("timestamp", ["1969-12-31 23:59:59.999999", "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"]),
    ("timestamptz", ["2024-03-31 01:30:00.000001+02", "1900-01-01 00:00:00+00:19:32"]),
    ("time", ["00:00:00", "23:59:59.999999"]),
    ("interval", ["1 year 2 mons -3 days 04:05:06.7", "0"]),
    ("json", ['{"a":  1, "a": 2}']),
    ("jsonb", ['{"b": [1, 2.50, null]}']),
    ("inet", ["10.0.0.1/8", "::1"]),
    ("int4range", ["[1,5)", "empty"]),
    ("int4[]", ["{}", "{1,NULL,3}"]),
    ("text[]", ['{"a,b","c\\"d",NULL,""}']),
]


def test_common_types_read_as_psql_prints_them(database: Database, warehouse: str, spark: SparkSession) -> None:
    """Through copy and stream, read by DuckDB and by Spark: the same text, whatever the reader's type.

    Both engines convert their value to text. Numbers are compared as numbers, since engines print them differently.
    """
    columns = [f"c{number}" for number in range(len(VALUES))]
    count = max(len(values) for _, values in VALUES)
    with database.connect() as connection:
        types = ", ".join(f"{column} {kind}" for column, (kind, _) in zip(columns, VALUES, strict=True))
        connection.execute(f"CREATE TABLE t (id int PRIMARY KEY, {types})".encode())

        def insert(first: int) -> None:
            for number in range(count + 1):
                # The last row is NULL in all columns.
                row = [values[number % len(values)] if number < count else None for _, values in VALUES]
                connection.execute(
                    f"INSERT INTO t VALUES (%s, {', '.join(['%s'] * len(row))})".encode(), (first + number, *row)
                )

        insert(0)
        mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
        with mirror.pumping():
            mirror.register("t")
            mirror.await_live("public.t")
            insert(100)
            mirror.await_frontier()
            assert mirror.state("public.t") == "live", mirror.error("public.t")
        connection.execute("SET TimeZone = 'UTC'")
        casts = ", ".join(_comparable_sql(column, kind) for column, (kind, _) in zip(columns, VALUES, strict=True))
        printed = connection.execute(f"SELECT id, {casts} FROM t ORDER BY id".encode()).pgresult
        assert printed is not None
        wanted = [
            [
                None if value is None else value.decode()
                for value in map(partial(printed.get_value, row), range(len(VALUES) + 1))
            ]
            for row in range(printed.ntuples)
        ]
    location = mirror.location("public.t")
    table = read_duckdb(location, "SELECT * FROM lake ORDER BY id")
    by_duckdb = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    session = lake_session(spark, database.dsn, warehouse)
    # Spark prints its decimals correctly, but on their way to Python small ones change their number of digits.
    selected = ", ".join(
        f"CAST({column} AS STRING)" if kind.startswith("numeric(") else column
        for column, (kind, _) in zip(columns, VALUES, strict=True)
    )
    by_spark = [tuple(row) for row in session.sql(f"SELECT id, {selected} FROM lake.public.t ORDER BY id").collect()]
    for engine, rows in (("DuckDB", by_duckdb), ("Spark", by_spark)):
        assert [str(row[0]) for row in rows] == [row[0] for row in wanted]
        for place, (kind, _) in enumerate(VALUES, start=1):
            found = [_text(row[place], kind) for row in rows]
            assert found == [row[place] for row in wanted], f"{kind} by {engine}"
            assert found[: count + 1] == found[count + 1 :], "copy and stream agree"


def _comparable_sql(column: str, kind: str) -> str:
    """The select list: most types as the server prints them, some in a form that both engines can print easily."""
    if kind in ("float4", "float8"):
        # As float8, since both engines print a float4 by another rule.
        return f"{column}::float8::text"
    if kind.endswith("[]"):
        return f"to_jsonb({column})::text"
    if kind in ("timestamp", "timestamptz"):
        return f"to_char({column}, 'YYYY-MM-DD HH24:MI:SS.US')"
    return column


def _text(value: Any, kind: str) -> str | None:
    """An engine's value as Postgres would print it."""
    import json

    if value is None:
        return None
    if kind in ("float4", "float8"):
        words = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        text = repr(float(value))
        return words.get(text, _float_text(float(value)))
    if kind == "bool":
        return "t" if value else "f"
    if kind == "bytea":
        return "\\x" + bytes(value).hex()
    if kind.endswith("[]"):
        return json.dumps(value)
    if kind in ("timestamp", "timestamptz"):
        return _timestamp_text(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value)


def _timestamp_text(value: Any) -> str:
    import datetime

    if value.tzinfo is not None:
        value = value.astimezone(datetime.UTC)
    return f"{value.year:04d}-{value:%m-%d %H:%M:%S.%f}"


def _float_text(value: float) -> str:
    """As float8out prints: the shortest digits, an exponent of at least two digits, no trailing point."""
    text = repr(value).removesuffix(".0")
    mantissa, exponent, power = text.partition("e")
    return text if not exponent else f"{mantissa}e{power[0] if power[0] in '+-' else '+'}{power.lstrip('+-').zfill(2)}"
