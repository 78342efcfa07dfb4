"""When the WAL guard acts, and on which table, worked out from samples."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mirror_pump.model import Lsn, TableId
from mirror_pump.pipeline.upkeep.wal_guard import GuardedTable, holding_table, seconds_left
from mirror_pump.source.stream.wal_room import WalRoom

BEGIN = datetime(2026, 5, 4, 9, 30, tzinfo=UTC)
A = GuardedTable(TableId(1), "public", "a", "file:///lake/a-1", 1000)
B = GuardedTable(TableId(2), "public", "b", "file:///lake/b-2", 5000)


def sample(
    seconds: float = 0.0, *, safe: int | None = None, retained: int | None = 0, unconfirmed: int = 0, wal: int = 0
) -> WalRoom:
    return WalRoom(
        at=BEGIN + timedelta(seconds=seconds),
        wal_position=Lsn(wal),
        safe_wal_bytes=safe,
        retained_bytes=retained,
        unconfirmed_bytes=unconfirmed,
        active_pid=None,
        checkpoint_position=Lsn(0),
        checkpoint_at=BEGIN,
    )


@pytest.mark.parametrize(
    ("last", "limit", "left"),
    [
        (sample(60, safe=6000, retained=700), 0, 600.0),
        (sample(60, safe=6000, retained=700), 1000, 30.0),
        (sample(60, safe=None, retained=700), 1000, 30.0),
        (sample(60, safe=-5, retained=700), 0, 0.0),
        (sample(60, safe=None, retained=1700), 1000, 0.0),
        # A slot that keeps up: however small its room is, and however fast WAL is written.
        (sample(60, safe=5, retained=100, wal=10**12), 0, None),
        (sample(60, safe=5, retained=50), 0, None),
        # Nothing limits it.
        (sample(60, safe=None, retained=700), 0, None),
        # It is lost.
        (sample(60, safe=None, retained=None), 1000, None),
        (sample(0, safe=5, retained=700), 0, None),
    ],
)
def test_seconds_left(last: WalRoom, limit: int, left: float | None) -> None:
    """The first sample keeps 100 bytes: 600 more in 60 s are 10 a second."""
    assert seconds_left(sample(retained=100), last, limit) == left


@pytest.mark.parametrize(
    ("error", "behind", "table"),
    [
        ("cannot write file:///lake/a-1/data/x.parquet: not a directory", 0, A),
        ("cannot write file:///lake/a-12/data/x.parquet: not a directory", 0, None),
        ("the disk is full", 1000, None),
        ("file:///lake/a-1/x and file:///lake/b-2/x", 1000, None),
        # Without an error: if most of the WAL is not acknowledged, the table that was written to most.
        (None, 900, B),
        # Most of it is acknowledged: an open transaction keeps it.
        (None, 100, None),
    ],
)
def test_the_table_that_holds_up_the_slot(error: str | None, behind: int, table: GuardedTable | None) -> None:
    present = sample(retained=1000, unconfirmed=behind)
    assert holding_table([A, B], present, error, {A.table_id: 900, B.table_id: 4000}) == table


def test_no_table_is_to_blame_if_none_was_written_to() -> None:
    present = sample(retained=1000, unconfirmed=1000)
    assert holding_table([A, B], present, None, {A.table_id: 1000, B.table_id: 5000}) is None
    # A table that was registered meanwhile has no count to compare with.
    assert holding_table([A, B], present, None, {A.table_id: 999}) == A
    assert holding_table([], present, None, {}) is None


def test_the_rate_since_the_last_checkpoint() -> None:
    present = sample(20, safe=1000, wal=400)
    rate = present.rate(10.0)
    assert rate is not None
    assert (rate.bytes_per_second, rate.seconds) == (20.0, 20.0)
    assert rate.lasts(present.room(0)) == 50.0
    assert rate.lasts(None) is None
    assert present.rate(21.0) is None
    idle = sample(20, safe=1000).rate(10.0)
    assert idle is not None
    assert idle.lasts(1000) is None
    assert idle.lasts(0) == 0.0
