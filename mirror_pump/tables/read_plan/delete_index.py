"""Which delete files apply to a data file (Iceberg spec, scan planning)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.partitioning import PartitionTuple, partition_key


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file that deletes rows of data files."""

    content: FileContent
    path: str
    format: str
    """`PARQUET`, `AVRO` or `ORC`."""
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
    deletes apply to files of their own commit and older ones, equality deletes to older ones only.
    """

    def __init__(self, files: Sequence[DeleteFile], unpartitioned: frozenset[int]) -> None:
        """`unpartitioned`: IDs of specs without fields."""
        self.files = tuple(files)
        self._by_path: defaultdict[str, list[DeleteFile]] = defaultdict(list)
        self._positions: defaultdict[tuple[int, Hashable], list[DeleteFile]] = defaultdict(list)
        self._equalities: defaultdict[tuple[int, Hashable], list[DeleteFile]] = defaultdict(list)
        self._everywhere: list[DeleteFile] = []
        for file in sorted(files, key=lambda file: (file.sequence_number, file.path)):
            if file.content is FileContent.EQUALITY_DELETES:
                if file.spec_id in unpartitioned:
                    self._everywhere.append(file)
                else:
                    self._equalities[file.spec_id, partition_key(file.partition)].append(file)
            elif (path := file.referenced_path) is not None:
                self._by_path[path].append(file)
            else:
                self._positions[file.spec_id, partition_key(file.partition)].append(file)

    def position_deletes(
        self, path: str, sequence_number: int, spec_id: int, partition: PartitionTuple
    ) -> tuple[DeleteFile, ...]:
        """Position-delete files that may name rows of a data file, oldest first."""
        if not self.files:
            return ()
        deletes = [file for file in self._by_path.get(path, ()) if file.sequence_number >= sequence_number]
        if others := self._positions.get((spec_id, partition_key(partition))):
            encoded = path.encode("utf-8", "surrogatepass")
            deletes += [file for file in others if file.sequence_number >= sequence_number and _may_name(file, encoded)]
        return tuple(deletes)

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
