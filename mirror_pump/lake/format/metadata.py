"""Table metadata as the spec's JSON document: that of a new table, and the next one after a commit, with old snapshots
thinned out.

The document stays a plain dict, so that anything unknown that another engine put in is preserved.
"""

from __future__ import annotations

import gzip
import re
import secrets
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from mirror_pump.errors import ForeignTable
from mirror_pump.lake.format.damaged_files import decoding
from mirror_pump.lake.format.data_files import FORMAT_VERSION
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions, join, read_bytes

MAIN = "main"
"""The branch that `current-snapshot-id` follows."""
COLD = "cold"
"""The archive branch of a table with heap retention: only the rows below the cut-line
(mirror_pump.lake.commit.archive_branch)."""
COLD_CUT = "mirror-pump.cold-cut"
"""Summary key of archive snapshots: their cut-line, a tier value."""
SEAM_METADATA = "mirror-pump.seam-metadata"
"""Summary key of archive snapshots: the metadata file in which the snapshot is the current one."""

_COLD_KEPT = 10
"""Newest archive snapshots that are kept even if neither published nor pinned, so that readers who have been given one
and did not pin it still find it after a few folds."""

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_PREVIOUS_VERSIONS = "write.metadata.previous-versions-max"
_PREVIOUS_VERSIONS_DEFAULT = 100
_GZIP = b"\x1f\x8b"
_UNPARTITIONED = {"spec-id": 0, "fields": []}
_UNSORTED = {"order-id": 0, "fields": []}
_LAST_PARTITION_ID = 999
"""Partition field IDs begin at 1000 (Iceberg spec)."""


@dataclass(frozen=True)
class HistoryRetention:
    """Which snapshots a commit keeps in the metadata. Pinned and referenced ones are always kept.

    Every commit writes the whole document, so its length determines the commit's cost: by default at most 330
    snapshots, some 200 kB.
    """

    newest: int = 100
    minutes_for_ms: int = _HOUR_MS
    """Of older snapshots up to this age, one a minute is kept."""
    hours_for_ms: int = 7 * 24 * _HOUR_MS
    """Of older snapshots up to this age, one an hour is kept; beyond it none."""


DEFAULT_RETENTION = HistoryRetention()


def new_metadata(schema: LakeSchema, location: str, properties: Mapping[str, str], now_ms: int) -> dict[str, Any]:
    """Metadata of an unpartitioned table without snapshots (Iceberg spec, table metadata, v2)."""
    return {
        "format-version": FORMAT_VERSION,
        "table-uuid": str(uuid.uuid4()),
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": now_ms,
        "last-column-id": schema.last_column_id,
        "schemas": [schema.to_iceberg_json()],
        "current-schema-id": schema.schema_id,
        "partition-specs": [_UNPARTITIONED],
        "default-spec-id": 0,
        "last-partition-id": _LAST_PARTITION_ID,
        "sort-orders": [_UNSORTED],
        "default-sort-order-id": 0,
        "properties": {**schema.engine_properties, **properties},
        "current-snapshot-id": -1,
        "refs": {},
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
    }


def read_metadata(location: str, storage: StorageOptions) -> dict[str, Any]:
    """The metadata document of any engine's table.

    Raises LakeError if it is missing or damaged, ForeignTable if it does not have format version 2.
    """
    document = read_document(location, storage)
    version = document["format-version"]
    if version != FORMAT_VERSION:
        raise ForeignTable(
            f"{location} has Iceberg format version {version}; mirrored tables have version {FORMAT_VERSION}",
            "unregister and register the table; no other engine may upgrade its lake table",
        )
    return document


def read_document(location: str, storage: StorageOptions) -> dict[str, Any]:
    """Like read_metadata, for any format version: all versions have the same snapshots and branches."""
    content = read_bytes(location, storage)
    with decoding(location, "valid Iceberg table metadata"):
        document = dict(orjson.loads(gzip.decompress(content) if content.startswith(_GZIP) else content))
        _ = document["format-version"]
    return document


def current_schema(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of the current schema."""
    current = metadata["current-schema-id"]
    return dict(next(schema for schema in metadata["schemas"] if schema["schema-id"] == current))


def snapshot_of(metadata: Mapping[str, Any], snapshot_id: int) -> dict[str, Any] | None:
    """The retained snapshot with this ID; None if there is none."""
    # Newest first, since nearly every caller asks for a recent snapshot.
    newest_first = reversed(metadata["snapshots"])
    return next((snapshot for snapshot in newest_first if snapshot["snapshot-id"] == snapshot_id), None)


def current_snapshot(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """The snapshot that readers get by default; None in a table without snapshots."""
    snapshot_id = metadata.get("current-snapshot-id")
    return None if snapshot_id in (None, -1) else snapshot_of(metadata, int(snapshot_id))


def new_snapshot_id(metadata: Mapping[str, Any]) -> int:
    """A random positive 63-bit ID that no retained snapshot has."""
    while True:
        candidate = secrets.randbits(63)
        if candidate and snapshot_of(metadata, candidate) is None:
            return candidate


def metadata_directory(metadata: Mapping[str, Any]) -> str:
    """Directory of the table's metadata files."""
    chosen = metadata["properties"].get("write.metadata.path")
    return str(chosen) if chosen else join(metadata["location"], "metadata")


def seam_directory(metadata: Mapping[str, Any]) -> str:
    """Directory of the metadata files in which an archive snapshot is the current one. It is beside `metadata`: engines
    that search for a table's newest metadata file (ClickHouse, in all directories below it) must not find them."""
    return join(metadata["location"], "seam")


def seam_location(metadata: Mapping[str, Any], sequence_number: int) -> str:
    """A new location for such a metadata file. ClickHouse only opens files named like Iceberg's own: N-uuid, vN or
    vN-uuid."""
    return join(seam_directory(metadata), f"{sequence_number:05d}-{uuid.uuid4()}.metadata.json")


def next_location(metadata: Mapping[str, Any], old_location: str | None) -> str:
    """A new location for the next metadata file, numbered after the old one as other engines expect."""
    found = re.match(r"v?(\d+)", old_location.rsplit("/", 1)[-1]) if old_location else None
    version = 0
    if old_location is not None:
        version = int(found[1]) + 1 if found else len(metadata.get("metadata-log", ())) + 1
    return join(metadata_directory(metadata), f"{version:05d}-{uuid.uuid4()}.metadata.json")


def with_snapshot(
    metadata: Mapping[str, Any],
    snapshot: Mapping[str, Any],
    old_location: str | None,
    keep: Collection[int],
    retention: HistoryRetention,
) -> dict[str, Any]:
    """A new document with `snapshot` as the head of `main`; the old document is not modified.

    Snapshots that `retention` does not keep are removed together with their statistics. Those in `keep` and those that
    refs name always stay.
    """
    timestamp = snapshot["timestamp-ms"]
    result = _grown(metadata, snapshot, MAIN, old_location, keep, retention)
    result["current-snapshot-id"] = snapshot["snapshot-id"]
    retained = {retained_snapshot["snapshot-id"] for retained_snapshot in result["snapshots"]}
    log = [*metadata.get("snapshot-log", ()), {"timestamp-ms": timestamp, "snapshot-id": snapshot["snapshot-id"]}]
    result["snapshot-log"] = _unbroken(log, retained)
    return result


def with_branch(metadata: Mapping[str, Any], name: str, snapshot_id: int) -> dict[str, Any]:
    """The document with a branch that points to one of its snapshots."""
    return {**metadata, "refs": {**metadata["refs"], name: {"type": "branch", "snapshot-id": snapshot_id}}}


def with_archive_snapshot(
    metadata: Mapping[str, Any],
    snapshot: Mapping[str, Any],
    old_location: str,
    keep: Collection[int],
    retention: HistoryRetention,
) -> dict[str, Any]:
    """A new document with `snapshot` as the head of the archive branch `cold`; the current snapshot stays the same."""
    result = _grown(metadata, snapshot, COLD, old_location, keep, retention)
    retained = {retained_snapshot["snapshot-id"] for retained_snapshot in result["snapshots"]}
    result["snapshot-log"] = _unbroken(list(metadata.get("snapshot-log", ())), retained)
    return result


def seam_metadata(metadata: Mapping[str, Any], snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """A document of the same table in which `snapshot` is the current and only snapshot."""
    return {
        **metadata,
        "current-snapshot-id": snapshot["snapshot-id"],
        "refs": {MAIN: {"type": "branch", "snapshot-id": snapshot["snapshot-id"]}},
        "snapshots": [snapshot],
        "snapshot-log": [{"timestamp-ms": snapshot["timestamp-ms"], "snapshot-id": snapshot["snapshot-id"]}],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
    }


def archive_snapshot(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """The head of the archive branch `cold`; None in a table without one."""
    ref = metadata.get("refs", {}).get(COLD)
    return None if ref is None else snapshot_of(metadata, int(ref["snapshot-id"]))


def is_archive_snapshot(snapshot: Mapping[str, Any]) -> bool:
    """Whether the snapshot was made for the archive branch `cold`."""
    return COLD_CUT in snapshot.get("summary", {})


def seam_locations(metadata: Mapping[str, Any]) -> frozenset[str]:
    """Metadata files of archive snapshots, beside the table's own, that readers of retained snapshots may know."""
    locations = (snapshot.get("summary", {}).get(SEAM_METADATA) for snapshot in metadata["snapshots"])
    return frozenset(location for location in locations if location)


def _grown(
    metadata: Mapping[str, Any],
    snapshot: Mapping[str, Any],
    branch: str,
    old_location: str | None,
    keep: Collection[int],
    retention: HistoryRetention,
) -> dict[str, Any]:
    """The document with one more snapshot, as the head of a branch, and the history thinned out."""
    timestamp = snapshot["timestamp-ms"]
    refs = dict(metadata.get("refs", {}))
    refs[branch] = {**refs.get(branch, {"type": "branch"}), "snapshot-id": snapshot["snapshot-id"]}
    held = {ref["snapshot-id"] for ref in refs.values()} | set(keep)
    snapshots = thin([*metadata["snapshots"], snapshot], held, timestamp, retention)
    result = {
        **metadata,
        "last-sequence-number": snapshot["sequence-number"],
        "last-updated-ms": timestamp,
        "refs": refs,
        "snapshots": snapshots,
    }
    retained = {retained_snapshot["snapshot-id"] for retained_snapshot in snapshots}
    if len(snapshots) <= len(metadata["snapshots"]):
        for statistics in ("statistics", "partition-statistics"):
            if metadata.get(statistics):
                result[statistics] = [entry for entry in metadata[statistics] if entry["snapshot-id"] in retained]
    if old_location is not None:
        result["metadata-log"] = log_after(metadata, old_location)
    return result


def log_after(metadata: Mapping[str, Any], location: str) -> list[Mapping[str, Any]]:
    """The metadata log of the successor of `metadata`, which is stored at `location`."""
    entry = {"timestamp-ms": metadata["last-updated-ms"], "metadata-file": location}
    limit = int(metadata["properties"].get(_PREVIOUS_VERSIONS, _PREVIOUS_VERSIONS_DEFAULT))
    return [*metadata.get("metadata-log", ()), entry][-max(limit, 1) :]


def thin(
    snapshots: Sequence[Mapping[str, Any]], held: Collection[int], now_ms: int, retention: HistoryRetention
) -> list[Mapping[str, Any]]:
    """The snapshots to keep, oldest first.

    Of a minute or an hour, the oldest snapshot stays, so that all later commits make the same choice. Archive snapshots
    (branch `cold`) do not take part, since no time travel leads to them. They stay from the oldest held one on.
    """
    ordered = sorted(snapshots, key=_sequence_number)
    cold = [snapshot for snapshot in ordered if is_archive_snapshot(snapshot)]
    if cold:
        # The seam protocol promises that nothing at or above the oldest pinned one expires.
        oldest = next((place for place, snapshot in enumerate(cold) if snapshot["snapshot-id"] in held), len(cold))
        kept_cold = cold[min(oldest, max(len(cold) - _COLD_KEPT, 0)) :]
        ordered = [snapshot for snapshot in ordered if not is_archive_snapshot(snapshot)]
        return sorted([*_thinned(ordered, held, now_ms, retention), *kept_cold], key=_sequence_number)
    return _thinned(ordered, held, now_ms, retention)


def _sequence_number(snapshot: Mapping[str, Any]) -> int:
    return int(snapshot.get("sequence-number", 0))


def _thinned(
    ordered: Sequence[Mapping[str, Any]], held: Collection[int], now_ms: int, retention: HistoryRetention
) -> list[Mapping[str, Any]]:
    split = max(len(ordered) - retention.newest, 0)
    kept: list[Mapping[str, Any]] = []
    taken: set[tuple[int, int]] = set()
    for snapshot in ordered[:split]:
        age = now_ms - snapshot["timestamp-ms"]
        if age < retention.minutes_for_ms:
            unit = _MINUTE_MS
        elif age < retention.hours_for_ms:
            unit = _HOUR_MS
        else:
            unit = 0
        slot = (unit, snapshot["timestamp-ms"] // unit) if unit else None
        if snapshot["snapshot-id"] in held or (slot is not None and slot not in taken):
            kept.append(snapshot)
            if slot is not None:
                taken.add(slot)
    return [*kept, *ordered[split:]]


def _unbroken(log: Sequence[Mapping[str, Any]], retained: Collection[int]) -> list[Mapping[str, Any]]:
    """The end of the snapshot log after its last expired snapshot (Iceberg spec, snapshot-log). With earlier entries,
    a time could be answered with a snapshot older than the one that was current then."""
    for index in range(len(log) - 1, -1, -1):
        if log[index]["snapshot-id"] not in retained:
            return list(log[index + 1 :])
    return list(log)
