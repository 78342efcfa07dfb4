"""Samples of a mirror, and the figures derived from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_pump.http.endpoints import not_ready
from mirror_pump.model import TableState
from mirror_pump.monitoring.history import INTERVAL, SPAN, StatusHistory, StatusSample
from mirror_pump.monitoring.pump_state import PumpPhase
from mirror_pump.monitoring.sampler import StatusReading
from mirror_pump.ops.status.status_report import MirrorStatus
from tests.support.monitored import some_of_everything, table
from tests.support.wal_rooms import wal_room


@pytest.fixture
def status() -> MirrorStatus:
    return some_of_everything()


def test_rates_are_those_of_the_last_minute(status: MirrorStatus) -> None:
    history = StatusHistory()
    assert history.changes_per_second is None
    assert StatusHistory().wal_rate is None
    for place in range(101):
        at, late = place * INTERVAL, max(0, place - 80) * INTERVAL
        moved = replace(status, slot=replace(status.slot, wal=wal_room(at, wal=round(1000 * late))))
        history.add(StatusSample.of(moved, at, changes=round(7 * late)), moved)
    assert history.changes_per_second == pytest.approx(7)
    assert history.wal_rate is not None
    assert history.wal_rate.bytes_per_second == pytest.approx(1000)
    assert history.wal_rate.seconds == pytest.approx(60)


def test_samples_are_kept_for_an_hour_and_never_closer_than_the_interval(status: MirrorStatus) -> None:
    history = StatusHistory()
    for place in range(int(2 * SPAN)):
        history.add(StatusSample.of(status, float(place), 0), status)
    samples = history.to_json(status)["samples"]["at"]
    assert len(samples) == SPAN / INTERVAL
    assert samples[-1] - samples[0] == pytest.approx(SPAN, abs=2 * INTERVAL)


def test_a_clock_that_is_set_back_begins_the_history_anew(status: MirrorStatus) -> None:
    """Otherwise rates, and with them the time to invalidation, would be those of before for an hour."""
    history = StatusHistory()
    for start, growth in ((10_000.0, 1000), (6400.0, 5)):
        for place in range(5):
            at = place * INTERVAL
            moved = replace(status, slot=replace(status.slot, wal=wal_room(at, wal=growth * place)))
            history.add(StatusSample.of(moved, start + at, 0), moved)
        assert history.wal_rate is not None
        assert history.wal_rate.bytes_per_second == pytest.approx(growth / INTERVAL)
    assert history.to_json(status)["samples"]["at"][0] == 6400


@pytest.mark.parametrize(
    ("rooms", "retained", "seconds"),
    [
        ([1000, 900, 800], [0, 100, 200], 800 / (100 / INTERVAL)),
        ([800, 900, 1000], [200, 100, 0], None),
        ([1000, 1000, 1000], [0, 0, 0], None),
        # Without a limit, and for a slot that is lost at the end.
        ([None, None, None], [0, 100, 200], None),
        ([1000, 900, None], [0, 100, None], None),
        ([100, 0, 0], [0, 100, 200], 0.0),
    ],
)
def test_the_time_to_invalidation_follows_the_last_minute(
    status: MirrorStatus, rooms: list[int | None], retained: list[int | None], seconds: float | None
) -> None:
    history = StatusHistory()
    for place, (room, kept) in enumerate(zip(rooms, retained, strict=True)):
        at = place * INTERVAL
        slot = replace(status.slot, safe_wal_bytes=room, retained_bytes=kept, wal=wal_room(at, retained=kept))
        now = replace(status, slot=slot)
        history.add(StatusSample.of(now, at, 0), now)
    assert history.seconds_to_invalidation == (None if seconds is None else pytest.approx(seconds))


def test_without_a_slot_nothing_is_known_of_its_wal(status: MirrorStatus) -> None:
    history = StatusHistory()
    for place in range(2):
        history.add(StatusSample.of(status, place * INTERVAL, 0), status)
    assert (history.wal_rate, history.seconds_to_invalidation) == (None, None)


def test_the_time_left_of_a_copy_is_at_the_speed_of_its_chunks(status: MirrorStatus) -> None:
    history = StatusHistory()

    def seconds_left(at: float, done: int) -> float | None:
        copying = table("public.t", TableState.COPYING, chunks_total=20, chunks_done=done)
        now = replace(status, tables=(copying,))
        history.add(StatusSample.of(now, at, 0), now)
        (progress,) = history.copies(now)
        return progress.seconds_left

    assert seconds_left(0, 2) is None
    assert seconds_left(10, 4) == pytest.approx(16 * 5)
    assert seconds_left(20, 12) == pytest.approx(8 * 2)
    # The copy began again: earlier progress does not count.
    assert seconds_left(30, 0) is None
    assert seconds_left(40, 1) == pytest.approx(19 * 10)


def test_a_pump_is_ready_while_it_streams_and_the_lag_is_small(status: MirrorStatus) -> None:
    def reading(lag: float | None) -> StatusReading:
        now = replace(status, lag_seconds=lag)
        return StatusReading(at=float("inf"), status=now, full=now)

    assert not_ready(PumpPhase.STREAMING, reading(0.4), 60) is None
    # Nothing was published yet.
    assert not_ready(PumpPhase.STREAMING, reading(None), 60) is None
    assert "61 s behind" in str(not_ready(PumpPhase.STREAMING, reading(61), 60))
    assert not_ready(PumpPhase.STREAMING, StatusReading(), 60) is not None
    for phase in set(PumpPhase) - {PumpPhase.STREAMING}:
        assert not_ready(phase, reading(0.4), 60) is not None


def test_the_lag_grows_while_the_database_cannot_be_read(status: MirrorStatus) -> None:
    stale = StatusReading(
        at=StatusReading().age - 100, status=replace(status, lag_seconds=3.0), problem="no connection"
    )
    assert stale.lag_seconds == pytest.approx(103, abs=2)
    assert "behind" in str(not_ready(PumpPhase.STREAMING, stale, 60))
