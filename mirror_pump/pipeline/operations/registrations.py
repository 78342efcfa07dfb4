"""A table's registration when a publish begins: the metadata to build on, and the snapshots and rewrites to respect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mirror_pump.errors import UsageError
from mirror_pump.lake.commit.table_head import TableHead
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.document.snapshot_thinning import DEFAULT_RETENTION, HistoryRetention
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.model import Lsn, MirroredTable, SequenceNumber, TableId, TableMode, TableState, Tier
from mirror_pump.settings.policy import policy_of
from mirror_pump.source.catalog.tables import tier_of
from mirror_pump.source.rows import TypedRow

_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class _RegisteredTable(TypedRow):
    """What a registration has of the row that it is read from."""

    state: TableState
    start_lsn: Lsn
    generation: int
    namespace: str
    lake_table: str
    metadata_location: str
    """The metadata file that the next commit builds on. While the table is copied again, that is the staged one."""
    staged: bool
    """The table is being copied again or filled. Readers do not see its commits before that is complete."""
    lake_table_missing: bool
    """The Iceberg catalog no longer names the lake table: another engine dropped or renamed it."""
    pinned: frozenset[int]
    """IDs of the pinned snapshots."""
    rewrite_since: int | None
    """Sequence number at which another engine's rewrite of the table began that is still running
    (mirror_pump.source.catalog.maintenance)."""
    swept_before: float | None
    """Files that are older than this, and that nothing referred to, may have been swept. Seconds since the Unix
    epoch."""
    read_at: datetime
    """When the catalog was read, by the database's clock."""
    policy: Mapping[str, Any] | None
    """The overrides in modak.tables.maintenance_policy."""
    data_sequence_number: SequenceNumber
    """The start sequence number: the data sequence number of copied files."""
    snapshot_id: int
    """The published snapshot."""
    rows_dropped: bool
    """Rows of dropped partitions may still be in the staged files."""
    initial_fields: frozenset[int]
    """Field IDs of the columns that have a value in rows that are older than the column. Every file has these
    columns."""
    mode: TableMode
    pointer: str | None
    """The metadata file that the Iceberg catalog names, which readers see. None if it does not name the lake table."""
    moments: frozenset[int]
    """IDs of the snapshots of moments that are kept."""


@dataclass(frozen=True)
class Registration(_RegisteredTable):
    """The current catalog rows of a table."""

    pin_in_hand: bool
    """A transaction that has not committed yet may have pinned a published snapshot of any table."""
    tier: Tier | None
    head: TableHead | None
    """The state that the mirror left there, or has examined. None if a release that recorded none left it."""

    @property
    def moved_by_others(self) -> bool:
        """Whether another engine has committed to the lake table since."""
        at_head = self.head is not None and self.head.location == self.pointer
        return self.pointer is not None and not at_head and not self.state.has_ended

    @property
    def readers_see_commits(self) -> bool:
        """Whether readers see commits at once, so that the archive branch may be refreshed. They do not while the table
        is being copied or filled."""
        return self.state is TableState.LIVE and not self.staged

    @property
    def files_may_be_rewritten(self) -> bool:
        """Whether files may be replaced by others.

        Not while the table is being copied: later chunks still need the equality deletes. Not during another engine's
        rewrite, whose commit would fail. While a table is being filled, no other engine sees the staged files.
        """
        if self.state is TableState.FILLING:
            return self.staged
        return self.state is TableState.LIVE and self.rewrite_since is None

    def snapshots_to_keep(self, metadata: TableMetadata) -> frozenset[int]:
        """IDs of the snapshots that commits must keep in the history.

        These are the pinned snapshots and the published one, which a reader may pin at any time. While an uncommitted
        transaction may hold a pin, they include all snapshots that were ever published, since the pin may name any of
        them.
        """
        snapshot_ids = self.pinned | {self.snapshot_id}
        if not self.pin_in_hand:
            return snapshot_ids
        return snapshot_ids | {snapshot.snapshot_id for snapshot in metadata.snapshots if snapshot.is_archive}

    @property
    def retention(self) -> HistoryRetention:
        """How commits thin the history. The default if the stored policy is invalid: maintenance reports that, and the
        pump continues."""
        try:
            policy = policy_of(self.policy or {})
        except UsageError:
            return replace(DEFAULT_RETENTION, moments=self.moments)
        minutes, hours = policy.history_minutes_hours, policy.history_hours_hours
        return HistoryRetention(policy.history_newest, round(minutes * _HOUR_MS), round(hours * _HOUR_MS), self.moments)


@dataclass(frozen=True)
class RegistrationRow(_RegisteredTable):
    """A row of the query `registrations`."""

    table_id: TableId
    tier_key_col: str
    tier_key_type: str
    tier_key_hi: int
    """The cut-line."""
    retention_line: int | None
    lag: int | None
    """None if no partition leaves the heap."""
    head: dict[str, Any] | None

    def registration(self, *, pin_in_hand: bool) -> Registration:
        return Registration(
            **self.of_class(_RegisteredTable),
            pin_in_hand=pin_in_hand,
            tier=tier_of(self.tier_key_col, self.tier_key_type, self.tier_key_hi, self.lag, self.retention_line),
            head=None if self.head is None else TableHead.from_json(self.head),
        )


def line_of(table: MirroredTable, tier: Tier | None, cut: int | None = None) -> CutLine | None:
    """The cut-line of the registered `tier`, or `cut` in its place, in terms of the columns of `table`. None if no row
    is below it."""
    if tier is None:
        return None
    # The publish may rename the column.
    column = table.tier.column if table.tier is not None else tier.column
    return CutLine.of(replace(table, tier=replace(tier, column=column)), cut)
