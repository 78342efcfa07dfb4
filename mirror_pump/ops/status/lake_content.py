"""Figures of an Iceberg table's current snapshot, read from its metadata file alone, without its manifests."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from mirror_pump.lake.contents.snapshot_history import with_same_rows
from mirror_pump.lake.contents.table_stats import TableStats
from mirror_pump.lake.document.metadata_files import metadata_of
from mirror_pump.lake.document.snapshot_stats import live_rows, pending_since, rows_are_exact, snapshot_stats
from mirror_pump.lake.document.snapshot_summary import SnapshotSummary, Total
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.damaged_files import decoding


@dataclass(frozen=True)
class LakeContent:
    """Figures of an Iceberg table's current snapshot, from its summary."""

    rows: int
    """Rows in data files less those that position deletes hide. An upper bound unless `rows_exact`."""
    data_files: int
    delete_files: int
    equality_deletes: int
    """Keys in equality-delete files, each of which may hide a row of an older file. A running pump turns them into
    position deletes once one is `convert_age` old or `convert_rows` are pending; meanwhile DuckDB reads slowly and
    pyiceberg not at all."""
    equality_deletes_since: datetime | None
    """When the oldest of them was committed, by the pump's clock; None if there are none."""
    size_bytes: int
    """Size of the current snapshot's files, delete files included."""
    written_bytes: int
    """Files, delete files included, that the stream and copies have brought since the table was created."""
    rewritten_bytes: int
    """Files that merges and conversions of equality deletes have written in addition; Spark's rewrites are not in it.
    (`written_bytes` + `rewritten_bytes`) / `written_bytes` is the write amplification."""
    rows_exact: bool = True
    """False while there are equality deletes, and after another engine's rewrite or an upgrade to format version 3
    until no position-delete file from before is left."""
    partitioned: bool = False
    """Whether the lake table is partitioned: only files of one partition are merged."""
    same_rows: frozenset[int] = frozenset()
    """IDs of the current snapshot, and of those that hold the same rows: files were only rewritten since."""
    figures: TableStats = field(default_factory=TableStats)
    """The figures that maintenance decisions use, as far as the metadata file has them. Sizes of single files and the
    number of manifests are missing."""
    history: TableMetadata = field(default_factory=lambda: TableMetadata({}), repr=False)
    """The part of the metadata document that decides which snapshots expire: it is kept in memory for every table
    between reads (mirror_pump.lake.contents.snapshot_history)."""


def lake_content(content: bytes, location: str) -> LakeContent:
    """Return the current snapshot's figures from the content of a table's metadata file (Iceberg spec, snapshot summary
    fields). Raises FileDamaged, also if its figures are none, and ForeignTable."""
    metadata = metadata_of(content, location)
    with decoding(location, "valid Iceberg table metadata"):
        return _content_of(metadata, len(content))


def _content_of(metadata: TableMetadata, nbytes: int) -> LakeContent:
    current = metadata.current_snapshot
    summary = current.summary if current is not None else SnapshotSummary({})

    def total(name: Total) -> int:
        return summary.total(name) or 0

    since = pending_since(metadata)
    counted = snapshot_stats(metadata)
    return LakeContent(
        rows=live_rows(metadata, summary),
        rows_exact=rows_are_exact(metadata, summary),
        data_files=total(Total.DATA_FILES),
        delete_files=total(Total.DELETE_FILES),
        equality_deletes=total(Total.EQUALITY_DELETES),
        equality_deletes_since=None if since is None else datetime.fromtimestamp(since / 1000, UTC),
        size_bytes=total(Total.FILES_SIZE),
        written_bytes=counted.written,
        rewritten_bytes=counted.rewritten,
        partitioned=metadata.is_partitioned,
        same_rows=frozenset(with_same_rows(metadata)),
        figures=TableStats(
            data_files=total(Total.DATA_FILES),
            records=total(Total.RECORDS),
            data_bytes=total(Total.FILES_SIZE),
            delete_files=total(Total.DELETE_FILES),
            equality_delete_rows=total(Total.EQUALITY_DELETES),
            # Iceberg's summary does not distinguish the kinds of delete files.
            position_delete_files=0 if total(Total.EQUALITY_DELETES) else total(Total.DELETE_FILES),
            # Each commit merges deletion vectors.
            position_delete_files_together=0 if metadata.has_row_lineage else None,
            position_delete_rows=total(Total.POSITION_DELETES),
            snapshots=len(metadata.snapshots),
            metadata_bytes=nbytes,
            sequence_number=int(metadata.last_sequence_number),
        ),
        history=metadata.expiry_view(),
    )
