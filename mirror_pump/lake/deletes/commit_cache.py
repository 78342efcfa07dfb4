"""What commits to tables with deletion vectors look up in manifests and Puffin files, kept from commit to commit.

Such files never change, so what is kept by their URIs is always right. Each commit deletes rows of some data files: it
needs these files' entries, and the vectors that they have, most of which earlier commits have written. Without the
cache it would read all manifests again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from mirror_pump.errors import LakeError
from mirror_pump.lake.contents.delete_index import DeleteFile
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.deletion_vectors import DeletionVector, VectorPlace, read_deletion_vectors
from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.format.position_deletes import PATH_ID
from mirror_pump.lake.manifests.manifest_entries import ManifestEntry, StoredEntry
from mirror_pump.lake.manifests.manifest_files import entries_of, stored_of
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.storage import StorageOptions

_MOST_ENTRIES = 200_000
"""Entries of manifests that a cache keeps: some 100 MB at most."""
_MOST_BYTES = 64 << 20
"""Of vectors, as they are stored."""
_OVERHEAD = 200
"""Bytes of a vector besides its content."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
VectorEntry: TypeAlias = ManifestEntry | StoredEntry
"""That of a deletion vector."""
_VectorKey: TypeAlias = tuple[str, int]
"""URI of a Puffin file, and the offset of a vector in it."""


@dataclass(frozen=True, slots=True)
class DataEntry:
    """A live data file."""

    path: str
    sequence_number: int
    """Its data sequence number."""
    records: int
    partition: PartitionTuple


@dataclass(frozen=True)
class ManifestDeletes:
    """The live position deletes of a manifest."""

    vectors: Mapping[str, VectorEntry]
    """By data file URI."""
    others: tuple[DeleteFile, ...]
    """Position-delete files."""


class CommitCache:
    """Not thread-safe: one thread stages a table's commits."""

    def __init__(self, *, most_entries: int = _MOST_ENTRIES, most_bytes: int = _MOST_BYTES) -> None:
        self._data: _Bounded[str, Mapping[str, DataEntry]] = _Bounded(most_entries)
        self._deletes: _Bounded[str, ManifestDeletes] = _Bounded(most_entries)
        self._vectors: _Bounded[_VectorKey, DeletionVector] = _Bounded(most_bytes)

    def data_files(self, manifest: Manifest, storage: StorageOptions) -> Mapping[str, DataEntry]:
        """The live data files of a manifest, by URI. Raises LakeError."""
        files = self._data.get(manifest.path)
        if files is None:
            files = {
                entry.path: DataEntry(entry.path, entry.sequence_number, entry.records, entry.partition)
                for entry in entries_of(manifest, storage)
            }
            self._data.put(manifest.path, files, len(files))
        return files

    def deletes(self, manifest: Manifest, storage: StorageOptions) -> ManifestDeletes:
        """Raises LakeError, also for a manifest with two vectors of a data file."""
        deletes = self._deletes.get(manifest.path)
        if deletes is None:
            vectors, others = _position_deletes(manifest, storage)
            deletes = ManifestDeletes(_by_data_file(vectors), others)
            self._deletes.put(manifest.path, deletes, len(vectors) + len(others))
        return deletes

    def vectors(self, stored: Sequence[VectorPlace], storage: StorageOptions) -> list[DeletionVector]:
        """As `read_deletion_vectors`."""
        vectors = [self._vectors.get(_key(place)) for place in stored]
        missing = [place for place, vector in zip(stored, vectors, strict=True) if vector is None]
        read = read_deletion_vectors(missing, storage)
        for place, vector in zip(missing, read, strict=True):
            self.keep(place, vector)
        rest = iter(read)
        return [next(rest) if vector is None else vector for vector in vectors]

    def keep(self, place: VectorPlace, vector: DeletionVector) -> None:
        """Keeps a vector that was read, or is about to be written."""
        self._vectors.put(_key(place), vector, place.place.size + _OVERHEAD)


def _key(vector: VectorPlace) -> _VectorKey:
    return vector.path, vector.place.offset


class _Bounded(Generic[_Key, _Value]):
    """Values up to a size of all together; those that were not used for the longest time go first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._values: OrderedDict[_Key, tuple[_Value, int]] = OrderedDict()

    def get(self, key: _Key) -> _Value | None:
        """None if it is not there."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: _Key, value: _Value, size: int) -> None:
        if key in self._values:
            self._size -= self._values.pop(key)[1]
        self._values[key] = value, size
        self._size += size
        while self._size > self._most:
            self._size -= self._values.popitem(last=False)[1][1]


def place_of(vector: VectorEntry) -> VectorPlace:
    """Where a deletion vector is stored."""
    blob = vector.blob
    assert blob is not None
    return VectorPlace(vector.path, blob, vector.records)


def _by_data_file(entries: Iterable[VectorEntry]) -> dict[str, VectorEntry]:
    """Vectors. Raises LakeError."""
    vectors: dict[str, VectorEntry] = {}
    for entry in entries:
        path = entry.referenced_data_file
        if path is None or path in vectors:
            raise second_vector(entry)
        vectors[path] = entry
    return vectors


def second_vector(entry: VectorEntry) -> LakeError:
    """The error of a table with a vector that is of no data file, or the second one."""
    return LakeError(
        f"{entry.path} has a deletion vector of no data file, or the second one of {entry.referenced_data_file}",
        "repair the table's metadata with the engine that wrote it",
    )


def _position_deletes(
    manifest: Manifest, storage: StorageOptions
) -> tuple[Sequence[VectorEntry], tuple[DeleteFile, ...]]:
    """The live vectors of a manifest, and its position-delete files."""
    entries = manifest.entries
    if entries is not None and all(entry.blob is not None for entry in entries):
        return entries, ()
    # Of files that are not vectors the bounds are needed.
    stored = [entry for entry in stored_of(manifest, storage) if entry.content == FileContent.POSITION_DELETES]
    others = tuple(_delete_file(entry, manifest.spec_id) for entry in stored if entry.blob is None)
    return [entry for entry in stored if entry.blob is not None], others


def _delete_file(entry: StoredEntry, spec_id: int) -> DeleteFile:
    lowest, highest = entry.lower_bounds.get(PATH_ID), entry.upper_bounds.get(PATH_ID)
    if entry.referenced_data_file is not None:
        lowest = highest = entry.referenced_data_file.encode("utf-8", "surrogatepass")
    return DeleteFile(
        FileContent.POSITION_DELETES,
        entry.path,
        entry.format,
        entry.records,
        entry.size_bytes,
        entry.sequence_number,
        spec_id,
        entry.partition,
        lowest_path=lowest,
        highest_path=highest,
    )
