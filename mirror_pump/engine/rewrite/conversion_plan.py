"""Plans the conversion of equality deletes: from a table's state to tasks, and from their results to a file rewrite."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from mirror_pump.engine.rewrite.delete_conversion import ConversionTask, FoundRows, OrderedFile
from mirror_pump.lake.commit.file_rewrite import FileRewrite
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing, LiveFile, listed, paths_of
from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.format.bounds import ordered
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.feed_schema import LSN_ID, SEQ_ID
from mirror_pump.lake.format.partitioning import UNPARTITIONED, PartitionTuple, partition_order, partitions_of
from mirror_pump.lake.format.position_deletes import PATH_ID
from mirror_pump.lake.format.schema import LakeSchema

MOST_DELETES = 4_000_000
"""Deletes of one conversion, which each of its tasks may hold as keys, and of which a commit encodes the rows in a
sixth of a second."""
_TASK_ROWS = 8_000_000
"""Rows whose keys one task reads: a second or less."""
_TASK_FILES = 500
"""Data files per task: opening a small one costs as much as reading 50,000 keys."""


@dataclass(frozen=True)
class ConversionPlan:
    """Tasks to run, and the state that they are based on."""

    tasks: tuple[ConversionTask, ...]
    deletes: int
    """Number of equality-delete rows that are converted."""
    rewrite: FileRewrite
    """What they lead to, as far as the plan tells."""


def listing_for(table: LakeTable) -> Listing:
    """A listing that keeps what plans for this table, or change feed, need. It can be reused for the table's later
    states."""
    return Listing(table.storage, (*table.schema.key_ids, PATH_ID, LSN_ID, SEQ_ID))


def plan_conversion(table: LakeTable, listing: Listing, most_deletes: int = MOST_DELETES) -> ConversionPlan | None:
    """Plans how to convert the table's current equality deletes to position deletes; None if there are none to convert.

    Takes the oldest files with no more than `most_deletes` rows, but one at least; the next conversion takes the
    others. A delete hides at most one row that no older delete hides, so the results of all tasks together have no more
    rows.

    Leaves out deletes that this project would not have written (on columns other than the key, of other partition
    specs), and deletes that may reach data files in which positions cannot be given (not Parquet, other specs). Reads
    the manifests that the listing does not know yet. Raises LakeError.
    """
    by_manifest = listing.files(table.manifests)
    data: list[LiveFile] = []
    equality: list[LiveFile] = []
    positions: list[LiveFile] = []
    others: list[LiveFile] = []
    schema = table.schema
    for file, supported in listed(by_manifest, table.manifests, table.spec_ids):
        if file.content is FileContent.DATA:
            # Empty data files are placeholders of commits that only delete.
            if file.records:
                (data if supported else others).append(file)
        elif file.content is FileContent.POSITION_DELETES:
            if supported:
                positions.append(file)
        elif supported and set(file.equality_ids) == set(schema.key_ids):
            equality.append(file)
    if table.foreign_partitions:
        return None
    unsupported = [_Ranged.of(file, schema) for file in others]
    convertible = _oldest(
        [file for file in equality if not any(map(_Ranged.of(file, schema).reaches, unsupported))], most_deletes
    )
    if not convertible:
        return None
    tasks = tuple(
        ConversionTask(
            data=tuple(OrderedFile.of(ranged.file) for ranged in data_files),
            deletes=tuple(OrderedFile.of(ranged.file) for ranged in deletes),
            positions=table.deletes.unrepeated(positions, [ranged.file.path for ranged in data_files]),
            schema=schema,
            storage=table.storage,
        )
        for data_files, deletes in _groups(data, convertible, schema)
    )
    pending = sum(file.content is FileContent.EQUALITY_DELETES for files in by_manifest.values() for file in files)
    removed = frozenset(file.path for file in convertible)
    rewrite = FileRewrite(
        removed=removed,
        relied_on=removed.union(*(task.positions for task in tasks)),
        base_paths=paths_of(by_manifest),
        sequence_number=table.sequence_number,
        complete=len(convertible) == pending,
        partitions={} if table.partitioning is None else partitions_of(data),
    )
    return ConversionPlan(tasks, sum(file.records for file in convertible), rewrite)


def _oldest(deletes: Sequence[LiveFile], most_rows: int) -> list[LiveFile]:
    """The oldest of the files: one, and others with it up to so many rows."""
    oldest: list[LiveFile] = []
    rows = 0
    for file in sorted(deletes, key=lambda delete: delete.sequence_number):
        rows += file.records
        if oldest and rows > most_rows:
            break
        oldest.append(file)
    return oldest


def file_rewrite_of(plan: ConversionPlan, results: Sequence[FoundRows]) -> FileRewrite:
    """The change that the plan's tasks produced."""
    return replace(plan.rewrite, hidden=HiddenRows.united(result.hidden for result in results))


@dataclass(frozen=True, slots=True)
class _Ranged:
    """A file with the range of each key column in it."""

    file: LiveFile
    ranges: tuple[tuple[Any, Any], ...]
    """Lowest and highest value; None if unknown."""

    @classmethod
    def of(cls, file: LiveFile, schema: LakeSchema) -> Self:
        return cls(
            file,
            tuple(
                (
                    ordered(field.type, file.lower_bounds.get(field.field_id)),
                    ordered(field.type, file.upper_bounds.get(field.field_id)),
                )
                for field in schema.key.fields
            ),
        )

    def reaches(self, data: _Ranged) -> bool:
        """Whether this equality delete can hide a row of a data file (Iceberg spec, scan planning), judged by sequence
        numbers and by the key columns' ranges."""
        return self.file.sequence_number > data.file.sequence_number and not any(
            _before(left, right) or _before(right, left) for left, right in zip(self.ranges, data.ranges, strict=True)
        )


def _before(first: tuple[Any, Any], second: tuple[Any, Any]) -> bool:
    """Whether the first range ends before the second begins."""
    return first[1] is not None and second[0] is not None and bool(first[1] < second[0])


def _groups(
    data: Sequence[LiveFile], deletes: Sequence[LiveFile], schema: LakeSchema
) -> Iterator[tuple[list[_Ranged], list[_Ranged]]]:
    """For each task, data files that may hold a deleted row, and the deletes that reach at least one of them."""
    ranged: dict[PartitionTuple, list[_Ranged]] = defaultdict(list)
    # A delete reaches data files of its own lake partition only, or those of all.
    for file in sorted(deletes, key=lambda delete: -delete.sequence_number):
        ranged[file.partition].append(_Ranged.of(file, schema))
    group: list[_Ranged] = []
    rows = 0
    # Files of one partition and of similar age are likely to be reached by the same deletes.
    for file in sorted(data, key=lambda data_file: (partition_order(data_file.partition), data_file.sequence_number)):
        candidate = _Ranged.of(file, schema)
        if not any(delete.reaches(candidate) for delete in _deletes_of(ranged, file.partition)):
            continue
        if group and (rows + file.records > _TASK_ROWS or len(group) >= _TASK_FILES):
            yield group, _reaching(group, ranged)
            group, rows = [], 0
        group.append(candidate)
        rows += file.records
    if group:
        yield group, _reaching(group, ranged)


def _deletes_of(deletes: Mapping[PartitionTuple, Sequence[_Ranged]], partition: PartitionTuple) -> Sequence[_Ranged]:
    """The deletes that apply to a partition."""
    of_partition = deletes.get(partition, ())
    return of_partition if partition == UNPARTITIONED else (*of_partition, *deletes.get(UNPARTITIONED, ()))


def _reaching(group: Sequence[_Ranged], deletes: Mapping[PartitionTuple, Sequence[_Ranged]]) -> list[_Ranged]:
    by_partition: dict[PartitionTuple, list[_Ranged]] = defaultdict(list)
    for ranged in group:
        by_partition[ranged.file.partition].append(ranged)
    return [
        delete
        for partition, files in by_partition.items()
        for delete in _deletes_of(deletes, partition)
        if any(map(delete.reaches, files))
    ]
