"""Change feeds stay short and complete: appends, merges, expiry, pins and sweeps at random, against a model of rows."""

from __future__ import annotations

import random
from collections import Counter
from itertools import groupby, pairwise

import pyarrow.parquet as pq
import pytest

from mirror_pump.engine.rewrite.conversion_plan import listing_for
from mirror_pump.engine.rewrite.feed_merge import feed_files, join_files, merge_task
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.kept_feeds import FIRST_DAY, LSN_OF_A_DAY, SharedFeed, identities, kept_up
from tests.support.made_feeds import TABLE, Row

_OPERATIONS = 40


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(TABLE)
    # Files of up to 32 KiB: some hundred changes.
    made = Mirror.create(database, warehouse, tasks, merge_bytes=8 << 10)
    made.register("orders")
    made.catch_up()
    return made


@pytest.fixture
def feed(mirror: Mirror) -> SharedFeed:
    return SharedFeed(mirror, "orders", random.Random(random.random()))


def of(rows: list[Row]) -> list[tuple[int, int]]:
    return sorted((row["_lsn"], row["_seq"]) for row in rows)


def check(feed: SharedFeed) -> None:
    """What is to stay is there once, and nothing else but changes of the feed; files follow each other."""
    row = feed.catalog_row()
    changes = identities(row.pointer)
    assert len(changes) == len(set(changes))
    assert set(changes) <= set(of(feed.rows))
    assert [change for change in changes if change[0] >= row.expired_lsn] == of(
        [change for change in feed.rows if change["_lsn"] >= row.expired_lsn]
    )


def places_of(path: str) -> list[tuple[int, int]]:
    """Position and number of each change of a file, as it has them."""
    rows = pq.read_table(path.removeprefix("file://"), columns=["_lsn", "_seq"]).to_pylist()
    return [(row["_lsn"], row["_seq"]) for row in rows]


def quiet(feed: SharedFeed) -> bool:
    """Whether no more than a few files of each day are left to merge, and nothing to expire."""
    files = feed.files()
    days = {file.file.partition for file in files}
    first_day = feed.catalog_row().first_day
    expired = first_day is None or all(day >= first_day for (day,) in days)
    return expired and len(files) < 40 + 3 * len(days)


def test_merges_keep_order_and_rows(mirror: Mirror, feed: SharedFeed) -> None:
    steps = Steps()
    with kept_up(mirror, steps, feed):
        for _ in range(40):
            feed.change(random.randint(1, 20))
        await_true(lambda: quiet(feed), 60, "merged")
    check(feed)
    files = feed.files()
    for one, following in pairwise(files):
        assert one.highest_lsn < following.lowest_lsn or one.file.partition != following.file.partition
    # The history of a feed is short.
    counted = Counter(snapshot.summary.operation for snapshot in feed.state().metadata.snapshots)
    assert counted.keys() <= {"append", "replace"}
    assert 1 <= counted["replace"] <= steps.count(Step.MERGED)
    for file in files:
        places = places_of(file.file.path)
        assert places == sorted(places)


def test_merges_put_files_of_engines_in_order(feed: SharedFeed) -> None:
    feed.change(60)
    feed.scatter()
    feed.change(5)
    state = feed.state()
    for _, of_day in groupby(feed_files(state, listing_for(state)), key=lambda file: file.file.partition):
        files = [file.file for file in of_day]
        joined = join_files(merge_task(state, files)).file
        assert places_of(joined.path) == sorted(place for file in files for place in places_of(file.path))


@pytest.mark.further
def test_random_operations_beside_the_upkeep(mirror: Mirror, feed: SharedFeed) -> None:
    feed.change(10)
    pins = []
    with kept_up(mirror, Steps(), feed):
        for _ in range(_OPERATIONS):
            chance = random.random()
            if chance < 0.5:
                for _ in range(random.randint(1, 10)):
                    feed.change(random.randint(1, 15))
            elif chance < 0.65:
                since, until = sorted((feed.position(), feed.position()))
                since = max(since, feed.catalog_row().expired_lsn)
                if since <= until <= mirror.frontier():
                    pins.append((feed.pin(since, until), of(feed.between(since, until))))
            elif chance < 0.75 and pins:
                pinned, expected = pins.pop(random.randrange(len(pins)))
                assert identities(pinned.location) == expected
                feed.unpin(pinned)
            elif chance < 0.85:
                days = feed.newest_lsn // LSN_OF_A_DAY
                feed.keep_from(FIRST_DAY + random.randint(0, days))
            elif chance < 0.95:
                feed.maintain()
            check(feed)
            for pinned, expected in pins:
                assert identities(pinned.location) == expected
        await_true(lambda: quiet(feed), 60, "merged and expired")
    check(feed)
    feed.maintain()
    for pinned, expected in pins:
        assert identities(pinned.location) == expected
        feed.unpin(pinned)
    feed.maintain()
    assert not feed.garbage()
    assert not feed.intervals()
