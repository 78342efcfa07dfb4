"""How soon a slot is lost, worked out from what it keeps and may keep."""

from __future__ import annotations

import pytest

from mirror_pump.source.stream.wal_room import (
    WalRate,
    WalRoom,
    max_outage_seconds,
    retained_growth,
    seconds_to_invalidation,
    write_rate,
)
from tests.support.wal_rooms import wal_room


@pytest.mark.parametrize(
    ("last", "limit", "left"),
    [
        (wal_room(60, safe=6000, retained=700), 0, 600.0),
        (wal_room(60, safe=6000, retained=700), 1000, 30.0),
        (wal_room(60, safe=None, retained=700), 1000, 30.0),
        (wal_room(60, safe=-5, retained=700), 0, 0.0),
        (wal_room(60, safe=None, retained=1700), 1000, 0.0),
        # A slot that keeps up: however small its room is, and however fast WAL is written.
        (wal_room(60, safe=5, retained=100, wal=10**12), 0, None),
        (wal_room(60, safe=5, retained=50), 0, None),
        # Nothing limits it.
        (wal_room(60, safe=None, retained=700), 0, None),
        # It is lost.
        (wal_room(60, safe=None, retained=None), 1000, None),
        (wal_room(0, safe=5, retained=700), 0, None),
    ],
)
def test_the_time_to_invalidation_follows_the_growth_of_what_the_slot_keeps(
    last: WalRoom, limit: int, left: float | None
) -> None:
    """The first moment keeps 100 bytes: 600 more in 60 s are 10 a second."""
    assert seconds_to_invalidation(wal_room(retained=100), last, last.room(limit)) == left


def test_the_longest_outage_follows_the_rate_at_which_the_server_writes() -> None:
    present = wal_room(20, safe=1000, wal=400)
    rate = present.write_rate_since_checkpoint(10.0)
    assert rate == WalRate(20.0, 20.0)
    assert max_outage_seconds(present.room(0), rate) == 50.0
    assert max_outage_seconds(None, rate) is None
    assert max_outage_seconds(1000, None) is None
    assert present.write_rate_since_checkpoint(21.0) is None
    idle = wal_room(20, safe=1000).write_rate_since_checkpoint(10.0)
    assert idle == WalRate(0.0, 20.0)
    assert max_outage_seconds(1000, idle) is None
    assert max_outage_seconds(0, idle) == 0.0
    assert max_outage_seconds(0, None) == 0.0


def test_the_two_rates_between_two_moments() -> None:
    """The slot moves on while the server writes: what it keeps grows less, or shrinks."""
    first, last = wal_room(10, wal=1000, retained=500), wal_room(20, wal=3000, retained=700)
    assert write_rate(first, last) == WalRate(200.0, 10.0)
    assert retained_growth(first, last) == WalRate(20.0, 10.0)
    assert retained_growth(first, wal_room(20, wal=3000, retained=100)) == WalRate(0.0, 10.0)
    assert write_rate(last, last) is None
    assert retained_growth(first, wal_room(20, wal=3000, retained=None)) is None
