"""When a publish makes S of a table with heap retention anew, and at which T."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from mirror_pump.lake.commit.archive_branch import ArchiveBranch, StagedArchive
from mirror_pump.lake.commit.concurrent_rewrites import needed_snapshots
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.format.metadata import archive_snapshot
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, TableId, Tier
from mirror_pump.pipeline.flow.requests import DeltaFold, TableDelta


class ArchiveBranches:
    """The branches `cold` of all tables of one pump."""

    def __init__(self, storage: StorageOptions) -> None:
        self._storage = storage
        self._branches: dict[TableId, ArchiveBranch] = {}

    def stage(
        self,
        table_id: TableId,
        table: LakeTable,
        line: CutLine | None,
        pinned: frozenset[int],
        rewrite_since: int | None,
        summary: Mapping[str, str],
    ) -> StagedArchive:
        """S of the table's current snapshot, at T; snapshots that readers or a rewrite need stay. Raises LakeError."""
        branch = self._branches.setdefault(table_id, ArchiveBranch(self._storage))
        if rewrite_since is not None:
            pinned |= needed_snapshots(table.metadata, rewrite_since)
        return branch.stage(table, line, time.time_ns() // 1_000_000, pinned, summary)

    def forget(self, table_id: TableId) -> None:
        """What was staged last certainly was not published."""
        if table_id in self._branches:
            self._branches[table_id].forget()


def line_of(table: MirroredTable, tier: Tier | None, cut: int | None = None) -> CutLine | None:
    """T as the catalog has it, or `cut`, for the columns that `table` has; None if nothing is below it."""
    if tier is None:
        return None
    # A publish may rename the column.
    column = table.tier.column if table.tier is not None else tier.column
    return CutLine.of(replace(table, tier=replace(tier, column=column)), cut)


def archive_refresh_due(delta: TableDelta, tier: Tier | None, published: int, known: LakeTable) -> bool:
    """Whether a publish has to make S anew; `published` is the S of before."""
    if tier is None:
        return False
    if delta.advance is not None or delta.fold is not None or delta.refresh_archive:
        return True
    head = archive_snapshot(known.metadata)
    # The table has its retention only since a moment ago, or somebody dropped the branch.
    return head is None or head["snapshot-id"] != published


def deletes_converted_meanwhile(tier: Tier | None, table: LakeTable) -> bool:
    """Whether S has equality deletes, which not every engine reads, and main has none any more."""
    head = archive_snapshot(table.metadata) if tier is not None else None
    return (
        head is not None
        and not table.equality_deletes
        and int(head.get("summary", {}).get("total-equality-deletes", 0)) > 0
    )


def may_fold(fold: DeltaFold, tier: Tier | None, *, readers_see_commits: bool) -> bool:
    """Whether corrections may come in now: T only grows, so what was below it is."""
    return readers_see_commits and tier is not None and fold.cut <= tier.cut


def would_lose(delta: TableDelta, partitions: str) -> str:
    """Why a table that has to be copied again is set aside instead; `partitions` are those that it has not any more."""
    why = delta.change.reason if delta.change is not None else "its heap was rewritten"
    return (
        f"{delta.table.name}: {why}, so it has to be copied again; but of partition {partitions}, which was dropped or"
        " detached above T, the lake alone has the rows, and they would go. They stay as they are: unregister the table"
        " with --keep-lake"
    )
