"""Damage to metadata that can be read: what a writer with a mistake, or a person with an editor, leaves."""

from __future__ import annotations

from collections.abc import Callable

from proofs.damage.damage import damage
from proofs.damage.small_mirror import SmallMirror
from proofs.damage.table_files import ManifestFile, Record, TableFiles, replace_content

Edit = Callable[[TableFiles, ManifestFile, Record], None]
"""Changes the data file's entry with the most rows."""


def _entry(name: str, table: str = "items", content: int = 0, harmless: str = "") -> Callable[[Edit], Edit]:
    """Damage of an entry of a manifest."""
    thing = {0: "entry of a data file", 1: "entry of a delete file"}[content]

    def enter(edit: Edit) -> Edit:
        @damage(thing, name, harmless)
        def _(mirror: SmallMirror) -> None:
            files = mirror.table(table)
            manifest, entry = files.largest(content)
            edit(files, manifest, entry)
            files.write_manifest(manifest)

        return edit

    return enter


def _bound(entry: Record, bounds: str, column: int, value: bytes) -> None:
    (item,) = [item for item in entry["data_file"][bounds] if item["key"] == column]
    item["value"] = value


@_entry("gone, and not counted in the list")
def _gone(_: TableFiles, manifest: ManifestFile, entry: Record) -> None:
    manifest.file.records.remove(entry)
    kind = "existing" if entry["status"] == 0 else "added"
    manifest.line[f"{kind}_files_count"] -= 1
    manifest.line[f"{kind}_rows_count"] -= entry["data_file"]["record_count"]


@_entry("gone, and counted in the list")
def _gone_counted(_: TableFiles, manifest: ManifestFile, entry: Record) -> None:
    manifest.file.records.remove(entry)


@_entry("twice")
def _twice(_: TableFiles, manifest: ManifestFile, entry: Record) -> None:
    manifest.file.records.append(entry)


@_entry("said to be deleted")
def _deleted(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    entry["status"] = 2


@_entry("lower bound of the key raised")
def _lower(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    _bound(entry, "lower_bounds", 1, (30).to_bytes(4, "little"))


@_entry("upper bound of the key lowered")
def _upper(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    _bound(entry, "upper_bounds", 1, (10).to_bytes(4, "little"))


@_entry("lower bound of a text raised")
def _lower_text(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    _bound(entry, "lower_bounds", 2, b"zzz")


@_entry("bounds wider than the values")
def _wider(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    _bound(entry, "lower_bounds", 1, (-1000).to_bytes(4, "little", signed=True))


@_entry("all values of a column said to be NULL")
def _nulls(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    file = entry["data_file"]
    for item in file["null_value_counts"]:
        if item["key"] in (2, 3):
            item["value"] = file["record_count"]


@_entry("number of values wrong")
def _values(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    for item in entry["data_file"]["value_counts"]:
        item["value"] = 0


@_entry("number of rows wrong")
def _records(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    entry["data_file"]["record_count"] -= 1


@_entry("length wrong")
def _length(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    entry["data_file"]["file_size_in_bytes"] += 7


@_entry("data sequence number raised", table="orders")
def _newer(files: TableFiles, __: ManifestFile, entry: Record) -> None:
    entry["sequence_number"] = files.metadata["last-sequence-number"]


@_entry("data sequence number in the future", table="orders")
def _future(files: TableFiles, __: ManifestFile, entry: Record) -> None:
    entry["sequence_number"] = files.metadata["last-sequence-number"] + 50


@_entry(
    "data sequence number lowered",
    harmless="no delete has a number between the two; that of a file which was copied is older than its commit as well",
)
def _older(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    entry["sequence_number"] = 1


@_entry("path of another table's file")
def _path(files: TableFiles, __: ManifestFile, entry: Record) -> None:
    entry["data_file"]["file_path"] = entry["data_file"]["file_path"].replace("/items", "/others")


@_entry("the path of another of its table")
def _path_twice(files: TableFiles, __: ManifestFile, entry: Record) -> None:
    paths = {other["data_file"]["file_path"] for _, other in files.entries(0)} - {entry["data_file"]["file_path"]}
    entry["data_file"]["file_path"] = min(paths)


@_entry("first row ID changed")
def _row_id(files: TableFiles, __: ManifestFile, entry: Record) -> None:
    entry["data_file"]["first_row_id"] = files.metadata["next-row-id"] + 5


@_entry("partition changed", table="events")
def _partition(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    partition = entry["data_file"]["partition"]
    for name in partition:
        partition[name] = (partition[name] or 0) + 7


@_entry("split offsets wrong", harmless="splits of a file of one row group; the reader reads whole files")
def _splits(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    entry["data_file"]["split_offsets"] = [4]


@_entry("number of rows of a vector wrong", content=1)
def _cardinality(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    entry["data_file"]["record_count"] += 1


@_entry("vector of another data file", content=1)
def _vector_elsewhere(files: TableFiles, __: ManifestFile, entry: Record) -> None:
    paths = {other["data_file"]["file_path"] for _, other in files.entries(0)}
    entry["data_file"]["referenced_data_file"] = min(paths - {entry["data_file"]["referenced_data_file"]})


@_entry("vector of a data file that there is not", content=1)
def _vector_nowhere(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    entry["data_file"]["referenced_data_file"] += ".gone"


@_entry("offset of a vector wrong", content=1)
def _offset(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    entry["data_file"]["content_offset"] += 3


@_entry("length of a vector wrong", content=1)
def _vector_length(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    entry["data_file"]["content_size_in_bytes"] -= 3


@_entry("gone, and not counted in the list", content=1)
def _delete_gone(files: TableFiles, manifest: ManifestFile, entry: Record) -> None:
    _gone(files, manifest, entry)


@_entry("data sequence number older than its data file's", table="orders", content=1)
def _delete_older(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    entry["sequence_number"] = 1


@_entry("bounds of paths name another file", table="orders", content=1)
def _paths(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    for bounds in ("lower_bounds", "upper_bounds"):
        for item in entry["data_file"][bounds] or ():
            if item["key"] == 2147483546:
                item["value"] = b"file:///a"
    if entry["data_file"].get("referenced_data_file"):
        entry["data_file"]["referenced_data_file"] = "file:///a"


@_entry("its kind changed: data", table="orders", content=1)
def _kind(_: TableFiles, __: ManifestFile, entry: Record) -> None:
    entry["data_file"]["content"] = 0


# Manifest lists


def _line(name: str, table: str = "items", harmless: str = "") -> Callable[[Edit], Edit]:
    """Damage of a line of a manifest list: that of the manifest whose data file has the most rows."""

    def enter(edit: Edit) -> Edit:
        @damage("line of a manifest list", name, harmless)
        def _(mirror: SmallMirror) -> None:
            files = mirror.table(table)
            manifest, entry = files.largest(0)
            edit(files, manifest, entry)
            files.write_list()

        return edit

    return enter


@_line("gone")
def _line_gone(files: TableFiles, manifest: ManifestFile, _: Record) -> None:
    files.manifest_list.records.remove(manifest.line)


@_line("twice")
def _line_twice(files: TableFiles, manifest: ManifestFile, _: Record) -> None:
    files.manifest_list.records.append(manifest.line)


@_line("no live file counted")
def _uncounted(_: TableFiles, manifest: ManifestFile, __: Record) -> None:
    for kind in ("added", "existing"):
        manifest.line[f"{kind}_files_count"] = manifest.line[f"{kind}_rows_count"] = 0


@_line("number of rows wrong")
def _line_rows(_: TableFiles, manifest: ManifestFile, __: Record) -> None:
    manifest.line["added_rows_count"] += 5


@_line("length of the manifest wrong")
def _line_length(_: TableFiles, manifest: ManifestFile, __: Record) -> None:
    manifest.line["manifest_length"] += 5


@_line("least data sequence number raised")
def _line_least(files: TableFiles, manifest: ManifestFile, __: Record) -> None:
    manifest.line["min_sequence_number"] = files.metadata["last-sequence-number"]


@_line("sequence number raised")
def _line_number(files: TableFiles, manifest: ManifestFile, __: Record) -> None:
    manifest.line["sequence_number"] = files.metadata["last-sequence-number"] + 5


@_line("content changed: deletes")
def _line_content(_: TableFiles, manifest: ManifestFile, __: Record) -> None:
    manifest.line["content"] = 1


@_line("partition spec changed", table="events")
def _line_spec(_: TableFiles, manifest: ManifestFile, __: Record) -> None:
    manifest.line["partition_spec_id"] += 3


@_line("bounds of partitions changed", table="events")
def _line_partitions(_: TableFiles, manifest: ManifestFile, __: Record) -> None:
    for summary in manifest.line["partitions"] or ():
        if summary["lower_bound"] is not None:
            summary["lower_bound"] = summary["upper_bound"] = b"\xff" * (len(summary["lower_bound"]) - 1) + b"\x7f"


@_line("first row ID changed")
def _line_row_id(files: TableFiles, manifest: ManifestFile, __: Record) -> None:
    manifest.line["first_row_id"] = files.metadata["next-row-id"] + 100


# Metadata


def _document(name: str, table: str = "items", harmless: str = "") -> Callable[[Callable[[TableFiles], None]], None]:
    """Damage of what a metadata file says."""

    def enter(edit: Callable[[TableFiles], None]) -> None:
        @damage("what metadata says", name, harmless)
        def _(mirror: SmallMirror) -> None:
            files = mirror.table(table)
            edit(files)
            files.write_metadata()

    return enter


def _older_snapshot(files: TableFiles) -> Record:
    snapshots: list[Record] = files.metadata["snapshots"]
    return sorted(snapshots, key=lambda snapshot: int(snapshot["sequence-number"]))[-2]


@_document("an older snapshot is the current one")
def _older_current(files: TableFiles) -> None:
    snapshot_id = _older_snapshot(files)["snapshot-id"]
    files.metadata["current-snapshot-id"] = snapshot_id
    files.metadata["refs"]["main"]["snapshot-id"] = snapshot_id


@_document("branch main moved, and not the current snapshot")
def _main(files: TableFiles) -> None:
    files.metadata["refs"]["main"]["snapshot-id"] = _older_snapshot(files)["snapshot-id"]


@_document("no current snapshot")
def _no_snapshot(files: TableFiles) -> None:
    files.metadata["current-snapshot-id"] = -1
    files.metadata["refs"].pop("main")


@_document("the frontier of its snapshot raised")
def _frontier_up(files: TableFiles) -> None:
    _shift_frontier(files, 1 << 20)


@_document("the frontier of its snapshot lowered")
def _frontier_down(files: TableFiles) -> None:
    _shift_frontier(files, -500)


def _shift_frontier(files: TableFiles, by: int) -> None:
    summary = files.snapshot["summary"]
    names = [name for name in summary if "lsn" in name or "frontier" in name]
    assert names, summary
    for name in names:
        high, low = (int(part, 16) for part in summary[name].split("/"))
        summary[name] = f"{high:X}/{low + by:X}"


@_document("totals of its snapshot wrong", harmless="figures of status and of planners; rows are counted by manifests")
def _totals(files: TableFiles) -> None:
    files.snapshot["summary"]["total-records"] = "7"
    files.snapshot["summary"]["total-data-files"] = "1"


def _fields(files: TableFiles) -> list[Record]:
    current = files.metadata["current-schema-id"]
    (schema,) = [schema for schema in files.metadata["schemas"] if schema["schema-id"] == current]
    fields: list[Record] = schema["fields"]
    return fields


@_document("IDs of two columns exchanged")
def _ids(files: TableFiles) -> None:
    fields = _fields(files)
    fields[0]["id"], fields[2]["id"] = fields[2]["id"], fields[0]["id"]


@_document("names of two columns exchanged")
def _names(files: TableFiles) -> None:
    fields = _fields(files)
    fields[0]["name"], fields[2]["name"] = fields[2]["name"], fields[0]["name"]


@_document("a column renamed")
def _renamed(files: TableFiles) -> None:
    _fields(files)[2]["name"] = "m"


@_document("a column gone")
def _column(files: TableFiles) -> None:
    _fields(files).pop()


@_document("a column's type changed", harmless="the wider type has every value as well")
def _type(files: TableFiles) -> None:
    _fields(files)[2]["type"] = "long"


@_document("a schema ID that there is not")
def _schema(files: TableFiles) -> None:
    files.metadata["current-schema-id"] = 99


@_document("the next row ID lowered")
def _next_row_id(files: TableFiles) -> None:
    files.metadata["next-row-id"] = 3


@_document("the last sequence number lowered")
def _last_number(files: TableFiles) -> None:
    files.metadata["last-sequence-number"] = 1


@_document("the last column ID lowered")
def _last_column(files: TableFiles) -> None:
    files.metadata["last-column-id"] = 1


@_document("another UUID")
def _uuid(files: TableFiles) -> None:
    files.metadata["table-uuid"] = "00000000-0000-4000-8000-000000000000"


@_document("another location")
def _location(files: TableFiles) -> None:
    files.metadata["location"] = files.metadata["location"].replace("/items", "/others")


@_document("properties gone")
def _properties(files: TableFiles) -> None:
    files.metadata["properties"] = {}


@_document("tags and branches but main gone", table="events")
def _refs(files: TableFiles) -> None:
    files.metadata["refs"] = {"main": files.metadata["refs"]["main"]}


@_document("the archive branch moved", table="events")
def _archive(files: TableFiles) -> None:
    branches = [name for name in files.metadata["refs"] if name != "main"]
    assert branches, files.metadata["refs"]
    for name in branches:
        files.metadata["refs"][name]["snapshot-id"] = files.metadata["current-snapshot-id"]


@_document("tags of moments gone")
def _tags(files: TableFiles) -> None:
    files.metadata["refs"] = {"main": files.metadata["refs"]["main"]}


@_document(
    "older snapshots gone from the history",
    harmless="moments have metadata of their own; time travel says that they are gone",
)
def _history(files: TableFiles) -> None:
    files.metadata["snapshots"] = [files.snapshot]
    files.metadata["snapshot-log"] = files.metadata["snapshot-log"][-1:]


@_document("a statistics file that there is not", harmless="planners of other engines alone use it")
def _statistics(files: TableFiles) -> None:
    files.metadata["statistics"] = [
        {
            "snapshot-id": files.metadata["current-snapshot-id"], "statistics-path": "file:///gone.puffin",
            "file-size-in-bytes": 10, "file-footer-size-in-bytes": 5, "blob-metadata": [],
        }
    ]  # fmt: skip


@_document("partition spec changed", table="events")
def _spec(files: TableFiles) -> None:
    for spec in files.metadata["partition-specs"]:
        for field in spec["fields"]:
            field["source-id"] = 2


@_document("time of its snapshot in the future")
def _time(files: TableFiles) -> None:
    files.snapshot["timestamp-ms"] += 86_400_000
    files.metadata["last-updated-ms"] += 86_400_000
    files.metadata["snapshot-log"][-1]["timestamp-ms"] += 86_400_000


@_document("format version changed")
def _version(files: TableFiles) -> None:
    files.metadata["format-version"] = 2


# Feeds and moments


@damage("change feed", "an entry of a data file gone, and not counted")
def _feed_entry(mirror: SmallMirror) -> None:
    files = mirror.feed
    manifest, entry = files.largest(0)
    _gone(files, manifest, entry)
    files.write_manifest(manifest)


@damage("change feed", "an entry of a data file twice")
def _feed_twice(mirror: SmallMirror) -> None:
    files = mirror.feed
    manifest, entry = files.largest(0)
    manifest.file.records.append(entry)
    files.write_manifest(manifest)


@damage("change feed", "bounds of frontiers wrong")
def _feed_bounds(mirror: SmallMirror) -> None:
    files = mirror.feed
    manifest, entry = files.largest(0)
    for item in entry["data_file"]["lower_bounds"]:
        if len(item["value"]) == 8:
            item["value"] = b"\xff" * 7 + b"\x7f"
    files.write_manifest(manifest)


@damage("change feed", "an older snapshot is the current one")
def _feed_older(mirror: SmallMirror) -> None:
    files = mirror.feed
    _older_current_of(files)


@damage("moment", "an entry of a data file gone, and not counted")
def _moment_entry(mirror: SmallMirror) -> None:
    files = mirror.moment
    manifest, entry = files.largest(0)
    _gone(files, manifest, entry)
    files.write_manifest(manifest)


@damage("moment", "its metadata has another table's content")
def _moment_another(mirror: SmallMirror) -> None:
    replace_content(mirror.moment.metadata_path, mirror.table("others").metadata_path.read_bytes())


def _older_current_of(files: TableFiles) -> None:
    snapshot_id = _older_snapshot(files)["snapshot-id"]
    files.metadata["current-snapshot-id"] = snapshot_id
    files.metadata["refs"]["main"]["snapshot-id"] = snapshot_id
    files.write_metadata()
