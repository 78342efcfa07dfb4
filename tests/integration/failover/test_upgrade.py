"""A mirror whose server pg_upgrade made anew: it goes on where the slot was kept, and repairs what differs if not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirror_pump.errors import HistoryDiverged, SourceError
from mirror_pump.model import Lsn
from mirror_pump.ops.reconcile.reconciliation import reconcile
from mirror_pump.ops.retain.retention import change_retention
from mirror_pump.ops.status.slot_state import slot_error
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.mirror import Steps
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.events_table import upsert
from tests.support.replicas import directories
from tests.support.resyncs import resynced
from tests.support.upgrades import UpgradedShop, blue_green, old_server, switch_over, upgraded


@pytest.fixture
def root() -> Iterator[Path]:
    with directories() as root:
        yield root


@contextmanager
def _upgraded_shop(root: Path, warehouse: str, tasks: ThreadTaskRunner, major: int) -> Iterator[UpgradedShop]:
    """A mirror that was drained, and whose server pg_upgrade has made anew since."""
    old = old_server(root, major)
    with old:
        shop = UpgradedShop.on(old, warehouse, tasks)
        shop.drain()
        new = upgraded(old, root)
    with new:
        yield shop.moved_to(new)


@pytest.mark.skipif(major_version() < 17, reason="pg_upgrade keeps slots since PostgreSQL 17")
@pytest.mark.parametrize("major", [pytest.param(17, marks=pytest.mark.further), 18])
def test_a_pump_goes_on_after_pg_upgrade(root: Path, warehouse: str, tasks: ThreadTaskRunner, major: int) -> None:
    with _upgraded_shop(root, warehouse, tasks, major) as shop:
        frontier, feed = shop.mirror.frontier(), shop.feed()
        shop.change("before the first pump")
        with shop.database.session() as connection:
            assert slot_error(connection, shop.mirror.settings.slot) is None
        steps = Steps()
        shop.mirror.catch_up(steps)
        assert steps.count(Step.UPGRADE_FOLLOWED) == 1
        assert shop.mirror.frontier() > frontier
        assert shop.copies() == shop.starts, "no table is copied"
        shop.assert_right()
        assert shop.feed()[: len(feed)] == feed
        assert shop.feed().count("reset") == feed.count("reset") == 1
        shop.assert_goes_on()
        assert shop.copies() == shop.starts


@pytest.mark.further
@pytest.mark.parametrize("major", [15, 16])
def test_what_differs_is_repaired_after_pg_upgrade_without_the_slot(
    root: Path, warehouse: str, tasks: ThreadTaskRunner, major: int
) -> None:
    old = old_server(root, major)
    with old:
        shop = UpgradedShop.on(old, warehouse, tasks)
        shop.mirror.catch_up()
        shop.starts = shop.copies()
        new = upgraded(old, root)
    with new:
        shop = shop.moved_to(new)
        frontier = shop.mirror.frontier()
        shop.database.execute("UPDATE t SET v = 'in no stream' WHERE id = 3", "DELETE FROM t WHERE id = 4")
        with pytest.raises(HistoryDiverged, match="without slot") as failure:
            shop.mirror.catch_up()
        assert "`mirror-pump reconcile`" in failure.value.remedy
        with pytest.raises(HistoryDiverged, match="without slot"):
            resynced(shop.mirror)
        with shop.database.session() as connection:
            assert isinstance(slot_error(connection, shop.mirror.settings.slot), HistoryDiverged)
        outcome = reconcile(shop.mirror.settings, lambda _: None)
        assert outcome.frontier == Lsn(shop.mirror.frontier()) > frontier
        assert {table.table: table.outcome for table in outcome.tables} == {
            "public.t": "copied-again",
            "public.p": "equal",
            "public.events": "equal",
        }
        shop.mirror.catch_up()
        assert shop.database.rows(
            "SELECT compared ->> 'missing', compared ->> 'extra', compared ->> 'different' FROM modak.mirror_tables"
            " WHERE compared IS NOT NULL"
        ) == [("0", "1", "1")]
        shop.assert_right()
        shop.change("after")
        shop.mirror.catch_up()
        assert shop.feed().count("reset") == 2
        shop.assert_goes_on()


@pytest.mark.further
def test_a_switch_to_a_replicated_copy_keeps_what_is_the_same(
    root: Path, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    """The former server works until the switch, and the catalog comes by logical replication as the heap does."""
    blue = old_server(root, major_version(), {"max_wal_senders": "20"})
    with blue:
        old_shop = UpgradedShop.on(blue, warehouse, tasks)
        old_shop.mirror.catch_up()
        with blue_green(root, old_shop, blue) as green:
            shop = old_shop.moved_to(green)
            old_shop.change("on blue")
            old_shop.mirror.catch_up()
            with pytest.raises(SourceError, match="the switch to this server is not complete") as failure:
                shop.mirror.catch_up()
            assert "ALTER SUBSCRIPTION green DISABLE" in failure.value.remedy
            old_shop.change("in no publish of blue")
            with old_shop.database.connect(autocommit=False) as connection:
                for table, model in (("events", "model"), ("logs", "logs_model")):
                    upsert(connection, 25, 3, "a first correction", table, model)
            switch_over(old_shop, shop)
            frontier = shop.mirror.frontier()
            assert frontier == old_shop.mirror.frontier()
            with pytest.raises(SourceError, match=r"modak.delta_version stands at") as failure:
                shop.mirror.catch_up()
            shop.database.execute(*re.findall(r"SELECT setval\([^)]*\)", failure.value.remedy))
            with pytest.raises(HistoryDiverged, match="without slot"):
                shop.mirror.catch_up()
            outcome = reconcile(shop.mirror.settings, lambda _: None)
            assert {table.table: table.outcome for table in outcome.tables} == {
                "public.t": "copied-again",
                "public.p": "copied-again",
                "public.events": "copied-again",
            }
            assert shop.mirror.frontier() > frontier
            shop.mirror.catch_up()
            replaced = "SELECT count(*) FROM modak.mirror_tables WHERE (compared ->> 'heap_rows')::int > 0"
            assert shop.database.rows(replaced) == [(3,)], "only rows that differ"
            shop.assert_right()
            shop.assert_goes_on()


@pytest.mark.further
def test_a_partition_that_the_former_server_dropped_is_refused_on_a_copy(
    root: Path, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    """A pump ran there after the copy was made, and DDL is not replicated. Once the partition is detached on the copy,
    its rows are those of the lake."""
    blue = old_server(root, major_version(), {"max_wal_senders": "20"})
    with blue:
        old_shop = UpgradedShop.on(blue, warehouse, tasks)
        old_shop.mirror.catch_up()
        with blue_green(root, old_shop, blue) as green:
            shop = old_shop.moved_to(green)
            change_retention(old_shop.mirror.settings, "events", "heap_retention", "50")
            with old_shop.mirror.pumping():
                old_shop.events.await_state(p2="dropped")
                old_shop.mirror.await_frontier()
            switch_over(old_shop, shop)
            with pytest.raises(SourceError, match=r"partition public\.p2 lacks the triggers") as failure:
                reconcile(shop.mirror.settings, lambda _: None)
            assert "detach it until the pump runs" in failure.value.remedy
            shop.database.execute("ALTER TABLE events DETACH PARTITION p2")
            with pytest.raises(SourceError, match=r"modak.delta_version stands at") as failure:
                reconcile(shop.mirror.settings, lambda _: None)
            shop.database.execute(*re.findall(r"SELECT setval\([^)]*\)", failure.value.remedy))
            reconcile(shop.mirror.settings, lambda _: None)
            with shop.mirror.pumping():
                shop.mirror.await_frontier()
            shop.assert_right()
            shop.assert_goes_on()


class _ReconcileKilled(BaseException):
    """The program ended at this step."""


@pytest.mark.further
def test_reconcile_is_killed_at_each_step(root: Path, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """On a server whose slot was made again by hand: a change before it is in no stream."""
    with _upgraded_shop(root, warehouse, tasks, major_version()) as shop:
        slot = shop.mirror.settings.slot
        make = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, false, true)"
        shop.database.rows("SELECT pg_drop_replication_slot(%s)", (slot,))
        shop.change("in no stream")
        shop.database.rows(make, (slot,))
        for step in range(1, 9):
            with pytest.raises(SourceError) as failure:
                shop.mirror.catch_up()
            assert "`mirror-pump re" in failure.value.remedy
            said: list[str] = []

            def say(line: str, said: list[str] = said, step: int = step) -> None:
                said.append(line)
                if len(said) == step:
                    raise _ReconcileKilled

            try:
                reconcile(shop.mirror.settings, say)
            except _ReconcileKilled:
                if "public." in said[-1]:
                    break
                if step == 1:
                    # As if it had come as far as the slot, and not to the record of the server.
                    shop.database.execute("UPDATE modak.mirror_slots SET drained_lsn = NULL")
        assert "public." in said[-1], "each step but the last has left a mirror that the pump refuses"
        shop.mirror.catch_up()
        shop.assert_goes_on()


@pytest.mark.further
def test_a_pump_of_the_old_server_that_went_on_is_noticed(root: Path, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """The slot that pg_upgrade took along is behind what readers have seen of the old server: another one is made."""
    old = old_server(root, major_version())
    with old:
        old_shop = UpgradedShop.on(old, warehouse, tasks)
        old_shop.drain()
        new = upgraded(old, root)
        with new:
            shop = old_shop.moved_to(new)
            old.start()
            old_shop.change("after pg_upgrade")
            old_shop.mirror.catch_up()
            frontier = old_shop.mirror.frontier()
            old.stop()
            with pytest.raises(HistoryDiverged, match="the lake was published up to") as failure:
                shop.mirror.catch_up()
            assert "stop that server" in failure.value.remedy
            outcome = reconcile(shop.mirror.settings, lambda _: None)
            assert outcome.slot == "made"
            assert outcome.lost is not None
            assert shop.mirror.frontier() == outcome.frontier > frontier
            shop.change("on the new server")
            shop.mirror.catch_up()
            assert shop.copies() == shop.starts
            shop.assert_goes_on()
