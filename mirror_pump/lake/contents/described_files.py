"""Finds metadata that can be read, and does not describe the files that it names: what a mistaken writer leaves, or a
disk. By it readers pass over files that they need, read one twice, or leave deletes out, without an error.

Rows are not compared here. What one file says is held against what another says: a manifest list, its manifests, and
the footers of Parquet files.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from decoders.columns import ColumnType, Kind
from mirror_pump.errors import FileDamaged
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.bounds import ColumnStatistics, ordered, physical_order
from mirror_pump.lake.format.damaged_files import decoding, file_damaged, open_parquet
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.deletion_vectors import VectorPlace, read_deletion_vectors
from mirror_pump.lake.format.partitioning import applies, buckets_of, partition_values
from mirror_pump.lake.format.position_deletes import PATH_ID, POSITION_ID
from mirror_pump.lake.format.puffin import BlobPlace
from mirror_pump.lake.format.schema import FIELD_ID
from mirror_pump.lake.manifests.manifest_entries import StoredEntry
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.manifests.partition_summaries import are_summaries_of
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import PartitionedColumn

_OURS = "parquet-cpp-arrow"
"""Who has written a Parquet file, as its footer says: then manifests have the bounds of the footer itself."""
_INTEGERS = {4: pa.int32(), 8: pa.int64()}
"""Arrow's types of whole numbers, by the bytes of a bound."""
_DELETE_TYPES = {PATH_ID: ColumnType(Kind.STRING), POSITION_ID: ColumnType(Kind.LONG)}


def described_columns(metadata: TableMetadata) -> dict[int, ColumnType]:
    """The types of columns, by field ID, by which files are held against what manifests say of them."""
    return {field.field_id: field.type for schema in metadata.readable_schemas for field in schema.fields}


def list_contradictions(
    metadata: TableMetadata, snapshot: Snapshot, manifest: Manifest, entries: Sequence[StoredEntry]
) -> Iterator[FileDamaged]:
    """What a manifest says otherwise than its line in the snapshot's list. `entries`: its live ones. Reads no file."""
    for problem in _against_list(metadata, snapshot, manifest, entries):
        yield file_damaged(manifest.path, "what its manifest list says", problem)


class EntryFacts(NamedTuple):
    """What of an entry is compared with other manifests' entries. A table may have millions."""

    path: str
    blob: BlobPlace | None
    is_data: bool
    sequence_number: int
    records: int
    referenced_data_file: str | None
    first_row_id: int | None

    @classmethod
    def of(cls, entry: StoredEntry) -> EntryFacts:
        return cls(
            entry.path,
            entry.blob,
            entry.content == FileContent.DATA,
            entry.sequence_number,
            entry.records,
            entry.referenced_data_file,
            entry.first_row_id,
        )


def entry_contradictions(
    metadata: TableMetadata, snapshot: Snapshot, entries: Sequence[EntryFacts]
) -> Iterator[FileDamaged]:
    """What the manifests of a snapshot say otherwise than each other. `entries`: all live ones. Reads no file."""
    for problem in (*_repeated(entries), *_row_ids(metadata, entries)):
        yield file_damaged(snapshot.manifest_list, "that of a snapshot", problem)


def _against_list(
    metadata: TableMetadata, snapshot: Snapshot, manifest: Manifest, entries: Sequence[StoredEntry]
) -> Iterator[str]:
    files, rows = manifest.live_files, sum(manifest.rows[:2])
    if metadata.format_version > 1 and (len(entries), sum(entry.records for entry in entries)) != (files, rows):
        yield f"it has {len(entries)} files, and the list says {files} with {rows} rows"
    numbers = [entry.sequence_number for entry in entries]
    first, last = min(numbers, default=manifest.min_sequence_number), max(numbers, default=0)
    if first < manifest.min_sequence_number or max(last, manifest.sequence_number) > snapshot.sequence_number:
        yield f"it has data sequence numbers from {first} to {last}, which the list rules out"
    if any((entry.content == FileContent.DATA) is not (manifest.content == 0) for entry in entries):
        yield "it has data and deletes"
    spec = next((spec for spec in metadata.partition_specs if spec.spec_id == manifest.spec_id), None)
    if spec is None:
        yield f"the table has no partition spec {manifest.spec_id}"
        return
    if any(len(entry.partition) != len(spec.fields) for entry in entries):
        yield f"its partitions have other fields than partition spec {manifest.spec_id}"
        return
    partition = metadata.partition_type(manifest.spec_id)
    partitions = [entry.partition for entry in entries]
    if partition is not None and not are_summaries_of(partition, manifest.partitions, partitions):
        yield "it has files of partitions that the list rules out"
    columns = () if spec.partitioning is None else spec.partitioning.fields
    types = described_columns(metadata) if columns else {}
    if not all(_in_partitions(entries, place, column, types) for place, column in enumerate(columns)):
        yield "it has files in other partitions than their bounds say"


def _in_partitions(
    entries: Sequence[StoredEntry], place: int, column: PartitionedColumn, types: Mapping[int, ColumnType]
) -> bool:
    """Whether files are in the partitions of their bounds, by one field of their partition spec. True of transforms of
    which the values need not be between those of the bounds."""
    column_type, transform = types.get(column.field_id), column.transform
    if column_type is None or not column_type.is_ordinal:
        return True
    if buckets_of(transform) is not None or not applies(transform, column_type):
        return True
    # By their lengths: those from before the column was widened were transformed as they are.
    bounds: dict[int, list[tuple[bytes, object]]] = defaultdict(list)
    for entry in entries:
        for of_columns in (entry.lower_bounds, entry.upper_bounds):
            if bound := of_columns.get(column.field_id):
                bounds[len(bound)].append((bound, entry.partition[place]))
    for length, pairs in bounds.items():
        arrow = _INTEGERS.get(length) if column_type.is_whole else column_type.arrow
        if arrow is None or length * 8 != arrow.bit_width:
            return False
        numbers = pa.Array.from_buffers(arrow, len(pairs), [None, pa.py_buffer(b"".join(bound for bound, _ in pairs))])
        if partition_values(numbers, transform).to_pylist() != [value for _, value in pairs]:
            return False
    return True


def _repeated(entries: Sequence[EntryFacts]) -> Iterator[str]:
    names = Counter((entry.path, entry.blob) for entry in entries)
    # A data file has one vector. That of a file which is gone hides nothing: other engines leave it.
    about = Counter(entry.referenced_data_file for entry in entries if entry.blob is not None)
    for (path, _), number in names.items():
        if number > 1:
            yield f"its manifests have {path} {number} times"
    numbers = {entry.path: entry.sequence_number for entry in entries if entry.is_data}
    for entry in entries:
        if numbers.get(entry.referenced_data_file or "", 0) > entry.sequence_number:
            yield f"{entry.path} does not apply to {entry.referenced_data_file}, which has a newer data sequence number"
    for data_file, number in about.items():
        if number > 1:
            yield f"its manifests have {number} deletion vectors of {data_file}"


def _row_ids(metadata: TableMetadata, entries: Sequence[EntryFacts]) -> Iterator[str]:
    if not metadata.has_row_lineage:
        return
    ranges = sorted((entry.first_row_id, entry.records) for entry in entries if entry.first_row_id is not None)
    ends = [*(first for first, _ in ranges[1:]), metadata.next_row_id]
    for (first, records), end in zip(ranges, ends, strict=False):
        if first + records > end:
            yield f"its rows from ID {first} on have IDs that others have, or will have"


def description_digest(entry: StoredEntry) -> bytes:
    """Equal for entries that say the same of the same file."""
    bounds = entry.lower_bounds, entry.upper_bounds
    said = entry.path, entry.blob, entry.format, entry.records, entry.value_counts, entry.null_counts, *bounds
    return blake2b(repr(said).encode(), digest_size=16).digest()


def require_described(entry: StoredEntry, types: Mapping[int, ColumnType], storage: StorageOptions) -> None:
    """Raises FileDamaged if a file is not what its manifest says: by its footer, or the number of rows of a deletion
    vector. Raises FileMissing and LakeError. `types`: of columns by field ID."""
    if entry.blob is not None:
        read_deletion_vectors([VectorPlace(entry.path, entry.blob, entry.records)], storage)
    elif entry.format == "PARQUET":
        with open_parquet(entry.path, storage) as file, decoding(entry.path, "a readable Parquet file"):
            problem = next(_against_footer(entry, file, {**types, **_DELETE_TYPES}), None)
        if problem is not None:
            raise file_damaged(entry.path, "what its manifest says, or the manifest is", problem)


def _against_footer(entry: StoredEntry, file: pq.ParquetFile, types: Mapping[int, ColumnType]) -> Iterator[str]:
    footer = file.metadata
    if footer.num_rows != entry.records:
        yield f"it has {footer.num_rows} rows, and the manifest says {entry.records}"
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    is_ours = str(footer.created_by).startswith(_OURS)
    leaf = 0
    for field in file.schema_arrow:
        field_id = int((field.metadata or {}).get(FIELD_ID, -1))
        if field_id in types and not pa.types.is_nested(field.type):
            statistics = ColumnStatistics.of(groups, leaf)
            nulls = entry.null_counts.get(field_id)
            counted = nulls is None or statistics.nulls is None or nulls == statistics.nulls
            if not counted or entry.value_counts.get(field_id, entry.records) != entry.records:
                yield f"column {field.name} has other numbers of values and NULLs than the manifest says"
            if not _in_bounds(entry, field_id, types[field_id], statistics, is_ours=is_ours):
                yield f"column {field.name} has values beyond the bounds that the manifest has"
        leaf += _leaves(field.type)


def _in_bounds(
    entry: StoredEntry, field_id: int, column_type: ColumnType, statistics: ColumnStatistics, *, is_ours: bool
) -> bool:
    """Whether the bounds of the manifest hold for the values; of numbers that are written here they are the values."""
    lower, upper = (ordered(column_type, bounds.get(field_id)) for bounds in (entry.lower_bounds, entry.upper_bounds))
    if not statistics.minima or lower is None or upper is None:
        return True
    least = min(physical_order(column_type, value) for value in statistics.minima)
    greatest = max(physical_order(column_type, value) for value in statistics.maxima)
    if is_ours and column_type.is_ordinal:
        return bool((lower, upper) == (least, greatest))
    # Other writers may have cut the footer's texts off.
    exact = is_ours or not isinstance(least, bytes)
    return not exact or bool(lower <= least and upper >= greatest)


def _leaves(kind: pa.DataType) -> int:
    """How many columns of a Parquet file hold the values of a type."""
    if pa.types.is_map(kind):
        return _leaves(kind.key_type) + _leaves(kind.item_type)
    fields = [kind.field(number).type for number in range(kind.num_fields)]
    return sum(map(_leaves, fields)) if fields else 1
