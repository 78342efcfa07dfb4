"""What maintenance is due, by figures alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mirror_pump.lake.contents.table_stats import TableStats, class_bounds
from mirror_pump.lake.document.snapshot_summary import ARCHIVE_CUT_LINE
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.ops.maintenance.plan import (
    PastMaintenance,
    expiry_of,
    manifests_of,
    position_deletes_of,
    rewrite_of,
    sweep_of,
    warnings_of,
)
from mirror_pump.settings.policy import Policy, policy_of

MIB = 1 << 20
POLICY = Policy()
BOUNDS = class_bounds(POLICY.rewrite_target_bytes)
NOTHING_DUE = TableStats(
    data_files=40,
    small_files=30,
    small_by_class=(15, 10, 5),
    records=1_000_000,
    data_bytes=900 * MIB,
    delete_files=20,
    equality_delete_files=20,
    equality_delete_rows=5000,
    manifests=12,
    snapshots=100,
    sequence_number=500,
)


def test_classes_end_at_an_eighth_of_the_next_and_do_not_go_below_a_quarter_mebibyte() -> None:
    assert BOUNDS == (96 * MIB, 12 * MIB, 1536 * 1024)
    assert class_bounds(MIB) == (768 * 1024,)


def test_a_small_backlog_is_left_alone_without_a_request() -> None:
    assert rewrite_of(NOTHING_DUE, POLICY, ("id",), requested=False) is None
    requested = rewrite_of(NOTHING_DUE, POLICY, ("id",), requested=True)
    assert requested is not None
    rewrite = requested.rewrite
    assert (rewrite.small_below, rewrite.min_input_files, rewrite.deletes) == (96 * MIB, 2, True)
    empty = TableStats(data_files=1, records=10, small_by_class=(0, 0, 0))
    assert rewrite_of(empty, POLICY, (), requested=True) is None


@pytest.mark.parametrize(("by_class", "below"), [((0, 0, 50), 0), ((0, 50, 3), 1), ((50, 0, 0), 2)])
def test_only_the_classes_that_are_full_are_merged(by_class: tuple[int, ...], below: int) -> None:
    figures = replace(NOTHING_DUE, small_by_class=by_class, small_files=sum(by_class))
    due = rewrite_of(figures, POLICY, (), requested=False)
    assert due is not None
    assert due.rewrite.small_below == tuple(reversed(BOUNDS))[below]
    assert due.rewrite.options()["min-file-size-bytes"] == str(due.rewrite.small_below)
    assert not due.rewrite.deletes


def test_deletes_are_due_by_their_number_and_their_share() -> None:
    due = rewrite_of(replace(NOTHING_DUE, equality_delete_rows=200_000), POLICY, (), requested=False)
    assert due is not None
    assert due.rewrite.deletes
    assert due.rewrite.options()["delete-file-threshold"] == "1"
    small = replace(NOTHING_DUE, records=1000, equality_delete_rows=9_999)
    assert rewrite_of(small, POLICY, (), requested=False) is None, "a share without a number is not worth it"
    off = policy_of({"delete_compaction_enabled": False})
    assert rewrite_of(replace(NOTHING_DUE, equality_delete_rows=10**9), off, (), requested=True) is not None
    off = policy_of({"delete_compaction_enabled": False, "rewrite_enabled": False})
    assert rewrite_of(replace(NOTHING_DUE, equality_delete_rows=10**9), off, (), requested=True) is None


def test_what_the_policy_switches_off_is_not_done_by_the_way() -> None:
    backlog = replace(NOTHING_DUE, small_by_class=(0, 0, 500), small_files=500, equality_delete_rows=10**6)
    for requested in (True, False):
        due = rewrite_of(backlog, policy_of({"rewrite_enabled": False}), (), requested=requested)
        assert due is not None
        options = due.rewrite.options()
        assert options["delete-file-threshold"] == "1"
        assert options["min-file-size-bytes"] == "0"
        assert int(options["max-file-size-bytes"]) > 1 << 60, "nor are large ones divided"
        due = rewrite_of(backlog, policy_of({"delete_compaction_enabled": False}), (), requested=requested)
        assert due is not None
        options = due.rewrite.options()
        assert "delete-file-threshold" not in options
        assert options["delete-ratio-threshold"] == "1.0", "Iceberg's default is 0.3"


def test_sorting_is_by_key() -> None:
    due = rewrite_of(
        replace(NOTHING_DUE, small_by_class=(0, 0, 50)),
        policy_of({"rewrite_strategy": "sort"}),
        ("a", "b"),
        requested=False,
    )
    assert due is not None
    assert due.rewrite.sort_by == ("a", "b")


@pytest.mark.parametrize(
    ("by_class", "delete_rows", "requested", "largest"),
    [
        ((5000, 5000, 5000), 0, False, BOUNDS[2]),
        ((5000, 5000, 5000), 0, True, BOUNDS[0]),
        ((60, 1, 1), 0, False, BOUNDS[0]),
        ((5000, 5000, 5000), 10**6, False, 128 * MIB),
        ((0, 0, 0), 10**6, True, 128 * MIB),
    ],
)
def test_large_tables_go_in_parts_that_are_not_larger_than_a_group(
    by_class: tuple[int, ...], delete_rows: int, requested: bool, largest: int
) -> None:
    """Whatever the average size of the table's files: the large ones have the deletes."""
    figures = replace(
        NOTHING_DUE,
        small_by_class=by_class,
        small_files=sum(by_class),
        data_files=20_000,
        data_bytes=200_000 * MIB,
        delete_files=bool(delete_rows),
        equality_delete_rows=delete_rows,
    )
    due = rewrite_of(figures, POLICY, (), requested=requested)
    assert due is not None
    files = POLICY.rewrite_max_group_bytes // largest
    assert due.rewrite.options()["max-files-to-rewrite"] == str(files)
    assert due.parts * (files - 1) >= figures.data_files
    assert not due.rewrite.complete({"rewritten_data_files_count": files})
    assert due.rewrite.complete({"rewritten_data_files_count": files - 1})


def test_a_table_of_one_group_is_rewritten_at_once() -> None:
    due = rewrite_of(replace(NOTHING_DUE, equality_delete_rows=200_000), POLICY, (), requested=False)
    assert due is not None
    assert due.parts == 1
    assert "max-files-to-rewrite" not in due.rewrite.options()
    assert due.rewrite.complete({"rewritten_data_files_count": 10_000})


def test_position_deletes_and_manifests_are_due_by_number() -> None:
    assert position_deletes_of(replace(NOTHING_DUE, position_delete_files=199), POLICY, requested=False) is None
    assert position_deletes_of(replace(NOTHING_DUE, position_delete_files=200), POLICY, requested=False) is not None
    assert position_deletes_of(replace(NOTHING_DUE, position_delete_files=2), POLICY, requested=True) is not None
    assert position_deletes_of(NOTHING_DUE, POLICY, requested=True) is None
    assert manifests_of(NOTHING_DUE, POLICY, requested=False) is None
    assert manifests_of(NOTHING_DUE, POLICY, requested=True) is not None
    assert manifests_of(replace(NOTHING_DUE, manifests=100), POLICY, requested=False) is not None
    assert manifests_of(NOTHING_DUE, policy_of({"manifest_rewrite_enabled": False}), requested=True) is None
    few = replace(NOTHING_DUE, manifests=1)
    assert manifests_of(few, POLICY, requested=True) is None
    assert manifests_of(few, POLICY, requested=True, names_removed=True) is not None
    assert manifests_of(few, POLICY, requested=False, names_removed=True) is None


def metadata(count: int, every_ms: int, refs: dict[str, Any] | None = None) -> TableMetadata:
    """A history of that many snapshots, one every so many milliseconds, whose IDs fall while sequence numbers rise."""
    snapshots = [
        {"snapshot-id": 1000 - number, "sequence-number": number, "timestamp-ms": number * every_ms}
        for number in range(1, count + 1)
    ]
    current = snapshots[-1]["snapshot-id"]
    named = {"main": {"type": "branch", "snapshot-id": current}, **(refs or {})}
    return TableMetadata({"snapshots": snapshots, "current-snapshot-id": current, "refs": named, "properties": {}})


HOUR = 3_600_000


def test_snapshots_expire_by_the_time_since_they_were_replaced() -> None:
    history = metadata(48, HOUR)
    due = expiry_of(history, (), POLICY, now_ms=48 * HOUR, requested=False)
    assert due is not None
    # Replaced at 24 h or later: within the last 24 hours.
    assert due.snapshot_ids == tuple(1000 - number for number in range(1, 23))


def test_protected_named_and_newest_snapshots_stay() -> None:
    history = metadata(48, HOUR, {"audit": {"type": "tag", "snapshot-id": 1000 - 5}})
    policy = policy_of({"snapshot_min_retained": 40, "snapshot_retention_hours": 0})
    due = expiry_of(history, {1000 - 2}, policy, now_ms=480 * HOUR, requested=True)
    assert due is not None
    assert due.snapshot_ids == tuple(1000 - number for number in (1, 3, 4, 6, 7, 8))
    assert expiry_of(history, {1000 - 2}, policy, now_ms=480 * HOUR, requested=False) is None, "too few to be worth it"


def test_snapshots_of_the_archive_branch_expire_by_themselves_from_the_oldest_pinned_one_on_none() -> None:
    """Commits leave the newest ten, which name files of rows that are gone since."""
    head = 1000 - 48
    history = metadata(48, HOUR, {"cold": {"type": "branch", "snapshot-id": head}, "kept": {"snapshot-id": 1000 - 4}})
    for snapshot in history.document["snapshots"][1::2]:
        snapshot["summary"] = {ARCHIVE_CUT_LINE: "1"}
    policy = policy_of({"snapshot_min_retained": 1, "snapshot_retention_hours": 24})

    def expired(pinned: set[int]) -> list[int]:
        due = expiry_of(history, pinned, policy, now_ms=48 * HOUR, requested=True, pinned=pinned)
        assert due is not None
        return [1000 - snapshot_id for snapshot_id in due.snapshot_ids if (1000 - snapshot_id) % 2 == 0]

    # Replaced by the next archive snapshot at 24 h or later: within the last 24 hours.
    assert expired(set()) == [number for number in range(2, 22, 2) if number != 4]
    assert expired({1000 - 10}) == [2, 6, 8]


def test_nothing_expires_where_a_branch_has_an_age_of_its_own() -> None:
    history = metadata(48, HOUR, {"x": {"type": "branch", "snapshot-id": 960, "max-snapshot-age-ms": 1}})
    assert expiry_of(history, (), POLICY, now_ms=480 * HOUR, requested=True) is None
    assert any("branch" in line for line in warnings_of(history, NOTHING_DUE, POLICY))


def test_sweeps_are_due_by_commits() -> None:
    assert sweep_of(NOTHING_DUE, POLICY, PastMaintenance(), requested=False) is None
    assert (
        sweep_of(
            replace(NOTHING_DUE, sequence_number=2500), POLICY, PastMaintenance(swept_at_sequence=600), requested=False
        )
        is None
    )
    assert (
        sweep_of(
            replace(NOTHING_DUE, sequence_number=2600), POLICY, PastMaintenance(swept_at_sequence=600), requested=False
        )
        is not None
    )
    assert sweep_of(NOTHING_DUE, policy_of({"orphan_sweep_enabled": False}), PastMaintenance(), requested=True) is None


def test_warnings_name_what_does_not_keep_up() -> None:
    readers_see_commits = metadata(3, HOUR)
    assert warnings_of(readers_see_commits, NOTHING_DUE, POLICY) == []
    bad = replace(
        NOTHING_DUE, equality_delete_rows=10**6, small_files=600, manifests=300, snapshots=5000, metadata_bytes=8 * MIB
    )
    never_deleting = TableMetadata({**readers_see_commits.document, "properties": {"gc.enabled": "false"}})
    assert len(warnings_of(never_deleting, bad, POLICY)) == 7
