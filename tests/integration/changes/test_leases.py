"""An interval that a client has loaded stays as long as its lease, whoever serves it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import pytest

from mirror_pump.model import format_lsn
from mirror_pump.ops.moments.keeping import MomentOptions, keep
from mirror_pump.testing.mirror import Mirror
from tests.support.made_feeds import MadeFeed
from tests.support.rest_catalog import ServedMirror, served

_PATH = "/v1/{prefix}/namespaces/public/tables/orders"


@pytest.fixture
def catalog(mirror: Mirror) -> Iterator[ServedMirror]:
    with served(mirror.settings) as running:
        yield running


def _load(catalog: ServedMirror, prefix: str) -> str:
    return str(catalog.ask(_PATH.format(prefix=prefix)).document["metadata-location"])


def test_the_configuration_says_where_to_go_on(mirror: Mirror, feed: MadeFeed, catalog: ServedMirror) -> None:
    answer = catalog.ask("/v1/config?warehouse=mirror%400-5DC..latest").document
    frontier = format_lsn(mirror.frontier())
    assert answer["defaults"] == {"mirror-pump.since": "0/5DC", "mirror-pump.frontier": frontier}
    prefix = answer["overrides"]["prefix"]
    assert prefix == f"mirror.changes.from=0-5DC.to={frontier.replace('/', '-')}"
    loaded = catalog.ask(_PATH.format(prefix=prefix)).document
    assert loaded["config"] == answer["defaults"]
    assert catalog.ask(f"/v1/{prefix}/namespaces").document["namespaces"] == [["public"]]
    tables = catalog.ask(f"/v1/{prefix}/namespaces/public/tables").document["identifiers"]
    assert tables == [{"namespace": ["public"], "name": "orders"}]
    assert feed.feed_id


def test_two_servers_and_a_restarted_one_show_the_same_file(
    mirror: Mirror, feed: MadeFeed, catalog: ServedMirror
) -> None:
    prefix = catalog.attach("mirror@0/5DC..0/7D0")
    location = _load(catalog, prefix)
    feed.change(3)
    feed.merge()
    with served(mirror.settings) as other:
        assert other.attach("mirror@0/5DC..0/7D0") == prefix
        assert _load(other, prefix) == location
    assert _load(catalog, prefix) == location
    assert mirror.database.rows("SELECT count(*) FROM modak.feed_pins") == [(1,)]


def test_a_snapshot_has_one_pin_whatever_is_asked_for(mirror: Mirror, feed: MadeFeed, catalog: ServedMirror) -> None:
    """And all intervals show their own rows."""
    pins = "SELECT count(*) FROM modak.feed_pins"
    for end in (1600, 1700, 1800):
        prefix = catalog.attach(f"mirror@0/5DC..0/{end:X}")
        location = _load(catalog, prefix)
        with catalog.duckdb(f"mirror@0/5DC..0/{end:X}") as connection:
            ((rows,),) = connection.execute(f"SELECT count(*) FROM iceberg_scan('{location}')").fetchall()
        assert rows == len(feed.between(1500, end))
    with served(mirror.settings) as other:
        _load(other, other.attach("mirror@0/5DC..0/76C"))
        assert mirror.database.rows(pins) == [(1,)]
        feed.change(3)
        # The pinned snapshot has these changes too, so the newest one need not be pinned.
        _load(other, other.attach("mirror@0/5DC..0/7D0"))
    assert mirror.database.rows(pins) == [(1,)]


def test_a_lease_that_is_over_is_taken_anew(mirror: Mirror, feed: MadeFeed, catalog: ServedMirror) -> None:
    """By the newest snapshot, which shows the same rows."""
    prefix = catalog.attach("mirror@0/5DC..0/7D0")
    location = _load(catalog, prefix)
    mirror.database.execute("UPDATE modak.feed_pins SET expires_at = now() - interval '1 s'")
    feed.merge()
    with served(mirror.settings) as other:
        again = _load(other, prefix)
    assert again != location
    with catalog.duckdb("mirror@0/5DC..0/7D0") as connection:
        ((old, new, rows),) = connection.execute(
            f"SELECT (SELECT count(*) FROM iceberg_scan('{location}')), (SELECT count(*) FROM iceberg_scan('{again}')),"
            " (SELECT count(*) FROM lake.public.orders)"
        ).fetchall()
    assert old == new == rows == len(feed.between(1500, 2000))


def test_expired_changes_are_left_out_and_say_why(mirror: Mirror, feed: MadeFeed, catalog: ServedMirror) -> None:
    """But not those that a lease has kept."""
    prefix = catalog.attach("mirror@0/5DC..0/7D0")
    _load(catalog, prefix)
    mirror.database.execute(f"UPDATE modak.change_feeds SET expired_lsn = 1600 WHERE feed_id = {feed.feed_id}")
    with served(mirror.settings) as other:
        assert other.ask(_PATH.format(prefix=prefix)).status == 200
        answer = other.ask("/v1/config?warehouse=mirror%400-5DC..0-7D1").document
        assert answer["defaults"]["mirror-pump.unreadable"] == "public.orders"
        failed = other.ask(_PATH.format(prefix=answer["overrides"]["prefix"]))
        assert failed.error[0] == 400
        assert "changes of public.orders before 0/640 have expired" in failed.error[2]
        assert other.ask("/v1/config?warehouse=mirror%400-640..0-7D1").document["defaults"].keys() == {
            "mirror-pump.since",
            "mirror-pump.frontier",
        }


def test_ends_that_cannot_be_are_refused(mirror: Mirror, feed: MadeFeed, catalog: ServedMirror) -> None:
    def error(warehouse: str) -> str:
        code, _, text = catalog.ask(f"/v1/config?warehouse={warehouse.replace('@', '%40')}").error
        assert code == 400
        return text

    assert "has not reached" in error(f"mirror@0/1..{format_lsn(mirror.frontier() + 1)}")
    assert "has not reached" in error("mirror@FFFF/0..latest")
    assert "cannot begin at 0/5, after its end at 0/4" in error("mirror@0/5..0/4")
    assert "no moment of that name is kept" in error("mirror@0/5..closing")
    assert "does not go back to 2001-01-01" in error("mirror@2001-01-01..latest")
    assert "attach mirror@0/1..latest" in error("mirror.main@0/1..latest")
    assert feed.rows


def test_moments_and_times_name_ends(mirror: Mirror, feed: MadeFeed, catalog: ServedMirror) -> None:
    keep(mirror.settings, MomentOptions("closing"))
    assert catalog.attach("mirror@0/5DC..closing").endswith(f".to={_dashed(mirror.frontier())}")
    # The files that the feed begins with are published within these milliseconds.
    now = datetime.datetime.now(datetime.UTC)
    begun = catalog.attach(f"mirror@{now.isoformat()}..latest")
    assert begun.startswith(f"mirror.changes.from={_dashed(feed.newest_lsn)}.to=")
    ahead = catalog.ask("/v1/config?warehouse=mirror%400-1..2999-01-01")
    assert "is in the future" in ahead.error[2]


def _dashed(position: int) -> str:
    return format_lsn(position).replace("/", "-")


def test_of_too_many_intervals_no_table_is_loaded(mirror: Mirror, feed: MadeFeed) -> None:
    limits = mirror.settings.limits.model_copy(update={"served_moments": 2})
    with served(mirror.settings.model_copy(update={"limits": limits})) as catalog:
        for end in (1, 2):
            assert catalog.ask(_PATH.format(prefix=catalog.attach(f"mirror@0/0..0/{end}"))).status == 200
        prefix = catalog.attach("mirror@0/0..0/3")
        assert catalog.ask(_PATH.format(prefix=prefix)).error[0] == 503
    assert feed.rows


def test_whole_feeds_are_tables_of_the_mirror(feed: MadeFeed, catalog: ServedMirror) -> None:
    with catalog.duckdb("mirror") as connection:
        assert connection.execute("SELECT count(*) FROM lake.public.orders__changes").fetchall() == [(len(feed.rows),)]
    names = catalog.ask("/v1/mirror/namespaces/public/tables").document["identifiers"]
    assert [table["name"] for table in names] == ["orders", "orders__changes"]


def test_a_snapshot_that_is_published_after_a_reader_began_shows_its_interval(
    mirror: Mirror, feed: MadeFeed, catalog: ServedMirror
) -> None:
    """DuckDB passes over snapshots that are younger than its transaction."""
    with catalog.duckdb(f"mirror@0/5DC..{format_lsn(mirror.frontier())}") as connection:
        connection.execute("BEGIN")
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
        rows = feed.between(1500, mirror.frontier())
        feed.merge()
        assert connection.execute("SELECT count(*) FROM lake.public.orders").fetchall() == [(len(rows),)]
