"""The standby of a server without a stream is promoted: the pump goes on there by itself, whatever was lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mirror_pump.ops.reconcile.reconciliation import reconcile
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import keeping_connections
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.postgres import EmbeddedPostgres, free_port
from tests.integration.without_stream.conftest import SETTINGS
from tests.support.gate import gated
from tests.support.pipeline import writing
from tests.support.replicas import DATABASE, Replicated, directories, following
from tests.support.tiered import TieredTables

SENDING = {**SETTINGS, "max_wal_senders": "4", "max_replication_slots": "2"}
"""Enough for a standby, and too little for a stream."""
FOLLOWING = {**SENDING, "sync_replication_slots": "off"}


class Promotable(Replicated):
    """A primary without a stream and its standby."""

    def cut_off(self) -> None:
        """The standby has everything up to now, and receives nothing more."""
        self.caught_up()
        self.gate.shut()

    def fail_over(self) -> None:
        """The primary crashes, and the standby is promoted with what it has."""
        self.before.reconnect()
        super().fail_over()


@pytest.fixture
def servers() -> Iterator[Promotable]:
    with (
        directories() as root,
        keeping_connections(),
        EmbeddedPostgres(root / "primary", settings=SENDING) as primary,
        gated(primary.dsn(), only_walreceivers=True) as gate,
    ):
        primary.create_database(DATABASE)
        through = f"host=127.0.0.1 port={gate.port} user=postgres password={primary.password} dbname={DATABASE}"
        settings = {**FOLLOWING, "primary_conninfo": through}
        with following(primary, root / "standby", free_port(), settings) as standby:
            yield Promotable(primary, standby, gate)


@pytest.mark.soak
def test_a_pump_follows_a_promotion_that_lost_an_advance_and_goes_on(servers: Promotable, warehouse: str) -> None:
    """The same pump, all the while. The cut-line is back, and so is the partition that had left: every read is exact,
    the partition leaves once more, and no file is deleted until somebody has reconciled. A chunk that was read on the
    former primary is not published on the new one."""
    tables = TieredTables(servers.before, warehouse)
    gate = tables.gated()
    events = tables.tiered(partitions=4, rows=300, runner=gate, dsn=servers.dsn, reconnect_backoff_max=0.3)
    moved = replace(
        events, database=servers.after, mirror=Mirror(servers.after, events.mirror.settings, events.mirror.runner)
    )
    steps = Steps()
    try:
        with events.mirror.pumping(steps) as running:
            with writing(servers.before, events.write, random.getrandbits(32)):
                events.await_state(p0="dropped", p1="dropped")
                events.assert_exact()
            servers.cut_off()
            kept = events.cut
            events.grow()
            events.await_state(p2="dropped")
            gate.hold()
            events.grow()
            await_true(lambda: gate.waiting, 30, "a chunk of p3 is being copied")
            lost = events.mirror.location("public.events")
            servers.fail_over()
            assert (moved.cut, moved.states()["p2"]) == (kept, "hot")
            moved.assert_exact()
            gate.let_go()
            await_true(lambda: steps.count(Step.FAILOVER_FOLLOWED), 60, "the pump follows")
            assert steps.details(Step.DATABASE_WENT_BACK, "metadata") == [lost]
            moved.partitions = 4
            with writing(servers.after, moved.write, random.getrandbits(32)):
                moved.grow()
                moved.grow()
                moved.await_state(p2="dropped", p3="dropped")
                moved.assert_exact()
            assert running.error is None
            assert moved.cut == 400
        moved.assert_exact()
        assert servers.after.rows("SELECT went_back_at IS NOT NULL FROM modak.mirror_slots") == [(True,)]
        reconcile(moved.mirror.settings, print)
        assert servers.after.rows("SELECT went_back_at FROM modak.mirror_slots") == [(None,)]
    finally:
        tables.close()
