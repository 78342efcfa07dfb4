"""Encodes the deletes of tables without a key, whose rows are found by all their values.

Invariant: a commit hides exactly as many rows of each value as the stream deleted, be they in the commit's base or in
files that it adds. Equal rows are the same to every reader, so it does not matter which of them is hidden; nor does the
order of inserts and deletes, as the stream deletes only rows that exist. What is equal is decided by the lake's values,
raw texts included: rows that differ in PostgreSQL alone are one value in the lake, and hiding any of them is right.

A delete is never written by key: that would hide all equal rows.

While the table is copied, a row may be deleted before its chunk has landed. Such deletes wait in memory, and are looked
for in each commit. The one that adds the last chunk finds all of them. If the process ends before, they are lost with
the database snapshot of the copy, which begins again (mirror_pump.pipeline.copy.copy_snapshots) and replaces all rows.

Data files and position-delete files never change, so what was read of them is kept in memory, within a limit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mirror_pump.engine.comparison.row_hashes import HashSecret
from mirror_pump.engine.comparison.whole_rows import HashedFile, RowDemand
from mirror_pump.errors import ForeignTable
from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing, LiveFile, listed
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.deletion_vectors import read_deleted_rows
from mirror_pump.lake.format.initial_defaults import initial_values
from mirror_pump.lake.format.partitioned_files import encoded_position_delete_files
from mirror_pump.lake.format.position_deletes import PATH_ID, Positions
from mirror_pump.lake.format.raw_text_columns import without_raw_text
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.whole_rows import RemovedRows
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.pipeline.key_index.key_indexes import EncodedDeletes
from mirror_pump.pipeline.operations.operation import TablePlan

_CACHE_BYTES = 256 << 20
"""Memory of the hashes that are kept: 24 bytes a row. What does not fit is read again by each commit with deletes."""

_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class _WaitingDeletes:
    """Deletes of rows that no chunk has brought yet."""

    start_lsn: Lsn
    """The start LSN of the copy to which they belong."""
    rows: tuple[RemovedRows, ...]


class WholeRowDeletes:
    """The deletes of all tables without a key. Owned by the loop's thread."""

    def __init__(self, storage: StorageOptions) -> None:
        self._storage = storage
        self._finder = RowFinder(storage)
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
        positions: dict[str, Positions] = {}
        if deletes or waiting:
            search = self._finder.search(table, base, emptied=plan.empties)
            search.add(chunk.file.path for chunk in plan.backdated)
            left = tuple(rows for each in waiting if (rows := search.find(each)).rows.num_rows)
            for segment in plan.segments:
                search.add(file.path for file in segment.files.data)
                if segment.deleted_rows is not None and (rows := search.find(segment.deleted_rows)).rows.num_rows:
                    left = (*left, rows)
            positions = search.taken
        if left and has_all_rows:
            raise ForeignTable(
                f"PostgreSQL deleted or updated a row of {table.name} that its lake table does not have",
                f"unregister {table.name} and register it: it is copied again",
            )
        files = encoded_position_delete_files(positions, {}, table.location)
        return EncodedDeletes(
            segments=tuple(segment.files for segment in plan.segments),
            positions=tuple(file for file, _ in files),
            unwritten={file.path: content for file, content in files},
            deleted=sum(segment.deleted for segment in plan.segments),
            waiting=left,
        )

    def landed(self, table: MirroredTable, encoded: EncodedDeletes) -> None:
        """The commit was published."""
        self._waiting.pop(table.table_id, None)
        if encoded.waiting:
            self._waiting[table.table_id] = _WaitingDeletes(table.start_lsn, encoded.waiting)

    def _waiting_of(self, table: MirroredTable) -> tuple[RemovedRows, ...]:
        waiting = self._waiting.get(table.table_id)
        return waiting.rows if waiting is not None and waiting.start_lsn == table.start_lsn else ()


class RowFinder:
    """Finds rows by all their values, and remembers what it read."""

    def __init__(self, storage: StorageOptions, cache_bytes: int = _CACHE_BYTES) -> None:
        self._storage = storage
        self._secret = HashSecret.draw()
        self._most = cache_bytes
        self._bytes = 0
        self._files: OrderedDict[tuple[str, LakeSchema], HashedFile] = OrderedDict()
        self._listings: dict[TableId, Listing] = {}
        self._hidden: dict[TableId, tuple[frozenset[str], Mapping[str, Positions]]] = {}

    def search(self, table: MirroredTable, base: LakeTable, *, emptied: bool) -> RowSearch:
        """Begin with the rows of `base`; with none if they are all removed."""
        data: list[LiveFile] = []
        hidden: Mapping[str, Positions] = {}
        if not emptied:
            data, hidden = self._live(table.table_id, base)
        search = RowSearch(self, initial_values(table.columns), hidden, self._secret)
        search.add(file.path for file in data)
        return search

    def read(self, path: str, schema: LakeSchema, initial: Mapping[int, pa.Array]) -> HashedFile:
        """The hashes of a file's rows. Raises LakeError."""
        key = path, schema
        rows = self._files.pop(key, None)
        if rows is None:
            rows = HashedFile.read(path, schema, initial, self._storage, self._secret)
            self._bytes += rows.nbytes
        self._files[key] = rows
        while self._bytes > self._most:
            self._bytes -= self._files.popitem(last=False)[1].nbytes
        return rows

    def _live(self, table_id: TableId, base: LakeTable) -> tuple[list[LiveFile], Mapping[str, Positions]]:
        """The data files, and the positions that are hidden in them. Reads only position-delete files that it has not
        read."""
        listing = self._listings.setdefault(table_id, Listing(self._storage, (PATH_ID,)))
        by_manifest = listing.files(base.manifests)
        data, deletes = [], set()
        for file, usual in listed(by_manifest, base.manifests, base.spec_ids):
            if not usual or file.content is FileContent.EQUALITY_DELETES:
                raise ForeignTable(
                    f"{file.path} was written by another engine, and may hide rows that are equal to others",
                    "unregister the table and register it: it is copied again",
                )
            if file.content is FileContent.DATA:
                data.append(file)
            else:
                deletes.add(file.path)
        read_files, hidden = self._hidden.get(table_id, (frozenset(), {}))
        if not read_files <= deletes:
            read_files, hidden = frozenset(), {}
        paths = {file.path for file in data}
        # Of files that came since, no position delete was read before: it came later than they did.
        new = read_deleted_rows(sorted(deletes - read_files), paths, self._storage)
        merged = {path: np.union1d(hidden.get(path, _NONE), new.get(path, _NONE)) for path in hidden.keys() | new}
        self._hidden[table_id] = frozenset(deletes), merged
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
        self._paths: list[str] = []
        self.taken: dict[str, Positions] = {}
        """Sorted positions of the rows that were found, by URI. No row is found twice."""

    def add(self, paths: Iterable[str]) -> None:
        """Look into these files as well."""
        self._paths += paths

    def find(self, rows: RemovedRows) -> RemovedRows:
        """Takes a row for each of these. Returns those for which there is none. Newer files come first."""
        demand = RowDemand(rows, self._secret)
        schema = without_raw_text(rows.schema)
        for path in reversed(self._paths):
            if not demand.missing:
                break
            gone = np.union1d(self._hidden.get(path, _NONE), self.taken.get(path, _NONE))
            positions = demand.take_from(self._finder.read(path, schema, self._initial), gone)
            if len(positions):
                self.taken[path] = np.union1d(self.taken.get(path, _NONE), positions)
        return demand.left()
