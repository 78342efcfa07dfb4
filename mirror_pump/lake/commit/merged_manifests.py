"""Merges all manifests of a table that are not full, which its commits do only as they become many."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.new_snapshot import NewSnapshot
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.metadata_files import write_metadata
from mirror_pump.lake.document.next_metadata import with_snapshot
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.snapshot_stats import pending_after, snapshot_stats
from mirror_pump.lake.document.snapshot_summary import FileCounts
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.manifests.manifest_list import Manifest, with_line
from mirror_pump.lake.manifests.manifests import ManifestWriter, Removal
from mirror_pump.lake.storage import write_all


@dataclass(frozen=True)
class MergedManifests:
    """Manifests that were merged, and are durable."""

    sources: frozenset[str]
    """URIs of the manifests that they replace."""
    manifests: tuple[Manifest, ...]
    snapshot_id: int
    """ID of the snapshot that is to have them."""
    files: tuple[str, ...]
    """URIs of the manifests."""


def merge_manifests(table: LakeTable) -> MergedManifests | None:
    """Merges the table's manifests, as few as they can be. None if there is nothing to merge. Raises LakeError."""
    writer = ManifestWriter(table.metadata)
    after = writer.merged(table.manifests, table.storage)
    carried = {manifest.path for manifest in after}
    sources = frozenset(manifest.path for manifest in table.manifests) - carried
    if not sources:
        return None
    write_all(writer.files, table.storage)
    new = {location for location, _ in writer.files}
    merged = tuple(manifest for manifest in after if manifest.path in new)
    return MergedManifests(sources, merged, writer.snapshot_id, tuple(location for location, _ in writer.files))


def with_merged_manifests(table: LakeTable, merged: MergedManifests, summary: dict[str, str], now_ms: int) -> LakeTable:
    """Writes a snapshot of the same files, with the merged manifests in place of their sources.

    `summary`: entries of its summary, `now_ms`: milliseconds since 1970 UTC. Raises FileRewriteSuperseded if a source
    has gone meanwhile, and LakeError.
    """
    gone = merged.sources - {manifest.path for manifest in table.manifests}
    if gone:
        raise FileRewriteSuperseded(f"manifest {min(gone)} is not part of the table any more")
    writer = ManifestWriter(table.metadata, merged.snapshot_id)
    made = _SameFiles(writer, table.storage, now_ms, summary, table, merged).make()
    location = write_metadata(made.metadata, table.metadata_location, table.storage, made.files)
    return replace(table, metadata=made.metadata, metadata_location=location, manifests=made.manifests)


@dataclass
class _SameFiles(NewSnapshot):
    """The snapshot that has the merged manifests in place of their sources."""

    table: LakeTable
    merged: MergedManifests

    def removed(self) -> Removal:
        # They name a snapshot of this number. Their entries have numbers of their own.
        number = self.writer.sequence_number
        merged = [with_line(replace(manifest, sequence_number=number)) for manifest in self.merged.manifests]
        others = [manifest for manifest in self.table.manifests if manifest.path not in self.merged.sources]
        return Removal([], [*merged, *others], FileCounts())

    def summary(self) -> dict[str, str]:
        self.only_rewrites = True
        entries = super().summary() | snapshot_stats(self.metadata).to_summary()
        return entries | pending_after(self.metadata, entries, None, self.timestamp_ms)

    def named(self, snapshot: Snapshot) -> TableMetadata:
        every_snapshot = frozenset(past_snapshot.snapshot_id for past_snapshot in self.metadata.snapshots)
        location, retention = self.table.metadata_location, self.table.retention
        return with_snapshot(self.metadata, snapshot, location, every_snapshot, retention)
