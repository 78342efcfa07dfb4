"""What a commit that deletes rows by position makes of a table's deletion vectors.

Invariant: after it, each data file has at most one vector, which has all rows of the file that position deletes of any
kind hide, and no delete is left that concerns a file which is gone (Iceberg spec, deletion vectors). A file of which no
row is left goes as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyiceberg.manifest import ManifestContent

from mirror_pump.errors import ForeignTable, UsageError
from mirror_pump.lake.contents.delete_index import DeleteFile, DeleteIndex
from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.deletion_vectors import DeletionVector, FileVector, VectorPlace, read_deletion_vectors
from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.format.position_deletes import PATH_ID, Positions, read_position_deletes
from mirror_pump.lake.manifests.manifest_entries import ManifestEntry, StoredEntry
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.manifests.manifests import entries_of, stored_of
from mirror_pump.lake.storage import StorageOptions

_DeleteKey: TypeAlias = tuple[str, int | None]
"""URI of a delete file; of a vector with its offset in it."""


@dataclass(frozen=True)
class RowDeletes:
    """What a commit changes besides the files that it adds and removes itself."""

    vectors: Mapping[str, FileVector]
    """New ones, by URI of their data files."""
    emptied: frozenset[str]
    """Data files of which no row is left."""
    superseded: frozenset[_DeleteKey]
    """Deletes that the new vectors have, and those of files that are gone."""

    def supersede(self, entry: ManifestEntry | StoredEntry) -> bool:
        """Whether a live delete goes."""
        return _key(entry) in self.superseded


NO_DELETES = RowDeletes({}, frozenset(), frozenset())


@dataclass(frozen=True)
class TouchedFile:
    """A data file of which rows go."""

    path: str
    """URI."""
    sequence_number: int
    """Its data sequence number."""
    records: int
    """Rows in the file, deleted ones included."""
    partition: PartitionTuple
    spec_id: int
    positions: Positions
    """The numbers of these rows, in any order. Some may be deleted already."""


def touched_files(
    manifests: Sequence[Manifest],
    deleted: Mapping[str, Positions],
    storage: StorageOptions,
    name_of: Callable[[str], str] = str,
) -> tuple[list[TouchedFile], Mapping[str, Positions]]:
    """The live data files of which rows go, and what is left of `deleted`, since no live file has the name. `deleted`:
    row numbers by name, which `name_of` tells of a URI: engines spell those of local files in several ways. Raises
    LakeError."""
    left = dict(deleted)
    touched = []
    for manifest in manifests:
        if not left:
            break
        if manifest.content == ManifestContent.DATA and manifest.live_files:
            for entry in entries_of(manifest, storage):
                positions = left.pop(name_of(entry.path), None)
                if positions is not None:
                    touched.append(
                        TouchedFile(
                            entry.path,
                            entry.sequence_number,
                            entry.records,
                            entry.partition,
                            manifest.spec_id,
                            positions,
                        )
                    )
    return touched, left


def row_deletes(
    manifests: Sequence[Manifest],
    touched: Sequence[TouchedFile],
    removed: Collection[str],
    storage: StorageOptions,
    name_of: Callable[[str], str] = str,
) -> RowDeletes:
    """What becomes of the deletes of a snapshot with these manifests if rows of `touched` files go, and the data files
    in `removed`. `name_of` as for `touched_files`.

    Raises UsageError for rows that a file does not have, ForeignTable for deletes of it in files that are not Parquet,
    and LakeError.
    """
    deletes = _position_deletes(manifests, storage)
    index = DeleteIndex(deletes, frozenset())
    vectors: dict[str, FileVector] = {}
    emptied = set()
    for file, before in zip(touched, _hidden(touched, index, storage), strict=True):
        _require_rows(file)
        after = DeletionVector.of(file.positions).union(before)
        if len(after) == file.records:
            emptied.add(file.path)
        elif len(after) > len(before) or (len(after) and not index.has_vector(file.path)):
            # The vector also takes the place of position-delete files, which the commit may remove.
            vectors[file.path] = FileVector(after, file.partition, file.spec_id)
    gone = set(map(name_of, (*removed, *emptied, *vectors)))
    superseded = frozenset(
        _delete_key(file)
        for file in deletes
        if file.referenced_path is not None and name_of(file.referenced_path) in gone
    )
    return RowDeletes(vectors, frozenset(emptied), superseded)


def _require_rows(file: TouchedFile) -> None:
    positions = file.positions
    if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < file.records:
        raise UsageError(f"{file.path} has {file.records} rows, numbered from 0", "delete rows that it has")


def _position_deletes(manifests: Sequence[Manifest], storage: StorageOptions) -> list[DeleteFile]:
    """All live vectors and position-delete files."""
    return [
        _delete_file(entry, manifest.spec_id)
        for manifest in manifests
        if manifest.content == ManifestContent.DELETES and manifest.deletes is not FileContent.EQUALITY_DELETES
        for entry in (_delete_entries(manifest, storage) if manifest.live_files else ())
        if entry.content == FileContent.POSITION_DELETES
    ]


def _delete_entries(manifest: Manifest, storage: StorageOptions) -> Sequence[ManifestEntry | StoredEntry]:
    """The live entries, from memory if they tell enough there: of files that are not vectors the bounds are needed."""
    entries = manifest.entries
    if entries is not None and all(entry.blob is not None for entry in entries):
        return entries
    return stored_of(manifest, storage)


def _delete_file(entry: ManifestEntry | StoredEntry, spec_id: int) -> DeleteFile:
    lowest = highest = None
    if entry.referenced_data_file is not None:
        lowest = highest = entry.referenced_data_file.encode("utf-8", "surrogatepass")
    elif isinstance(entry, StoredEntry):
        lowest, highest = entry.lower_bounds.get(PATH_ID), entry.upper_bounds.get(PATH_ID)
    return DeleteFile(
        FileContent.POSITION_DELETES,
        entry.path,
        entry.format if isinstance(entry, StoredEntry) else "PUFFIN",
        entry.records,
        entry.size_bytes,
        entry.sequence_number,
        spec_id,
        entry.partition,
        lowest_path=lowest,
        highest_path=highest,
        blob=entry.blob,
    )


def _hidden(
    touched: Sequence[TouchedFile | LiveFile], index: DeleteIndex, storage: StorageOptions
) -> list[DeletionVector]:
    """The rows of each data file that its deletes hide."""
    hidden = [DeletionVector.empty()] * len(touched)
    stored: dict[int, VectorPlace] = {}
    for place, file in enumerate(touched):
        deletes = index.position_deletes(file.path, file.sequence_number, file.spec_id, file.partition)
        if deletes and (blob := deletes[0].blob) is not None:
            stored[place] = VectorPlace(deletes[0].path, blob, deletes[0].records)
        elif deletes:
            hidden[place] = _hidden_by_files(file.path, deletes, storage)
    for place, vector in zip(stored, read_deletion_vectors(list(stored.values()), storage), strict=True):
        hidden[place] = vector
    return hidden


def _hidden_by_files(path: str, deletes: Sequence[DeleteFile], storage: StorageOptions) -> DeletionVector:
    for delete in deletes:
        if delete.format != "PARQUET":
            raise ForeignTable(f"{delete.path} is a file of {delete.format}", "rewrite the table's deletes as Parquet")
    positions = read_position_deletes([delete.path for delete in deletes], {path}, storage)
    return DeletionVector.of(positions[path]) if path in positions else DeletionVector.empty()


def _key(entry: ManifestEntry | StoredEntry) -> _DeleteKey:
    return entry.path, None if entry.blob is None else entry.blob.offset


def _delete_key(file: DeleteFile) -> _DeleteKey:
    return file.path, None if file.blob is None else file.blob.offset


def later_deletes(
    manifests: Sequence[Manifest], files: Sequence[LiveFile], base: Mapping[str, VectorPlace], storage: StorageOptions
) -> dict[str, Positions]:
    """The rows that the deletes of a snapshot with these manifests hide in data files, sorted, by URI; without those of
    files that still have their vectors of the `base`. Raises as `row_deletes`."""
    index = DeleteIndex(_position_deletes(manifests, storage) if files else (), frozenset())
    changed = []
    for file in files:
        deletes = index.position_deletes(file.path, file.sequence_number, file.spec_id, file.partition)
        places = [None if delete.blob is None else (delete.path, delete.blob) for delete in deletes]
        place = base.get(file.path)
        if places != ([] if place is None else [(place.path, place.place)]):
            changed.append(file)
    hidden = _hidden(changed, index, storage)
    return {file.path: vector.positions for file, vector in zip(changed, hidden, strict=True)}
