"""What other engines do to a change feed, or to the table of transactions, is noticed and undone; rewrites stay."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from mirror_pump.model import FeedMode
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.pipeline.feeds import feed_staging
from mirror_pump.pipeline.feeds.foreign_feed_commits import settle_feed
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.landing.feed_pointers import FeedMove, move_feeds
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.publish.feed_landing import FeedLanding
from mirror_pump.source.catalog.change_feeds import interrupt_feeds, load_feeds, writable_feeds
from mirror_pump.source.connect import connect
from mirror_pump.tables.table.table import Table as LakeTable
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.foreign_writes import ForeignCatalog, owner_table, without_triggers
from tests.support.made_feeds import STORAGE

FEED, TRANSACTIONS = ("t__changes", "public"), ("transactions", "modak")
"""Name and namespace."""


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    """A table with a feed of a few changes."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'one')")
    made = Mirror.create(database, warehouse, ThreadTaskRunner())
    made.register("t", feed=FeedOptions(FeedMode.KEYS))
    made.catch_up()
    database.execute("INSERT INTO t VALUES (2, 'two')", "UPDATE t SET v = 'changed' WHERE id = 1")
    made.catch_up()
    return made


def rows(mirror: Mirror, name: tuple[str, str]) -> list[dict[str, Any]]:
    """The rows of a lake table, in order."""
    return list(read_duckdb(mirror.location(f"{name[1]}.{name[0]}"), "SELECT * FROM lake ORDER BY ALL").to_pylist())


def alerts(mirror: Mirror) -> list[str]:
    with StatusReader(mirror.settings) as reader:
        return [alert.message for alert in reader.read().alerts]


def _append(table: Table) -> None:
    _write(table, table.scan().to_arrow())


def _write(table: Table, content: pa.Table) -> None:
    # By this project's library: pyiceberg writes no partitions by day here.
    writer = LakeTable.open(ForeignCatalog(table.catalog.properties["dsn"]), ".".join(table.name()))
    writer.append(content)
    table.refresh()


def _delete(table: Table) -> None:
    table.delete("_lsn > 0")


def _overwrite(table: Table) -> None:
    content = table.scan().to_arrow()
    _delete(table)
    _write(table, content.slice(0, 1))


CHANGES: dict[str, Callable[[Table], None]] = {"append": _append, "delete": _delete, "overwrite": _overwrite}


def test_changes_of_rows_are_undone_before_the_next_publish_builds_on_them(mirror: Mirror) -> None:
    for name, change in zip((FEED, TRANSACTIONS, FEED), CHANGES.values(), strict=True):
        before = rows(mirror, name)
        with owner_table(mirror, *name) as table:
            change(table)
        assert rows(mirror, name) != before
        assert [text for text in alerts(mirror) if "another engine committed to its change feed" in text]
        mirror.database.execute("UPDATE t SET v = v || '!'")
        steps = Steps()
        mirror.catch_up(steps)
        assert steps.details(Step.FOREIGN_COMMIT_UNDONE, "table") == [f"{name[1]}.{name[0]}"]
        after = rows(mirror, name)
        assert after[: len(before)] == before
        assert len(after) == len(before) + (1 if name == TRANSACTIONS else 2)
        assert not [text for text in alerts(mirror) if "change feed" in text]
    mirror.assert_equal("public.t")


def test_changes_of_the_rows_of_idle_feeds_are_undone(mirror: Mirror) -> None:
    before = {name: rows(mirror, name) for name in (FEED, TRANSACTIONS)}
    with mirror.pumping() as pump:
        mirror.await_frontier()
        for name in (FEED, TRANSACTIONS):
            with owner_table(mirror, *name) as table:
                _append(table)
        await_true(lambda: pump.steps.count(Step.FOREIGN_COMMIT_UNDONE) == 2, 20, "both are undone")
        assert {name: rows(mirror, name) for name in before} == before
    mirror.assert_equal("public.t")


def test_what_keeps_rows_stays(mirror: Mirror) -> None:
    """A tag and a property; files that are rewritten are with Spark."""
    with owner_table(mirror, *FEED) as table:
        snapshot = table.current_snapshot()
        assert snapshot is not None
        table.manage_snapshots().create_tag(snapshot.snapshot_id, "kept").commit()
        with table.transaction() as transaction:
            transaction.set_properties({"owner": "analysts"})
    mirror.database.execute("INSERT INTO t VALUES (3, 'three')")
    steps = Steps()
    mirror.catch_up(steps)
    assert steps.count(Step.FOREIGN_COMMIT_UNDONE) == 0
    with owner_table(mirror, *FEED) as table:
        assert "kept" in table.metadata.refs
        assert table.properties["owner"] == "analysts"
    assert 3 in [row["id"] for row in rows(mirror, FEED)]
    mirror.assert_equal("public.t")


def test_a_change_that_cannot_be_undone_stops_the_feed_alone(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishes go on at their pace: not each of them examines the commit again."""
    examined: list[float] = []

    def settle(*arguments: Any) -> None:
        examined.append(time.monotonic())
        settle_feed(*arguments)

    monkeypatch.setattr(feed_staging, "settle_feed", settle)
    mirror.database.execute("UPDATE modak.change_feeds SET mode = 'rows', keep = '90 days' WHERE feed_id <> 0")
    with owner_table(mirror, *FEED) as table:
        snapshot = table.current_snapshot()
        assert snapshot is not None
        _append(table)
        table.refresh().maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    with mirror.pumping():
        await_true(lambda: any("gets no changes: another engine" in text for text in alerts(mirror)), 20, "it is told")
        for number in range(3, 9):
            mirror.database.execute(f"INSERT INTO t VALUES ({number}, 'more')")
            mirror.await_frontier()
    assert examined
    assert all(later - former > 55 for former, later in pairwise(examined))
    (text,) = [text for text in alerts(mirror) if "gets no changes" in text]
    assert "`mirror-pump register public.t --alter --no-changes`" in text
    assert "`mirror-pump register public.t --alter --changes=rows --keep-changes 7776000s`" in text
    mirror.assert_equal("public.t")


@pytest.mark.parametrize("name", [FEED, TRANSACTIONS])
def test_dropping_and_renaming_are_refused(mirror: Mirror, name: tuple[str, str]) -> None:
    with owner_table(mirror, *name) as table:
        catalog = table.catalog
        with pytest.raises(Exception, match="of the mirror: no engine may drop it"):
            catalog.drop_table(name[::-1])
        with pytest.raises(Exception, match="of the mirror: no engine may rename it"):
            catalog.rename_table(name[::-1], ("public", "other"))
    if name == FEED:
        for table_name, argument in (("t", "public.t"), ("T's", """'public."T'"'"'s"'""")):
            mirror.database.rows("UPDATE modak.tables SET table_name = %s RETURNING 1", (table_name,))
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as refused:
                mirror.database.execute("DELETE FROM modak.iceberg_tables WHERE table_name = 't__changes'")
            hint = refused.value.diag.message_hint
            assert hint == f"mirror-pump register {argument} --alter --no-changes ends the change feed."
        mirror.database.execute("UPDATE modak.tables SET table_name = 't'")
    without_triggers(
        mirror.database, "DELETE FROM modak.iceberg_tables WHERE table_name IN ('t__changes', 'transactions')"
    )
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="no engine may create it"):
        mirror.database.rows(
            "INSERT INTO modak.iceberg_tables (catalog_name, table_name, table_namespace) VALUES ('lake', %s, %s)", name
        )
    mirror.assert_equal("public.t")


def test_a_feed_that_was_interrupted_after_a_commit_was_staged_gets_its_reset(mirror: Mirror) -> None:
    slot = mirror.settings.slot
    with connect(mirror.database.dsn, autocommit=True) as connection:
        (feed,) = (feed for feed in writable_feeds(connection, slot) if feed.name == FEED[0])
        state = FeedLanding(connection, slot, feed, STORAGE).load(feed)
        interrupt_feeds(connection, slot, "changes may be missing")
        with connection.transaction():
            move_feeds(SlotLock.take(connection, slot), [FeedMove(feed, state)])
        (feed,) = (feed for feed in load_feeds(connection, slot) if feed.name == FEED[0])
        assert feed.error == "changes may be missing"
    mirror.database.execute("INSERT INTO t VALUES (3, 'three')")
    mirror.catch_up()
    assert [row["_op"] for row in rows(mirror, FEED)].count("reset") == 2
    with connect(mirror.database.dsn, autocommit=True) as connection:
        assert [feed.error for feed in load_feeds(connection, slot)] == [None, None]
