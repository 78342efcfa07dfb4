"""Where a table stands in the catalog when a publish begins: what it builds on, and what it must not disturb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mirror_pump.errors import UsageError
from mirror_pump.lake.metadata.snapshot_thinning import DEFAULT_RETENTION, HistoryRetention
from mirror_pump.lake.metadata.table_metadata import TableMetadata
from mirror_pump.model import Lsn, SequenceNumber, TableId, TableState, Tier
from mirror_pump.policy import policy_of
from mirror_pump.source.catalog.tables import tier_of

_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Registration:
    """A table's row in the catalog as it stands now."""

    state: TableState
    start_lsn: Lsn
    generation: int
    namespace: str
    lake_table: str
    metadata_location: str
    """What the next commit builds on: the staged one while the table is copied again."""
    staged: bool
    """The table is being copied again or filled: commits go to metadata that nobody sees before that is complete."""
    lake_table_missing: bool
    """The catalog does not name the lake table any more: another engine dropped or renamed it."""
    pinned: frozenset[int]
    pin_in_hand: bool
    """A transaction may have pinned a published snapshot, of whatever table, and not committed the pin yet."""
    rewrite_since: int | None
    """Where a rewrite of its files began that is under way (mirror_pump.source.catalog.maintenance)."""
    swept_before: float | None
    """Files older than this that nothing referred to may be gone; seconds since the Unix epoch."""
    read_at: datetime
    """When all this was so, by the database's clock."""
    policy: Mapping[str, Any] | None
    """The overrides in modak.tables.maintenance_policy."""
    data_sequence_number: SequenceNumber
    """Where copied files take their place in the order of commits."""
    snapshot_id: int
    """The published snapshot."""
    rows_dropped: bool
    """Rows of partitions that are gone may still be in the staged files."""
    initial_fields: frozenset[int]
    """Field IDs of the columns that rows from before them have a value in: no file may lack them any more."""
    tier: Tier | None

    @property
    def readers_see_commits(self) -> bool:
        """Whether readers see what is committed, and hence whether the archive branch may be made anew: not while the
        table is copied, for the first time or again."""
        return self.state is TableState.LIVE and not self.staged

    @property
    def files_may_be_rewritten(self) -> bool:
        """Whether files may be exchanged for others: not in a table under copy, whose later chunks need the equality
        deletes and come in beside them; not under a rewrite, whose commit would fail. What is staged for a table that
        is filled no other engine sees."""
        if self.state is TableState.FILLING:
            return self.staged
        return self.state is TableState.LIVE and self.rewrite_since is None

    def kept(self, metadata: TableMetadata) -> frozenset[int]:
        """Snapshots that commits must not thin out: pinned ones, the published snapshot, which readers pin as long as
        it is published, also after this row was read, and as long as a pin is in hand every published snapshot: it may
        be of any of them."""
        kept = self.pinned | {self.snapshot_id}
        if not self.pin_in_hand:
            return kept
        return kept | {snapshot.snapshot_id for snapshot in metadata.snapshots if snapshot.is_archive}

    @property
    def retention(self) -> HistoryRetention:
        """How commits thin the history. A wrong stored policy stops maintenance, which says so, and not the pump."""
        try:
            policy = policy_of(self.policy or {})
        except UsageError:
            return DEFAULT_RETENTION
        minutes, hours = policy.history_minutes_hours, policy.history_hours_hours
        return HistoryRetention(policy.history_newest, round(minutes * _HOUR_MS), round(hours * _HOUR_MS))


@dataclass(frozen=True)
class RegistrationRow:
    """A row of the query `registrations`. Fields with the name of one of `Registration` mean the same."""

    table_id: TableId
    state: str
    start_lsn: Lsn
    generation: int
    namespace: str
    lake_table: str
    metadata_location: str
    staged: bool
    lake_table_missing: bool
    pinned: list[int]
    rewrite_since: int | None
    swept_before: float | None
    read_at: datetime
    policy: dict[str, Any] | None
    data_sequence_number: SequenceNumber
    snapshot_id: int
    rows_dropped: bool
    initial_fields: list[int]
    tier_key_col: str
    tier_key_type: str
    tier_key_hi: int
    """The cut-line."""
    heap_retention_lag: int | None
    """None if no partition leaves the heap."""

    def registration(self, *, pin_in_hand: bool) -> Registration:
        return Registration(
            state=TableState(self.state),
            start_lsn=self.start_lsn,
            generation=self.generation,
            namespace=self.namespace,
            lake_table=self.lake_table,
            metadata_location=self.metadata_location,
            staged=self.staged,
            lake_table_missing=self.lake_table_missing,
            pinned=frozenset(self.pinned),
            pin_in_hand=pin_in_hand,
            rewrite_since=self.rewrite_since,
            swept_before=self.swept_before,
            read_at=self.read_at,
            policy=self.policy,
            data_sequence_number=self.data_sequence_number,
            snapshot_id=self.snapshot_id,
            rows_dropped=self.rows_dropped,
            initial_fields=frozenset(self.initial_fields),
            tier=tier_of(self.tier_key_col, self.tier_key_type, self.tier_key_hi, self.heap_retention_lag),
        )
