"""When background work makes way for what waits in the stream."""

from __future__ import annotations

import pytest

from mirror_pump.model import Lsn
from mirror_pump.pipeline.flow.backlog import PATIENCE, Backlog


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def backlog(clock: Clock) -> Backlog:
    return Backlog(clock=clock)


def waits(backlog: Backlog) -> bool:
    """Whether background work waits."""
    return backlog.comes_first


def test_without_a_backlog_nothing_waits(backlog: Backlog) -> None:
    assert not waits(backlog)
    backlog.reached(Lsn(50))
    assert not waits(backlog)
    backlog.expect(Lsn(50))
    assert not backlog.remains


def test_a_backlog_comes_first_until_its_end_is_published(backlog: Backlog) -> None:
    backlog.expect(Lsn(50))
    assert waits(backlog)
    backlog.reached(Lsn(49))
    assert waits(backlog)
    backlog.reached(Lsn(51))
    backlog.reached(Lsn(20))
    assert not waits(backlog)
    assert not backlog.remains


def test_full_batches_prolong_it(backlog: Backlog) -> None:
    backlog.expect(Lsn(50))
    backlog.expect(Lsn(80))
    backlog.expect(Lsn(60))
    backlog.reached(Lsn(50))
    assert waits(backlog)
    backlog.reached(Lsn(80))
    assert not waits(backlog)


def test_a_stream_that_never_catches_up_keeps_nothing_away_for_ever(backlog: Backlog, clock: Clock) -> None:
    backlog.expect(Lsn(50))
    for end in range(60, 200, 10):
        clock.now += PATIENCE / 10
        backlog.expect(Lsn(end))
        backlog.reached(Lsn(end - 5))
    assert not waits(backlog)
    assert backlog.remains


def test_the_next_backlog_has_its_own_time(backlog: Backlog, clock: Clock) -> None:
    backlog.expect(Lsn(50))
    clock.now += PATIENCE
    assert not waits(backlog)
    backlog.reached(Lsn(50))
    backlog.expect(Lsn(60))
    assert waits(backlog)
