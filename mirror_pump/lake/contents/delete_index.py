"""Which delete files apply to a data file (Iceberg spec, scan planning)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from mirror_pump.errors import LakeError
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.partitioning import PartitionTuple, partition_key
from mirror_pump.lake.format.puffin import BlobPlace


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file that deletes rows of data files."""

    content: FileContent
    path: str
    format: str
    """`PARQUET`, `AVRO` or `ORC`; `PUFFIN` of deletion vectors."""
    records: int
    size_bytes: int
    sequence_number: int
    """Its data sequence number."""
    spec_id: int
    partition: PartitionTuple
    equality_ids: tuple[int, ...] = ()
    """Equality deletes only: field IDs of the columns that they compare."""
    lowest_path: bytes | None = None
    """Position deletes only: no data file that they name has a URI below it, as UTF-8."""
    highest_path: bytes | None = None
    blob: BlobPlace | None = None
    """Of a deletion vector its place in the file `path`."""

    @property
    def referenced_path(self) -> str | None:
        """The only data file that position deletes name; None if there may be several."""
        if self.lowest_path is None or self.lowest_path != self.highest_path:
            return None
        return self.lowest_path.decode("utf-8", "surrogatepass")


class DeleteIndex:
    """The delete files of a plan, found by data file.

    A delete applies to data files of its own spec and partition, with two exceptions: equality deletes of an
    unpartitioned spec apply everywhere, and position deletes apply to the one data file that they name. Position
    deletes apply to files of their own commit and older ones, equality deletes to older ones only. Where a data file
    has a deletion vector, that has all its position deletes.
    """

    def __init__(self, files: Sequence[DeleteFile], unpartitioned: frozenset[int]) -> None:
        """`unpartitioned`: IDs of specs without fields."""
        self.files = tuple(files)
        self._by_path: defaultdict[str, list[DeleteFile]] = defaultdict(list)
        self._positions: defaultdict[tuple[int, Hashable], list[DeleteFile]] = defaultdict(list)
        self._equalities: defaultdict[tuple[int, Hashable], list[DeleteFile]] = defaultdict(list)
        self._everywhere: list[DeleteFile] = []
        self._vectors: dict[str, DeleteFile] = {}
        for file in sorted(files, key=lambda file: (file.sequence_number, file.path)):
            if file.content is FileContent.EQUALITY_DELETES:
                if file.spec_id in unpartitioned:
                    self._everywhere.append(file)
                else:
                    self._equalities[file.spec_id, partition_key(file.partition)].append(file)
            elif file.blob is not None:
                self._add_vector(file)
            elif (path := file.referenced_path) is not None:
                self._by_path[path].append(file)
            else:
                self._positions[file.spec_id, partition_key(file.partition)].append(file)

    def position_deletes(
        self, path: str, sequence_number: int, spec_id: int, partition: PartitionTuple
    ) -> tuple[DeleteFile, ...]:
        """The deletion vector of a data file, or the position-delete files that may name rows of it, oldest first."""
        if not self.files:
            return ()
        vector = self._vectors.get(path)
        if vector is not None and vector.sequence_number >= sequence_number:
            return (vector,)
        deletes = [file for file in self._by_path.get(path, ()) if file.sequence_number >= sequence_number]
        if others := self._positions.get((spec_id, partition_key(partition))):
            encoded = path.encode("utf-8", "surrogatepass")
            deletes += [file for file in others if file.sequence_number >= sequence_number and _may_name(file, encoded)]
        return tuple(deletes)

    def _add_vector(self, file: DeleteFile) -> None:
        path = file.referenced_path
        if path is None or path in self._vectors:
            raise LakeError(
                f"{file.path} has a deletion vector of no data file, or the second one of {path}",
                "repair the table's metadata with the engine that wrote it",
            )
        self._vectors[path] = file

    def equality_deletes(self, sequence_number: int, spec_id: int, partition: PartitionTuple) -> tuple[DeleteFile, ...]:
        """Equality-delete files that apply to a data file, oldest first within a spec."""
        if not self.files:
            return ()
        return tuple(
            file
            for files in (self._everywhere, self._equalities.get((spec_id, partition_key(partition)), ()))
            for file in files
            if file.sequence_number > sequence_number
        )


def _may_name(file: DeleteFile, path: bytes) -> bool:
    return (file.lowest_path is None or file.lowest_path <= path) and (
        file.highest_path is None or path <= file.highest_path
    )
