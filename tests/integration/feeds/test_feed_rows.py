"""What a change feed holds: every change in commit order, with its transaction, read by DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mirror_pump.model import FeedMode
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, Steps, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.feed_replay import FeedReplay, FrontierTrail
from tests.support.table_wishes import parse_choices

_PAGE = (Path(__file__).parents[3] / "docs" / "changes.md").read_text(encoding="utf-8")
_REPLAY = _PAGE.split("## Replay", 1)[1].split("```sql\n", 1)[1].split("```", 1)[0]

KEYS, ROWS = FeedOptions(FeedMode.KEYS), FeedOptions(FeedMode.ROWS)


def feed(mirror: Mirror, table: str, columns: str = "*") -> list[dict[str, Any]]:
    """The rows of a feed in order."""
    location = mirror.location(table + "__changes")
    query = f"SELECT {columns} FROM iceberg_scan('{location}') ORDER BY _lsn, _seq"
    rows: list[dict[str, Any]] = read_duckdb(location, query).to_pylist()
    return rows


def test_every_change_is_there_in_order(database: Database, warehouse: str) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(8,2))",
        "INSERT INTO t SELECT g, 'v' || g, g FROM generate_series(1, 5) g",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("t", feed=KEYS)
    mirror.catch_up()
    (reset,) = feed(mirror, "public.t")
    assert reset["_op"] == "reset"
    assert reset["_lsn"] < mirror.frontier()
    with database.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO t VALUES (6, 'six', 'NaN')")
        connection.execute("UPDATE t SET v = 'a' WHERE id = 6")
        connection.execute("UPDATE t SET v = 'b' WHERE id = 6")
        connection.execute("UPDATE t SET id = 7 WHERE id = 6")
        connection.execute("DELETE FROM t WHERE id = 1")
        row = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        connection.commit()
    assert row is not None
    database.execute("TRUNCATE t", "INSERT INTO t VALUES (1, 'one', 1)")
    mirror.catch_up()
    rows = feed(mirror, "public.t", "_op, _seq, _xid, _origin, id, v, n, n__raw")[1:]
    assert [(row["_op"], row["_seq"], row["id"], row["v"], row["n__raw"]) for row in rows] == [
        ("insert", 0, 6, "six", "NaN"),
        ("update", 2, 6, "a", "NaN"),
        ("update", 4, 6, "b", "NaN"),
        ("delete", 6, 6, None, None),
        ("insert", 7, 7, "b", "NaN"),
        ("delete", 8, 1, None, None),
        ("truncate", 0, None, None, None),
        ("insert", 0, 1, "one", None),
    ]
    assert {change["_xid"] for change in rows[:6]} == {row[0]}
    assert all(change["_origin"] is None for change in rows)
    location = mirror.location("modak.transactions")
    transactions = read_duckdb(location, f"SELECT tables FROM iceberg_scan('{location}') ORDER BY _lsn").to_pylist()
    assert [dict(row["tables"]) for row in transactions] == [{"public.t": 6}, {"public.t": 1}, {"public.t": 1}]


def test_replay_from_each_frontier(database: Database, warehouse: str) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'v')")
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), segment_bytes=500, batch_bytes=2000)
    mirror.register("t", feed=KEYS)
    trail = FrontierTrail(mirror)
    with mirror.pumping(Steps(on=trail)):
        mirror.await_live("public.t")
        for number in range(10):
            database.execute(
                f"INSERT INTO t SELECT g, 'n' FROM generate_series({number * 10 + 10}, {number * 10 + 19}) g",
                f"UPDATE t SET v = v || '{number}' WHERE id % 3 = {number % 3}",
                f"DELETE FROM t WHERE id % 7 = {number % 7}",
            )
        mirror.await_frontier()
    mirror.assert_equal("public.t")
    replay = FeedReplay()
    replay.check(trail)
    assert replay.compared >= 3


def test_origins_partitions_filters_and_rows_without_a_key(database: Database, warehouse: str) -> None:
    database.execute(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200)",
        "CREATE TABLE f (id int PRIMARY KEY, region text)",
        "ALTER TABLE f REPLICA IDENTITY FULL",
        "INSERT INTO f VALUES (1, 'EU'), (2, 'US')",
        "CREATE TABLE a (v text)",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("p", feed=KEYS)
    mirror.register("f", choices=parse_choices((), (), (), where="region = 'EU'"), feed=KEYS)
    mirror.register("a", choices=parse_choices((), (), (), append_only=True), feed=KEYS)
    mirror.catch_up()
    origin = f"far_{mirror.settings.slot}"
    with database.connect() as connection:
        connection.execute("SELECT pg_replication_origin_create(%s)", (origin,))
        connection.execute("SELECT pg_replication_origin_session_setup(%s)", (origin,))
        connection.execute("INSERT INTO p VALUES (50, 'far')")
        connection.execute("SELECT pg_replication_origin_session_reset()")
        connection.execute("UPDATE p SET id = 150 WHERE id = 50")
        connection.execute("SELECT pg_replication_origin_drop(%s)", (origin,))
    database.execute(
        "UPDATE f SET region = 'EU' WHERE id = 2",
        "UPDATE f SET region = 'US' WHERE id = 1",
        "INSERT INTO a VALUES ('x'), ('x')",
    )
    mirror.catch_up()
    rows = feed(mirror, "public.p", "_op, id, v, _origin")[1:]
    assert [(row["_op"], row["id"], row["v"], row["_origin"]) for row in rows] == [
        ("insert", 50, "far", origin),
        ("delete", 50, None, None),
        ("insert", 150, "far", None),
    ]
    rows = feed(mirror, "public.f", "_op, id, region")[1:]
    assert [tuple(row.values()) for row in rows] == [("insert", 2, "EU"), ("delete", 1, None)]
    rows = feed(mirror, "public.a", "_op, v")[1:]
    assert [tuple(row.values()) for row in rows] == [("insert", "x"), ("insert", "x")]


def test_the_replay_of_the_document(database: Database, warehouse: str) -> None:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, customer text, total numeric(9,2))",
        "INSERT INTO orders SELECT g, 'c' || g, g FROM generate_series(1, 20) g",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("orders", feed=KEYS)
    mirror.catch_up()
    before, since = mirror.location("public.orders"), mirror.frontier()
    for statements in (
        ["DELETE FROM orders WHERE id < 5"],
        ["TRUNCATE orders", "INSERT INTO orders VALUES (7, 'x', 1)"],
    ):
        database.execute(
            "UPDATE orders SET total = total + 1 WHERE id % 2 = 0",
            "UPDATE orders SET id = id + 100 WHERE id % 5 = 0 AND id < 100",
            "INSERT INTO orders SELECT max(id) + 1, 'new', 0 FROM orders",
            *statements,
        )
        mirror.catch_up()
        query = _REPLAY.replace(":a", str(since)).replace(":b", str(mirror.frontier()))
        query = query.replace("orders__changes", f"iceberg_scan('{mirror.location('public.orders__changes')}')")
        query = query.replace("orders_at_a", f"iceberg_scan('{before}')")
        replayed = [tuple(row.values()) for row in read_duckdb(before, query).to_pylist()]
        assert normalised(replayed) == mirror.heap("orders")
