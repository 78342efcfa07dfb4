"""When the WAL guard acts, and on which table, worked out from samples."""

from __future__ import annotations

import pytest

from mirror_pump.model import TableId
from mirror_pump.pipeline.upkeep.wal_guard import GuardedTable, holding_table
from tests.support.wal_rooms import wal_room

A = GuardedTable(TableId(1), "public", "a", "file:///lake/a-1", 1000)
B = GuardedTable(TableId(2), "public", "b", "file:///lake/b-2", 5000)


@pytest.mark.parametrize(
    ("error", "behind", "table"),
    [
        ("cannot write file:///lake/a-1/data/x.parquet: not a directory", 0, A),
        ("cannot write file:///lake/a-12/data/x.parquet: not a directory", 0, None),
        ("the disk is full", 1000, None),
        ("file:///lake/a-1/x and file:///lake/b-2/x", 1000, None),
        # Without an error: if most of the WAL is not acknowledged, the table with the most writes.
        (None, 900, B),
        # Most of it is acknowledged, so an open transaction keeps it.
        (None, 100, None),
    ],
)
def test_the_table_that_holds_up_the_slot(error: str | None, behind: int, table: GuardedTable | None) -> None:
    present = wal_room(retained=1000, unconfirmed=behind)
    assert holding_table([A, B], present, error, {A.table_id: 900, B.table_id: 4000}) == table


def test_no_table_is_to_blame_if_none_was_written_to() -> None:
    present = wal_room(retained=1000, unconfirmed=1000)
    assert holding_table([A, B], present, None, {A.table_id: 1000, B.table_id: 5000}) is None
    # A table that was registered meanwhile has no count to compare with.
    assert holding_table([A, B], present, None, {A.table_id: 999}) == A
    assert holding_table([], present, None, {}) is None
