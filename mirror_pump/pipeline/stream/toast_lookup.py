"""Completes rows whose large values an UPDATE did not send: unchanged TOAST values are looked up, never guessed.

A value that the stream marks as unchanged is in the row's previous version. That version is the newest earlier row
under the same key: in an earlier segment of the batch, or else in the lake. The newest row has the highest data
sequence number. Delete files that have hidden the row since then do not matter: the row is being updated, so its newest
version is the live one.

While a table is being copied, the previous version may not be in the lake yet. A version under the same key may belong
to another row, which was deleted: then a delete is newer than this version. In both cases the value is read from the
heap, once the update is visible there. The stream is ahead of visibility: before that, the row may still be under
another key, and another row under its key. The heap may hold a newer value than the update. In that case the stream
brings the newer value later. So the table is exact once the frontier has passed the position at which the heap was
read, and it is not promised to readers before that. A row that the heap no longer holds is left out: its delete, or its
move to another key, is in the stream as well.

A version read from the heap is only correct for its key: if the row had left the key by then, the version belongs to
another row. So a row that an update moves to another key takes no values from such a version (`HeapFilled`). It takes
them from the heap, under its new key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from decoders.incomplete_rows import IncompleteRows
from decoders.printing import print_values
from decoders.text import parse_rows
from mirror_pump.engine.lake_reads.lookup import LookedUpRows, LookupTask, find_rows, rows_of
from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.errors import TableError
from mirror_pump.lake.format.raw_text_columns import every_raw_text, is_raw_text, raw_text_id, widened
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Column, Lsn, MirroredTable
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.heap.row_lookup import await_visible, read_rows
from mirror_pump.source.stream.slot import wal_end

Key: TypeAlias = tuple[object, ...]

_GONE = -1
"""Marks a delete in place of a row's position. Less than every position, so that a row of the same order wins."""

_FILES_PER_TASK = 32
"""Number of files that one task opens. Starting a task costs as much as opening a few dozen files."""


@dataclass(frozen=True)
class VersionedFile:
    """A data file that may hold previous versions. The file with the highest `order` is the newest."""

    path: str
    order: int
    deletes: bool = False
    """The file holds deleted keys instead of rows: older versions under these keys belong to deleted rows."""


class HeapFilled:
    """The keys of one table under copy whose rows took values from the heap, which may be newer than the stream.

    A key is kept until the frontier has passed the position at which the heap was read. From there on the values are
    exact. The keys of earlier sessions are unknown, so every key is doubtful while the frontier is below `since`.
    """

    def __init__(self, since: Lsn) -> None:
        self._since = since
        self._frontier = Lsn(0)
        self._read: deque[tuple[Lsn, set[int]]] = deque()
        """Positions and hashes of keys. A hash collision with another key only costs a read of the heap."""

    def passed(self, frontier: Lsn) -> None:
        """The frontier has reached this position: forget the keys that were read up to it."""
        self._frontier = frontier
        while self._read and self._read[0][0] <= frontier:
            self._read.popleft()

    def add(self, position: Lsn, keys: Iterable[Key]) -> None:
        """The heap was read for these keys at `position`."""
        self._read.append((position, {hash(key) for key in keys}))

    def doubtful(self, key: Key) -> bool:
        """Whether the newest version under the key may belong to another row."""
        return self._frontier < self._since or any(hash(key) in keys for _, keys in self._read)


@dataclass(frozen=True)
class Completed:
    """Completed rows by segment, with every raw text column, and the WAL position of the heap read that they depend
    on."""

    rows: Mapping[int, pa.Table]
    heap_read_at: Lsn | None


def complete_rows(
    table: MirroredTable,
    incomplete: Mapping[int, IncompleteRows],
    files: Sequence[VersionedFile],
    runner: TaskRunner,
    storage: StorageOptions,
    connect: Callable[[], PgConnection],
    xids: Sequence[int],
    heap_filled: HeapFilled | None,
) -> Completed:
    """Fill in the missing values. `incomplete` is by segment number. A file of segment i has order i, older files have
    lower orders. `xids` are the transactions that wrote the rows. `heap_filled` is given for a table under copy, and is
    updated.

    Raises TableError if a live table's previous version cannot be found: the mirror would be wrong.
    """
    schema = LakeSchema.of_table(table)
    incomplete = {segment: _with_raw_text(rows, schema) for segment, rows in incomplete.items()}
    columns = _missing_columns(schema, incomplete.values())
    versions = _Versions(table.key, columns)
    _search(table, incomplete, columns, files, runner, storage, versions)
    completed: dict[int, pa.Table] = {}
    heap_read_at: Lsn | None = None
    for segment in sorted(incomplete):
        unfinished = incomplete[segment]
        old_keys, new_keys = keys_of(unfinished.lookup_keys, table.key), keys_of(unfinished.rows, table.key)
        sources = [
            None
            if heap_filled is not None and before != now and heap_filled.doubtful(before)
            else versions.newest(before, before=segment)
            for before, now in zip(old_keys, new_keys, strict=True)
        ]
        absent = [row for row, source in enumerate(sources) if source is None]
        if absent:
            if heap_filled is None:
                raise TableError(
                    f"{table.name}: the previous version of row {old_keys[absent[0]]} is not in the lake, so its"
                    " unchanged large values are unknown",
                    f"`mirror-pump resync {table.name.shell}` copies it again.",
                )
            missing_columns = [column for column in table.columns if column.name in columns]
            heap, heap_read_at = _read_heap(
                connect, table, missing_columns, unfinished.rows.take(pa.array(absent)), xids
            )
            versions.add(-1, heap)
            for row in absent:
                sources[row] = versions.at(new_keys[row], order=-1)
            heap_filled.add(heap_read_at, (new_keys[row] for row in absent))
        rows = versions.fill(unfinished, sources)
        completed[segment] = rows
        versions.add(segment, rows)
    return Completed(completed, heap_read_at)


class _Versions:
    """Rows found so far, by key and order. Loops over rows in Python, because unchanged TOAST values without a known
    source are rare."""

    def __init__(self, key: Sequence[str], columns: Sequence[str]) -> None:
        self._key = tuple(key)
        self._names = [*key, *(name for name in columns if name not in key)]
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._by_key: dict[Key, list[tuple[int, int]]] = {}

    def add(self, order: int, rows: pa.Table) -> None:
        for position, key in enumerate(keys_of(rows, self._key), start=self._rows):
            self._by_key.setdefault(key, []).append((order, position))
        # Sources differ in which columns they declare NOT NULL. Only the values count here.
        self._tables.append(pa.table([rows.column(name) for name in self._names], names=self._names))
        self._rows += rows.num_rows

    def add_deletes(self, order: int, keys: Iterable[Key]) -> None:
        """Versions older than `order` under these keys belong to deleted rows. Versions of that order do not."""
        for key in keys:
            self._by_key.setdefault(key, []).append((order, _GONE))

    def newest(self, key: Key, before: int) -> int | None:
        """Position of the key's newest row that is older than segment `before`."""
        older = [version for version in self._by_key.get(key, ()) if version[0] < before and version[0] != -1]
        position = max(older)[1] if older else _GONE
        return None if position == _GONE else position

    def at(self, key: Key, order: int) -> int | None:
        return next((position for version_order, position in self._by_key.get(key, ()) if version_order == order), None)

    def fill(self, incomplete: IncompleteRows, sources: Sequence[int | None]) -> pa.Table:
        """The incomplete rows with their missing cells taken from `sources`. Rows without a source are left out."""
        has_source = pa.array([source is not None for source in sources])
        take = pa.array([source for source in sources if source is not None], pa.int64())
        rows = incomplete.rows.filter(has_source)
        missing = incomplete.missing.filter(has_source)
        versions = pa.concat_tables(self._tables)
        for index, name in enumerate(rows.column_names):
            mask = missing.column(name)
            if rows.num_rows and pc.any(mask).as_py():
                values = versions.column(name).take(take)
                if not pc.all(mask).as_py():
                    values = pc.if_else(mask, values, rows.column(name))
                rows = rows.set_column(index, rows.field(index), values)
        return rows


def _with_raw_text(incomplete: IncompleteRows, schema: LakeSchema) -> IncompleteRows:
    """Mark the raw text column of each missing value as missing, too, because either column may hold the value."""
    rows = widened(incomplete.rows, incomplete.raw, schema)
    missing = incomplete.missing
    names = {raw_text_id(field.field_id): field.name for field in schema.fields}
    for field in every_raw_text(schema).fields:
        if is_raw_text(field):
            missing = missing.append_column(field.name, missing.column(names[field.field_id]))
    return IncompleteRows(rows=rows, raw={}, missing=missing, lookup_keys=incomplete.lookup_keys)


def _missing_columns(schema: LakeSchema, incomplete: Iterable[IncompleteRows]) -> tuple[str, ...]:
    """Names of the columns and raw text columns that have missing values."""
    all_rows = list(incomplete)
    return tuple(
        field.name
        for field in every_raw_text(schema).fields
        if any(pc.any(rows.missing.column(field.name)).as_py() for rows in all_rows)
    )


def keys_of(rows: pa.Table, names: Sequence[str]) -> list[Key]:
    """Each row's key."""
    return list(zip(*(_counted(rows.column(name)).to_pylist() for name in names), strict=True))


def _counted(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates and timestamps as days and microseconds since 1970. Python's own types only cover the years 1 to 9999."""
    if pa.types.is_date(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values


def _search(
    table: MirroredTable,
    incomplete: Mapping[int, IncompleteRows],
    columns: tuple[str, ...],
    files: Sequence[VersionedFile],
    runner: TaskRunner,
    storage: StorageOptions,
    versions: _Versions,
) -> None:
    """Add the versions that the rows need: from the batch's own files, or else from the newest older file that has
    them.

    Rows that change now have usually changed recently, and a table has many files. So files are opened from newest to
    oldest, in waves that double in size, until every row is found.
    """
    keys = pa.concat_tables([rows.lookup_keys.select(table.key) for rows in incomplete.values()])
    schema = every_raw_text(LakeSchema.of_table(table))

    def find(wave: Sequence[VersionedFile]) -> set[Key]:
        """Add the versions in these files. Returns the keys seen, live or deleted."""
        groups = [
            (kind[start : start + _FILES_PER_TASK], names)
            for kind, names in (
                ([file for file in wave if not file.deletes], columns),
                ([file for file in wave if file.deletes], ()),
            )
            for start in range(0, len(kind), _FILES_PER_TASK)
        ]
        futures: list[Future[list[LookedUpRows]]] = [
            runner.submit(
                find_rows,
                LookupTask(tuple(file.path for file in group), keys, names, schema, storage, table.location),
            )
            for group, names in groups
        ]
        read_keys: set[Key] = set()
        for (group, _), future in zip(groups, futures, strict=True):
            for file, lookup in zip(group, future.result(), strict=True):
                rows = rows_of(lookup, storage)
                file_keys = keys_of(rows, table.key)
                read_keys.update(file_keys)
                if file.deletes:
                    versions.add_deletes(file.order, file_keys)
                else:
                    versions.add(file.order, rows)
        return read_keys

    find([file for file in files if file.order >= 0])
    # Within one order, rows come before deletes: a wave that ends between them must not take a row for deleted.
    older = sorted((file for file in files if file.order < 0), key=lambda file: (-file.order, file.deletes))
    missing_keys = _unknown(table, incomplete, versions)
    begin, size = 0, _FILES_PER_TASK
    while missing_keys and begin < len(older):
        missing_keys -= find(older[begin : begin + size])
        begin, size = begin + size, size * 2


def _unknown(table: MirroredTable, incomplete: Mapping[int, IncompleteRows], versions: _Versions) -> set[Key]:
    """The keys whose previous version is not in the batch itself."""
    unknown: set[Key] = set()
    completed: set[Key] = set()
    for segment in sorted(incomplete):
        rows = incomplete[segment]
        keys = keys_of(rows.lookup_keys, table.key)
        unknown.update(key for key in keys if key not in completed and versions.newest(key, before=segment) is None)
        # Once they are complete, later segments find these rows as versions.
        completed.update(keys_of(rows.rows, table.key))
    return unknown


def _read_heap(
    connect: Callable[[], PgConnection],
    table: MirroredTable,
    columns: Sequence[Column],
    rows: pa.Table,
    xids: Sequence[int],
) -> tuple[pa.Table, Lsn]:
    """Read the rows' current heap versions, once the transactions `xids` are visible. Rows that no longer exist are
    left out. Returns key, columns and every raw text column, and a WAL position by which all versions were
    committed."""
    selected = [*table.key_columns, *(column for column in columns if column.name not in table.key)]
    key_texts = [
        [text for chunk in rows.column(column.name).chunks for text in print_values(chunk, column.type).to_pylist()]
        for column in table.key_columns
    ]
    with connect() as connection:
        await_visible(connection, xids)
        heap_rows = read_rows(connection, table, selected, list(zip(*key_texts, strict=True)))
        position = wal_end(connection)
    heap, raw = parse_rows(heap_rows, {column.name: column.type for column in selected})
    return widened(pa.table(heap), raw, LakeSchema.of_table(table)), position
