"""What a plan found. Files are kept as columns, some 200 bytes each, and become objects when they are asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema

from mirror_pump.lake.contents.delete_index import DeleteFile, DeleteIndex
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.partitioning import PartitionTuple, partition_key
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import SnapshotId
from mirror_pump.tables.metadata.table_documents import Json, plain_value
from mirror_pump.tables.read_plan.file_entries import ListedFile
from mirror_pump.tables.read_plan.partition_pruning import PartitionFilter

_NO_ROW_ID = -1


@dataclass
class PlanCounts:
    """What a plan looked at."""

    manifests: int = 0
    """In the snapshot, those of deletes among them."""
    manifests_opened: int = 0
    manifests_skipped: int = 0
    """Not opened: by their partition summaries, because they have no live file, or because their deletes are older than
    all planned files."""
    entries_seen: int = 0
    """Live data files in the manifests that were opened."""
    entries_kept: int = 0
    """Planned files."""
    deletes_seen: int = 0
    """Live delete files in the manifests that were opened."""
    deletes_kept: int = 0

    def count_manifests(self, opened: int, skipped: int) -> None:
        """Counts manifests that were chosen among."""
        self.manifests += opened + skipped
        self.manifests_opened += opened
        self.manifests_skipped += skipped


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A data file that may have matching rows."""

    path: str
    """URI."""
    format: str
    """`PARQUET`, `AVRO` or `ORC`."""
    records: int
    """Rows in the file, deleted ones included."""
    size_bytes: int
    partition: PartitionTuple
    """Its partition, under `spec_id`."""
    spec_id: int
    sequence_number: int
    """Its data sequence number."""
    position_deletes: tuple[DeleteFile, ...]
    """Those that may name its rows."""
    equality_deletes: tuple[DeleteFile, ...]
    """Those whose keys delete its rows."""
    residual: BooleanExpression
    """What has yet to be asked of its rows, bound to the plan's schema: the predicate without what the partition
    decides."""
    first_row_id: int | None = None
    """The ID of its first row. None in snapshots without row lineage, and if the plan is for a scan without it."""


class FileColumns:
    """Planned files of one manifest."""

    def __init__(self, spec_id: int) -> None:
        self.spec_id = spec_id
        self.known_partitions = True
        """Whether the partitions have the fields of the spec."""
        self._paths: Any = []
        self._formats: list[str] = []
        self._partitions: list[PartitionTuple] = []
        self._numbers: list[int] = []
        self._sealed: npt.NDArray[np.int64] | None = None

    def append(self, file: ListedFile, manifest_number: int) -> None:
        """Adds a file. `manifest_number`: its manifest's sequence number."""
        path, kind, partition, records, size_bytes, number, row_id = file
        self._paths.append(path)
        self._formats.append(kind)
        self._partitions.append(partition)
        number = manifest_number if number is None else number
        self._numbers += (records, size_bytes, number, _NO_ROW_ID if row_id is None else row_id)

    def sealed(self) -> FileColumns:
        """Itself, packed; nothing can be added any more."""
        self._sealed = np.array(self._numbers, np.int64).reshape(-1, 4)
        self._numbers = []
        self._paths = pa.array(self._paths, pa.large_string())
        shared: dict[Hashable, PartitionTuple] = {}
        self._partitions = [shared.setdefault(partition_key(partition), partition) for partition in self._partitions]
        if len(shared) == 1:
            self._partitions = self._partitions[:1]
        if len(set(self._formats)) == 1:
            self._formats = self._formats[:1]
        return self

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def least_sequence_number(self) -> int:
        """That of the oldest file."""
        return int(self.numbers[:, 2].min())

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """Rows, bytes, data sequence number and first row ID of each file."""
        assert self._sealed is not None
        return self._sealed

    @property
    def paths(self) -> pa.Array:
        """URI of each file."""
        return self._paths

    def format(self, place: int) -> str:
        """Of one file, in capitals."""
        return self._formats[place if len(self._formats) > 1 else 0].upper()

    def partition(self, place: int) -> PartitionTuple:
        """Of one file."""
        return self._partitions[place if len(self._partitions) > 1 else 0]


class PlannedFiles(Sequence[PlannedFile]):
    """The planned files, in the order of manifests. Makes a file's object when it is asked for."""

    def __init__(
        self, columns: Sequence[FileColumns], deletes: DeleteIndex, filters: Mapping[int, PartitionFilter], whole: Any
    ) -> None:
        self._columns = columns
        self._ends = list(accumulate(len(part) for part in columns))
        self._deletes = deletes
        self._filters = filters
        self._predicate = whole

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> PlannedFile: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[PlannedFile]: ...

    def __getitem__(self, index: int | slice) -> PlannedFile | Sequence[PlannedFile]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        part = bisect_right(self._ends, place)
        columns = self._columns[part]
        within = place - self._ends[part] + len(columns)
        return self._file(columns, within, columns.paths[within].as_py())

    def __iter__(self) -> Iterator[PlannedFile]:
        for columns in self._columns:
            for place, path in enumerate(columns.paths.to_pylist()):
                yield self._file(columns, place, path)

    def _file(self, columns: FileColumns, place: int, path: str) -> PlannedFile:
        records, size_bytes, sequence_number, row_id = columns.numbers[place].tolist()
        partition = columns.partition(place)
        spec_id = columns.spec_id
        return PlannedFile(
            path,
            columns.format(place),
            records,
            size_bytes,
            partition,
            spec_id,
            sequence_number,
            self._deletes.position_deletes(path, sequence_number, spec_id, partition),
            self._deletes.equality_deletes(sequence_number, spec_id, partition),
            self._filters[spec_id].residual(partition) if columns.known_partitions else self._predicate,
            None if row_id == _NO_ROW_ID else row_id,
        )


@dataclass(frozen=True)
class ReadPlan:
    """The files to read, and what decided it. `scan` (mirror_pump.tables.read_plan.scan) reads their rows."""

    metadata: TableMetadata
    storage: StorageOptions
    snapshot_id: SnapshotId | None
    """None for a table without snapshots."""
    schema: Schema
    """The snapshot's schema, to which the predicate is bound."""
    projection: Schema
    """The columns that a scan returns."""
    predicate: BooleanExpression
    """Bound to `schema`, without `not`."""
    counts: PlanCounts
    deletes: DeleteIndex
    columns: Sequence[FileColumns]
    """The planned files by manifest."""
    filters: Mapping[int, PartitionFilter]
    """The predicate as each partition spec sees it, by the spec's ID."""

    @property
    def files(self) -> PlannedFiles:
        """The files that may have matching rows."""
        return PlannedFiles(self.columns, self.deletes, self.filters, self.predicate)

    @property
    def paths(self) -> list[str]:
        """URIs of the files, in their order."""
        return [path for part in self.columns for path in part.paths.to_pylist()]

    @property
    def records(self) -> int:
        """Rows in the files, deleted ones and others that do not match included."""
        return sum(int(part.numbers[:, 0].sum()) for part in self.columns)

    @property
    def size_bytes(self) -> int:
        """Bytes of the data files."""
        return sum(int(part.numbers[:, 1].sum()) for part in self.columns)


def plan_document(plan: ReadPlan) -> Json:
    """The files of a plan and what decided it."""
    counts = plan.counts
    return {
        "snapshot_id": None if plan.snapshot_id is None else str(plan.snapshot_id),
        "predicate": str(plan.predicate),
        "manifests": {
            "total": counts.manifests,
            "opened": counts.manifests_opened,
            "skipped": counts.manifests_skipped,
        },
        "entries": {"seen": counts.entries_seen, "kept": counts.entries_kept},
        "deletes": {"seen": counts.deletes_seen, "kept": counts.deletes_kept},
        "records": plan.records,
        "size_bytes": plan.size_bytes,
        "files": [
            {
                "path": file.path,
                "format": file.format,
                "records": file.records,
                "size_bytes": file.size_bytes,
                "spec_id": file.spec_id,
                "partition": plain_value(file.partition),
                "sequence_number": file.sequence_number,
                "position_deletes": [_delete(delete) for delete in file.position_deletes],
                "equality_deletes": [_delete(delete) for delete in file.equality_deletes],
                "residual": str(file.residual),
            }
            for file in plan.files
        ],
    }


def _delete(file: DeleteFile) -> Json:
    return {"path": file.path, "records": file.records, "sequence_number": file.sequence_number}
