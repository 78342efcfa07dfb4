"""Table metadata as the spec's JSON document: a new table's, and the next one after a commit, with history thinned.

The document stays a plain dict: whatever another engine put in and this project does not know is carried along.
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

from mirror_pump.errors import ForeignTable, LakeError
from mirror_pump.lake.format.data_files import FORMAT_VERSION
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions, join, read_bytes

MAIN = "main"
"""The branch that `current-snapshot-id` follows."""
COLD = "cold"
"""The branch of a table with heap retention that holds the rows below T alone
(mirror_pump.lake.commit.archive_branch)."""
COLD_CUT = "mirror-pump.cold-cut"
"""Summary key of such snapshots: T, a tier value."""
SEAM_METADATA = "mirror-pump.seam-metadata"
"""Summary key of such snapshots: the metadata file in which it is the current one."""

_COLD_KEPT = 10
"""Of them, the newest that stay in the history although neither published nor pinned: readers who did not pin the one
that they were told of find it for some folds longer."""

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
    """Which snapshots a commit keeps in the metadata; pinned and referenced ones are kept always.

    The document is written whole with every commit, so its length is the commit's cost: 330 snapshots at most by
    default, some 200 kB.
    """

    newest: int = 100
    minutes_for_ms: int = _HOUR_MS
    """Older ones up to this age: one a minute."""
    hours_for_ms: int = 7 * 24 * _HOUR_MS
    """Older ones up to this age: one an hour. Beyond it none."""


DEFAULT_RETENTION = HistoryRetention()


def new_metadata(schema: LakeSchema, location: str, properties: Mapping[str, str], now_ms: int) -> dict[str, Any]:
    """Metadata of an unpartitioned table without a snapshot (Iceberg spec, table metadata, v2)."""
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
    """The metadata document of any engine's table. LakeError if it is missing or damaged, ForeignTable if it is not of
    version 2."""
    document = read_document(location, storage)
    version = document["format-version"]
    if version != FORMAT_VERSION:
        raise ForeignTable(
            f"{location} has Iceberg format version {version}; mirrored tables have {FORMAT_VERSION}",
            "unregister and register the table; no other engine may upgrade its lake table",
        )
    return document


def read_document(location: str, storage: StorageOptions) -> dict[str, Any]:
    """As read_metadata, of any version: its snapshots and branches are there in all of them."""
    content = read_bytes(location, storage)
    try:
        document = dict(orjson.loads(gzip.decompress(content) if content.startswith(_GZIP) else content))
        _ = document["format-version"]
    except (ValueError, KeyError, TypeError, OSError, EOFError) as error:
        raise LakeError(
            f"{location} is no Iceberg table metadata: {error}", "restore the file, or copy the table again"
        ) from error
    return document


def current_schema(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The current schema's JSON."""
    current = metadata["current-schema-id"]
    return dict(next(one for one in metadata["schemas"] if one["schema-id"] == current))


def snapshot_of(metadata: Mapping[str, Any], snapshot_id: int) -> dict[str, Any] | None:
    """A retained snapshot by its ID."""
    # Newest first: that is what nearly every call asks for.
    return next((one for one in reversed(metadata["snapshots"]) if one["snapshot-id"] == snapshot_id), None)


def current_snapshot(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """The snapshot that readers get who name none; None in a table without one."""
    snapshot_id = metadata.get("current-snapshot-id")
    return None if snapshot_id in (None, -1) else snapshot_of(metadata, int(snapshot_id))


def new_snapshot_id(metadata: Mapping[str, Any]) -> int:
    """A random positive 63-bit ID that no retained snapshot has."""
    while True:
        candidate = secrets.randbits(63)
        if candidate and snapshot_of(metadata, candidate) is None:
            return candidate


def metadata_directory(metadata: Mapping[str, Any]) -> str:
    """Where the table's metadata files go."""
    chosen = metadata["properties"].get("write.metadata.path")
    return str(chosen) if chosen else join(metadata["location"], "metadata")


def seam_directory(metadata: Mapping[str, Any]) -> str:
    """Where the metadata files go in which S is the current snapshot: beside `metadata`. Engines that look for a
    table's newest metadata file by themselves (ClickHouse, in all directories below that) must not find these."""
    return join(metadata["location"], "seam")


def seam_location(metadata: Mapping[str, Any], sequence_number: int) -> str:
    """A fresh name for such a file. ClickHouse opens none that is not called as Iceberg's own are: N-uuid, vN or
    vN-uuid."""
    return join(seam_directory(metadata), f"{sequence_number:05d}-{uuid.uuid4()}.metadata.json")


def next_location(metadata: Mapping[str, Any], old_location: str | None) -> str:
    """A fresh name for the next metadata file, numbered after the old one as other engines expect it."""
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
    """The document after `snapshot` became the head of `main`; nothing of the old one is changed.

    Snapshots that `retention` lets go leave the document with their statistics; `keep` and all refs hold theirs.
    """
    timestamp = snapshot["timestamp-ms"]
    result = _grown(metadata, snapshot, MAIN, old_location, keep, retention)
    result["current-snapshot-id"] = snapshot["snapshot-id"]
    retained = {one["snapshot-id"] for one in result["snapshots"]}
    log = [*metadata.get("snapshot-log", ()), {"timestamp-ms": timestamp, "snapshot-id": snapshot["snapshot-id"]}]
    result["snapshot-log"] = _unbroken(log, retained)
    return result


def with_branch(metadata: Mapping[str, Any], name: str, snapshot_id: int) -> dict[str, Any]:
    """The document with a branch at one of its snapshots."""
    return {**metadata, "refs": {**metadata["refs"], name: {"type": "branch", "snapshot-id": snapshot_id}}}


def with_archive_snapshot(
    metadata: Mapping[str, Any],
    snapshot: Mapping[str, Any],
    old_location: str,
    keep: Collection[int],
    retention: HistoryRetention,
) -> dict[str, Any]:
    """The document after `snapshot` became the head of the branch `cold`; the current snapshot stays what it was."""
    result = _grown(metadata, snapshot, COLD, old_location, keep, retention)
    retained = {one["snapshot-id"] for one in result["snapshots"]}
    result["snapshot-log"] = _unbroken(list(metadata.get("snapshot-log", ())), retained)
    return result


def seam_metadata(metadata: Mapping[str, Any], snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """A document of the same table in which `snapshot` is the current one, and the only one."""
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
    """The head of the branch `cold`; None in a table without one."""
    ref = metadata.get("refs", {}).get(COLD)
    return None if ref is None else snapshot_of(metadata, int(ref["snapshot-id"]))


def is_archive_snapshot(snapshot: Mapping[str, Any]) -> bool:
    """Whether a snapshot was made for the branch `cold`."""
    return COLD_CUT in snapshot.get("summary", {})


def seam_locations(metadata: Mapping[str, Any]) -> frozenset[str]:
    """Metadata files beside the table's own that readers of its snapshots may have been told of."""
    named = (one.get("summary", {}).get(SEAM_METADATA) for one in metadata["snapshots"])
    return frozenset(one for one in named if one)


def _grown(
    metadata: Mapping[str, Any],
    snapshot: Mapping[str, Any],
    branch: str,
    old_location: str | None,
    keep: Collection[int],
    retention: HistoryRetention,
) -> dict[str, Any]:
    """The document with one more snapshot, at the head of a branch, and the history thinned."""
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
    retained = {one["snapshot-id"] for one in snapshots}
    if len(snapshots) <= len(metadata["snapshots"]):
        for statistics in ("statistics", "partition-statistics"):
            if metadata.get(statistics):
                result[statistics] = [one for one in metadata[statistics] if one["snapshot-id"] in retained]
    if old_location is not None:
        result["metadata-log"] = log_after(metadata, old_location)
    return result


def log_after(metadata: Mapping[str, Any], location: str) -> list[Mapping[str, Any]]:
    """The metadata log of the document that comes after `metadata`, which is at `location`."""
    entry = {"timestamp-ms": metadata["last-updated-ms"], "metadata-file": location}
    limit = int(metadata["properties"].get(_PREVIOUS_VERSIONS, _PREVIOUS_VERSIONS_DEFAULT))
    return [*metadata.get("metadata-log", ()), entry][-max(limit, 1) :]


def thin(
    snapshots: Sequence[Mapping[str, Any]], held: Collection[int], now_ms: int, retention: HistoryRetention
) -> list[Mapping[str, Any]]:
    """The snapshots to keep, oldest first.

    Of a minute or an hour the oldest snapshot stays: the choice of one commit is then the choice of all later ones.
    Those of the branch `cold` are no part of that: no time travel leads to them. They stay from the oldest held one on.
    """
    ordered = sorted(snapshots, key=_sequence_number)
    cold = [one for one in ordered if is_archive_snapshot(one)]
    if cold:
        # The seam protocol promises that nothing at or above the oldest pinned one expires.
        oldest = next((place for place, one in enumerate(cold) if one["snapshot-id"] in held), len(cold))
        kept_cold = cold[min(oldest, max(len(cold) - _COLD_KEPT, 0)) :]
        ordered = [one for one in ordered if not is_archive_snapshot(one)]
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
    """The end of the snapshot log from the last expired snapshot on (Iceberg spec, snapshot-log): before that, a time
    would be answered with a snapshot older than the one that was current."""
    for index in range(len(log) - 1, -1, -1):
        if log[index]["snapshot-id"] not in retained:
            return list(log[index + 1 :])
    return list(log)
