"""Which of the ends of WAL that a reader of the status has seen the mirror has reached."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from mirror_pump.model import Lsn
from mirror_pump.ops.status.status_reader import EndsOfWal

_FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def _reached(*looks: tuple[int, int]) -> list[int | None]:
    """After each look, a second after the one before, the number of the look whose end is reached."""
    ends = EndsOfWal()
    reached: list[int | None] = []
    for number, (end, handled) in enumerate(looks):
        ends.look(Lsn(end), _FIRST + timedelta(seconds=number), Lsn(handled))
        reached.append(None if ends.reached_at is None else (ends.reached_at - _FIRST).seconds)
    return reached


def test_the_newest_end_that_is_reached_counts() -> None:
    assert _reached((10, 5), (20, 9), (30, 20), (40, 25), (40, 40)) == [None, None, 1, 1, 4]


def test_wal_that_ends_earlier_after_a_failover_is_caught_up_with() -> None:
    assert _reached((100, 50), (60, 50), (60, 60), (70, 65)) == [None, None, 2, 2]
