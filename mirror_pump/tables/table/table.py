"""A table of a catalog: its snapshots, and commits that any number of processes make without knowing of each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema

from mirror_pump.errors import ForeignTable, MirrorPumpError, OutcomeUnknown, UsageError
from mirror_pump.lake.commit.new_snapshot import MadeSnapshot
from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.deletes.row_deletes import NO_DELETES, RowDeletes, row_deletes, touched_files
from mirror_pump.lake.document.metadata_files import metadata_directory, read_any_version
from mirror_pump.lake.document.next_metadata import with_format_version
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.versions import FORMAT_VERSION, VECTOR_VERSION
from mirror_pump.lake.manifests.manifest_list import Manifest, read_list
from mirror_pump.lake.storage import StorageOptions, delete, discard, list_files, local_path
from mirror_pump.runtime.backoff import Backoff, RetryPolicy
from mirror_pump.runtime.directory_lock import locked
from mirror_pump.tables.catalogs.lake_catalog import (
    LakeCatalog,
    MetadataPointer,
    PointerChange,
    TableIdentifier,
    TableMoved,
)
from mirror_pump.tables.metadata.pyiceberg_documents import new_metadata
from mirror_pump.tables.metadata.table_view import chosen_snapshot
from mirror_pump.tables.read_plan.file_rows import FileRows
from mirror_pump.tables.read_plan.metadata_columns import POSITION_COLUMN
from mirror_pump.tables.read_plan.plan import read_plan
from mirror_pump.tables.read_plan.planned_files import PlannedFile, ReadPlan
from mirror_pump.tables.read_plan.predicates import Predicate
from mirror_pump.tables.read_plan.scan import Scan
from mirror_pump.tables.table.described_files import DescribedFiles, FileDescriber, current_schema, file_location
from mirror_pump.tables.table.file_footers import FooterReader
from mirror_pump.tables.table.file_names import require_alone, same_name, without_dots
from mirror_pump.tables.table.known_files import KnownFiles
from mirror_pump.tables.table.row_files import write_rows
from mirror_pump.tables.table.snapshot_contents import DataFile, ManifestList, data_files_of, read_manifest_list
from mirror_pump.tables.table.staged_snapshot import TableVersion, stage_snapshot
from mirror_pump.tables.table.table_errors import ConflictingCommit, TableExists, TableMissing

LAKE_RETRIES = RetryPolicy(attempts=16, longest_pause=2.0, first_pause=0.01)
"""Of commits to tables of a catalog: an attempt takes milliseconds, unlike a publish of the pump's."""


class Table:
    """An Iceberg table. Commits see what others have committed; everything else sees the table as of the last call of
    `refresh` or of a commit. Not for several threads at a time: open one for each."""

    def __init__(
        self, catalog: LakeCatalog, identifier: TableIdentifier, state: TableVersion, retry: RetryPolicy
    ) -> None:
        """Use `open` or `create`."""
        self._catalog = catalog
        self._identifier = identifier
        self._state = state
        self._retry = retry
        self._footers = FooterReader(catalog.storage)
        self._known_files = KnownFiles(catalog.storage)
        self._may_have_landed = False
        """Whether the last commit may be in the catalog, even if it ended in an error."""

    @classmethod
    def create(
        cls,
        catalog: LakeCatalog,
        identifier: TableIdentifier | str,
        schema: Schema | pa.Schema,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        properties: Mapping[str, str] | None = None,
        *,
        format_version: int = FORMAT_VERSION,
        retry: RetryPolicy = LAKE_RETRIES,
    ) -> Table:
        """Creates a table with one empty snapshot. Field IDs are assigned anew, from 1. `format_version`: 2, or 3, by
        which the table has deletion vectors and row lineage.

        Raises UsageError for another version, TableExists, LakeError for columns or a partition spec that Iceberg does
        not have, and the errors of `commit_append`.
        """
        name = _parsed(identifier)
        _require_writable(format_version)
        if catalog.load(name) is not None:
            raise _exists(name)
        location = without_dots(catalog.table_location(name))
        metadata = new_metadata(location, schema, partition_spec, properties or {}, format_version)
        table = cls(catalog, name, TableVersion(None, metadata, ()), retry)
        staged = stage_snapshot(table._state, DescribedFiles((), metadata), (), catalog.storage, {})
        try:
            table._swap(staged)
        except TableMoved:
            raise _exists(name) from None
        return table

    @classmethod
    def open(
        cls, catalog: LakeCatalog, identifier: TableIdentifier | str, *, retry: RetryPolicy = LAKE_RETRIES
    ) -> Table:
        """Opens a table of any engine's. Raises TableMissing, ForeignTable for one of format version 4 or later, and
        LakeError."""
        name = _parsed(identifier)
        return cls(catalog, name, _read_state(catalog, name, _required(catalog, name)), retry)

    @classmethod
    def drop(cls, catalog: LakeCatalog, identifier: TableIdentifier | str, *, purge: bool = False) -> None:
        """Removes a table from the catalog. `purge`: also all files in its directory. Raises TableMissing, LakeError
        and, with `purge` if another table is in that directory or around it, one of LakeError and UsageError."""
        name = _parsed(identifier)

        def drop() -> list[str]:
            files: list[str] = []
            directory = None
            pointer = _required(catalog, name)
            if purge:
                metadata = read_any_version(pointer.metadata_location, catalog.storage)
                # Those of before the drop: another writer may make another table of this name right after it.
                listed = list(list_files(metadata.location, catalog.storage))
                require_alone(metadata, listed)
                # The metadata first: what is left of an interrupted purge cannot be registered.
                files = sorted((file.location for file in listed), key=lambda file: not file.endswith(".json"))
                directory = metadata.location
            catalog.commit([PointerChange(name, pointer, None, emptied=directory)])
            return files

        for file in LAKE_RETRIES.call(drop, _moved):
            delete(file, catalog.storage)

    @property
    def identifier(self) -> TableIdentifier:
        """The table's name."""
        return self._identifier

    @property
    def metadata(self) -> TableMetadata:
        """The whole table metadata."""
        return self._state.metadata

    @property
    def metadata_location(self) -> str:
        """URI of the metadata file, for engines that open a table by it."""
        assert self._state.pointer is not None
        return self._state.pointer.metadata_location

    @property
    def location(self) -> str:
        """Root URI of the table's files."""
        return self.metadata.location

    @property
    def schema(self) -> Schema:
        """The current columns."""
        return current_schema(self.metadata)

    @property
    def storage(self) -> StorageOptions:
        """How the table's files are reached."""
        return self._catalog.storage

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """The manifests of the current snapshot."""
        return self._state.manifests

    def refresh(self) -> Table:
        """Sees what others have committed. Returns this table. Raises TableMissing, and LakeError."""
        pointer = _required(self._catalog, self._identifier)
        if pointer != self._state.pointer:
            self._state = _read_state(self._catalog, self._identifier, pointer)
        return self

    def current_snapshot(self) -> Snapshot | None:
        """The newest snapshot; None in another engine's table that has none."""
        return self.metadata.current_snapshot

    def history(self) -> tuple[Snapshot, ...]:
        """The current snapshot, its parent, and so on back to the table's creation, or to the oldest one that has not
        expired. Reads nothing: one metadata file has all of them."""
        by_id = {snapshot.snapshot_id: snapshot for snapshot in self.metadata.snapshots}
        snapshots: list[Snapshot] = []
        snapshot_id = self.metadata.current_snapshot_id
        while snapshot_id is not None and snapshot_id in by_id:
            snapshots.append(by_id.pop(snapshot_id))
            snapshot_id = snapshots[-1].parent_id
        return tuple(snapshots)

    def manifest_list(self, snapshot_id: int | None = None) -> ManifestList:
        """The manifests of a snapshot, by default the current one. Raises UsageError for a snapshot that the table does
        not have, and LakeError."""
        snapshot = chosen_snapshot(self.metadata, snapshot_id)
        return ManifestList(None, ()) if snapshot is None else read_manifest_list(snapshot, self.storage)

    def data_files(self, manifest: Manifest) -> tuple[DataFile, ...]:
        """The data files of a manifest that readers see; none of one of deletes. Raises LakeError."""
        return data_files_of(manifest, self.storage)

    def read_plan(
        self,
        predicate: Predicate = AlwaysTrue(),  # noqa: B008 - a singleton
        snapshot_id: int | None = None,
    ) -> ReadPlan:
        """The data files that may have rows which match the predicate, with the deletes that apply to them.

        `predicate`: an expression of pyiceberg's, or a text such as `day >= '2026-01-01' and region = 'eu'`.
        `snapshot_id`: a snapshot that is retained, by default the current one. Never leaves out a file with a matching
        row, and opens a manifest only if its partition summaries allow a match (docs/lake/read-plan-correctness.md).
        Raises UsageError for a predicate or a snapshot that the table does not have, and LakeError.
        """
        return read_plan(self.metadata, self.storage, predicate, snapshot_id)

    def scan(
        self,
        predicate: Predicate = AlwaysTrue(),  # noqa: B008 - a singleton
        columns: Sequence[str] | None = None,
        snapshot_id: int | None = None,
    ) -> Scan:
        """The rows that match the predicate: `.to_arrow()`, `.to_batches()` or `.to_spark(session)`. Reads metadata
        only, until rows are asked for. `columns`: by default all of the table; besides these `_file` and `_pos`, where
        a row is, and in tables of format version 3 `_row_id` and `_last_updated_sequence_number`. Raises UsageError as
        `read_plan`, also for columns that the table does not have, and LakeError."""
        plan = read_plan(self.metadata, self.storage, predicate, snapshot_id, columns)
        return Scan(plan, self.metadata_location)

    def commit_append(self, files: Iterable[str], summary: Mapping[str, str] | None = None) -> Snapshot:
        """Adds data files, in one new snapshot, whatever others commit meanwhile. `files`: paths or URIs of Parquet
        files in the table's directory. `summary`: entries to add to the snapshot's summary.

        Raises FileRefused (SchemaMismatch for columns that do not fit), also for a file that the table has already,
        TableMoved if all attempts met a conflict, and LakeError: then nothing has changed. Raises OutcomeUnknown if
        that cannot be found out; the same append again is safe then. The first commit of a Table object reads all
        manifests of the table, later ones only those that are new.
        """
        return self._commit((), files, summary or {})

    def commit_overwrite(
        self, removed: Iterable[str], added: Iterable[str], summary: Mapping[str, str] | None = None
    ) -> Snapshot:
        """Removes data files and adds others, in one new snapshot. The removed ones stay in the storage.

        Raises ConflictingCommit if a file to remove is not in the table any more, or if another writer added deletes of
        rows since this table was refreshed, and the errors of `commit_append`.
        """
        gone = frozenset(file_location(path, self.metadata) for path in removed)
        return self._commit(gone, added, summary or {})

    def commit_row_delta(
        self, deleted: Mapping[str, Iterable[int]], added: Iterable[str] = (), summary: Mapping[str, str] | None = None
    ) -> Snapshot:
        """Deletes rows by deletion vectors, and adds data files, in one new snapshot. `deleted`: for data files of the
        table the numbers of rows, `_file` and `_pos` of a scan. A file of which no row is left is removed. Rows of
        `added` that take the place of deleted ones keep their identity if the files have their `_row_id`.

        Whatever others delete meanwhile stays deleted. Raises ConflictingCommit if such a file is not in the table any
        more, UsageError for rows that it does not have and for a table of format version 2, and the errors of
        `commit_append`.
        """
        rows = {path: _positions(numbers) for path, numbers in deleted.items()}
        return self._commit((), added, summary or {}, rows)

    def delete(self, predicate: Predicate, summary: Mapping[str, str] | None = None) -> Snapshot | None:
        """Deletes the rows that match the predicate, of all that the table has when the commit lands. None if there is
        no such row: then nothing is committed. Raises UsageError for a predicate on columns that the table does not
        have and for a table of format version 2, TableMoved if all attempts met a conflict, and LakeError."""
        finder = _MatchingRows(predicate, self._catalog.storage)

        def commit() -> Snapshot | None:
            with turn(metadata_directory(self.metadata), self._retry.longest_turn):
                self.refresh()
                deletes = self._deletes(finder.find(self.metadata), ())
                if not deletes.vectors and not deletes.emptied:
                    return None
                added = DescribedFiles((), self.metadata)
                return self._swap(stage_snapshot(self._state, added, (), self.storage, summary or {}, deletes))

        self._may_have_landed = False
        return self._retry.call(commit, _moved)

    def upgrade(self, format_version: int = VECTOR_VERSION) -> Table:
        """Makes a table of format version 2 one of version 3. Its next snapshot assigns row IDs, and position-delete
        files apply until rows of their data files are deleted again. There is no way back, and readers that know only
        version 2 cannot read it any more. Nothing happens if it has the version already. Raises UsageError for another
        version, TableMoved if all attempts met a conflict, and LakeError. Returns this table."""
        _require_writable(format_version)

        def commit() -> None:
            self.refresh()
            if self.metadata.format_version >= format_version:
                return
            now = time.time_ns() // 1_000_000
            if self.metadata.format_version < FORMAT_VERSION:
                raise ForeignTable(
                    f"{self._identifier} has Iceberg format version {self.metadata.format_version}",
                    "upgrade it to version 2 with the engine that made it",
                )
            metadata = with_format_version(self.metadata, format_version, self.metadata_location, now)
            (pointer,) = self._catalog.commit([PointerChange(self._identifier, self._state.pointer, metadata)])
            self._state = TableVersion(pointer, metadata, self._state.manifests)

        self._retry.call(commit, _moved)
        return self

    def append(self, rows: pa.Table, summary: Mapping[str, str] | None = None) -> Snapshot:
        """Writes rows to data files, one for each partition, and adds these. Columns that the table does not have are
        added to it. Raises SchemaMismatch, and the errors of `commit_append`. After an error the files are removed,
        unless a snapshot may name them."""
        return self._with_files(rows, lambda paths: self.commit_append(paths, summary))

    def replace_rows(
        self, deleted: Mapping[str, Iterable[int]], rows: pa.Table, summary: Mapping[str, str] | None = None
    ) -> Snapshot:
        """Deletes rows as `commit_row_delta`, and adds others, written as by `append`, in one new snapshot. A row with
        the `_row_id` of a deleted one takes its place: it has been changed by this commit, unless it has
        `_last_updated_sequence_number` too. Raises the errors of both."""
        return self._with_files(rows, lambda paths: self.commit_row_delta(deleted, paths, summary))

    def _with_files(self, rows: pa.Table, commit: Callable[[Sequence[str]], Snapshot]) -> Snapshot:
        """Writes rows to files, which are removed if the commit of them certainly failed."""
        paths = write_rows(rows, self.metadata, self._catalog.storage)
        self._may_have_landed = False
        try:
            return commit(paths)
        except BaseException:
            if not self._may_have_landed:
                discard(paths, self._catalog.storage)
            raise

    def _commit(
        self,
        removed: Collection[str],
        added: Iterable[str],
        summary: Mapping[str, str],
        deleted: Mapping[str, Positions] | None = None,
    ) -> Snapshot:
        self._may_have_landed = False
        describer = FileDescriber(self._catalog.storage)
        describer.read((file_location(path, self.metadata) for path in added), self._footers)
        planned = self._state
        described: dict[int, DescribedFiles] = {}

        def commit() -> Snapshot:
            nonlocal described
            with turn(metadata_directory(self.metadata), self._retry.longest_turn):
                self.refresh()
                if removed:
                    _require_no_deletes_since(planned, self._state)
                key = id(self._state)
                if key not in described:
                    described = {key: describer.describe(self.metadata)}
                self._known_files.refuse([file.path for file in described[key].files], self._state)
                deletes = self._deletes(deleted or {}, removed)
                return self._swap(stage_snapshot(self._state, described[key], removed, self.storage, summary, deletes))

        return self._retry.call(commit, _moved)

    def _deletes(self, deleted: Mapping[str, Positions], removed: Collection[str]) -> RowDeletes:
        """What becomes of the deletes of the table as it is seen now. Raises UsageError for rows of a table without
        deletion vectors."""
        if not deleted and (not removed or self.metadata.format_version < VECTOR_VERSION):
            return NO_DELETES
        if self.metadata.format_version >= VECTOR_VERSION:
            manifests = self._state.manifests
            named = HiddenRows.of({same_name(path): positions for path, positions in deleted.items()})
            touched, left = touched_files(manifests, named.vectors, self.storage, same_name)
            if left:
                raise ConflictingCommit(
                    f"{len(left)} of the files whose rows are to be deleted are not in the table, such as {min(left)}",
                    "another writer removed them: find the rows again in the table as it is now",
                    sorted(left),
                )
            return row_deletes(manifests, touched, removed, self.storage, same_name)
        raise UsageError(
            f"{self._identifier} has format version {self.metadata.format_version}, without deletion vectors",
            "make it one of version 3 by Table.upgrade(), if its readers know that version",
        )

    def _swap(self, staged: MadeSnapshot) -> Snapshot:
        """Makes a staged snapshot the newest. Removes its files if it certainly is not."""
        change = PointerChange(self._identifier, self._state.pointer, staged.metadata, staged.locations)
        self._may_have_landed = True
        try:
            (pointer,) = self._catalog.commit([change])
        except OutcomeUnknown:
            raise
        except MirrorPumpError:
            self._may_have_landed = False
            discard(staged.locations, self._catalog.storage)
            raise
        self._state = TableVersion(pointer, staged.metadata, staged.manifests)
        snapshot = staged.metadata.current_snapshot
        assert snapshot is not None
        return snapshot


_TURN_LOOKS = Backoff(first=0.001, longest=0.004, jitter=0.75)
"""Between looks whether the lock of a turn is free. Random, so that no writer is always later than another."""


def turn(location: str, longest: float) -> AbstractContextManager[None]:
    """Keeps other writers of this machine waiting for the time of the block, if it gets its turn within `longest`
    seconds. `location`: URI of the directory of the table's metadata. In an object store, and on a file system without
    such locks, it does nothing.

    It is a courtesy that spares writers of one machine conflicts, and nothing depends on it. A writer that has just
    committed has the newest state in memory; one that comes back after a conflict has to read it first, and would lose
    to the former again and again. A writer that does not get its turn commits all the same: the catalog's
    compare-and-swap decides, as between writers of several machines.
    """
    directory = local_path(location)
    return nullcontext() if directory is None else locked(directory, longest, _TURN_LOOKS)


class _MatchingRows:
    """Finds the rows that match a predicate, for a deletion that is planned again whenever the table has moved.
    Remembers those of each file, since files do not change: when another writer comes first, only its files are
    read."""

    def __init__(self, predicate: Predicate, storage: StorageOptions) -> None:
        self._predicate = predicate
        self._storage = storage
        self._by_file: dict[str, Positions] = {}

    def find(self, metadata: TableMetadata) -> Mapping[str, Positions]:
        """Row numbers by data file, without files that have no such row. Rows that are deleted already may be among
        them. Raises UsageError for a predicate on columns that the table does not have, and LakeError."""
        plan = read_plan(metadata, self._storage, self._predicate, columns=[POSITION_COLUMN.name])
        rows = FileRows(plan)
        by_file = {}
        for file in plan.files:
            key = f"{metadata.current_schema_id} {file.path}"
            if key not in self._by_file:
                self._by_file[key] = _matching(file, rows)
            if len(self._by_file[key]):
                by_file[file.path] = self._by_file[key]
        return by_file


def _matching(file: PlannedFile, rows: FileRows) -> Positions:
    if file.residual is AlwaysFalse():
        return np.empty(0, np.int64)
    if file.residual is AlwaysTrue():
        # Whatever its deletes hide: the whole file goes.
        return np.arange(file.records, dtype=np.int64)
    parts = [batch.column(0).to_numpy(zero_copy_only=False) for batch in rows.batches(file)]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _require_writable(format_version: int) -> None:
    if format_version not in (FORMAT_VERSION, VECTOR_VERSION):
        raise UsageError(
            f"tables of format version {format_version} cannot be written here",
            f"choose version {FORMAT_VERSION} or {VECTOR_VERSION}",
        )


def _positions(numbers: Iterable[int]) -> Positions:
    return np.asarray(numbers if isinstance(numbers, np.ndarray) else list(numbers), np.int64)


def _moved(error: BaseException) -> bool:
    return isinstance(error, TableMoved)


def _parsed(identifier: TableIdentifier | str) -> TableIdentifier:
    return TableIdentifier.parse(identifier) if isinstance(identifier, str) else identifier


def _required(catalog: LakeCatalog, name: TableIdentifier) -> MetadataPointer:
    pointer = catalog.load(name)
    if pointer is None:
        raise TableMissing(f"the catalog has no table {name}", "create it, or check its name")
    return pointer


def _exists(name: TableIdentifier) -> TableExists:
    return TableExists(f"the catalog has a table {name} already", "open it, or choose another name")


def _read_state(catalog: LakeCatalog, name: TableIdentifier, pointer: MetadataPointer) -> TableVersion:
    metadata = read_any_version(pointer.metadata_location, catalog.storage)
    if metadata.format_version > VECTOR_VERSION:
        raise ForeignTable(
            f"{name} has Iceberg format version {metadata.format_version}",
            f"only versions up to {VECTOR_VERSION} can be read here",
        )
    snapshot = metadata.current_snapshot
    manifests = () if snapshot is None else read_list(snapshot, catalog.storage)
    return TableVersion(pointer, metadata, manifests)


def _require_no_deletes_since(planned: TableVersion, current_version: TableVersion) -> None:
    """Raises ConflictingCommit if another writer deleted rows of files since: an overwrite would bring them back."""
    since = planned.metadata.last_sequence_number
    for manifest in current_version.manifests:
        if manifest.content and manifest.sequence_number > since and manifest.files[0]:
            raise ConflictingCommit(
                f"rows of the table in {current_version.metadata.location} were deleted since the overwrite was"
                " planned",
                "refresh the table, and write the new files again from its rows as they are now",
            )
