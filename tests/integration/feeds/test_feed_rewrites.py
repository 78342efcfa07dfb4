"""Rewrites of feeds as a publish gets them: one that does not fit its feed any more is left out alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from mirror_pump.engine.rewrite.conversion_plan import listing_for
from mirror_pump.engine.rewrite.feed_merge import expiry_rewrite, feed_files, join_files, merge_rewrite, merge_task
from mirror_pump.lake.commit.feed_rewrite import FeedRewrite
from mirror_pump.lake.storage import exists
from mirror_pump.model import Lsn
from mirror_pump.pipeline.operations.requests import FeedRequest, PublishRequest
from mirror_pump.pipeline.publish.feed_landing import FeedLanding
from mirror_pump.source.catalog.maintenance import begin_feed_sweep
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.kept_feeds import FIRST_DAY, SharedFeed, identities, publisher_of
from tests.support.made_feeds import STORAGE, TABLE


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(TABLE, TABLE.replace("orders", "bills"))
    made = Mirror.create(database, warehouse, tasks)
    made.register("orders", "bills")
    made.catch_up()
    return made


@pytest.fixture
def feeds(mirror: Mirror) -> tuple[SharedFeed, SharedFeed]:
    """Both with several files of one day."""
    made = tuple(SharedFeed(mirror, table, random.Random(7)) for table in ("orders", "bills"))
    for feed in made:
        for _ in range(4):
            feed.append_within_a_day()
    return made[0], made[1]


def merge_of(feed: SharedFeed, files: int = 100) -> FeedRequest:
    """The merge of its first files."""
    state = feed.state()
    listing = listing_for(state)
    chosen = [feed_file.file for feed_file in feed_files(state, listing)][:files]
    joined = join_files(merge_task(state, chosen)).file
    return FeedRequest(feed.catalog_row().feed_id, feed.location, merge_rewrite(chosen, joined, listing))


def expiry_of(feed: SharedFeed) -> FeedRewrite:
    """The expiry of all its files."""
    state = feed.state()
    listing = listing_for(state)
    rewrite = expiry_rewrite(feed_files(state, listing), FIRST_DAY + 9, listing)
    assert rewrite is not None
    return rewrite


def rows_of(feed: SharedFeed) -> list[tuple[int, int]]:
    return identities(feed.catalog_row().pointer)


def test_a_rewrite_that_does_not_fit_is_left_out_alone(mirror: Mirror, feeds: tuple[SharedFeed, SharedFeed]) -> None:
    one, other = feeds
    before = [rows_of(feed) for feed in feeds]
    with publisher_of(mirror) as publisher:
        first, late, of_other = merge_of(one, 2), merge_of(one, 3), merge_of(other)
        anew = replace(of_other, location=f"{of_other.location}-anew")
        landed = publisher.publish(PublishRequest(feeds=(first,)))
        assert landed.refused_feeds == ()
        assert landed.feeds[first.feed_id].metadata_location == one.catalog_row().pointer
        landed = publisher.publish(PublishRequest(feeds=(late, anew)))
        assert set(landed.refused_feeds) == {late.feed_id, anew.feed_id}
        assert not landed.feeds
        landed = publisher.publish(PublishRequest(feeds=(late, of_other)))
        assert (landed.refused_feeds, set(landed.feeds)) == ((late.feed_id,), {of_other.feed_id})
    assert (one.state().data_files, other.state().data_files) == (3, 1)
    assert [rows_of(feed) for feed in feeds] == before
    mirror.assert_equal("public.orders", "public.bills")


def test_a_commit_between_staging_and_landing(mirror: Mirror, feeds: tuple[SharedFeed, SharedFeed]) -> None:
    """By an append and by maintenance, which expires what is merged: the publish is staged again."""
    one, other = feeds
    staged: list[PublishRequest] = []

    def meanwhile(request: PublishRequest) -> None:
        staged.append(request)
        if len(staged) == 1:
            one.append_within_a_day()
            with mirror.database.session() as connection:
                landing = FeedLanding(connection, mirror.settings.slot, other.catalog_row(), STORAGE)
                landing.land_rewrite(expiry_of(other))

    with publisher_of(mirror, meanwhile) as publisher:
        merges = merge_of(one), merge_of(other)
        landed = publisher.publish(PublishRequest(feeds=merges))
    assert len(staged) > 1
    assert landed.refused_feeds == (merges[1].feed_id,)
    assert one.state().data_files == 2
    assert rows_of(one) == sorted((row["_lsn"], row["_seq"]) for row in one.rows)
    assert rows_of(other) == []
    assert other.catalog_row().expired_lsn > other.newest_lsn
    mirror.assert_equal("public.orders", "public.bills")


def test_files_that_a_sweep_may_have_taken_do_not_land(mirror: Mirror, feeds: tuple[SharedFeed, SharedFeed]) -> None:
    one, other = feeds
    before = [rows_of(feed) for feed in feeds]
    staged: list[PublishRequest] = []

    def sweep(request: PublishRequest) -> None:
        staged.append(request)
        if len(staged) == 1:
            with mirror.database.session() as connection:
                begin_feed_sweep(connection, mirror.settings.slot, other.catalog_row().lake_name, 1e12)

    with publisher_of(mirror, sweep) as publisher:
        merges = merge_of(one), merge_of(other)
        # Both were written before the sweep, which is declared while they are staged.
        landed = publisher.publish(PublishRequest(feeds=merges))
        assert len(staged) == 2
        assert set(landed.refused_feeds) == {merge.feed_id for merge in merges}
        assert all(exists(file, STORAGE) for merge in merges for file in merge.files), "the upkeep removes them"
        again = merge_of(one), merge_of(other)
        assert not publisher.publish(PublishRequest(feeds=again)).refused_feeds
    assert [rows_of(feed) for feed in feeds] == before
    mirror.assert_equal("public.orders", "public.bills")


def test_sweeps_of_older_files_do_not_hold_a_publish_up(mirror: Mirror, feeds: tuple[SharedFeed, SharedFeed]) -> None:
    """A pass of maintenance declares one for each feed, and each declaration holds for all feeds."""
    one, other = feeds
    before, swept = rows_of(one), iter(range(1_000_000, 2_000_000))
    staged: list[PublishRequest] = []

    def sweep(request: PublishRequest) -> None:
        staged.append(request)
        if len(staged) <= 3:
            with mirror.database.session() as connection:
                begin_feed_sweep(connection, mirror.settings.slot, other.catalog_row().lake_name, next(swept))

    with publisher_of(mirror, sweep) as publisher:
        assert not publisher.publish(PublishRequest(feeds=(merge_of(one),))).refused_feeds
    assert len(staged) == 1
    assert rows_of(one) == before


def test_a_state_of_another_engine_that_cannot_be_read(mirror: Mirror, feeds: tuple[SharedFeed, SharedFeed]) -> None:
    """Nothing changes the table, so that only the examination tells it. When the state is gone the feed goes on."""
    one, _ = feeds
    row = one.catalog_row()
    moved = f"SELECT FROM modak.change_feeds WHERE feed_id = {row.feed_id} AND error LIKE '%nowhere%restore the file%'"
    move = "UPDATE modak.iceberg_tables SET metadata_location = '{}' WHERE table_namespace = '{}' AND table_name = '{}'"
    mirror.database.execute(move.format(f"{row.location}/metadata/nowhere.json", row.namespace, row.name))
    examination = PublishRequest(feeds=(FeedRequest(row.feed_id),))
    with publisher_of(mirror) as publisher:
        # As publish_attempts may be.
        publisher.tries = 1
        publisher.publish(examination)
        assert mirror.database.rows(moved)
        mirror.database.execute(move.format(row.pointer, row.namespace, row.name))
        publisher.publish(examination)
    assert one.catalog_row().error is None
    assert rows_of(one)[: len(one.rows)] == [(change["_lsn"], change["_seq"]) for change in one.rows]


def test_what_expires_is_recorded_with_it(mirror: Mirror, feeds: tuple[SharedFeed, SharedFeed]) -> None:
    one, _ = feeds
    pinned = one.pin(0, one.rows[3]["_lsn"])
    row = one.catalog_row()
    expiry = FeedRequest(row.feed_id, row.location, expiry_of(one))
    with publisher_of(mirror) as publisher:
        landed = publisher.publish(PublishRequest(feeds=(expiry,)))
    assert not landed.refused_feeds
    assert one.catalog_row().expired_lsn == Lsn(one.newest_lsn + 1)
    assert rows_of(one) == []
    # Its reader goes on.
    one.maintain()
    assert identities(pinned.location) == [(row["_lsn"], row["_seq"]) for row in one.between(0, one.rows[3]["_lsn"])]
    mirror.assert_equal("public.orders", "public.bills")
