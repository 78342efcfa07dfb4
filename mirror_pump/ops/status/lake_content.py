"""Figures of an Iceberg table's current snapshot, read from its metadata file alone, without its manifests."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from mirror_pump.lake.contents.table_stats import TableStats
from mirror_pump.lake.metadata.snapshot_stats import live_rows, pending_since, snapshot_stats
from mirror_pump.lake.metadata.snapshot_summary import SnapshotSummary, Total
from mirror_pump.lake.metadata.table_metadata import TableMetadata


@dataclass(frozen=True)
class LakeContent:
    """Figures of an Iceberg table's current snapshot, from its summary."""

    rows: int
    """Rows in data files minus rows hidden by position deletes. An upper bound while equality deletes are pending."""
    data_files: int
    delete_files: int
    equality_deletes: int
    """Keys in equality-delete files: each hides at most one row of an older file."""
    equality_deletes_since: datetime | None
    """When the oldest of them was committed, by the pump's clock; None if there are none."""
    size_bytes: int
    written_bytes: int
    """Bytes of the files that commits have added since the table was created, without those of rewrites."""
    rewritten_bytes: int
    """Bytes of the files that merges and conversions of equality deletes have written in addition."""
    partitioned: bool = False
    """Whether the lake table is partitioned: only files of one partition are merged."""
    figures: TableStats = field(default_factory=TableStats)
    """The figures that maintenance decisions use, as far as the metadata file has them. Sizes of single files and the
    number of manifests are missing."""
    history: TableMetadata = field(default_factory=lambda: TableMetadata({}), repr=False)
    """The part of the metadata document that decides which snapshots expire: it is kept in memory for every table
    between reads (mirror_pump.lake.contents.snapshot_history)."""


def lake_content(content: bytes) -> LakeContent:
    """Return the current snapshot's figures from a table's metadata JSON (Iceberg spec, snapshot summary fields)."""
    metadata = TableMetadata.from_json(content)
    current = metadata.current_snapshot
    summary = current.summary if current is not None else SnapshotSummary({})

    def total(name: Total) -> int:
        return summary.total(name) or 0

    since = pending_since(metadata)
    counted = snapshot_stats(metadata)
    return LakeContent(
        rows=live_rows(metadata, summary),
        data_files=total(Total.DATA_FILES),
        delete_files=total(Total.DELETE_FILES),
        equality_deletes=total(Total.EQUALITY_DELETES),
        equality_deletes_since=None if since is None else datetime.fromtimestamp(since / 1000, UTC),
        size_bytes=total(Total.FILES_SIZE),
        written_bytes=counted.written,
        rewritten_bytes=counted.rewritten,
        partitioned=metadata.is_partitioned,
        figures=TableStats(
            data_files=total(Total.DATA_FILES),
            records=total(Total.RECORDS),
            data_bytes=total(Total.FILES_SIZE),
            delete_files=total(Total.DELETE_FILES),
            equality_delete_rows=total(Total.EQUALITY_DELETES),
            # Iceberg's summary does not distinguish the kinds of delete files.
            position_delete_files=0 if total(Total.EQUALITY_DELETES) else total(Total.DELETE_FILES),
            position_delete_rows=total(Total.POSITION_DELETES),
            snapshots=len(metadata.snapshots),
            metadata_bytes=len(content),
            sequence_number=int(metadata.last_sequence_number),
        ),
        history=metadata.expiry_view(),
    )
