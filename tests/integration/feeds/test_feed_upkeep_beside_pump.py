"""Feeds beside a pump that publishes and merges them: nothing is lost or doubled, and lost files stop only the feed."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mirror_pump.engine.rewrite.conversion_plan import listing_for
from mirror_pump.engine.rewrite.feed_merge import feed_files, join_files, merge_rewrite, merge_task
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.model import FeedMode
from mirror_pump.ops.register.feed_registration import FeedOptions, alter_feed
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.publish.feed_landing import FeedLanding
from mirror_pump.source.catalog.change_feeds import writable_feeds
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.feed_replay import FeedReplay, FrontierTrail
from tests.support.foreign_writes import without_triggers
from tests.support.made_feeds import STORAGE

_KEYS = FeedOptions(FeedMode.KEYS)
_TABLE = "CREATE TABLE {name} (id int PRIMARY KEY, v text)"
_INSERT = (
    "INSERT INTO {name} SELECT (random() * 39)::int + 40 * g, 'n{number}' FROM generate_series(0, 4) g"
    " ON CONFLICT (id) DO UPDATE SET v = excluded.v || 'u'"
)
_CHANGES = (_INSERT, "DELETE FROM {name} WHERE id % 17 = {number} % 17")


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(_TABLE.format(name="a"), _TABLE.format(name="b"))
    made = Mirror.create(database, warehouse, tasks, merge_bytes=1 << 20)
    made.register("a", "b", feed=_KEYS)
    return made


def change(database: Database, times: int) -> None:
    """Transactions that change both tables."""
    for number in range(times):
        name = random.choice(("a", "b"))
        database.execute(*(statement.format(name=name, number=number) for statement in _CHANGES))


def feed_rows(mirror: Mirror, table: str) -> list[dict[str, Any]]:
    """All rows of a feed, in order."""
    location = mirror.location(f"public.{table}__changes")
    return list(read_duckdb(location, "SELECT * FROM lake ORDER BY _lsn, _seq").to_pylist())


@pytest.mark.further
def test_merges_beside_publishes(database: Database, mirror: Mirror) -> None:
    trail = FrontierTrail(mirror)
    steps = Steps(trail)
    with mirror.pumping(steps):
        mirror.await_live("public.a", "public.b")

        def merged() -> bool:
            change(database, 20)
            mirror.await_frontier()
            counted = Counter(steps.details(Step.MERGED, "table"))
            return all(counted[name] > 1 for name in ("public.a__changes", "public.b__changes", "modak.transactions"))

        await_true(merged, 60, "merged")
        change(database, 20)
        mirror.await_frontier()
    mirror.assert_equal("public.a", "public.b")
    replay = FeedReplay()
    replay.check(trail)
    assert replay.compared > 10
    counted = {name: len(feed_rows(mirror, name)) for name in ("a", "b")}
    location = mirror.location("modak.transactions")
    rows = read_duckdb(location, "SELECT tables FROM lake").to_pylist()
    changes = [dict(row["tables"]) for row in rows]
    for name, count in counted.items():
        resets = sum(row["_op"] == "reset" for row in feed_rows(mirror, name))
        assert count - resets == sum(tables.get(f"public.{name}", 0) for tables in changes)


def merge_all(mirror: Mirror) -> int:
    """Merges every feed into one file, by commits of another process than the pump. Returns how many were."""
    count = 0
    with mirror.database.session() as connection:
        for feed in writable_feeds(connection, mirror.settings.slot):
            state = LakeTable.load(feed.pointer, STORAGE)
            listing = listing_for(state)
            files = [feed_file.file for feed_file in feed_files(state, listing)]
            if len(files) > 1 and len({file.partition for file in files}) == 1:
                joined = join_files(merge_task(state, files)).file
                rewrite = merge_rewrite(files, joined, listing)
                FeedLanding(connection, mirror.settings.slot, feed, STORAGE).land_rewrite(rewrite)
                count += 1
    return count


def test_a_commit_of_maintenance_between_staging_and_publish(database: Database, mirror: Mirror) -> None:
    """The publish is staged again, on top of it."""
    disturbed = set[int]()

    def between(step: Step, _: dict[str, object]) -> None:
        published = steps.count(Step.PUBLISHED)
        if step is Step.STAGED and published not in disturbed:
            disturbed.add(published)
            merge_all(mirror)

    trail = FrontierTrail(mirror)
    steps = Steps(between)
    with mirror.with_options(merge_bytes=0).pumping(steps):
        mirror.await_live("public.a", "public.b")
        trail.note()
        for _ in range(8):
            change(database, 3)
            mirror.await_frontier()
            trail.note()
    assert steps.count(Step.STAGED) > steps.count(Step.PUBLISHED) + 2
    replay = FeedReplay()
    replay.check(trail)
    assert replay.compared >= 8
    mirror.assert_equal("public.a", "public.b")


def test_merges_across_changes_of_columns(database: Database, mirror: Mirror) -> None:
    """Values stay with their columns, by field ID, whatever these are called."""
    with mirror.with_options(merge_bytes=0).pumping():
        mirror.await_live("public.a", "public.b")
        database.execute("INSERT INTO a VALUES (1, 'one')")
        mirror.await_frontier()
        database.execute("ALTER TABLE a ADD COLUMN n numeric(8,2)", "INSERT INTO a VALUES (2, 'two', 2)")
        mirror.await_frontier()
        assert merge_all(mirror)
        database.execute("ALTER TABLE a RENAME v TO w", "INSERT INTO a VALUES (3, 'three', 'NaN')")
        mirror.await_frontier()
        assert merge_all(mirror)
        database.execute(
            "ALTER TABLE a DROP COLUMN n", "ALTER TABLE a ADD COLUMN v int", "INSERT INTO a VALUES (4, 'four', 44)"
        )
        mirror.await_frontier()
        merge_all(mirror)
        mirror.assert_equal("public.a")
    rows = feed_rows(mirror, "a")
    assert [(row["id"], row["w"], row["v"]) for row in rows if row["_op"] == "insert"] == [
        (1, "one", None),
        (2, "two", None),
        (3, "three", None),
        (4, "four", 44),
    ]
    assert LakeTable.load(mirror.location("public.a__changes"), STORAGE).data_files == 1


def test_expired_pins_leave_no_row(mirror: Mirror) -> None:
    mirror.database.execute(
        "INSERT INTO modak.feed_pins (feed_id, snapshot_id, expires_at)"
        " SELECT 'a'::regclass::oid, 1, now() + minutes * interval '1 min' FROM unnest(ARRAY[-1, -90, 90]) minutes"
    )
    with mirror.pumping():
        rows = "SELECT expires_at > now() FROM modak.feed_pins"
        await_true(lambda: mirror.database.rows(rows) == [(True,)], 60, "expired pins are removed")
        mirror.await_live("public.a", "public.b")
    mirror.assert_equal("public.a", "public.b")


def _directory(mirror: Mirror, table: str) -> Path:
    metadata = LakeTable.load(mirror.location(f"public.{table}__changes"), STORAGE).metadata
    return Path(metadata.location.removeprefix("file://"))


def error_of(mirror: Mirror, table: str) -> str | None:
    query = f"SELECT error FROM modak.change_feeds WHERE name = '{table}__changes'"
    return mirror.database.rows(query)[0][0]  # type: ignore[no-any-return]


@pytest.mark.further
@pytest.mark.parametrize("what", ["directory", "data", "metadata", "pointer"])
def test_a_lost_feed_stops_neither_its_table_nor_others(database: Database, mirror: Mirror, what: str) -> None:
    with mirror.pumping() as running:
        mirror.await_live("public.a", "public.b")
        change(database, 10)
        mirror.await_frontier()
        directory = _directory(mirror, "a")
        pointer = mirror.location("public.a__changes")
        kept = directory.with_name("kept")
        if what == "pointer":
            without_triggers(database, "DELETE FROM modak.iceberg_tables WHERE table_name = 'a__changes'")
        elif what == "directory":
            directory.rename(kept)
        else:
            (directory / what).rename(kept)
        database.execute("INSERT INTO a VALUES (1000, 'lost')")
        change(database, 10)
        mirror.await_frontier()
        assert (mirror.state("public.a"), mirror.state("public.b")) == ("live", "live")
        error = error_of(mirror, "a")
        assert error is not None
        assert "--no-changes" in error
        mirror.assert_equal("public.a", "public.b")
        assert error_of(mirror, "b") is None
        # It is put back, and goes on with a reset.
        if what == "pointer":
            without_triggers(
                database,
                "INSERT INTO modak.iceberg_tables (catalog_name, table_namespace, table_name, metadata_location)"
                f" VALUES ('lake', 'public', 'a__changes', '{pointer}')",
            )
        elif what == "directory":
            shutil.rmtree(directory, ignore_errors=True)
            kept.rename(directory)
        else:
            shutil.rmtree(directory / what, ignore_errors=True)
            kept.rename(directory / what)
        database.execute("INSERT INTO a VALUES (1001, 'back')", "INSERT INTO a VALUES (1002, 'after')")
        await_true(lambda: error_of(mirror, "a") is None, 60, "it goes on")
        database.execute("INSERT INTO a VALUES (1003, 'later')")
        mirror.await_frontier()
        assert not running.steps.count(Step.RETRYING)
    rows = feed_rows(mirror, "a")
    assert [row["_op"] for row in rows].count("reset") == 2
    assert rows[-1]["id"] == 1003
    assert 1000 not in {row["id"] for row in rows}


def test_a_lost_feed_is_made_anew(database: Database, mirror: Mirror) -> None:
    with mirror.pumping():
        mirror.await_live("public.a", "public.b")
        change(database, 5)
        mirror.await_frontier()
        shutil.rmtree(_directory(mirror, "a"))
        database.execute("INSERT INTO a VALUES (1000, 'lost')")
        mirror.await_frontier()
        assert error_of(mirror, "a") is not None
        alter_feed(mirror.settings, "a", None)
        alter_feed(mirror.settings, "a", _KEYS)
        database.execute("INSERT INTO a VALUES (1001, 'back')")
        await_true(lambda: bool(feed_rows(mirror, "a")), 60, "it begins")
        database.execute("INSERT INTO a VALUES (1002, 'later')")
        mirror.await_frontier()
    assert [row["_op"] for row in feed_rows(mirror, "a")].count("reset") == 1
    assert feed_rows(mirror, "a")[-1]["id"] == 1002
    mirror.assert_equal("public.a", "public.b")
