"""When the frontier moves without changes."""

from __future__ import annotations

from mirror_pump.model import Lsn
from mirror_pump.pipeline.session.frontier_scheduler import FrontierScheduler, Goal


def test_what_a_publish_writes_itself_moves_no_frontier() -> None:
    """That of thousands of tables is more than `foreign_bytes`."""
    scheduler = FrontierScheduler(Goal(), Lsn(1_000), foreign_bytes=256, foreign_interval=0.0)
    scheduler.reached(Lsn(2_000))
    assert scheduler.due(Lsn(1_000), Lsn(0))
    # The publish of 2,000 has its commit before 9,000.
    scheduler.reached(Lsn(9_010))
    assert not scheduler.due(Lsn(2_000), Lsn(9_000))
    scheduler.reached(Lsn(9_256))
    assert scheduler.due(Lsn(2_000), Lsn(9_000))


def test_a_waiter_is_served_whatever_was_written() -> None:
    scheduler = FrontierScheduler(Goal(), Lsn(1_000), foreign_bytes=256, foreign_interval=3600.0)
    scheduler.reached(Lsn(8_000))
    assert not scheduler.due(Lsn(2_000), Lsn(9_000))
    scheduler.want(Lsn(7_000))
    assert scheduler.due(Lsn(2_000), Lsn(9_000))
