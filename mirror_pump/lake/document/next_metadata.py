"""The next table metadata document: after a commit, a change of schema, or on top of what other engines did.

Every function returns a new document and leaves the one that it is given as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mirror_pump.errors import ForeignTable, LakeError
from mirror_pump.lake.document.partition_specs import LAST_PARTITION_ID, changed_specs, named_apart, same_specs
from mirror_pump.lake.document.snapshot import Snapshot, sequence_number_of
from mirror_pump.lake.document.snapshot_summary import ARCHIVE_CUT_LINE, FRONTIER_PROPERTY
from mirror_pump.lake.document.snapshot_thinning import HistoryRetention, thin_history
from mirror_pump.lake.document.table_metadata import ARCHIVE_BRANCH, MAIN, NAME_MAPPING, TableMetadata, sort_fields
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.format.versions import VECTOR_VERSION
from mirror_pump.model import LakePartitioning, SortedColumn

_PREVIOUS_VERSIONS = "write.metadata.previous-versions-max"
_PREVIOUS_VERSIONS_DEFAULT = 100
_TAG = "tag"
_STATISTICS = ("statistics", "partition-statistics")
_CONTENT = ("schemas", "current-schema-id", "current-snapshot-id", "snapshot-log", "metadata-log")
"""Keys that describe the table's content and its history."""
_ARCHIVE_PROPERTIES = {"mirror-pump.cut-line": ARCHIVE_CUT_LINE, FRONTIER_PROPERTY: FRONTIER_PROPERTY}
"""Table properties, for people and engines, and the entries of the snapshot's summary that they repeat."""
_GROWING = ("last-sequence-number", "last-updated-ms", "last-column-id", "next-row-id")


def with_snapshot(
    metadata: TableMetadata,
    snapshot: Snapshot,
    old_location: str | None,
    keep: Collection[int],
    retention: HistoryRetention,
) -> TableMetadata:
    """The document with `snapshot` as the head of `main`. `old_location` is where `metadata` is stored, if it is.

    Snapshots that `retention` does not keep are removed together with their statistics. Those in `keep` and those that
    branches and tags name always stay.
    """
    result = _grown(metadata, snapshot, MAIN, old_location, keep, retention)
    result["current-snapshot-id"] = snapshot.snapshot_id
    log = [*metadata.document.get("snapshot-log", ()), _log_entry(snapshot)]
    result["snapshot-log"] = _unbroken(log, _ids(result["snapshots"]))
    return TableMetadata(result)


def with_archive_snapshot(
    metadata: TableMetadata,
    snapshot: Snapshot,
    old_location: str,
    keep: Collection[int],
    retention: HistoryRetention,
) -> TableMetadata:
    """The document with `snapshot` as the head of the archive branch; the current snapshot stays the same."""
    result = _grown(metadata, snapshot, ARCHIVE_BRANCH, old_location, keep, retention)
    result["snapshot-log"] = _unbroken(metadata.document.get("snapshot-log", ()), _ids(result["snapshots"]))
    return TableMetadata(result)


def with_main(
    metadata: TableMetadata, snapshot: Snapshot, away: Collection[int], old_location: str, timestamp_ms: int
) -> TableMetadata:
    """The document with one of its snapshots as the head of `main` again, as of this time in milliseconds since 1970
    UTC, and without the snapshots in `away`. `old_location` is where `metadata` is stored."""
    document, refs = metadata.document, metadata.document.get("refs", {})
    snapshots = [entry for entry in document["snapshots"] if entry["snapshot-id"] not in away]
    retained = _ids(snapshots)
    moved = {"timestamp-ms": timestamp_ms, "snapshot-id": snapshot.snapshot_id}
    changes = {
        "current-snapshot-id": snapshot.snapshot_id,
        "refs": {**refs, MAIN: {**refs.get(MAIN, {"type": "branch"}), "snapshot-id": snapshot.snapshot_id}},
        "snapshots": snapshots,
        "snapshot-log": _unbroken([*document.get("snapshot-log", ()), moved], retained),
        **_statistics_of(document, retained),
    }
    return _successor(metadata, changes, old_location, timestamp_ms)


def with_branch(metadata: TableMetadata, name: str, snapshot_id: int) -> TableMetadata:
    """The document with a branch that points to one of its snapshots."""
    refs = {**metadata.document.get("refs", {}), name: {"type": "branch", "snapshot-id": snapshot_id}}
    return TableMetadata({**metadata.document, "refs": refs})


def with_tags(metadata: TableMetadata, tags: Mapping[str, int], old_location: str, timestamp_ms: int) -> TableMetadata:
    """The document with tags that name some of its snapshots. `old_location` is where `metadata` is stored; the time is
    in milliseconds since 1970 UTC."""
    named = {name: {"type": _TAG, "snapshot-id": snapshot_id} for name, snapshot_id in tags.items()}
    refs = {**metadata.document.get("refs", {}), **named}
    return _successor(metadata, {"refs": refs}, old_location, timestamp_ms)


def without_tags(metadata: TableMetadata, tags: Collection[str], old_location: str, timestamp_ms: int) -> TableMetadata:
    """The document without these tags, arguments as for `with_tags`. The snapshots stay until a commit thins them
    out."""
    refs = {name: ref for name, ref in metadata.document.get("refs", {}).items() if name not in tags}
    return _successor(metadata, {"refs": refs}, old_location, timestamp_ms)


def with_properties(
    metadata: TableMetadata, properties: Mapping[str, str], old_location: str, timestamp_ms: int
) -> TableMetadata:
    """The document with these properties too. `old_location` is where `metadata` is stored; the time is in milliseconds
    since 1970 UTC."""
    changes = {"properties": {**metadata.properties, **properties}}
    return _successor(metadata, changes, old_location, timestamp_ms)


def with_own_properties(metadata: TableMetadata, properties: Mapping[str, str]) -> TableMetadata:
    """The document with these properties too, on which a commit is staged: it is stored nowhere."""
    return TableMetadata({**metadata.document, "properties": {**metadata.properties, **properties}})


def without_snapshots(
    metadata: TableMetadata, snapshot_ids: Collection[int], old_location: str, timestamp_ms: int
) -> TableMetadata:
    """The document without these snapshots, of which no branch or tag may name one, and without their statistics.
    `old_location` is where `metadata` is stored; the time is in milliseconds since 1970 UTC."""
    document = metadata.document
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    if not named.isdisjoint(snapshot_ids):
        raise ValueError(f"branches or tags name snapshots {sorted(named.intersection(snapshot_ids))}")
    snapshots = [entry for entry in document["snapshots"] if entry["snapshot-id"] not in snapshot_ids]
    retained = _ids(snapshots)
    changes = {
        "snapshots": snapshots,
        "snapshot-log": _unbroken(document.get("snapshot-log", ()), retained),
        **_statistics_of(document, retained),
    }
    return _successor(metadata, changes, old_location, timestamp_ms)


def seam_metadata(metadata: TableMetadata, snapshot: Snapshot) -> TableMetadata:
    """A document of the same table in which `snapshot` is the current and only snapshot. If it is an archive snapshot,
    the table's properties say below which cut-line it has the rows, and as of which frontier."""
    properties = {
        name: snapshot.summary.entries[entry]
        for name, entry in _ARCHIVE_PROPERTIES.items()
        if snapshot.is_archive and entry in snapshot.summary.entries
    }
    return TableMetadata(
        {
            **metadata.document,
            "properties": {**metadata.properties, **properties},
            "current-snapshot-id": snapshot.snapshot_id,
            "refs": {MAIN: {"type": "branch", "snapshot-id": snapshot.snapshot_id}},
            "snapshots": [snapshot.document],
            "snapshot-log": [_log_entry(snapshot)],
            "metadata-log": [],
            "statistics": [],
            "partition-statistics": [],
        }
    )


def moment_metadata(metadata: TableMetadata, snapshot: Snapshot) -> TableMetadata:
    """A document of the same table as it was when `snapshot` was current, with the schema of that time."""
    document = seam_metadata(metadata, snapshot).document
    schema_id = snapshot.schema_id
    return TableMetadata(document if schema_id is None else {**document, "current-schema-id": schema_id})


def follower_metadata(metadata: TableMetadata, snapshot: Snapshot, properties: Mapping[str, str]) -> TableMetadata:
    """A document of the same table in which `snapshot` is the current and only one, with its numbers, so that later
    snapshots can be added to it. Its properties are these too."""
    document = seam_metadata(metadata, snapshot).document
    numbers = {"last-sequence-number": snapshot.sequence_number, "last-updated-ms": snapshot.timestamp_ms}
    if snapshot.next_row_id is not None:
        numbers["next-row-id"] = snapshot.next_row_id
    return TableMetadata({**document, **numbers, "properties": {**document["properties"], **properties}})


def moved_document(
    document: Mapping[str, Any], properties: Mapping[str, str], log: Iterable[tuple[str, int]], timestamp_ms: int
) -> dict[str, Any]:
    """A follower's document, with these properties, as the file after those of `log`: their locations and times."""
    entries = [{"metadata-file": location, "timestamp-ms": written} for location, written in log]
    newest = entries[-int(properties[_PREVIOUS_VERSIONS]) :]
    return {**document, "properties": dict(properties), "last-updated-ms": timestamp_ms, "metadata-log": newest}


def only_referenced(metadata: TableMetadata) -> TableMetadata:
    """The document with those of its snapshots only that a branch or tag names, and the current one."""
    named = {ref.snapshot_id for ref in metadata.refs.values()} | {metadata.current_snapshot_id}
    snapshots = [entry for entry in metadata.document.get("snapshots", ()) if entry["snapshot-id"] in named]
    return TableMetadata({**metadata.document, "snapshots": snapshots})


def with_format_version(metadata: TableMetadata, version: int, old_location: str, timestamp_ms: int) -> TableMetadata:
    """The document of a table of format version 2 or later as one of a later version (Iceberg spec, row lineage for
    upgraded tables): its next snapshot assigns row IDs, to the rows that are there too. `old_location` is where
    `metadata` is stored; the time is in milliseconds since 1970 UTC. Raises ValueError for an older version: files of
    the newer one would become unreadable."""
    if version < metadata.format_version:
        raise ValueError(f"{metadata.location} has format version {metadata.format_version} already")
    changes = {"format-version": version, "next-row-id": metadata.next_row_id}
    return _successor(metadata, changes, old_location, timestamp_ms)


def with_next_row_id(metadata: TableMetadata) -> TableMetadata:
    """The document of a library that does not keep the next row ID of a table with row lineage, with one above all that
    its snapshots have assigned."""
    if metadata.format_version < VECTOR_VERSION:
        return metadata
    numbers = [snapshot.next_row_id or 0 for snapshot in metadata.snapshots]
    return TableMetadata({**metadata.document, "next-row-id": max(metadata.next_row_id, *numbers, 0)})


def with_schema(
    metadata: TableMetadata, schema: LakeSchema, known_id: int | None, current: LakeSchema | None
) -> TableMetadata:
    """The document with `schema` as the current schema instead of `current` (None for one that the mirror cannot read).

    `known_id` is the ID under which the table has the schema already; None adds it under a new one. Whether the change
    is allowed is for mirror_pump.lake.commit.schema_evolution.
    """
    document = metadata.document
    result = {
        **document,
        "last-column-id": max(int(document["last-column-id"]), schema.last_column_id),
        "partition-specs": named_apart(document["partition-specs"], schema),
        "properties": _properties_after(metadata.properties, current, schema),
    }
    if known_id is None:
        known_id = max(int(entry["schema-id"]) for entry in document["schemas"]) + 1
        result["schemas"] = [*document["schemas"], replace(schema, schema_id=known_id).to_iceberg_json()]
    result["current-schema-id"] = known_id
    return TableMetadata(result | _order_without_gone_columns(document, schema))


def with_partitioning(metadata: TableMetadata, partitioning: LakePartitioning | None) -> TableMetadata:
    """The document with another partitioning of new files. The table must have no file in its current snapshot, but
    those that the same commit removes: readers look for deletes in the partition of their rows. Raises ValueError for
    one that does not apply to the current schema."""
    document = metadata.document
    last_id = int(document.get("last-partition-id", LAST_PARTITION_ID))
    specs = changed_specs(document["partition-specs"], last_id, metadata.current_schema, partitioning)
    return TableMetadata(
        {
            **document,
            "partition-specs": specs.documents,
            "default-spec-id": specs.default_id,
            "last-partition-id": specs.last_partition_id,
        }
    )


def with_sort_order(
    metadata: TableMetadata, order: Sequence[SortedColumn], old_location: str, timestamp_ms: int
) -> TableMetadata:
    """The document with another order of the rows of new files; none for an empty one. `old_location` is where
    `metadata` is stored; the time is in milliseconds since 1970 UTC."""
    return _successor(metadata, _default_order(metadata.document, sort_fields(order)), old_location, timestamp_ms)


def _order_without_gone_columns(document: Mapping[str, Any], schema: LakeSchema) -> dict[str, Any]:
    """The part of the document about the order of rows, by the columns of `schema` only: engines refuse to load a table
    whose order is by a column that is gone."""
    default = document.get("default-sort-order-id", 0)
    orders = document.get("sort-orders", ())
    fields = next((order["fields"] for order in orders if order["order-id"] == default), ())
    columns = {field.field_id for field in schema.fields}
    left = [field for field in fields if field["source-id"] in columns]
    return {} if len(left) == len(fields) else _default_order(document, left)


def _default_order(document: Mapping[str, Any], fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The part of the document about the order of rows, with this one for new files. One that was there before is used
    again. Order 0 is none (Iceberg spec, sorting)."""
    orders = list(document.get("sort-orders", ()))
    order_id = next((order["order-id"] for order in orders if order["fields"] == list(fields)), None)
    if order_id is None:
        order_id = max((order["order-id"] for order in orders), default=0) + 1 if fields else 0
        orders.append({"order-id": order_id, "fields": list(fields)})
    return {"sort-orders": orders, "default-sort-order-id": order_id}


def with_columns(
    metadata: TableMetadata, schema: Mapping[str, Any], last_column_id: int, name_mapping: str | None
) -> TableMetadata:
    """The document with a schema of any types, in the form of table metadata, as the current one, under a new ID.
    `name_mapping`: the columns of files without field IDs, if there are any."""
    document = metadata.document
    schema_id = metadata.current_schema_id
    result = {**document, "last-column-id": max(int(document["last-column-id"]), last_column_id)}
    if schema["fields"] != metadata.schema_document(schema_id)["fields"]:
        schema_id = max(int(entry["schema-id"]) for entry in document["schemas"]) + 1
        result["schemas"] = [*document["schemas"], {**schema, "schema-id": schema_id}]
        result["current-schema-id"] = schema_id
    if name_mapping is not None:
        result["properties"] = {**metadata.properties, NAME_MAPPING: name_mapping}
    return TableMetadata(result)


def without_log_entries(metadata: TableMetadata, locations: Collection[str]) -> TableMetadata:
    """The document without these former metadata files in its log."""
    log = [entry for entry in metadata.document.get("metadata-log", ()) if entry["metadata-file"] not in locations]
    return TableMetadata({**metadata.document, "metadata-log": log})


def with_content_of(current_metadata: TableMetadata, staged: TableMetadata, stay: Iterable[Snapshot]) -> TableMetadata:
    """The present document with the schemas, the history and the head of `main` of `staged`, another document of the
    same table, and with `stay`, those of its own snapshots that stay.

    Branches, tags, properties, sort orders and statistics stay as they are, except for properties that name columns.
    An order loses columns that are gone. Partition specs are those of the document that has more. Raises ForeignTable
    if each has one that the other lacks.
    """
    old, new = current_metadata.document, staged.document
    refs = old.get("refs", {})
    snapshots = [*new["snapshots"], *(snapshot.document for snapshot in stay)]
    try:
        current = current_metadata.current_schema
    except LakeError:
        current = None
    result = {
        **old,
        **{key: new[key] for key in _CONTENT if key in new},
        **{key: max(int(new.get(key, 0)), int(old[key])) for key in _GROWING if key in old},
        **_specs_after(old, new, staged.current_schema),
        **_order_without_gone_columns(old, staged.current_schema),
        "properties": _properties_after(current_metadata.properties, current, staged.current_schema),
        "refs": {**refs, MAIN: {**refs.get(MAIN, {"type": "branch"}), "snapshot-id": new["current-snapshot-id"]}},
        "snapshots": sorted(snapshots, key=sequence_number_of),
    }
    return TableMetadata(result | _statistics_of(old, _ids(snapshots)))


def with_unknown_keys(made: TableMetadata, base: TableMetadata | None, library_keys: Collection[str]) -> TableMetadata:
    """What a library made of `base`, with the keys of `base` that are not among those that the library knows. Its
    time is after that of `base`, whatever the clock says."""
    unknown = {} if base is None else {key: value for key, value in base.document.items() if key not in library_keys}
    last = 0 if base is None else base.last_updated_ms
    return TableMetadata({**unknown, **made.document, "last-updated-ms": max(made.last_updated_ms, last + 1)})


def with_log_after(metadata: TableMetadata, predecessor: TableMetadata, location: str) -> TableMetadata:
    """The document as the successor of `predecessor`, which is stored at `location`, in the metadata log."""
    return TableMetadata({**metadata.document, "metadata-log": _log_after(predecessor, location)})


def _successor(
    metadata: TableMetadata, changes: Mapping[str, Any], old_location: str, timestamp_ms: int
) -> TableMetadata:
    """The document with other values of these keys, as the one that follows `metadata`, which is stored at
    `old_location`. Its time is never before that one's."""
    return TableMetadata(
        {
            **metadata.document,
            **changes,
            "last-updated-ms": max(timestamp_ms, metadata.last_updated_ms),
            "metadata-log": _log_after(metadata, old_location),
        }
    )


def _grown(
    metadata: TableMetadata,
    snapshot: Snapshot,
    branch: str,
    old_location: str | None,
    keep: Collection[int],
    retention: HistoryRetention,
) -> dict[str, Any]:
    """The document with one more snapshot, as the head of a branch, and the history thinned out."""
    document = metadata.document
    refs = dict(document.get("refs", {}))
    refs[branch] = {**refs.get(branch, {"type": "branch"}), "snapshot-id": snapshot.snapshot_id}
    tagged_ids = {ref["snapshot-id"] for ref in refs.values() if ref.get("type") == _TAG}
    retained_ids = {ref["snapshot-id"] for ref in refs.values() if ref.get("type") != _TAG} | set(keep)
    snapshots = thin_history(
        [*document["snapshots"], snapshot.document], retained_ids, snapshot.timestamp_ms, retention, tagged_ids
    )
    result = {
        **document,
        "last-sequence-number": snapshot.sequence_number,
        "last-updated-ms": snapshot.timestamp_ms,
        "refs": refs,
        "snapshots": snapshots,
    }
    if snapshot.next_row_id is not None:
        result["next-row-id"] = snapshot.next_row_id
    if len(snapshots) <= len(document["snapshots"]):
        result |= _statistics_of(document, _ids(snapshots))
    if old_location is not None:
        result["metadata-log"] = _log_after(metadata, old_location)
    return result


def _specs_after(old: Mapping[str, Any], new: Mapping[str, Any], schema: LakeSchema) -> dict[str, Any]:
    """The part of the document about partitions for the content of `new`, whose files have specs of it. Raises
    ForeignTable if another engine has given `old` another spec meanwhile, and the mirror `new`."""
    if same_specs(old["partition-specs"], new["partition-specs"]):
        source = new
    elif same_specs(new["partition-specs"], old["partition-specs"]):
        source = old
    else:
        raise ForeignTable(
            "another engine partitioned the lake table while its partitions were changed",
            "unregister and register it; only `mirror-pump register TABLE` may partition it",
        )
    ids = {key: source[key] for key in ("default-spec-id", "last-partition-id") if key in source}
    return {"partition-specs": named_apart(source["partition-specs"], schema), **ids}


def _log_after(metadata: TableMetadata, location: str) -> list[Mapping[str, Any]]:
    entry = {"timestamp-ms": metadata.last_updated_ms, "metadata-file": location}
    limit = int(metadata.properties.get(_PREVIOUS_VERSIONS, _PREVIOUS_VERSIONS_DEFAULT))
    return [*metadata.document.get("metadata-log", ()), entry][-max(limit, 1) :]


def _properties_after(properties: Mapping[str, str], current: LakeSchema | None, schema: LakeSchema) -> dict[str, str]:
    """The table's properties after `schema` replaced `current` (None for a schema that the mirror cannot read).

    Properties that name columns follow the new names: Iceberg rejects any change of properties if one names a missing
    column.
    """
    old_properties = {} if current is None else current.engine_properties
    return {key: value for key, value in properties.items() if key not in old_properties} | schema.engine_properties


def _statistics_of(document: Mapping[str, Any], retained: Collection[int]) -> dict[str, Any]:
    """The statistics of the retained snapshots, by the document's keys."""
    return {
        name: [entry for entry in document[name] if entry["snapshot-id"] in retained]
        for name in _STATISTICS
        if name in document
    }


def _ids(snapshots: Iterable[Mapping[str, Any]]) -> set[int]:
    return {snapshot["snapshot-id"] for snapshot in snapshots}


def _log_entry(snapshot: Snapshot) -> dict[str, Any]:
    return {"timestamp-ms": snapshot.timestamp_ms, "snapshot-id": snapshot.snapshot_id}


def _unbroken(log: Sequence[Mapping[str, Any]], retained: Collection[int]) -> list[Mapping[str, Any]]:
    """The end of the snapshot log after its last expired snapshot (Iceberg spec, snapshot-log). With earlier entries,
    a time could be answered with a snapshot older than the one that was current then."""
    for index in range(len(log) - 1, -1, -1):
        if log[index]["snapshot-id"] not in retained:
            return list(log[index + 1 :])
    return list(log)
