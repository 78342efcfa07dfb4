"""Encodes the deletes of tables without a key, whose rows are found by all their values.

Invariant: a commit hides exactly as many rows of each value as the stream deleted, be they in the commit's base or in
files that it adds. Equal rows are the same to every reader, so it does not matter which of them is hidden; nor does the
order of inserts and deletes, as the stream deletes only rows that exist. What is equal is decided by the lake's values,
raw texts included: rows that differ in PostgreSQL alone are one value in the lake, and hiding any of them is right.

A delete is never written by key: that would hide all equal rows.

While the table is copied, a row may be deleted before its chunk has landed. Such deletes wait in memory, and are looked
for in each commit. The one that adds the last chunk finds all of them. If the process ends before, they are lost with
the database snapshot of the copy, which begins again (mirror_pump.pipeline.copy.copy_snapshots) and replaces all rows.

Data files and position-delete files never change, so what was read of them is kept (row_hashes). A batch whose deletes
need much that is not read yet waits for the row reader (row_reader), and the loop goes on with everything else. The
frontier waits with it: it promises these deletes too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mirror_pump.engine.comparison.row_hashes import HashSecret
from mirror_pump.engine.comparison.whole_rows import HashedFile, RowDemand
from mirror_pump.errors import ForeignTable
from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing, LiveFile, listed
from mirror_pump.lake.deletes.row_deletes import ReadDeletes
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.deletion_vectors import DeletionVector, VectorPlace, read_deletion_vectors
from mirror_pump.lake.format.initial_defaults import initial_values
from mirror_pump.lake.format.partitioning import PartitionTuple, partitions_of
from mirror_pump.lake.format.position_deletes import PATH_ID, Positions, read_position_deletes
from mirror_pump.lake.format.raw_text_columns import without_raw_text
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.row_ranges import RowRanges, compared_fields
from mirror_pump.lake.key_index.whole_rows import RemovedRows
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.pipeline.key_index.key_indexes import EncodedDeletes
from mirror_pump.pipeline.key_index.row_hashes import HiddenPositions, RowHashes, file_key
from mirror_pump.pipeline.operations.operation import TablePlan

NO_POSITIONS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class _WaitingDeletes:
    """Deletes of rows that no chunk has brought yet."""

    start_lsn: Lsn
    """The start LSN of the copy to which they belong."""
    rows: tuple[RemovedRows, ...]


class WholeRowDeletes:
    """The deletes of all tables without a key. Owned by the loop's thread."""

    def __init__(self, storage: StorageOptions, hashes: RowHashes) -> None:
        self._finder = RowFinder(storage, hashes)
        self._waiting: dict[TableId, _WaitingDeletes] = {}

    def encode(self, table: MirroredTable, base: LakeTable, plan: TablePlan, *, has_all_rows: bool) -> EncodedDeletes:
        """Encodes the deletes of the plan's segments for a commit on top of `base`. May be repeated with another base.

        `has_all_rows`: the table is live, or goes live: every deleted row must be there.

        Raises FileRewriteSuperseded if the plan also exchanges files, ForeignTable if a row is missing, and LakeError.
        """
        deletes = any(segment.deleted_rows for segment in plan.segments)
        waiting = () if plan.empties or plan.starts_copy else self._waiting_of(table)
        if plan.merged and (deletes or waiting):
            raise FileRewriteSuperseded(f"rows of {table.name} are deleted")
        left: tuple[RemovedRows, ...] = ()
        search: RowSearch | None = None
        if deletes or waiting:
            search = self._finder.search(table, base, emptied=plan.empties)
            search.add(chunk.file for chunk in plan.backdated)
            left = tuple(rows for each in waiting if (rows := search.find(each)).rows.num_rows)
            for segment in plan.segments:
                search.add(segment.files.data)
                if segment.deleted_rows is not None and (rows := search.find(segment.deleted_rows)).rows.num_rows:
                    left = (*left, rows)
        if left and has_all_rows:
            raise ForeignTable(
                f"PostgreSQL deleted or updated a row of {table.name} that its lake table does not have",
                f"unregister {table.name} and register it: it is copied again",
            )
        return EncodedDeletes(
            segments=tuple(segment.files for segment in plan.segments),
            hidden={} if search is None else search.taken,
            partitions={} if search is None else search.partitions,
            deleted=sum(segment.deleted for segment in plan.segments),
            waiting=left,
        )

    def reading(self, table: MirroredTable, base: LakeTable, rows: Sequence[RemovedRows]) -> RowReading | None:
        """What has to be read before such deletes can be encoded on top of `base`. None if it is so little that the
        loop reads it itself. Raises LakeError."""
        return self._finder.reading(table, base, rows)

    def later_reading(self, table: MirroredTable, lake: LakeTable) -> RowReading | None:
        """What later deletes from this state may need, if it is much, and the table has had deletes. Raises
        LakeError."""
        deleted = lake.position_deletes or self._finder.has_searched(table.table_id)
        return self._finder.reading(table, lake, ()) if deleted else None

    def landed(self, table: MirroredTable, encoded: EncodedDeletes) -> None:
        """The commit was published."""
        self._waiting.pop(table.table_id, None)
        if encoded.waiting:
            self._waiting[table.table_id] = _WaitingDeletes(table.start_lsn, encoded.waiting)

    def _waiting_of(self, table: MirroredTable) -> tuple[RemovedRows, ...]:
        waiting = self._waiting.get(table.table_id)
        return waiting.rows if waiting is not None and waiting.start_lsn == table.start_lsn else ()


@dataclass(frozen=True)
class RowReading:
    """Data files of a table whose rows have to be hashed, to find rows among them."""

    table: MirroredTable
    base: LakeTable
    """The state of the table."""
    schema: LakeSchema
    initial: Mapping[int, pa.Array]
    """As of `HashedFile.read`."""
    rows: RemovedRows | None
    """The rows to find: newer files come first, and once all are found, the others need not be read. None: all files
    are read, as far as the hashes have room."""
    unread: int
    """Number of rows in files that may have to be read."""


class RowFinder:
    """Finds rows by all their values, and remembers what it read."""

    def __init__(self, storage: StorageOptions, hashes: RowHashes) -> None:
        self._storage = storage
        self._hashes = hashes
        self._listings = RowListings(storage)
        self._searched: set[TableId] = set()

    def search(self, table: MirroredTable, base: LakeTable, *, emptied: bool) -> RowSearch:
        """Begin with the rows of `base`; with none if they are all removed."""
        self._searched.add(table.table_id)
        data: list[LiveFile] = []
        hidden: Mapping[str, Positions] = {}
        if not emptied:
            listing = self._listings.of(table.table_id, base)
            data, hidden = read_live_rows(
                table.table_id, base, listing, self._hashes, self._storage, base.cache.vectors
            )
        search = RowSearch(self, initial_values(table.columns), hidden, self._hashes.secret)
        search.add(data)
        return search

    def has_searched(self, table_id: TableId) -> bool:
        """Whether rows of the table were looked for."""
        return table_id in self._searched

    def read(self, path: str, schema: LakeSchema, initial: Mapping[int, pa.Array]) -> HashedFile:
        """The hashes of a file's rows. Raises LakeError."""
        rows = self._hashes.get(file_key(path, schema))
        if rows is None:
            rows = HashedFile.read(path, schema, initial, self._storage, self._hashes.secret)
            self._hashes.put(file_key(path, schema), rows)
        return rows

    def reading(self, table: MirroredTable, base: LakeTable, rows: Sequence[RemovedRows]) -> RowReading | None:
        """What has to be read to find `rows`; with none, to find any. None if it is little. Raises LakeError."""
        schema = without_raw_text(rows[-1].schema if rows else base.schema)
        try:
            data, deletes = live_files(base, self._listings.of(table.table_id, base))
        except ForeignTable:
            # Encoding raises it, and fails the table.
            return None
        # Those of a segment from before the table was altered are looked for when they are encoded.
        same = [each.rows for each in rows if each.schema == rows[-1].schema]
        removed = RemovedRows(rows[-1].schema, pa.concat_tables(same)) if same else None
        ranges = None if removed is None else RowRanges(removed)
        hidden = self._hashes.hidden(table.table_id)
        unread = sum(
            file.records
            for file in data
            if not self._hashes.has(file_key(file.path, schema)) and (ranges is None or ranges.may_be_in(file))
        )
        unread += sum(
            file.records - len(hidden.positions.get(file.about or "", ())) if file.vector is not None else file.records
            for file in deletes
            if file.path not in hidden.read.files
        )
        if unread <= self._hashes.read_at_once:
            return None
        return RowReading(table, base, schema, initial_values(table.columns), removed, unread)


class RowListings:
    """The listings of several tables, with the bounds by which files are left out."""

    def __init__(self, storage: StorageOptions) -> None:
        self._storage = storage
        self._listings: dict[TableId, tuple[frozenset[int], Listing]] = {}

    def of(self, table_id: TableId, base: LakeTable) -> Listing:
        """The listing of the table, which has the columns of `base`."""
        field_ids = frozenset(field.field_id for field in compared_fields(base.schema))
        listed_ids, listing = self._listings.get(table_id, (frozenset[int](), None))
        if listing is None or listed_ids != field_ids:
            listing = Listing(self._storage, field_ids | {PATH_ID})
            self._listings[table_id] = field_ids, listing
        return listing


def live_files(base: LakeTable, listing: Listing) -> tuple[list[LiveFile], list[LiveFile]]:
    """The data files, and the position-delete files. Raises ForeignTable if another engine wrote files in which rows
    cannot be found, and LakeError."""
    by_manifest = listing.files(base.manifests)
    data: list[LiveFile] = []
    deletes: list[LiveFile] = []
    for file, usual in listed(by_manifest, base.manifests, base.spec_ids):
        if not usual or file.content is FileContent.EQUALITY_DELETES:
            raise ForeignTable(
                f"{file.path} was written by another engine, and may hide rows that are equal to others",
                "unregister the table and register it: it is copied again",
            )
        (data if file.content is FileContent.DATA else deletes).append(file)
    return data, deletes


def read_live_rows(
    table_id: TableId,
    base: LakeTable,
    listing: Listing,
    hashes: RowHashes,
    storage: StorageOptions,
    read_vectors: Callable[[Sequence[VectorPlace], StorageOptions], list[DeletionVector]] = read_deletion_vectors,
) -> tuple[list[LiveFile], Mapping[str, Positions]]:
    """The data files, and the positions that are hidden in them. Reads only position-delete files and vectors that were
    not read before. Raises as `live_files`."""
    data, delete_files = live_files(base, listing)
    paths = {file.path for file in data}
    deletes = frozenset(file.path for file in delete_files if file.vector is None)
    vectors = {
        path: file.vector for file in delete_files if file.vector is not None and (path := file.about) is not None
    }
    hidden = hashes.hidden(table_id)
    if not hidden.read.files <= deletes or not paths.isdisjoint(hidden.read.vectors.keys() - vectors.keys()):
        hidden = HiddenPositions()
    # Of files that came since, no position delete was read before: it came later than they did.
    new = read_position_deletes(sorted(deletes - hidden.read.files), paths, storage)
    merged = dict(hidden.positions)
    for path, positions in new.items():
        merged[path] = np.union1d(merged.get(path, NO_POSITIONS), positions)
    # A vector has all deleted rows of its file.
    changed = {path: place for path, place in vectors.items() if hidden.read.vectors.get(path) != place}
    for path, vector in zip(changed, read_vectors(list(changed.values()), storage), strict=True):
        merged[path] = vector.positions
    hashes.put_hidden(table_id, HiddenPositions(ReadDeletes(vectors, deletes), merged))
    return data, merged


class RowSearch:
    """A search in the files of one state of a table, and in those that are added to it."""

    def __init__(
        self,
        finder: RowFinder,
        initial: Mapping[int, pa.Array],
        hidden: Mapping[str, Positions],
        secret: HashSecret,
    ) -> None:
        self._finder = finder
        self._initial = initial
        self._hidden = hidden
        self._secret = secret
        self._files: list[LiveFile | WrittenFile] = []
        self.taken: dict[str, Positions] = {}
        """Sorted positions of the rows that were found, by URI. No row is found twice."""

    def add(self, files: Iterable[LiveFile | WrittenFile]) -> None:
        """Look into these data files as well."""
        self._files += files

    def find(self, rows: RemovedRows) -> RemovedRows:
        """Takes a row for each of these. Returns those for which there is none. Newer files come first."""
        demand = RowDemand(rows, self._secret)
        schema = without_raw_text(rows.schema)
        ranges = RowRanges(rows)
        for file in reversed(self._files):
            if not demand.missing:
                break
            if not ranges.may_be_in(file):
                continue
            path = file.path
            gone = np.union1d(self._hidden.get(path, NO_POSITIONS), self.taken.get(path, NO_POSITIONS))
            positions = demand.take_from(self._finder.read(path, schema, self._initial), gone)
            if len(positions):
                self.taken[path] = np.union1d(self.taken.get(path, NO_POSITIONS), positions)
        return demand.left()

    @property
    def partitions(self) -> Mapping[str, PartitionTuple]:
        """The lake partitions of all files, by URI."""
        return partitions_of(self._files)
