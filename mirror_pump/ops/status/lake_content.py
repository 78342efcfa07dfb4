"""Figures of an Iceberg table's current snapshot, read from its metadata file alone, without its manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from mirror_pump.lake.contents.table_stats import TableStats
from mirror_pump.lake.metadata.table_metadata import COLD_CUT, is_archive_snapshot
from mirror_pump.lake.metadata.snapshot_summary import live_rows, pending_since, snapshot_stats


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
    figures: TableStats = field(default_factory=TableStats)
    """The figures that maintenance decisions use, as far as the metadata file has them. Sizes of single files and the
    number of manifests are missing."""
    history: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The part of the metadata document that decides which snapshots expire
    (mirror_pump.lake.contents.snapshot_history)."""


def lake_content(metadata: bytes) -> LakeContent:
    """Return the current snapshot's figures from a table's metadata JSON (Iceberg spec, snapshot summary fields)."""
    document = orjson.loads(metadata)
    current = document.get("current-snapshot-id")
    summary: Mapping[str, str] = next(
        (snapshot["summary"] for snapshot in document.get("snapshots", ()) if snapshot["snapshot-id"] == current), {}
    )

    def total(name: str) -> int:
        return int(summary.get(f"total-{name}", 0))

    since = pending_since(document)
    counted = snapshot_stats(document)
    return LakeContent(
        rows=live_rows(document, summary),
        data_files=total("data-files"),
        delete_files=total("delete-files"),
        equality_deletes=total("equality-deletes"),
        equality_deletes_since=None if since is None else datetime.fromtimestamp(since / 1000, UTC),
        size_bytes=total("files-size"),
        written_bytes=counted.written,
        rewritten_bytes=counted.rewritten,
        figures=TableStats(
            data_files=total("data-files"),
            records=total("records"),
            data_bytes=total("files-size"),
            delete_files=total("delete-files"),
            equality_delete_rows=total("equality-deletes"),
            # Iceberg's summary does not distinguish the kinds of delete files.
            position_delete_files=0 if total("equality-deletes") else total("delete-files"),
            position_delete_rows=total("position-deletes"),
            snapshots=len(document.get("snapshots", ())),
            metadata_bytes=len(metadata),
            sequence_number=int(document.get("last-sequence-number", 0)),
        ),
        history=_history(document),
    )


def _history(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return only what is needed of the document, because it is kept in memory for every table between reads."""
    return {
        "current-snapshot-id": document.get("current-snapshot-id"),
        "refs": document.get("refs", {}),
        "snapshots": [
            {
                "snapshot-id": snapshot["snapshot-id"],
                "sequence-number": snapshot.get("sequence-number", 0),
                "timestamp-ms": snapshot.get("timestamp-ms", 0),
                "summary": {COLD_CUT: ""} if is_archive_snapshot(snapshot) else {},
            }
            for snapshot in document.get("snapshots", ())
        ],
    }
