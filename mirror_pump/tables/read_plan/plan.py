"""Plans a read: from a snapshot's manifest list to its manifests and to the files that may have matching rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import ManifestContent
from pyiceberg.schema import Schema

from mirror_pump.errors import ForeignTable
from mirror_pump.lake.contents.delete_index import DeleteFile, DeleteIndex
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.damaged_files import decoding
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.format.position_deletes import PATH_ID
from mirror_pump.lake.format.puffin import BlobPlace
from mirror_pump.lake.manifests.entry_reader import (
    CONTENT,
    CONTENT_OFFSET,
    CONTENT_SIZE,
    EQUALITY_IDS,
    FORMAT,
    LOWER_BOUNDS,
    PARTITION,
    PATH,
    RECORDS,
    REFERENCED_DATA_FILE,
    SEQUENCE_NUMBER,
    SIZE_BYTES,
    UPPER_BOUNDS,
    EntryReader,
    PartitionField,
)
from mirror_pump.lake.manifests.manifest_list import Manifest, read_manifest
from mirror_pump.lake.storage import StorageOptions, local_path
from mirror_pump.tables.metadata.table_view import (
    SpecField,
    check_readable,
    chosen_snapshot,
    manifests_of,
    partition_specs,
    read_schema,
)
from mirror_pump.tables.read_plan.file_entries import FileEntries, file_test
from mirror_pump.tables.read_plan.metadata_columns import LINEAGE_FIELDS, projected_columns
from mirror_pump.tables.read_plan.partition_pruning import PartitionFilter
from mirror_pump.tables.read_plan.planned_files import FileColumns, PlanCounts, PlannedFile, PlannedFiles, ReadPlan
from mirror_pump.tables.read_plan.predicates import Predicate, always, bound_predicate, columns_of

_AHEAD = 8
"""Manifests that are fetched from a remote store while one is decoded: each is a round trip."""


def read_plan(
    metadata: TableMetadata,
    storage: StorageOptions,
    predicate: Predicate = AlwaysTrue(),  # noqa: B008 - a singleton
    snapshot_id: int | None = None,
    columns: Sequence[str] | None = None,
) -> ReadPlan:
    """The files of a snapshot, by default the current one, that may have rows which match the predicate.

    Never leaves out a file with a matching row (docs/lake/read-plan-correctness.md). Opens a manifest only if its
    partition summaries allow a match. `columns`: those that a scan of the plan returns, by default all of the table's;
    besides these `_file` and `_pos`, and `_row_id` and `_last_updated_sequence_number` of format version 3. Memory:
    about 200 bytes for each planned file, and one manifest.

    Raises UsageError for a predicate, a snapshot or a column that the table does not have; ForeignTable for a table of
    format version 4 or later, or with columns of types that are not known here; FileMissing, FileDamaged and LakeError
    for what cannot be read.
    """
    check_readable(metadata)
    snapshot = chosen_snapshot(metadata, snapshot_id)
    schema = read_schema(metadata, snapshot_id)
    bound = bound_predicate(predicate, schema)
    projected = projected_columns(metadata, schema, columns)
    with_lineage = not LINEAGE_FIELDS.isdisjoint(field.field_id for field in projected.fields)
    planner = _Planner(metadata, storage, bound, schema, with_lineage=with_lineage)
    manifests = () if snapshot is None else manifests_of(snapshot, storage)
    files, deletes = planner.plan(manifests)
    return ReadPlan(
        metadata=metadata,
        storage=storage,
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        schema=schema,
        projection=projected,
        predicate=bound,
        counts=planner.counts,
        deletes=deletes,
        columns=files,
        filters=planner.filters,
    )


def planned_files(
    metadata: TableMetadata,
    storage: StorageOptions,
    predicate: Predicate = AlwaysTrue(),  # noqa: B008 - a singleton
    snapshot_id: int | None = None,
) -> Iterator[PlannedFile]:
    """The files of `read_plan`, one after the other, of which nothing is kept.

    Memory: two manifests and the deletes, whatever the size of the table. Raises the errors of `read_plan`, those of a
    manifest when it is reached.
    """
    check_readable(metadata)
    snapshot = chosen_snapshot(metadata, snapshot_id)
    bound = bound_predicate(predicate, schema := read_schema(metadata, snapshot_id))
    planner = _Planner(metadata, storage, bound, schema)
    for part, deletes in planner.parts(() if snapshot is None else manifests_of(snapshot, storage)):
        yield from PlannedFiles([part], deletes, planner.filters, bound)


class _Planner:
    """One plan: what has been counted so far, and the predicate as each partition spec sees it."""

    def __init__(
        self,
        metadata: TableMetadata,
        storage: StorageOptions,
        predicate: Any,
        schema: Schema,
        *,
        with_lineage: bool = False,
    ) -> None:
        self._with_lineage = with_lineage
        self._location = metadata.location
        self._storage = storage
        self._specs = partition_specs(metadata)
        self.filters = {spec_id: PartitionFilter(predicate, schema, fields) for spec_id, fields in self._specs.items()}
        test_columns = tuple(sorted(columns_of(predicate)))
        test = file_test(predicate, test_columns)
        self._file_test = None if test is always else test
        self._columns = () if test is always else test_columns
        self.counts = PlanCounts()

    def plan(self, manifests: Sequence[Manifest]) -> tuple[list[FileColumns], DeleteIndex]:
        data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
        deletes = [manifest for manifest in manifests if manifest.content != ManifestContent.DATA]
        files = [
            columns for manifest, content in self._opened(data) if (columns := self._data_files(manifest, content))
        ]
        least = min((columns.least_sequence_number for columns in files), default=None)
        return files, self._deletes(deletes, least)

    def parts(self, manifests: Sequence[Manifest]) -> Iterator[tuple[FileColumns, DeleteIndex]]:
        """The planned files of one data manifest after the other, each with the deletes of all."""
        data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
        deletes = [manifest for manifest in manifests if manifest.content != ManifestContent.DATA]
        index = self._deletes(deletes, min((manifest.min_sequence_number for manifest in data), default=None))
        for manifest, content in self._opened(data):
            if columns := self._data_files(manifest, content):
                yield columns, index

    def _deletes(self, manifests: Sequence[Manifest], least: int | None) -> DeleteIndex:
        """The deletes that may apply to data files with this sequence number or a later one; none without data files.

        A delete that is older than all planned files applies to none of them.
        """
        relevant = [manifest for manifest in manifests if least is not None and manifest.sequence_number >= least]
        self.counts.count_manifests(0, len(manifests) - len(relevant))
        deletes = [
            file for manifest, content in self._opened(relevant) for file in self._delete_files(manifest, content)
        ]
        return DeleteIndex(deletes, frozenset(spec for spec, fields in self._specs.items() if not fields))

    def _opened(self, manifests: Sequence[Manifest]) -> Iterator[tuple[Manifest, bytes]]:
        """The manifests that may name matching files, with their content."""
        chosen = [
            manifest
            for manifest in manifests
            if manifest.live_files and self._filter(manifest).may_contain(manifest.partitions)
        ]
        self.counts.count_manifests(len(chosen), len(manifests) - len(chosen))
        return _contents(chosen, self._storage)

    def _filter(self, manifest: Manifest) -> PartitionFilter:
        partition_filter = self.filters.get(manifest.spec_id)
        if partition_filter is None:
            raise ForeignTable(
                f"{manifest.path} has partition spec {manifest.spec_id}, which {self._location} does not have",
                "repair the table's metadata with the engine that wrote it",
            )
        return partition_filter

    def _data_files(self, manifest: Manifest, content: bytes) -> FileColumns | None:
        """The files of a data manifest that may have matching rows; None if there are none."""
        files = FileColumns(manifest.spec_id)
        with decoding(manifest.path, "a readable manifest"):
            first_row_id = manifest.first_row_id if self._with_lineage else None
            entries = FileEntries(content, self._columns, first_row_id)
            arranged = _arranged(entries.partition, self._specs[manifest.spec_id])
            may_match = self._filter(manifest).may_match

            def partition_of(partition: PartitionTuple) -> PartitionTuple | None:
                partition = arranged(partition)
                return partition if arranged is _unknown_partition or may_match(partition) else None

            for file in entries.files(partition_of, self._file_test):
                files.append(file, manifest.sequence_number)
        files.known_partitions = arranged is not _unknown_partition
        self.counts.entries_seen += entries.entries_seen
        self.counts.entries_kept += len(files)
        return files.sealed() if len(files) else None

    def _delete_files(self, manifest: Manifest, content: bytes) -> list[DeleteFile]:
        partitions = self._filter(manifest)
        deletes = []
        with decoding(manifest.path, "a readable manifest"):
            entries = EntryReader(content, frozenset({LOWER_BOUNDS, UPPER_BOUNDS}))
            partition_of = _arranged(entries.partition, self._specs[manifest.spec_id])
            at = _EntryPlaces(entries)
            for row in entries.live_rows():
                self.counts.deletes_seen += 1
                partition = partition_of(row[at.partition])
                if partition_of is not _unknown_partition and not partitions.may_match(partition):
                    continue
                deletes.append(_delete_file(manifest, at, row, partition))
        self.counts.deletes_kept += len(deletes)
        return deletes


class _EntryPlaces:
    """Where the values of an entry are in a manifest's rows."""

    def __init__(self, entries: EntryReader) -> None:
        places = entries.places
        self.path, self.format, self.partition = places[PATH], places[FORMAT], places[PARTITION]
        self.records, self.size_bytes = places[RECORDS], places[SIZE_BYTES]
        self._sequence_number = places.get(SEQUENCE_NUMBER)
        self._places = places

    def sequence_number(self, row: list[Any]) -> int | None:
        """The entry's own data sequence number; None if it has its manifest's."""
        place = self._sequence_number
        return None if place is None else row[place]

    def optional(self, row: list[Any], field_id: int) -> Any:
        """The value of a field that the manifest may lack."""
        place = self._places.get(field_id)
        return None if place is None else row[place]


def _delete_file(manifest: Manifest, at: _EntryPlaces, row: list[Any], partition: tuple[Any, ...]) -> DeleteFile:
    content = FileContent(at.optional(row, CONTENT))
    sequence_number = at.sequence_number(row)
    positions = content is FileContent.POSITION_DELETES
    named = at.optional(row, REFERENCED_DATA_FILE) if positions else None
    lowest = highest = None
    if named is not None:
        lowest = highest = str(named).encode("utf-8", "surrogatepass")
    elif positions:
        lowest = (at.optional(row, LOWER_BOUNDS) or {}).get(PATH_ID)
        highest = (at.optional(row, UPPER_BOUNDS) or {}).get(PATH_ID)
    offset = at.optional(row, CONTENT_OFFSET)
    return DeleteFile(
        content,
        row[at.path],
        str(row[at.format]).upper(),
        row[at.records],
        row[at.size_bytes],
        manifest.sequence_number if sequence_number is None else sequence_number,
        manifest.spec_id,
        partition,
        () if positions else tuple(at.optional(row, EQUALITY_IDS) or ()),
        lowest,
        highest,
        None if offset is None else BlobPlace(offset, at.optional(row, CONTENT_SIZE)),
    )


def _unknown_partition(partition: tuple[Any, ...]) -> tuple[Any, ...]:
    """For a manifest whose partitions do not have the fields of its spec."""
    return partition


def _same(partition: tuple[Any, ...]) -> tuple[Any, ...]:
    return partition


def _arranged(partition: Sequence[PartitionField], spec: Sequence[SpecField]) -> Any:
    """A function that puts the values of a manifest's partitions in the order of its spec."""
    ids = [field.field_id for field in partition]
    if ids == [field.field_id for field in spec]:
        return _same
    if any(field_id is None for field_id in ids):
        names = [field.name for field in partition]
        if names == [field.name for field in spec]:
            return _same
        return _unknown_partition
    if not {field.field_id for field in spec} <= set(ids):
        return _unknown_partition
    places = [ids.index(field.field_id) for field in spec]
    return lambda values: tuple([values[place] for place in places])


def _contents(manifests: Sequence[Manifest], storage: StorageOptions) -> Iterator[tuple[Manifest, bytes]]:
    """The content of each; remote ones are fetched ahead, a few at a time."""
    if all(local_path(manifest.path) is not None for manifest in manifests):
        for manifest in manifests:
            yield manifest, read_manifest(manifest, storage)
        return
    with ThreadPoolExecutor(_AHEAD) as pool:
        waiting = iter(manifests)
        pending = [(manifest, pool.submit(read_manifest, manifest, storage)) for manifest in islice(waiting, _AHEAD)]
        while pending:
            manifest, content = pending.pop(0)
            yield manifest, content.result()
            pending += [(item, pool.submit(read_manifest, item, storage)) for item in islice(waiting, 1)]
