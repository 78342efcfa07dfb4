"""Time travel finds the snapshots of a published F, and refuses where the history does not tell."""

from __future__ import annotations

from typing import Any

import pytest

from mirror_pump.errors import TableError, UsageError
from mirror_pump.lake.metadata import COLD_CUT
from mirror_pump.model import Lsn, TableName, format_lsn
from mirror_pump.ops.past import When, history, parse_when, snapshots_at

A, B = TableName("public", "a"), TableName("public", "b")


def document(*steps: tuple[int, int | None, int | None], cold: int | None = None) -> dict[str, Any]:
    """Metadata with snapshots (ID, F, parent); the time of each is its ID in seconds."""
    snapshots = [
        {
            "snapshot-id": number,
            "sequence-number": number,
            "timestamp-ms": number * 1000,
            "summary": {} if frontier is None else {"mirror-pump.frontier": format_lsn(frontier)},
            **({} if parent is None else {"parent-snapshot-id": parent}),
        }
        for number, frontier, parent in steps
    ]
    if cold is not None:
        snapshots.append({"snapshot-id": 99, "sequence-number": cold, "timestamp-ms": 0, "summary": {COLD_CUT: "5"}})
    return {"snapshots": snapshots}


def at(frontier: int, **documents: dict[str, Any]) -> tuple[int, dict[str, int]]:
    histories = {TableName("public", name): history(one) for name, one in documents.items()}
    found, chosen = snapshots_at(When(Lsn(frontier), None), histories, Lsn(0), Lsn(1000))
    return found, {name.name: snapshot for name, snapshot in chosen.items()}


def test_a_table_that_did_not_change_is_at_its_snapshot_before() -> None:
    a = document((1, 100, None), (2, 200, 1), (3, 300, 2))
    b = document((1, 100, None), (4, 300, 1))
    assert at(200, a=a, b=b) == (200, {"a": 2, "b": 1})
    assert at(250, a=a, b=b) == (200, {"a": 2, "b": 1})
    assert at(300, a=a, b=b) == (300, {"a": 3, "b": 4})
    assert at(1000, a=a, b=b) == (1000, {"a": 3, "b": 4})


def test_a_snapshot_that_is_gone_may_have_changed_the_table() -> None:
    a = document((1, 100, None), (2, 200, 1), (3, 300, 2))
    thinned = document((1, 100, None), (5, 300, 4))
    with pytest.raises(TableError, match=r"public\.b is thinned out around F = 0/C8") as refused:
        at(200, a=a, b=thinned)
    assert refused.value.remedy == "readable, for example: --at 0/64, 0/12C"
    assert at(100, a=a, b=thinned) == (100, {"a": 1, "b": 1})


def test_rewrites_have_the_f_of_what_they_rewrote_and_cold_snapshots_are_none_of_mains() -> None:
    a = document((1, 100, None), (2, None, 1), (3, 300, 2), cold=2)
    assert at(200, a=a) == (100, {"a": 2})


def test_a_table_that_was_copied_and_never_changed_is_at_its_copy() -> None:
    a = document((1, None, None), (2, None, 1), (3, 300, 2))
    b = document((1, None, None), (2, None, 1))
    assert at(300, a=a, b=b) == (300, {"a": 3, "b": 2})
    # Where the history begins with another engine's rewrite nobody knows what F that is of.
    with pytest.raises(TableError, match=r"public\.b is thinned out"):
        at(300, a=a, b=document((2, None, 1)))


def test_before_the_history_and_beyond_f_is_refused() -> None:
    a = document((3, 300, 2))
    with pytest.raises(TableError, match="does not go back that far"):
        at(200, a=a)
    with pytest.raises(UsageError, match="F has not reached 0/7D0"):
        at(2000, a=a)


def test_states_of_a_copy_under_way_are_none_of_the_table() -> None:
    histories = {A: history(document((1, 100, None), (2, 200, 1)))}
    with pytest.raises(TableError, match="does not go back"):
        snapshots_at(When(Lsn(150), None), histories, Lsn(180), Lsn(1000))
    assert snapshots_at(When(Lsn(200), None), histories, Lsn(180), Lsn(1000)) == (200, {A: 2})


def test_times_mean_what_was_published_by_then() -> None:
    histories = {A: history(document((1, 100, None), (2, 200, 1))), B: history(document((1, 100, None)))}
    assert snapshots_at(When(None, 1999), histories, Lsn(0), Lsn(1000)) == (100, {A: 1, B: 1})
    assert snapshots_at(When(None, 2000), histories, Lsn(0), Lsn(1000)) == (200, {A: 2, B: 1})


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("16/B374D848", When(Lsn(0x16_B374D848), None)),
        ("1970-01-01T00:00:02Z", When(None, 2000)),
        ("1970-01-01 01:00:02+01:00", When(None, 2000)),
        ("1970-01-01 00:00:02", When(None, 2000)),
    ],
)
def test_points_are_positions_or_times(text: str, when: When) -> None:
    assert parse_when(text) == when


def test_what_is_neither_is_refused() -> None:
    with pytest.raises(UsageError, match="neither a WAL position nor a time"):
        parse_when("yesterday")
