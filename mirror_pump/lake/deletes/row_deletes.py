"""What a commit that deletes rows by position makes of a table's deletion vectors.

Invariant: after it, each data file has at most one vector, which has all rows of the file that position deletes of any
kind hide, and no delete is left that concerns a file which is gone (Iceberg spec, deletion vectors). A file of which no
row is left goes as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pyiceberg.manifest import ManifestContent

from mirror_pump.errors import ForeignTable, LakeError, UsageError
from mirror_pump.lake.contents.delete_index import DeleteFile, DeleteIndex
from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.deletes.commit_cache import CommitCache, place_of, second_vector
from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.format.deletion_vectors import DeletionVector, FileVector, VectorPlace
from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.manifests.manifest_entries import ManifestEntry, StoredEntry
from mirror_pump.lake.manifests.manifest_list import Manifest
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
    changed: frozenset[str] = frozenset()
    """URIs of the manifests that have them, or emptied files."""
    repeated: int = 0
    """Rows of new vectors, and of emptied files, that position-delete files name, too."""

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
    rows: DeletionVector
    """These rows. Some may be deleted already."""
    manifest: str | None = None
    """URI of the manifest that has it. None: it is new."""


def touched_files(
    manifests: Sequence[Manifest],
    deleted: Mapping[str, DeletionVector],
    storage: StorageOptions,
    name_of: Callable[[str], str] | None = None,
    cache: CommitCache | None = None,
) -> tuple[list[TouchedFile], Collection[str]]:
    """The live data files of which rows go, and the names in `deleted` that no live file has. `deleted`: rows by URI,
    or by the name that `name_of` makes of a URI: engines spell those of local files in several ways. Raises LakeError.
    """
    cache = CommitCache() if cache is None else cache
    left = dict(deleted)
    touched = []
    for manifest in manifests:
        if not left:
            break
        if manifest.content == ManifestContent.DATA and manifest.live_files:
            files = cache.data_files(manifest, storage)
            if name_of is not None:
                files = {name_of(path): file for path, file in files.items()}
            for name in left.keys() & files.keys():
                file = files[name]
                touched.append(
                    TouchedFile(
                        file.path,
                        file.sequence_number,
                        file.records,
                        file.partition,
                        manifest.spec_id,
                        left.pop(name),
                        manifest.path,
                    )
                )
    return touched, left.keys()


def row_deletes(
    manifests: Sequence[Manifest],
    touched: Sequence[TouchedFile],
    removed: Collection[str],
    storage: StorageOptions,
    name_of: Callable[[str], str] | None = None,
    cache: CommitCache | None = None,
) -> RowDeletes:
    """What becomes of the deletes of a snapshot with these manifests if rows of `touched` files go, and the data files
    in `removed`. `name_of` as for `touched_files`.

    Raises UsageError for rows that a file does not have, ForeignTable for deletes of it in files that are not Parquet,
    and LakeError.
    """
    deletes = _PresentDeletes(manifests, storage, CommitCache() if cache is None else cache)
    vectors: dict[str, FileVector] = {}
    emptied = set()
    repeated = 0
    for file, before in zip(touched, deletes.hidden(touched), strict=True):
        after = _with_rows(before, file)
        repeated += 0 if deletes.has_vector(file.path) else len(before)
        if len(after) == file.records:
            emptied.add(file.path)
        elif len(after) > len(before) or (len(after) and not deletes.has_vector(file.path)):
            # The vector also takes the place of position-delete files, which the commit may remove.
            vectors[file.path] = FileVector(after, file.partition, file.spec_id)
    superseded, changed = deletes.about([*removed, *emptied, *vectors], name_of)
    changed |= {file.manifest for file in touched if file.manifest is not None and file.path in emptied}
    return RowDeletes(vectors, frozenset(emptied), superseded, changed, repeated)


def _with_rows(vector: DeletionVector, file: TouchedFile) -> DeletionVector:
    after = vector.union(file.rows)
    if after.end > file.records:
        raise UsageError(f"{file.path} has {file.records} rows, numbered from 0", "delete rows that it has")
    return after


class _PresentDeletes:
    """All live vectors and position-delete files of a snapshot."""

    def __init__(self, manifests: Sequence[Manifest], storage: StorageOptions, cache: CommitCache) -> None:
        self._storage = storage
        self._cache = cache
        self._by_manifest = {
            manifest.path: cache.deletes(manifest, storage)
            for manifest in manifests
            if manifest.may_contain_position_deletes
        }
        others = [file for deletes in self._by_manifest.values() for file in deletes.others]
        self._others = DeleteIndex(others, frozenset())
        self.paths = frozenset(file.path for file in others)
        """URIs of the position-delete files."""

    def has_vector(self, path: str) -> bool:
        return any(path in deletes.vectors for deletes in self._by_manifest.values())

    def vector(self, file: TouchedFile | LiveFile) -> VectorPlace | None:
        """The vector of a data file."""
        vectors = [deletes.vectors[file.path] for deletes in self._by_manifest.values() if file.path in deletes.vectors]
        if len(vectors) > 1:
            raise second_vector(vectors[1])
        return place_of(vectors[0]) if vectors and vectors[0].sequence_number >= file.sequence_number else None

    def others(self, file: TouchedFile | LiveFile) -> tuple[DeleteFile, ...]:
        """As DeleteIndex.position_deletes, of a data file without a vector."""
        return self._others.position_deletes(file.path, file.sequence_number, file.spec_id, file.partition)

    def hidden(self, files: Sequence[TouchedFile | LiveFile]) -> list[DeletionVector]:
        """The rows of each data file that its deletes hide."""
        hidden = [DeletionVector.empty()] * len(files)
        stored: dict[int, VectorPlace] = {}
        by_deletes: dict[tuple[str, ...], list[int]] = {}
        for number, file in enumerate(files):
            vector = self.vector(file)
            if vector is not None:
                stored[number] = vector
            elif deletes := self.others(file):
                by_deletes.setdefault(_readable(deletes), []).append(number)
        for paths, numbers in by_deletes.items():
            read = HiddenRows.read(paths, {files[number].path for number in numbers}, self._storage)
            for number in numbers:
                hidden[number] = read.vector(files[number].path)
        vectors = self._cache.vectors(list(stored.values()), self._storage)
        for number, rows in zip(stored, vectors, strict=True):
            hidden[number] = rows
        return hidden

    def about(
        self, paths: Sequence[str], name_of: Callable[[str], str] | None
    ) -> tuple[frozenset[_DeleteKey], frozenset[str]]:
        """The deletes that concern one of these data files alone, and the URIs of the manifests that have them."""
        names = frozenset(paths if name_of is None else map(name_of, paths))
        concerned: set[_DeleteKey] = set()
        changed = set()
        for path, deletes in self._by_manifest.items():
            if name_of is None:
                vectors = [deletes.vectors[name] for name in names & deletes.vectors.keys()]
            else:
                vectors = [file for name, file in deletes.vectors.items() if name_of(name) in names]
            inside = {_key(vector) for vector in vectors}
            for file in deletes.others:
                name = file.referenced_path
                if name is not None and (name if name_of is None else name_of(name)) in names:
                    inside.add((file.path, None))
            if inside:
                changed.add(path)
                concerned |= inside
        return frozenset(concerned), frozenset(changed)


def _readable(deletes: Sequence[DeleteFile]) -> tuple[str, ...]:
    """URIs of position-delete files."""
    for delete in deletes:
        if delete.format != "PARQUET":
            raise ForeignTable(f"{delete.path} is a file of {delete.format}", "rewrite the table's deletes as Parquet")
    return tuple(delete.path for delete in deletes)


def _key(entry: ManifestEntry | StoredEntry) -> _DeleteKey:
    return entry.path, None if entry.blob is None else entry.blob.offset


@dataclass(frozen=True)
class ReadDeletes:
    """The deletes by position that a rewrite has read of its data files: vectors, and files that may name rows of
    them."""

    vectors: Mapping[str, VectorPlace] = field(default_factory=dict)
    """By data file URI."""
    files: frozenset[str] = frozenset()
    """URIs."""


NOTHING_READ = ReadDeletes()


def rows_lost(
    manifests: Sequence[Manifest],
    files: Sequence[LiveFile],
    before: HiddenRows,
    read: ReadDeletes,
    storage: StorageOptions,
    cache: CommitCache,
) -> HiddenRows:
    """The rows of live data files that the deletes of a snapshot with these manifests hide, but for some or all of
    those that `before` has, as of a former state in which `read` are the deletes that were read for it.

    Of a data file that has its former deletes only new ones are read. Raises LakeError, also if rows of `before`
    are not hidden any more, and as `row_deletes`.
    """
    deletes = _PresentDeletes(manifests if files else (), storage, cache)
    are_there = read.files <= deletes.paths
    changed: list[LiveFile] = []
    by_files: dict[tuple[str, ...], list[str]] = {}
    for file in files:
        vector = deletes.vector(file)
        if vector is not None:
            if vector != read.vectors.get(file.path):
                changed.append(file)
        elif file.path in read.vectors or not are_there:
            changed.append(file)
        elif new := [delete for delete in deletes.others(file) if delete.path not in read.files]:
            by_files.setdefault(_readable(new), []).append(file.path)
    hidden = HiddenRows({file.path: rows for file, rows in zip(changed, deletes.hidden(changed), strict=True)})
    undone = before.of_files({file.path for file in changed}).without(hidden)
    if undone:
        raise LakeError(f"deleted rows of {min(undone)} are back", "compute the rewrite again")
    return HiddenRows.united([hidden, *(HiddenRows.read(paths, named, storage) for paths, named in by_files.items())])
