"""What maintenance a table's debt calls for. Pure: figures and policy in, operations out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mirror_pump.engine.rewrite_request import Rewrite
from mirror_pump.lake.contents.snapshot_history import ages_by_branch, expirable
from mirror_pump.lake.contents.table_stats import TableStats, class_bounds
from mirror_pump.lake.metadata.table_metadata import TableMetadata
from mirror_pump.policy import Policy

_METADATA_LARGE = 4 << 20
"""Bytes of a metadata file from which on writing it whole with every commit is felt."""
_SNAPSHOTS_MANY = 1000


@dataclass(frozen=True)
class RewriteDataFiles:
    """Merge data files."""

    reason: str
    rewrite: Rewrite
    parts: int = 1
    """Of it, each a commit: that many at most, so that it ends beside a pump which makes more to do all the time."""


@dataclass(frozen=True)
class RewritePositionDeletes:
    """Merge position-delete files."""

    reason: str
    min_input_files: int


@dataclass(frozen=True)
class RewriteManifests:
    """Merge manifests."""

    reason: str


@dataclass(frozen=True)
class ExpireSnapshots:
    """Expire snapshots, delete what only they need."""

    reason: str
    snapshot_ids: tuple[int, ...]


@dataclass(frozen=True)
class SweepFiles:
    """Delete files that nothing refers to."""

    reason: str


Operation = RewriteDataFiles | RewritePositionDeletes | RewriteManifests | ExpireSnapshots | SweepFiles

NAMES: Mapping[type, str] = {
    RewriteDataFiles: "rewrite_data_files",
    RewritePositionDeletes: "rewrite_position_delete_files",
    RewriteManifests: "rewrite_manifests",
    ExpireSnapshots: "expire_snapshots",
    SweepFiles: "remove_orphan_files",
}
"""Each operation's name in the journal: its procedure."""


@dataclass(frozen=True)
class Past:
    """What the journal says of the table's earlier maintenance."""

    swept_at_sequence: int = 0
    """Sequence number at the last sweep."""


def rewrite_of(figures: TableStats, policy: Policy, key: tuple[str, ...], *, asked: bool) -> RewriteDataFiles | None:
    """The rewrite of data files that is due, if one is. `asked`: somebody wants whatever there is to do."""
    bounds = class_bounds(policy.rewrite_target_bytes)
    least = 2 if asked else policy.rewrite_min_input_files
    small = _small(figures, policy, bounds, least, asked=asked)
    deletes = policy.delete_compaction_enabled and figures.delete_rows >= (
        1 if asked else max(policy.delete_compaction_min_rows, policy.delete_compaction_ratio * figures.records)
    )
    if small is None and not deletes:
        return None
    reasons = []
    if small is not None:
        reasons.append(f"{small[1]} data files below {small[0]} bytes")
    if deletes:
        reasons.append(f"{figures.delete_rows} rows in {figures.delete_files} delete files")
    small_below = small[0] if small is not None else bounds[-1] if policy.rewrite_enabled else 0
    most = _most_files(figures, policy, None if deletes else small_below)
    return RewriteDataFiles(
        " and ".join(reasons),
        Rewrite(
            target_bytes=policy.rewrite_target_bytes,
            small_below=small_below,
            min_input_files=least,
            max_group_bytes=policy.rewrite_max_group_bytes,
            sort_by=key if policy.rewrite_strategy == "sort" else (),
            deletes=deletes,
            max_files=most,
        ),
        # Each makes one file of so many at least, or frees so many of their deletes.
        parts=1 if most is None else figures.data_files // (most - 1) + 1,
    )


def _in_parts(figures: TableStats, policy: Policy) -> bool:
    return figures.data_bytes > policy.rewrite_max_group_bytes


def _most_files(figures: TableStats, policy: Policy, small_below: int | None) -> int | None:
    """Files to rewrite, and to commit, at a time; None for all. `small_below`: only files of less bytes are rewritten;
    None: those with deletes too, which are as large as any."""
    if not _in_parts(figures, policy):
        return None
    size = small_below or max(policy.rewrite_target_bytes, figures.data_bytes // max(figures.data_files, 1))
    return max(2, policy.rewrite_max_group_bytes // size)


def _small(
    figures: TableStats, policy: Policy, bounds: tuple[int, ...], least: int, *, asked: bool
) -> tuple[int, int] | None:
    """The size below which files are to be merged, and their number; None if there are not enough."""
    if not policy.rewrite_enabled:
        return None
    if asked:
        return (bounds[0], figures.small_files) if figures.small_files >= least else None
    full = [place for place, count in enumerate(figures.small_by_class) if count >= least]
    if not full:
        return None
    # In parts the smallest come first: a part that larger ones are in has room for few of them, which are merged again.
    place = full[-1] if _in_parts(figures, policy) else full[0]
    return bounds[place], sum(figures.small_by_class[place:])


def position_deletes_of(figures: TableStats, policy: Policy, *, asked: bool) -> RewritePositionDeletes | None:
    """The rewrite of position-delete files that is due, if one is."""
    least = 2 if asked else policy.position_delete_rewrite_min_files
    if not policy.position_delete_rewrite_enabled or figures.position_delete_files < least:
        return None
    return RewritePositionDeletes(f"{figures.position_delete_files} position-delete files", 2 if asked else 5)


def manifests_of(figures: TableStats, policy: Policy, *, asked: bool) -> RewriteManifests | None:
    """The rewrite of manifests that is due, if one is. On request from ten on: fewer are not worth a commit."""
    least = min(10, policy.manifest_rewrite_min_manifests) if asked else policy.manifest_rewrite_min_manifests
    if not policy.manifest_rewrite_enabled or figures.manifests < least:
        return None
    return RewriteManifests(f"{figures.manifests} manifests")


def expiry_of(
    metadata: TableMetadata, protected: Collection[int], policy: Policy, now_ms: int, *, asked: bool
) -> ExpireSnapshots | None:
    """The expiry that is due, if one is."""
    if not policy.snapshot_expiry_enabled or ages_by_branch(metadata):
        return None
    ids = expirable(metadata, now_ms, policy.retention_ms, policy.snapshot_min_retained, protected)
    if len(ids) < (1 if asked else policy.snapshot_expiry_min_snapshots):
        return None
    return ExpireSnapshots(f"{len(ids)} snapshots replaced over {policy.snapshot_retention_hours:g} h ago", ids)


def sweep_of(figures: TableStats, policy: Policy, past: Past, *, asked: bool) -> SweepFiles | None:
    """The sweep that is due, if one is."""
    commits = figures.sequence_number - past.swept_at_sequence
    if not policy.orphan_sweep_enabled or (commits < policy.orphan_sweep_min_commits and not asked):
        return None
    return SweepFiles(f"{commits} commits since the last sweep")


def warnings_of(metadata: TableMetadata, figures: TableStats, policy: Policy) -> list[str]:
    """What somebody should know of a table's lake side, in words."""
    found = []
    if figures.equality_delete_rows >= policy.delete_compaction_min_rows:
        found.append(
            f"{figures.equality_delete_rows} rows in equality-delete files: some engines are slow to read past them, "
            "others refuse"
        )
    limit = max(policy.delete_compaction_min_rows, policy.delete_compaction_ratio * figures.records)
    if figures.delete_rows >= 2 * limit:
        found.append(f"{figures.delete_rows} deleted rows for {figures.records} rows: compaction does not keep up")
    if figures.small_files >= 10 * policy.rewrite_min_input_files:
        found.append(f"{figures.small_files} small data files: compaction does not keep up")
    if figures.manifests >= 2 * policy.manifest_rewrite_min_manifests:
        found.append(f"{figures.manifests} manifests")
    if figures.snapshots >= _SNAPSHOTS_MANY:
        found.append(f"{figures.snapshots} snapshots in the history: every commit writes them all")
    if figures.metadata_bytes >= _METADATA_LARGE:
        found.append(f"a metadata file of {figures.metadata_bytes} bytes: every commit writes one")
    if policy.snapshot_expiry_enabled and ages_by_branch(metadata):
        found.append("a branch has a snapshot age of its own, which expiry would obey against read pins: none is done")
    if metadata.properties.get("gc.enabled") == "false":
        found.append("the table property gc.enabled is false: nothing expires and nothing is swept")
    return found
