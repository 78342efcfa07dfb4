"""A table's staged content on top of what other engines did to the table since the staging began.

A table that is copied again is built up on metadata that nobody sees, while everybody goes on with what the catalog
names. Its rows and columns are the mirror's to change; tags, branches, properties, sort orders and statistics are
anybody's. So the former are as the staged document has them, everything else as the present one has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson

from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.commit.schema_evolution import properties_after
from mirror_pump.lake.format.metadata import MAIN, current_schema, log_after, next_location, snapshot_of
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import write_all

_MIRRORED = ("schemas", "current-schema-id", "current-snapshot-id", "snapshot-log", "metadata-log")
"""Parts of the document that say what is in the table, and how that came about."""
_GROWING = ("last-sequence-number", "last-updated-ms", "last-column-id")
_STATISTICS = ("statistics", "partition-statistics")


def rebase(staged: LakeTable, present: Mapping[str, Any]) -> LakeTable:
    """The staged table on top of `present`, the metadata that readers see: itself where nobody did anything, else in a
    new metadata file. Raises LakeError if the storage fails."""
    document = rebased(staged.metadata, present)
    if document == staged.metadata:
        return staged
    document["metadata-log"] = log_after(staged.metadata, staged.metadata_location)
    location = next_location(document, staged.metadata_location)
    write_all([(location, orjson.dumps(document))], staged.storage)
    return replace(staged, metadata=document, metadata_location=location)


def rebased(staged: Mapping[str, Any], present: Mapping[str, Any]) -> dict[str, Any]:
    """The document; equal to `staged` where nobody did anything.

    What others committed to `main` is not in it: the copy has the rows of the table. What they committed to branches of
    their own is.
    """
    head = staged["current-snapshot-id"]
    theirs = present.get("refs", {})
    known = {one["snapshot-id"] for one in staged["snapshots"]}
    brought: dict[int, Mapping[str, Any]] = {}
    for name, ref in theirs.items():
        if name != MAIN:
            brought |= {one["snapshot-id"]: _readable(one, present, staged) for one in _unknown(present, ref, known)}
    result = {
        **present,
        **{key: staged[key] for key in _MIRRORED if key in staged},
        **{key: max(int(staged[key]), int(present[key])) for key in _GROWING},
        "properties": properties_after(
            present["properties"], _schema(present), LakeSchema.from_iceberg_json(current_schema(staged))
        ),
        "refs": {**theirs, MAIN: {**theirs.get(MAIN, {"type": "branch"}), "snapshot-id": head}},
        "snapshots": sorted([*staged["snapshots"], *brought.values()], key=_sequence_number),
    }
    retained = known | brought.keys()
    for name in _STATISTICS:
        if name in present:
            result[name] = [one for one in present[name] if one["snapshot-id"] in retained]
    return result


def _unknown(present: Mapping[str, Any], ref: Mapping[str, Any], known: set[int]) -> Iterator[Mapping[str, Any]]:
    """The snapshots that a tag or branch needs beside those that are known."""
    snapshot = snapshot_of(present, int(ref["snapshot-id"]))
    while snapshot is not None and snapshot["snapshot-id"] not in known:
        yield snapshot
        parent = snapshot.get("parent-snapshot-id") if ref["type"] == "branch" else None
        snapshot = None if parent is None else snapshot_of(present, int(parent))


def _readable(snapshot: Mapping[str, Any], present: Mapping[str, Any], staged: Mapping[str, Any]) -> Mapping[str, Any]:
    """The snapshot, without a schema that is not the staged document's under this ID: another engine may have made one.
    Readers then take the current one."""
    schemas = [one for one in present["schemas"] if one["schema-id"] == snapshot.get("schema-id")]
    if all(one in staged["schemas"] for one in schemas):
        return snapshot
    return {key: value for key, value in snapshot.items() if key != "schema-id"}


def _schema(metadata: Mapping[str, Any]) -> LakeSchema | None:
    """None: another engine gave the table a type that the mirror does not read."""
    try:
        return LakeSchema.from_iceberg_json(current_schema(metadata))
    except LakeError:
        return None


def _sequence_number(snapshot: Mapping[str, Any]) -> int:
    return int(snapshot.get("sequence-number", 0))
