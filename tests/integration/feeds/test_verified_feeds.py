"""`verify --feeds`: a feed replayed from one frontier to another is the mirror, and a change that it lacks is found."""

from __future__ import annotations

import json

import pytest

from mirror_pump.engine.rewrite.conversion_plan import listing_for
from mirror_pump.engine.rewrite.feed_merge import feed_files
from mirror_pump.lake.commit.feed_rewrite import FeedRewrite
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import FeedMode
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.pipeline.publish.feed_landing import FeedLanding
from mirror_pump.source.catalog.change_feeds import writable_feeds
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand

STORAGE = StorageOptions(fsync=False)
KEYS, ROWS = FeedOptions(FeedMode.KEYS), FeedOptions(FeedMode.ROWS)


def lose_newest_file(mirror: Mirror, table: str) -> None:
    """Takes the newest file out of a table's feed, with its changes."""
    with mirror.database.session() as connection:
        ((feed_id,),) = connection.execute("SELECT %s::regclass::oid::bigint", (table,)).fetchall()
        (feed,) = writable_feeds(connection, mirror.settings.slot, feed_id)
        state = LakeTable.load(feed.pointer, STORAGE)
        listing = listing_for(state)
        files = feed_files(state, listing)
        newest = max(files, key=lambda feed_file: feed_file.highest_lsn).file.path
        FeedLanding(connection, mirror.settings.slot, feed, STORAGE).land_rewrite(
            FeedRewrite(frozenset({newest}), listing)
        )


@pytest.mark.unverified("it ends with verify")
def test_feeds_are_replayed(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(
        "CREATE TABLE keyed (id int, part text, v text, n numeric(8,2), f float8, PRIMARY KEY (id, part))",
        "INSERT INTO keyed SELECT g, 'p', 'v' || g, g, 1 / g FROM generate_series(1, 50) g",
        "CREATE TABLE whole (a int, v text)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "INSERT INTO whole SELECT g % 5, 'v' FROM generate_series(1, 50) g",
        "CREATE TABLE truncated (id int PRIMARY KEY, v text)",
        "CREATE TABLE quiet (id int PRIMARY KEY)",
    )
    mirror = Mirror.create(database, warehouse, tasks)
    monkeypatch.setenv("MIRROR_PUMP_SLOT", mirror.settings.slot)
    mirror.register("keyed", "truncated", "quiet", feed=KEYS)
    mirror.register("whole", feed=ROWS)
    mirror.catch_up()
    rounds = (
        ("UPDATE keyed SET n = 'NaN', v = NULL WHERE id < 9", "DELETE FROM whole WHERE a = 3"),
        ("UPDATE keyed SET id = id + 100 WHERE id > 40", "UPDATE whole SET v = NULL WHERE a = 2"),
        ("TRUNCATE truncated", "INSERT INTO truncated VALUES (1, 'again')", "INSERT INTO whole VALUES (2, NULL)"),
        ("DELETE FROM keyed WHERE id < 5", "INSERT INTO keyed VALUES (1, 'q', 'new', 1, '-0')"),
    )
    for number, statements in enumerate(rounds):
        database.execute(f"INSERT INTO truncated VALUES ({number + 10}, 'x')", *statements)
        mirror.catch_up()

    result = run("verify", "--json", "--feeds")
    assert result.exit_code == 0, result.output
    feeds = {feed["table"]: feed for feed in json.loads(result.stdout)["feeds"]}
    tables = {table: feed for table, feed in feeds.items() if feed["different_rows"] is not None}
    assert set(tables) == {"public.keyed", "public.whole", "public.truncated", "public.quiet"}
    assert {feed["different_rows"] for feed in tables.values()} == {0}
    assert {table for table, feed in tables.items() if feed["changes"] > 4} == tables.keys() - {"public.quiet"}
    assert all(feed["since"] < feed["until"] for feed in tables.values())

    for table in ("keyed", "whole"):
        lose_newest_file(mirror, table)
    result = run("verify", "--feeds", "keyed", "whole")
    assert result.exit_code == 1, result.output
    for table in ("keyed", "whole"):
        assert f"public.{table}: equal" in result.stdout
        assert f"change feed public.{table}__changes: DIFFERENT" in result.stdout
    assert "truncated" not in result.stdout
