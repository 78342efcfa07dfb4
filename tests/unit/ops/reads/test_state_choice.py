"""One state of several tables is chosen from their histories, and each table that is left out is told why."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from mirror_pump.errors import TableError, UsageError
from mirror_pump.lake.document.snapshot_summary import ARCHIVE_CUT_LINE
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.model import Lsn, SnapshotId, TableId, TableMode, TableName, TableState, format_lsn
from mirror_pump.ops.reads.state_choice import Reason, TablePast, readable_frontiers, require_all, state_at
from mirror_pump.ops.reads.time_travel import PastPoint, SnapshotHistory, history
from mirror_pump.source.catalog.published_state import PublishedState


def document(
    *steps: tuple[int, int | None, int | None], cold: int | None = None, copying: tuple[int, ...] = ()
) -> TableMetadata:
    """Metadata with snapshots (ID, frontier, parent). The time of each is its ID in seconds. `copying`: IDs of
    snapshots of a copy that was not complete."""
    snapshots: list[dict[str, Any]] = [
        {
            "snapshot-id": number,
            "sequence-number": number,
            "timestamp-ms": number * 1000,
            "summary": {"mirror-pump.copying": "true"}
            if number in copying
            else {}
            if frontier is None
            else {"mirror-pump.frontier": format_lsn(frontier)},
            **({} if parent is None else {"parent-snapshot-id": parent}),
        }
        for number, frontier, parent in steps
    ]
    if cold is not None:
        snapshots.append(
            {"snapshot-id": 99, "sequence-number": cold, "timestamp-ms": 0, "summary": {ARCHIVE_CUT_LINE: "5"}}
        )
    return TableMetadata({"snapshots": snapshots})


NOW_MS = 9_000_000


def at(frontier: int, **documents: TableMetadata) -> tuple[int, dict[str, int]]:
    return chosen(PastPoint(Lsn(frontier), None), **documents)


def at_time(moment_ms: int, **documents: TableMetadata) -> tuple[int, dict[str, int]]:
    return chosen(PastPoint(None, moment_ms), **documents)


def chosen(when: PastPoint, **documents: TableMetadata) -> tuple[int, dict[str, int]]:
    tables = [table_past(name, history(document, Lsn(0))) for name, document in documents.items()]
    choice = state_at(tables, when, NOW_MS)
    frontier = require_all(choice, tables)
    return frontier, {name.name: snapshot for name, snapshot in choice.chosen.items()}


def table_past(name: str, past: SnapshotHistory | None = None, **changes: Any) -> TablePast:
    state = PublishedState(
        table_id=TableId(1),
        schema_name="public",
        lake_table=name,
        start_lsn=Lsn(0),
        location="file:///t",
        mode=TableMode.MIRRORED,
        state=TableState.LIVE,
        paused=False,
        dropped=False,
        live_after_lsn=Lsn(0),
        frontier=Lsn(1000),
        cut=0,
        has_cutline=False,
        snapshot_id=SnapshotId(77),
        published_location="file:///published",
        metadata_location="file:///main",
        head=None,
        swept_before=None,
        read_at=datetime.now(UTC),
    )
    return TablePast(TableName("public", name), replace(state, **changes), past)


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
    with pytest.raises(TableError, match=r"public\.b is thinned out around frontier 0/C8") as refused:
        at(200, a=a, b=thinned)
    assert refused.value.remedy == "readable, for example: --at 0/64, 0/12C"
    assert at(100, a=a, b=thinned) == (100, {"a": 1, "b": 1})


def test_rewrites_keep_their_frontier_and_archive_snapshots_are_not_mains() -> None:
    a = document((1, 100, None), (2, None, 1), (3, 300, 2), cold=2)
    assert at(200, a=a) == (100, {"a": 2})


def test_a_table_that_was_copied_and_never_changed_is_at_its_copy() -> None:
    a = document((1, None, None), (2, None, 1), (3, 200, 2), (4, 300, 3), copying=(2,))
    b = document((1, None, None), (2, 250, 1))
    assert at(250, b=b) == at(999, b=b) == (250, {"b": 2})
    assert at(1000, b=b) == (1000, {"b": 2})
    assert at(260, a=a, b=b) == (250, {"a": 3, "b": 2})
    assert at(300, a=a, b=b) == (300, {"a": 4, "b": 2})
    # If the history begins with another engine's rewrite, nobody knows its frontier.
    with pytest.raises(TableError, match=r"public\.b is thinned out"):
        at(300, a=a, b=document((2, None, 1)))


def test_before_a_table_was_live_is_refused_with_since_when_it_is() -> None:
    a = document((1, None, None), (2, None, 1), (3, 300, 2), copying=(2,))
    b = document((1, None, None), (2, 250, 1))
    since = r"public\.a has been live since frontier 0/12C \(1970-01-01T00:00:03.000Z\)"
    for when in (PastPoint(Lsn(299), None), PastPoint(None, 2999)):
        for documents in ({"a": a}, {"a": a, "b": b}):
            with pytest.raises(TableError, match=since) as error:
                chosen(when, **documents)
            assert error.value.remedy == "readable, for example: --at 0/12C"
    with pytest.raises(TableError, match=r"public\.b has been live since frontier 0/FA"):
        at(249, b=b)


def test_moments_before_a_repeated_copy_are_refused() -> None:
    again = document((1, None, None), (2, 100, 1), (3, 200, 2), (4, None, 3), (5, None, 4), (6, 400, 5), copying=(4, 5))
    assert at(400, a=again) == (400, {"a": 6})
    for frontier in (100, 200, 399):
        with pytest.raises(TableError, match=r"public\.a has been live since frontier 0/190"):
            at(frontier, a=again)
    # The snapshots of the copy and the first one after it are thinned out. Frontier 200 belongs to the content before
    # it.
    thinned = document((1, None, None), (2, 100, 1), (3, 200, 2), (7, 500, 6))
    tables = [table_past("a", history(thinned, complete_from=Lsn(400)))]
    with pytest.raises(TableError, match=r"the history of public\.a does not go back that far"):
        require_all(state_at(tables, PastPoint(Lsn(200), None), NOW_MS), tables)


def test_moments_before_the_history_and_beyond_the_frontier_are_refused() -> None:
    a = document((3, 300, 2))
    with pytest.raises(TableError, match="does not go back that far"):
        at(200, a=a)
    with pytest.raises(UsageError, match="the frontier has not reached 0/7D0"):
        at(2000, a=a)


def test_times_mean_what_was_published_by_then() -> None:
    a, b = document((1, 100, None), (2, 200, 1)), document((1, 100, None))
    assert at_time(1999, a=a, b=b) == (100, {"a": 1, "b": 1})
    assert at_time(2000, a=a, b=b) == (200, {"a": 2, "b": 1})
    assert at_time(NOW_MS, a=a, b=b) == (200, {"a": 2, "b": 1})


def test_the_future_is_refused() -> None:
    with pytest.raises(UsageError, match=r"1970-01-01T02:30:00.001Z is in the future: it is 1970-01-01T02:30:00.000Z"):
        at_time(NOW_MS + 1, a=document((1, 100, None)))


_STEPS = document((1, None, None), (2, 100, 1), (3, 300, 2))
_GONE = document((1, None, None), (2, 100, 1), (5, 300, 4))
_LATE = document((1, None, None), (3, 300, 1))


@pytest.mark.parametrize(
    ("when", "past", "changes", "expected"),
    [
        # The present: what is published, whatever the history says.
        (None, None, {}, 77),
        (None, None, {"mode": TableMode.TIERED, "frontier": None}, 77),
        (None, None, {"published_location": ""}, Reason.COPYING),
        (None, None, {"frontier": None, "state": TableState.COPYING}, Reason.COPYING),
        (None, None, {"metadata_location": None}, Reason.NOT_IN_LAKE),
        (None, None, {"frontier": Lsn(999), "state": TableState.FAILED}, Reason.BEHIND),
        # The past: what the history says, if it says so for certain.
        (PastPoint(Lsn(250), None), _STEPS, {}, 2),
        (PastPoint(Lsn(1000), None), _STEPS, {}, 3),
        (PastPoint(None, 2500), _STEPS, {}, 2),
        (PastPoint(Lsn(250), None), _GONE, {}, Reason.THINNED_OUT),
        (PastPoint(Lsn(250), None), _LATE, {}, Reason.NOT_LIVE_YET),
        (PastPoint(Lsn(250), None), None, {}, Reason.DAMAGED),
        (PastPoint(Lsn(250), None), _STEPS, {"mode": TableMode.TIERED}, Reason.TIERED),
        (PastPoint(Lsn(250), None), _STEPS, {"frontier": Lsn(249)}, Reason.BEHIND),
        (PastPoint(Lsn(250), None), _STEPS, {"frontier": Lsn(250), "state": TableState.FAILED}, 2),
        (PastPoint(Lsn(250), None), _STEPS, {"state": TableState.DROPPED, "dropped": True}, 2),
        # A frontier that was read before is shown, or nothing is.
        (Lsn(250), _STEPS, {}, 2),
        (Lsn(250), _GONE, {}, Reason.THINNED_OUT),
        (Lsn(50), _LATE, {}, Reason.NOT_LIVE_YET),
    ],
)
def test_each_table_is_shown_or_told_why_not(
    when: PastPoint | Lsn | None, past: TableMetadata | None, changes: dict[str, Any], expected: int | Reason
) -> None:
    """Beside another table, which is published at 250, too."""
    other = table_past("other", history(document((1, 100, None), (2, 250, 1)), Lsn(0)))
    table = table_past("a", None if past is None else history(past, Lsn(0)), **changes)
    choice = state_at([table, other], when, NOW_MS)
    left_out = choice.left_out.get(table.name)
    assert (choice.chosen.get(table.name) if left_out is None else left_out.reason) == expected
    assert choice.chosen.keys() | choice.left_out.keys() == {table.name, other.name}
    if left_out is not None:
        assert str(left_out).startswith("public.a ")
        with pytest.raises(TableError):
            require_all(choice, [table, other])


def test_what_no_publish_has_promised_is_not_shown() -> None:
    """Snapshots of a table whose publish is not committed yet, or which is copied again."""
    ahead = table_past("a", history(document((1, 100, None), (2, 300, 1)), Lsn(0)), frontier=Lsn(200))
    assert state_at([ahead], PastPoint(None, NOW_MS), NOW_MS).frontier == 100


def test_the_frontiers_that_an_error_names_can_be_read() -> None:
    """None at which one of the tables was not followed any more."""
    failed = table_past("a", history(_STEPS, Lsn(0)), frontier=Lsn(300), state=TableState.FAILED)
    other = table_past("b", history(document((1, 100, None), (2, 400, 1), (3, 500, 2)), Lsn(0)))
    with pytest.raises(TableError, match=r"public\.a has failed: its lake ends at frontier 0/12C") as refused:
        require_all(state_at([failed, other], PastPoint(Lsn(450), None), NOW_MS), [failed, other])
    assert "one by one" in refused.value.remedy
    assert readable_frontiers([failed, other], Lsn(450)) == [100, 300]
