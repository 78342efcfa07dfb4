"""From which day on changes stay, of feeds that keep them for some time, for ever, and of the transactions."""

from __future__ import annotations

import time
from datetime import timedelta

from mirror_pump.model import FeedMode
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.source.catalog.change_feeds import writable_feeds
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner


def first_days(mirror: Mirror) -> dict[str, int | None]:
    """By name of the feed, in days before today."""
    today = int(time.time() // 86400)
    with mirror.database.session() as connection:
        feeds = writable_feeds(connection, mirror.settings.slot)
    return {feed.name: None if feed.first_day is None else today - feed.first_day for feed in feeds}


def test_the_first_day(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("a", feed=FeedOptions(FeedMode.KEYS, timedelta(days=90)))
    mirror.register("b", feed=FeedOptions(FeedMode.KEYS, timedelta(days=30)))
    assert first_days(mirror) == {"a__changes": 90, "b__changes": 30, "transactions": 90}
    # No time is too long for the server's clock.
    database.execute("UPDATE modak.change_feeds SET keep = interval '999999999 days' WHERE name = 'b__changes'")
    assert first_days(mirror) == {"a__changes": 90, "b__changes": None, "transactions": None}
    database.execute("UPDATE modak.change_feeds SET keep = NULL WHERE name = 'a__changes'")
    assert first_days(mirror) == {"a__changes": None, "b__changes": None, "transactions": None}
    database.execute("UPDATE modak.change_feeds SET keep = '2 hours' WHERE feed_id <> 0")
    assert set(first_days(mirror).values()) <= {0, 1}
