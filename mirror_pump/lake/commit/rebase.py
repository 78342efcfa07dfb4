"""Applies a table's staged content on top of what other engines did to the table since the staging began.

A table that is copied again is built up in metadata that nobody sees, while everybody else continues with the metadata
that the catalog names. Only the mirror may change rows and columns; anybody may change tags, branches, properties, sort
orders and statistics. So the result takes the former from the staged document and the latter from the present one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson

from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.commit.schema_evolution import properties_after
from mirror_pump.lake.metadata.table_metadata import (
    MAIN,
    archive_snapshot,
    current_schema,
    is_archive_snapshot,
    log_after,
    next_location,
    snapshot_of,
)
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import write_all

_MIRRORED = ("schemas", "current-schema-id", "current-snapshot-id", "snapshot-log", "metadata-log")
"""Keys of the document that describe the table's content and its history."""
_GROWING = ("last-sequence-number", "last-updated-ms", "last-column-id")
_STATISTICS = ("statistics", "partition-statistics")


def rebase(staged: LakeTable, present: Mapping[str, Any]) -> LakeTable:
    """The staged table on top of `present`, the metadata that readers see.

    Returns `staged` itself if nobody changed anything, else a table with a new metadata file. Raises LakeError if the
    storage fails.
    """
    document = rebased(staged.metadata, present)
    if document == staged.metadata:
        return staged
    document["metadata-log"] = log_after(staged.metadata, staged.metadata_location)
    location = next_location(document, staged.metadata_location)
    write_all([(location, orjson.dumps(document))], staged.storage)
    return replace(staged, metadata=document, metadata_location=location)


def rebased(staged: Mapping[str, Any], present: Mapping[str, Any]) -> dict[str, Any]:
    """The combined document; equal to `staged` if nobody changed anything.

    It does not include what others committed to `main`, since the copy has the table's rows. It includes what they
    committed to their own branches.
    """
    head = staged["current-snapshot-id"]
    their_refs = present.get("refs", {})
    known = {snapshot["snapshot-id"] for snapshot in staged["snapshots"]}
    brought: dict[int, Mapping[str, Any]] = {}
    for name, ref in their_refs.items():
        if name != MAIN:
            brought |= {
                snapshot["snapshot-id"]: _readable(snapshot, present, staged)
                for snapshot in _unknown(present, ref, known)
            }
    result = {
        **present,
        **{key: staged[key] for key in _MIRRORED if key in staged},
        **{key: max(int(staged[key]), int(present[key])) for key in _GROWING},
        "properties": properties_after(
            present["properties"], _schema(present), LakeSchema.from_iceberg_json(current_schema(staged))
        ),
        "refs": {**their_refs, MAIN: {**their_refs.get(MAIN, {"type": "branch"}), "snapshot-id": head}},
        "snapshots": sorted([*staged["snapshots"], *brought.values()], key=_sequence_number),
    }
    retained = known | brought.keys()
    for name in _STATISTICS:
        if name in present:
            result[name] = [entry for entry in present[name] if entry["snapshot-id"] in retained]
    return result


def _has_s(document: Mapping[str, Any]) -> bool:
    """Whether the branch `cold` is ours."""
    head = archive_snapshot(document)
    return head is not None and is_archive_snapshot(head)


def _unknown(present: Mapping[str, Any], ref: Mapping[str, Any], known: set[int]) -> Iterator[Mapping[str, Any]]:
    """The snapshots that a tag or branch needs beyond the known ones."""
    snapshot = snapshot_of(present, int(ref["snapshot-id"]))
    while snapshot is not None and snapshot["snapshot-id"] not in known:
        yield snapshot
        parent = snapshot.get("parent-snapshot-id") if ref["type"] == "branch" else None
        snapshot = None if parent is None else snapshot_of(present, int(parent))


def _readable(snapshot: Mapping[str, Any], present: Mapping[str, Any], staged: Mapping[str, Any]) -> Mapping[str, Any]:
    """The snapshot, without its schema ID unless the staged document has the same schema under this ID: another engine
    may have made one. Readers then use the current schema."""
    schemas = [schema for schema in present["schemas"] if schema["schema-id"] == snapshot.get("schema-id")]
    if all(schema in staged["schemas"] for schema in schemas):
        return snapshot
    return {key: value for key, value in snapshot.items() if key != "schema-id"}


def _schema(metadata: Mapping[str, Any]) -> LakeSchema | None:
    """The current schema; None if another engine added a type that the mirror does not read."""
    try:
        return LakeSchema.from_iceberg_json(current_schema(metadata))
    except LakeError:
        return None


def _sequence_number(snapshot: Mapping[str, Any]) -> int:
    return int(snapshot.get("sequence-number", 0))
