"""A mirror whose server pg_upgrade made anew: it goes on where the slot was kept, and repairs what differs if not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_pump.errors import HistoryDiverged
from mirror_pump.model import Lsn
from mirror_pump.ops.reconcile.reconciliation import reconcile
from mirror_pump.ops.status.slot_state import slot_error
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.mirror import Steps
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.replicas import directories
from tests.support.resyncs import resynced
from tests.support.upgrades import UpgradedShop, old_server, upgraded


@pytest.fixture
def root() -> Iterator[Path]:
    with directories() as root:
        yield root


@pytest.mark.skipif(major_version() < 17, reason="pg_upgrade keeps slots since PostgreSQL 17")
@pytest.mark.parametrize("major", [pytest.param(17, marks=pytest.mark.further), 18])
def test_a_pump_goes_on_after_pg_upgrade(root: Path, warehouse: str, tasks: ThreadTaskRunner, major: int) -> None:
    old = old_server(root, major)
    with old:
        shop = UpgradedShop.on(old, warehouse, tasks)
        shop.drain()
        new = upgraded(old, root)
    with new:
        shop = shop.moved_to(new)
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
