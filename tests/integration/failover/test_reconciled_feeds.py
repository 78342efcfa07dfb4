"""Change feeds of a mirror whose slot was lost: what no stream has told them, a reset says."""

from __future__ import annotations

from typing import Any

from mirror_pump.model import FeedMode
from mirror_pump.ops.reconcile.reconciliation import reconcile
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.resyncs import drop_slot


def feed(mirror: Mirror, table: str) -> list[Any]:
    location = mirror.location(f"public.{table}__changes")
    rows = read_duckdb(location, "SELECT _op, id, _lsn FROM lake ORDER BY _lsn, _seq").to_pylist()
    return [(row["_op"], row["id"]) for row in rows]


def test_every_feed_gets_a_reset(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """Also that of a table which was changed and changed back, and is not copied again."""
    database.execute(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in ("a", "b")),
        *(f"INSERT INTO {name} VALUES (1, 'first')" for name in ("a", "b")),
    )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("a", "b", feed=FeedOptions(FeedMode.KEYS))
    mirror.catch_up()
    database.execute("INSERT INTO a VALUES (2, 'second')", "INSERT INTO b VALUES (2, 'second')")
    mirror.catch_up()
    drop_slot(mirror)
    database.execute(
        "UPDATE a SET v = 'other' WHERE id = 1", "UPDATE a SET v = 'first' WHERE id = 1", "DELETE FROM b WHERE id = 1"
    )
    outcome = reconcile(mirror.settings, lambda _: None)
    assert {table.table: table.outcome for table in outcome.tables} == {"public.a": "equal", "public.b": "copied-again"}
    mirror.catch_up()
    database.execute("INSERT INTO a VALUES (3, 'third')", "INSERT INTO b VALUES (3, 'third')")
    mirror.catch_up()
    expected = [("reset", None), ("insert", 2), ("reset", None), ("insert", 3)]
    assert feed(mirror, "a") == expected
    assert feed(mirror, "b") == expected
    assert database.rows("SELECT count(*) FROM modak.change_feeds WHERE error IS NOT NULL") == [(0,)]
