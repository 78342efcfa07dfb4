"""Measures what a table's current files cost its readers, from its manifests and without Spark."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.table_stats import TableStats, class_bounds
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.manifests.manifest_files import stored_of
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.storage import StorageOptions


@dataclass
class _ManifestCounts:
    """Sums over a manifest's live files."""

    sizes: list[tuple[PartitionTuple, int]]
    """Lake partition and length of each data file."""
    position_partitions: list[PartitionTuple]
    """The lake partition of each position-delete file that is no deletion vector."""
    records: int = 0
    equality_files: int = 0
    equality_rows: int = 0
    position_rows: int = 0
    vectors: int = 0
    delete_bytes: int = 0


class FileCounter:
    """Measures tables repeatedly. Reads each manifest only once, as manifests never change."""

    def __init__(self, storage: StorageOptions) -> None:
        self._storage = storage
        self._counted: dict[str, _ManifestCounts] = {}

    def measure(self, table: LakeTable, target_bytes: int) -> TableStats:
        """The table's figures, for a target file size in bytes. Raises LakeError if a manifest cannot be read."""
        live = [manifest for manifest in table.manifests if manifest.live_files]
        counts = [self._count(manifest) for manifest in live]
        sizes: dict[PartitionTuple, list[int]] = defaultdict(list)
        for count in counts:
            for partition, size in count.sizes:
                sizes[partition].append(size)
        bounds = class_bounds(target_bytes)
        by_partition = [_by_class(of_partition, bounds) for of_partition in sizes.values()]
        positions = Counter(partition for count in counts for partition in count.position_partitions)
        snapshots = table.metadata.snapshots
        return TableStats(
            data_files=sum(map(len, sizes.values())),
            small_files=max(map(sum, by_partition), default=0),
            small_by_class=tuple(map(max, zip(*by_partition, strict=True))) if by_partition else (0,) * len(bounds),
            records=sum(count.records for count in counts),
            data_bytes=sum(map(sum, sizes.values())),
            delete_files=sum(count.equality_files + count.vectors for count in counts) + positions.total(),
            equality_delete_files=sum(count.equality_files for count in counts),
            equality_delete_rows=sum(count.equality_rows for count in counts),
            position_delete_files=positions.total() + sum(count.vectors for count in counts),
            # Otherwise the pump itself replaces those from before an upgrade, and each commit those of its files.
            position_delete_files_together=max(positions.values(), default=0) if table.deletes.adds_files else 0,
            position_delete_rows=sum(count.position_rows for count in counts),
            delete_bytes=sum(count.delete_bytes for count in counts),
            manifests=len(live),
            snapshots=len(snapshots),
            oldest_snapshot_ms=min((snapshot.timestamp_ms for snapshot in snapshots), default=None),
            metadata_bytes=len(table.metadata.to_json()),
            sequence_number=int(table.metadata.last_sequence_number),
        )

    def forget_all_but(self, tables: Sequence[LakeTable]) -> None:
        """Forgets manifests that none of these tables names."""
        named = {manifest.path for table in tables for manifest in table.manifests}
        self._counted = {path: counts for path, counts in self._counted.items() if path in named}

    def _count(self, manifest: Manifest) -> _ManifestCounts:
        cached_counts = self._counted.get(manifest.path)
        if cached_counts is not None:
            return cached_counts
        counts = self._counted[manifest.path] = _ManifestCounts([], [])
        for entry in stored_of(manifest, self._storage):
            if entry.content == FileContent.DATA:
                counts.sizes.append((entry.partition, entry.size_bytes))
                counts.records += entry.records
                continue
            counts.delete_bytes += entry.size_bytes if entry.blob is None else entry.blob.size
            if entry.content == FileContent.EQUALITY_DELETES:
                counts.equality_files += 1
                counts.equality_rows += entry.records
                continue
            counts.position_rows += entry.records
            if entry.blob is None:
                counts.position_partitions.append(entry.partition)
            else:
                # Each commit merges vectors, so no rewrite has to.
                counts.vectors += 1
        return counts


def _by_class(sizes: Sequence[int], bounds: Sequence[int]) -> tuple[int, ...]:
    below = [sum(size < bound for size in sizes) for bound in bounds]
    return tuple(count - smaller for count, smaller in zip(below, [*below[1:], 0], strict=True))
