"""Which states need a file, and when each of them ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mirror_pump.lake.document.snapshot_summary import ARCHIVE_CUT_LINE
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.model import TableName
from mirror_pump.ops.where.reaching_states import ReachedFile, RootKind, SearchedRoot, StateKind
from mirror_pump.settings.policy import policy_of

HOUR = 3_600_000
T = TableName("public", "t")
LOCATION = "file:///lake/public/t"


def _at(hours: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=hours)


def _root(refs: dict[str, Any] | None = None, properties: dict[str, str] | None = None, **options: Any) -> SearchedRoot:
    """A table with snapshots 1 to 6, one an hour, of which 2 and 4 are of the archive branch."""
    snapshots = [
        {"snapshot-id": number, "sequence-number": number, "timestamp-ms": number * HOUR} for number in range(1, 7)
    ]
    for place in (1, 3):
        snapshots[place]["summary"] = {ARCHIVE_CUT_LINE: "1"}  # type: ignore[assignment]
    named = {
        "main": {"type": "branch", "snapshot-id": 6},
        "cold": {"type": "branch", "snapshot-id": 4},
        **(refs or {}),
    }
    document = {"snapshots": snapshots, "current-snapshot-id": 6, "refs": named, "properties": properties or {}}
    policy = policy_of({"snapshot_min_retained": 2, "snapshot_retention_hours": 10, **options.pop("policy", {})})
    return SearchedRoot(RootKind.TABLE, T, T, LOCATION, TableMetadata(document), policy, **options)


def _states(root: SearchedRoot, *snapshots: int, **file: Any) -> list[tuple[Any, ...]]:
    needed = sum(1 << root.snapshots.index(one) for one in root.snapshots if one.snapshot_id in snapshots)
    reached = ReachedFile(
        file.pop("location", f"{LOCATION}/data/a.parquet"), needed, file.pop("modified", None), **file
    )
    return [(state.kind, state.name, state.ends_at) for state in root.reaching(reached)]


def test_former_snapshots_end_by_the_time_since_they_were_replaced_but_for_the_newest() -> None:
    """Those of the archive branch count by themselves."""
    root = _root()
    assert _states(root, 1, 2, 3) == [
        (StateKind.HISTORY, None, _at(3 + 10)),
        # One of two.
        (StateKind.HISTORY, None, None),
        (StateKind.HISTORY, None, _at(5 + 10)),
    ]
    assert _states(root, 5, 6) == [(StateKind.HISTORY, None, None), (StateKind.CURRENT, None, None)]
    assert _states(root, 4) == [(StateKind.ARCHIVE, None, None)]
    (state,) = root.reaching(ReachedFile("", 1 << 4, None))
    assert (state.ends_by, state.command) == (
        "snapshot_min_retained = 2: after 1 more commits",
        "mirror-pump maintain public.t",
    )


@pytest.mark.parametrize(
    "root",
    [
        _root(policy={"snapshot_expiry_enabled": False}),
        _root(properties={"gc.enabled": "false"}),
        _root({"x": {"type": "branch", "snapshot-id": 6, "max-snapshot-age-ms": 1}}),
    ],
)
def test_nothing_ends_where_nothing_expires(root: SearchedRoot) -> None:
    assert _states(root, 1) == [(StateKind.HISTORY, None, None)]


def test_what_names_a_snapshot_is_named() -> None:
    """A snapshot that moments, readers and other engines need is no part of the history besides."""
    refs = {name: {"type": kind, "snapshot-id": 1} for name, kind in (("audit", "tag"), ("dev", "branch"))}
    root = _root(
        {**refs, "moment.closing": {"type": "tag", "snapshot-id": 1}}, pins={1: _at(7)}, moments={1: ("closing",)}
    )
    assert _states(root, 1) == [
        (StateKind.MOMENT, "closing", None),
        (StateKind.REFERENCE, "audit", None),
        (StateKind.REFERENCE, "dev", None),
        (StateKind.PIN, None, _at(7)),
    ]
    published = replace(_root(), published=5)
    assert _states(published, 5) == [(StateKind.CURRENT, None, None)]


def test_snapshots_of_the_archive_branch_stay_from_the_oldest_pinned_one_on() -> None:
    """Those of main do not, nor does an older one."""
    root = _root(policy={"snapshot_min_retained": 1}, pins={2: _at(90)})
    for place in (4, 5):
        root.metadata.document["snapshots"][place]["summary"] = {ARCHIVE_CUT_LINE: "1"}  # type: ignore[union-attr]
    assert _states(root, 2) == [(StateKind.PIN, None, _at(90))]
    assert _states(root, 5) == [(StateKind.HISTORY, None, _at(6 + 10)), (StateKind.PIN, None, _at(90))]
    assert _states(root, 3) == [(StateKind.HISTORY, None, None)]
    assert _states(replace(root, pins={6: _at(90)}), 5) == [(StateKind.HISTORY, None, _at(6 + 10))]


def test_files_that_nothing_needs_go_with_a_sweep_where_sweeps_look() -> None:
    root = _root(policy={"orphan_grace_hours": 3})
    assert _states(root, modified=3600.0) == [(StateKind.UNREFERENCED, None, _at(1 + 3))]
    assert _states(root, modified=3600.0, location=f"{LOCATION}/other/a.parquet") == [
        (StateKind.UNREFERENCED, None, None)
    ]
    off = _root(policy={"orphan_sweep_enabled": False})
    assert _states(off, modified=3600.0) == [(StateKind.UNREFERENCED, None, None)]


def test_changes_of_a_feed_end_with_their_day_and_files_of_former_registrations_never() -> None:
    feed = TableName("public", "t__changes")
    root = replace(_root(), kind=RootKind.FEED, name=feed, keep=timedelta(hours=5))
    assert _states(root, 6, day=2) == [(StateKind.FEED, str(feed), _at(3 * 24 + 5))]
    assert _states(replace(root, keep=None), 6, day=2) == [(StateKind.FEED, str(feed), None)]
    assert _states(root, modified=0.0) == [(StateKind.UNREFERENCED, str(feed), _at(24))]
    former = replace(_root(), kind=RootKind.ENDED, moments={3: ("closing",)})
    assert _states(former, 1, 3) == [(StateKind.ENDED, LOCATION, None), (StateKind.MOMENT, "closing", None)]
    assert _states(former, modified=0.0) == [(StateKind.ENDED, LOCATION, None)]
