"""A pump that is killed at each step of a merge or an expiry leaves feeds complete, and the next one goes on."""

from __future__ import annotations

import random
from typing import Any

from mirror_pump.model import FeedMode
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.killed_pump import die

_KILLS = (Step.MERGING, Step.MERGE_WRITTEN, Step.MERGED)
_MERGE_BYTES = 1 << 20


def change(database: Database) -> None:
    """A few transactions."""
    for _ in range(5):
        number = random.randint(0, 1_000_000)
        database.execute(
            f"INSERT INTO t SELECT (random() * 40)::int * 5 + g, '{number}' FROM generate_series(0, 4) g"
            " ON CONFLICT (id) DO UPDATE SET v = excluded.v",
            f"DELETE FROM t WHERE id % 13 = {number % 13}",
            f"UPDATE t SET id = id + 1000 WHERE id = {number % 200}"
            f" AND NOT EXISTS (SELECT FROM t o WHERE o.id = {number % 200 + 1000})",
        )


def changes(mirror: Mirror) -> list[dict[str, Any]]:
    """The feed, in order."""
    return list(read_duckdb(mirror.location("public.t__changes"), "SELECT * FROM lake ORDER BY _lsn, _seq").to_pylist())


def replayed(rows: list[dict[str, Any]]) -> dict[int, str]:
    """The rows that the changes of an empty table make."""
    table: dict[int, str] = {}
    for row in rows:
        if row["_op"] == "delete":
            del table[row["id"]]
        elif row["_op"] != "reset":
            assert (row["_op"] == "update") == (row["id"] in table), row
            table[row["id"]] = row["v"]
    return table


def test_kills_at_merges_and_expiry(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    mirror = Mirror.create(database, warehouse, tasks, merge_bytes=_MERGE_BYTES)
    mirror.register("t", feed=FeedOptions(FeedMode.KEYS))
    mirror.catch_up()
    for step in random.sample(_KILLS, len(_KILLS)):
        die(mirror, step, random.choice((1, 2)), meanwhile=lambda: change(database), merge_bytes=_MERGE_BYTES)
    mirror.catch_up()
    rows = changes(mirror)
    places = [(row["_lsn"], row["_seq"]) for row in rows]
    assert len(places) == len(set(places))
    assert [row["_op"] for row in rows].count("reset") == 1
    heap = dict(database.rows("SELECT id, v FROM t"))
    assert replayed(rows) == heap
    mirror.assert_equal("public.t")
    transactions = read_duckdb(mirror.location("modak.transactions"), "SELECT _lsn, tables FROM lake").to_pylist()
    assert len(transactions) == len({row["_lsn"] for row in transactions})
    assert sum(dict(row["tables"])["public.t"] for row in transactions) == len(rows) - 1
    # All days so far have expired.
    database.execute("UPDATE modak.change_feeds SET keep = '-2 days' WHERE feed_id <> 0")
    die(mirror, Step.CHANGES_EXPIRED, 1, once="false", merge_bytes=_MERGE_BYTES)

    def gone() -> bool:
        query = "SELECT min(expired_lsn), max(expired_lsn) FROM modak.change_feeds"
        ((first, last),) = database.rows(query)
        return first > places[-2][0] and last > places[-1][0] and not changes(mirror)

    with mirror.pumping():
        await_true(gone, 60, "expired")
        database.execute("UPDATE modak.change_feeds SET keep = '1 day' WHERE feed_id <> 0", "INSERT INTO t VALUES (-1)")
        mirror.await_frontier()
    assert [row["id"] for row in changes(mirror)] == [-1]
