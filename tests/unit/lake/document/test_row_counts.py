"""How many rows a table has, as its metadata tells: exact, or marked as not."""

from __future__ import annotations

import pytest

from mirror_pump.lake.document.snapshot_stats import SnapshotStats, live_rows, rows_are_exact, snapshot_stats
from mirror_pump.lake.document.snapshot_summary import FileCounts
from mirror_pump.lake.document.table_metadata import TableMetadata


def _totals(records: int, positions: int, equality: int = 0) -> dict[str, str]:
    return {
        "total-records": str(records),
        "total-position-deletes": str(positions),
        "total-equality-deletes": str(equality),
    }


def _history(*summaries: dict[str, str]) -> TableMetadata:
    """A table whose snapshots have these summaries, one after the other."""
    snapshots = [
        {"snapshot-id": number, "sequence-number": number, "timestamp-ms": number, "summary": summary}
        for number, summary in enumerate(summaries, 1)
    ]
    return TableMetadata({"current-snapshot-id": len(snapshots), "snapshots": snapshots})


def _rows(metadata: TableMetadata) -> tuple[int, bool]:
    current = metadata.current_snapshot
    assert current is not None
    return live_rows(metadata, current.summary), rows_are_exact(metadata, current.summary)


OWN = _totals(20_123, 146) | SnapshotStats(written=1, dangling=23).to_summary()
"""20,000 rows: of 146 position deletes 23 hide nothing any more."""


def test_dangling_deletes_hide_nothing() -> None:
    assert _rows(_history(OWN)) == (20_000, True)


@pytest.mark.parametrize(("positions", "rows", "exact"), [(0, 20_000, True), (23, 20_000, False), (146, 19_877, False)])
def test_another_engines_rewrite_removes_them_or_adds_others(positions: int, rows: int, exact: bool) -> None:
    """It replaces the data files, and may keep any of the delete files, which it does not count."""
    assert _rows(_history(OWN, _totals(20_000, positions))) == (rows, exact)


def test_an_own_commit_after_it_does_not_make_it_exact() -> None:
    rewritten = _history(OWN, _totals(20_000, 146))
    after = snapshot_stats(rewritten).after(FileCounts(data_files=1, records=5), FileCounts(), None)
    assert _rows(_history(OWN, _totals(20_000, 146), _totals(20_005, 146) | after.to_summary()))[1] is False


def test_pending_equality_deletes_hide_an_unknown_number() -> None:
    assert _rows(_history(_totals(100, 0, 7) | SnapshotStats(written=1).to_summary())) == (100, False)
