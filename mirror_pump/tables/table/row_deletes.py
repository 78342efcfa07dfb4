"""What a commit that deletes rows by position makes of a table's deletion vectors.

Invariant: after it, each data file has at most one vector, which has all rows of the file that position deletes of any
kind hide, and no delete is left that concerns a file which is gone (Iceberg spec, deletion vectors). A file of which no
row is left goes as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyiceberg.manifest import ManifestContent

from mirror_pump.errors import ForeignTable, UsageError
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.deletion_vectors import DeletionVector, FileVector, VectorPlace, read_deletion_vectors
from mirror_pump.lake.format.position_deletes import PATH_ID, Positions, read_position_deletes
from mirror_pump.lake.manifests.manifest_entries import ManifestEntry, StoredEntry
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.manifests.manifests import entries_of, stored_of
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.tables.read_plan.delete_index import DeleteFile, DeleteIndex
from mirror_pump.tables.table.file_names import same_name
from mirror_pump.tables.table.table_errors import ConflictingCommit

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

    def supersede(self, entry: ManifestEntry) -> bool:
        """Whether a live delete goes."""
        return _key(entry) in self.superseded


NO_DELETES = RowDeletes({}, frozenset(), frozenset())


@dataclass(frozen=True)
class _TouchedFile:
    """A data file of which rows go."""

    entry: ManifestEntry | StoredEntry
    spec_id: int


def row_deletes(
    manifests: Sequence[Manifest],
    deleted: Mapping[str, Positions],
    removed: Collection[str],
    storage: StorageOptions,
) -> RowDeletes:
    """What becomes of the deletes of a snapshot with these manifests if rows of `deleted` (row numbers by data file
    URI), which may be deleted already, and the data files in `removed` go.

    Raises ConflictingCommit if a file of `deleted` is not live, UsageError for rows that it does not have, ForeignTable
    for its deletes in files that are not Parquet, and LakeError.
    """
    touched = _touched(manifests, {same_name(path): positions for path, positions in deleted.items()}, storage)
    deletes = _position_deletes(manifests, storage)
    index = DeleteIndex(deletes, frozenset())
    vectors: dict[str, FileVector] = {}
    emptied = set()
    for file, positions in touched:
        path = file.entry.path
        if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < file.entry.records:
            raise UsageError(f"{path} has {file.entry.records} rows, numbered from 0", "delete rows that it has")
        applying = index.position_deletes(path, file.entry.sequence_number, file.spec_id, file.entry.partition)
        before = _hidden(path, applying, storage)
        after = DeletionVector.of(positions).union(before)
        if len(after) == file.entry.records:
            emptied.add(path)
        elif len(after) > len(before):
            vectors[path] = FileVector(after, file.entry.partition, file.spec_id)
    gone = set(map(same_name, (*removed, *emptied, *vectors)))
    superseded = frozenset(
        _delete_key(file)
        for file in deletes
        if file.referenced_path is not None and same_name(file.referenced_path) in gone
    )
    return RowDeletes(vectors, frozenset(emptied), superseded)


def _touched(
    manifests: Sequence[Manifest], deleted: Mapping[str, Positions], storage: StorageOptions
) -> Sequence[tuple[_TouchedFile, Positions]]:
    """The data files of which rows go, and the numbers of these. Engines spell URIs of local files in several ways."""
    left = dict(deleted)
    touched = []
    for manifest in manifests:
        if not left:
            break
        if manifest.content == ManifestContent.DATA and manifest.live_files:
            for entry in entries_of(manifest, storage):
                positions = left.pop(same_name(entry.path), None)
                if positions is not None:
                    touched.append((_TouchedFile(entry, manifest.spec_id), positions))
    if left:
        raise ConflictingCommit(
            f"{len(left)} of the files whose rows are to be deleted are not in the table, such as {min(left)}",
            "another writer removed them: find the rows again in the table as it is now",
            sorted(left),
        )
    return touched


def _position_deletes(manifests: Sequence[Manifest], storage: StorageOptions) -> list[DeleteFile]:
    """All live vectors and position-delete files."""
    return [
        _delete_file(entry, manifest.spec_id)
        for manifest in manifests
        if manifest.content == ManifestContent.DELETES and manifest.deletes is not FileContent.EQUALITY_DELETES
        for entry in (stored_of(manifest, storage) if manifest.live_files else ())
        if entry.content == FileContent.POSITION_DELETES
    ]


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
        blob=entry.blob,
    )


def _hidden(path: str, deletes: Sequence[DeleteFile], storage: StorageOptions) -> DeletionVector:
    """The rows of a data file that its deletes hide."""
    if deletes and (blob := deletes[0].blob) is not None:
        (vector,) = read_deletion_vectors([VectorPlace(deletes[0].path, blob, deletes[0].records)], storage)
        return vector
    for delete in deletes:
        if delete.format != "PARQUET":
            raise ForeignTable(f"{delete.path} is a file of {delete.format}", "rewrite the table's deletes as Parquet")
    positions = read_position_deletes([delete.path for delete in deletes], {path}, storage)
    return DeletionVector.of(positions[path]) if path in positions else DeletionVector.empty()


def _key(entry: ManifestEntry) -> _DeleteKey:
    return entry.path, None if entry.blob is None else entry.blob.offset


def _delete_key(file: DeleteFile) -> _DeleteKey:
    return file.path, None if file.blob is None else file.blob.offset
