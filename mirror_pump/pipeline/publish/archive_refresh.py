"""Decides when a publish refreshes the published snapshot of a table with heap retention, and at which cut-line.

Also what it would lose, or may forget, of rows above the cut-line that the lake alone has
(mirror_pump.lake.contents.kept_ranges).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import chain

from mirror_pump.lake.commit.archive_branch import ArchiveBranch, StagedArchive
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.contents.file_listing import LiveFile, live_data_files
from mirror_pump.lake.contents.kept_ranges import united, values_of
from mirror_pump.lake.document.snapshot_summary import Total
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, TableId, TableState, Tier
from mirror_pump.pipeline.operations.operation import TablePlan
from mirror_pump.pipeline.operations.registrations import Registration
from mirror_pump.pipeline.operations.requests import TableRequest
from mirror_pump.pipeline.operations.table_changes import TableChange
from mirror_pump.source.catalog.tables import ranges_text


class ArchiveBranches:
    """The archive branches (`cold`) of all tables of one pump."""

    def __init__(self, storage: StorageOptions) -> None:
        self._storage = storage
        self._branches: dict[TableId, ArchiveBranch] = {}

    def stage(
        self,
        table_id: TableId,
        table: LakeTable,
        line: CutLine | None,
        pinned: frozenset[int],
        summary: Mapping[str, str],
    ) -> StagedArchive:
        """Stages the published snapshot of the table's current snapshot at the cut-line. Keeps pinned snapshots. Raises
        LakeError."""
        branch = self._branches.setdefault(table_id, ArchiveBranch(self._storage))
        return branch.stage(table, line, time.time_ns() // 1_000_000, pinned, summary)


def archive_refresh_due(tier: Tier | None, published: int, lake: LakeTable, *, required: bool) -> bool:
    """Returns whether a publish has to refresh the archive branch. `published` is the branch's snapshot that readers
    pin; `required` means that an operation needs the refresh."""
    if tier is None:
        return False
    if required:
        return True
    head = lake.metadata.archive_snapshot
    # The table's retention has only just begun, or another program dropped the branch.
    return head is None or head.snapshot_id != published


def deletes_converted_meanwhile(tier: Tier | None, table: LakeTable) -> bool:
    """Returns whether the published snapshot still has equality deletes, which not every engine reads, while main has
    none."""
    head = table.metadata.archive_snapshot if tier is not None else None
    return head is not None and not table.equality_deletes and bool(head.summary.total(Total.EQUALITY_DELETES))


def completes_fill(row: Registration, *, goes_live: bool) -> bool:
    """Returns whether a publish completes a fill of a table with rows below the cut-line. Until then the archive branch
    shows the old content."""
    return goes_live and row.state is TableState.FILLING and row.tier is not None and row.tier.moved


def would_lose(table: MirroredTable, change: TableChange | None, ranges: str) -> str:
    """Returns why a table that has to be copied again fails instead. `ranges`: the tier values of partitions that the
    heap no longer has."""
    cause = change.reason if change is not None else "its heap was rewritten"
    return (
        f"{table.name}: {cause}, so it has to be copied again; but of partitions that were dropped or detached"
        f" above the cut-line, with tier values in {ranges}, the lake alone has the rows, and they would go. They"
        " stay as they are: unregister the table with --keep-lake"
    )


def values_kept(request: TableRequest, plan: TablePlan, row: Registration, lake: LakeTable) -> tuple[int, int] | None:
    """Returns Recording.values_kept. Each row that a partition had when it went is in the lake, or comes with a segment
    before the note that says so. Not while a table is copied: then a chunk may bring it later. Reads the manifests of
    the data files. Raises LakeError."""
    change, table = request.change, request.table
    if change is None or row.tier is None or not (row.state is plan.state is TableState.LIVE):
        return None
    if not united(table.kept_ranges, row.tier.cut):
        return None
    column = table.tier_column
    stored = live_data_files(lake.manifests, lake.storage, (column.field_id,))
    brought = (file for segment in plan.segments[: change.kept_before] for file in segment.files.data)
    return values_of(chain[LiveFile | WrittenFile](stored, brought), column)


def unstored(change: TableChange | None, cut: int) -> str | None:
    """Returns the ranges that a copy removes and the catalog does not have yet; None if there are none."""
    ranges = () if change is None else united(change.lost, cut)
    return ranges_text(ranges) if ranges else None
