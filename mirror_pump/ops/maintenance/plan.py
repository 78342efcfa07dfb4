"""Decides which maintenance of a table is due, from its statistics and its policy. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar

from mirror_pump.engine.iceberg_procedures.rewrite_request import RewriteRequest
from mirror_pump.lake.contents.snapshot_history import ages_by_branch, expirable
from mirror_pump.lake.contents.table_stats import TableStats, class_bounds
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.settings.policy import Policy
from mirror_pump.source.catalog.maintenance import MaintainedTable

_METADATA_LARGE = 4 << 20
"""Size of a metadata file, in bytes, from which on `status` warns: every commit writes the whole file."""
_SNAPSHOTS_MANY = 1000
"""Number of snapshots from which on `status` warns."""


@dataclass(frozen=True)
class _PlannedOperation:
    """Something that is due."""

    reason: str
    name: ClassVar[str]
    """In the journal: that of Iceberg's procedure."""
    words: ClassVar[str]
    """What it does, in plain words."""


@dataclass(frozen=True)
class RewriteDataFiles(_PlannedOperation):
    rewrite: RewriteRequest
    parts: int = 1
    """Maximum number of commits. Without a limit the rewrite might never end, since the pump keeps writing files."""
    name = "rewrite_data_files"
    words = "merge data files and apply deletes"


@dataclass(frozen=True)
class RewritePositionDeletes(_PlannedOperation):
    min_input_files: int
    name = "rewrite_position_delete_files"
    words = "merge position-delete files"


class RewriteManifests(_PlannedOperation):
    name = "rewrite_manifests"
    words = "merge manifests"


@dataclass(frozen=True)
class ExpireSnapshots(_PlannedOperation):
    """And delete the files that only they need."""

    snapshot_ids: tuple[int, ...]
    name = "expire_snapshots"
    words = "expire snapshots"


class SweepFiles(_PlannedOperation):
    name = "remove_orphan_files"
    words = "delete files that nothing refers to"


MaintenanceOperation = RewriteDataFiles | RewritePositionDeletes | RewriteManifests | ExpireSnapshots | SweepFiles


@dataclass(frozen=True)
class PastMaintenance:
    """Earlier maintenance of the table, from the journal."""

    swept_at_sequence: int = 0
    """The table's sequence number at the last sweep; 0 if there was none."""


@dataclass(frozen=True)
class TableCondition:
    """A table's state, from which follows what maintenance is due."""

    table: MaintainedTable
    metadata: TableMetadata
    """At least the part that decides which snapshots expire."""
    policy: Policy
    figures: TableStats
    past: PastMaintenance
    now: float
    """When it was read, seconds since 1970."""
    key: tuple[str, ...] = ()
    """Names of the key columns in the lake."""
    names_removed: bool = False
    """Whether a manifest names removed files."""

    def due(self, *, requested: bool) -> tuple[MaintenanceOperation, ...]:
        """The operations that are due. With `requested`, also those below the policy's thresholds."""
        return tuple(operation for decide in DECISIONS if (operation := decide(self, requested)) is not None)

    def still_expirable(self, due: ExpireSnapshots, metadata: TableMetadata, table: MaintainedTable) -> list[int]:
        """Those of the snapshots that may go from this metadata. `table`: with the pins that count."""
        policy, now_ms = self.policy, round(self.now * 1000)
        ids = expirable(
            metadata, now_ms, policy.retention_ms, policy.snapshot_min_retained, table.protected, table.pinned
        )
        return [snapshot_id for snapshot_id in ids if snapshot_id in due.snapshot_ids]


_Decision = Callable[[TableCondition, bool], MaintenanceOperation | None]

DECISIONS: tuple[_Decision, ...] = (
    lambda table, requested: rewrite_of(table.figures, table.policy, table.key, requested=requested),
    lambda table, requested: position_deletes_of(table.figures, table.policy, requested=requested),
    lambda table, requested: manifests_of(
        table.figures, table.policy, requested=requested, names_removed=table.names_removed
    ),
    lambda table, requested: expiry_of(
        table.metadata,
        table.table.protected,
        table.policy,
        round(table.now * 1000),
        requested=requested,
        pinned=table.table.pinned,
    ),
    lambda table, requested: sweep_of(table.figures, table.policy, table.past, requested=requested),
)
"""Decides on each operation, in the order in which they run: each makes work for the next."""


def rewrite_of(
    figures: TableStats, policy: Policy, key: tuple[str, ...], *, requested: bool
) -> RewriteDataFiles | None:
    """The rewrite of data files that is due, or None. With `requested`, also one below the policy's thresholds."""
    bounds = class_bounds(policy.rewrite_target_bytes)
    min_files = 2 if requested else policy.rewrite_min_input_files
    small = _small_file_class(figures, policy, bounds, min_files, requested=requested)
    deletes = policy.delete_compaction_enabled and figures.delete_rows >= (
        1 if requested else max(policy.delete_compaction_min_rows, policy.delete_compaction_ratio * figures.records)
    )
    if small is None and not deletes:
        return None
    reasons = []
    if small is not None:
        reasons.append(f"{small[1]} data files below {small[0]} bytes")
    if deletes:
        reasons.append(f"{figures.delete_rows} rows in {figures.delete_files} delete files")
    small_below = small[0] if small is not None else bounds[-1] if policy.rewrite_enabled else 0
    max_files = _max_files(figures, policy, None if deletes else small_below)
    return RewriteDataFiles(
        " and ".join(reasons),
        RewriteRequest(
            target_bytes=policy.rewrite_target_bytes,
            small_below=small_below,
            min_input_files=min_files,
            max_group_bytes=policy.rewrite_max_group_bytes,
            sort_by=key if policy.rewrite_strategy == "sort" else (),
            deletes=deletes,
            max_files=max_files,
        ),
        # Each part replaces at least that many files by one, or rewrites that many without their deletes.
        parts=1 if max_files is None else figures.data_files // (max_files - 1) + 1,
    )


def _in_parts(figures: TableStats, policy: Policy) -> bool:
    return figures.data_bytes > policy.rewrite_max_group_bytes


def _max_files(figures: TableStats, policy: Policy, small_below: int | None) -> int | None:
    """Maximum number of files per commit; None for no limit. If only files below `small_below` bytes are rewritten,
    these determine the number; with None, files with deletes are rewritten too, whatever their size."""
    if not _in_parts(figures, policy):
        return None
    size = small_below or max(policy.rewrite_target_bytes, figures.data_bytes // max(figures.data_files, 1))
    return max(2, policy.rewrite_max_group_bytes // size)


def _small_file_class(
    figures: TableStats, policy: Policy, bounds: tuple[int, ...], min_files: int, *, requested: bool
) -> tuple[int, int] | None:
    """The size in bytes below which files are to be merged, and the number of such files; None if there are too few."""
    if not policy.rewrite_enabled:
        return None
    if requested:
        return (bounds[0], figures.small_files) if figures.small_files >= min_files else None
    full = [place for place, count in enumerate(figures.small_by_class) if count >= min_files]
    if not full:
        return None
    # A rewrite in parts merges the smallest files only: a part has room for few larger ones, so these would have to be
    # merged again.
    place = full[-1] if _in_parts(figures, policy) else full[0]
    return bounds[place], sum(figures.small_by_class[place:])


def position_deletes_of(figures: TableStats, policy: Policy, *, requested: bool) -> RewritePositionDeletes | None:
    """The rewrite of position-delete files that is due, or None."""
    min_files = 2 if requested else policy.position_delete_rewrite_min_files
    together = figures.position_delete_files_together
    files = figures.position_delete_files if together is None else together
    if not policy.position_delete_rewrite_enabled or files < min_files:
        return None
    return RewritePositionDeletes(f"{files} position-delete files", 2 if requested else 5)


def manifests_of(
    figures: TableStats, policy: Policy, *, requested: bool, names_removed: bool = False
) -> RewriteManifests | None:
    """The rewrite of manifests that is due, or None. Even on request it needs ten: fewer are not worth a commit, unless
    one `names_removed` files, with the bounds of their columns, which are values of rows that may be gone."""
    min_files = min(10, policy.manifest_rewrite_min_manifests) if requested else policy.manifest_rewrite_min_manifests
    if not policy.manifest_rewrite_enabled:
        return None
    if figures.manifests >= min_files:
        return RewriteManifests(f"{figures.manifests} manifests")
    return RewriteManifests("bounds of removed files") if requested and names_removed else None


def expiry_of(
    metadata: TableMetadata,
    protected: Collection[int],
    policy: Policy,
    now_ms: int,
    *,
    requested: bool,
    pinned: Collection[int] = (),
) -> ExpireSnapshots | None:
    """The expiry of snapshots that is due, or None. `protected`: IDs of snapshots that must stay, of which readers may
    need `pinned`."""
    if not policy.snapshot_expiry_enabled or ages_by_branch(metadata):
        return None
    ids = expirable(metadata, now_ms, policy.retention_ms, policy.snapshot_min_retained, protected, pinned)
    if len(ids) < (1 if requested else policy.snapshot_expiry_min_snapshots):
        return None
    return ExpireSnapshots(f"{len(ids)} snapshots replaced over {policy.snapshot_retention_hours:g} h ago", ids)


def sweep_of(figures: TableStats, policy: Policy, past: PastMaintenance, *, requested: bool) -> SweepFiles | None:
    """The sweep that is due, or None."""
    commits = figures.sequence_number - past.swept_at_sequence
    if not policy.orphan_sweep_enabled or (commits < policy.orphan_sweep_min_commits and not requested):
        return None
    return SweepFiles(f"{commits} commits since the last sweep")


def warnings_of(metadata: TableMetadata, figures: TableStats, policy: Policy) -> list[str]:
    """Warnings about the lake table for `status`."""
    warnings = []
    if figures.equality_delete_rows >= policy.delete_compaction_min_rows:
        warnings.append(
            f"{figures.equality_delete_rows} rows in equality-delete files: some engines read such a table slowly, "
            "others refuse to"
        )
    limit = max(policy.delete_compaction_min_rows, policy.delete_compaction_ratio * figures.records)
    if figures.delete_rows >= 2 * limit:
        warnings.append(f"{figures.delete_rows} deleted rows for {figures.records} rows: compaction does not keep up")
    if figures.small_files >= 10 * policy.rewrite_min_input_files:
        warnings.append(f"{figures.small_files} small data files: compaction does not keep up")
    if figures.manifests >= 2 * policy.manifest_rewrite_min_manifests:
        warnings.append(f"{figures.manifests} manifests")
    if figures.snapshots >= _SNAPSHOTS_MANY:
        warnings.append(f"{figures.snapshots} snapshots in the history: every commit writes all of them again")
    if figures.metadata_bytes >= _METADATA_LARGE:
        warnings.append(f"a metadata file of {figures.metadata_bytes} bytes: every commit writes a new one")
    if policy.snapshot_expiry_enabled and ages_by_branch(metadata):
        warnings.append("a branch has its own snapshot age, by which expiry would ignore read pins: nothing expires")
    if metadata.properties.get("gc.enabled") == "false":
        warnings.append("the table property gc.enabled is false: nothing expires and nothing is swept")
    return warnings
