"""Completes rows whose large values an UPDATE did not send: unchanged TOAST values are looked up, never guessed.

A value that the stream marks unchanged is the one in the row's previous version. That version is the newest row under
the same key written before: in an earlier segment of the batch, else in the lake. Newest means the highest data
sequence number; whether delete files have hidden the row since does not matter, for the row is being updated, so
its newest version is the live one (design section 5).

While a table is being copied the previous version may not be in the lake yet; what is there under its key may be of
another row, which was deleted: then a delete is newer than it. Then the heap has the value, once the update is
visible there: the stream is ahead of that, and until then the row may be under another key, and another row under its
own. What the heap holds may be newer than the update; in that case the stream brings the newer value later, so the
table is exact once F has passed the position at which the heap was read, and it is not promised to readers before that.
A row that the heap no longer holds is left out: its delete, or its move to another key, is in the stream as well.

What was read so is right for its key only: when the row had left the key by then, it is another row's. So a row that an
update moves to another key takes no values from such a version (`HeapFilled`), but from the heap, under its new key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from decoders.columns import Kind
from decoders.segment import IncompleteRows
from decoders.text import parse_rows
from mirror_pump.engine.lookup import Found, LookupTask, find_rows, rows_of
from mirror_pump.engine.runner import TaskRunner
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
"""In the place of a row's position: less than every position, so that a row of the same order counts."""

_JULIAN_1970 = 2_440_588
"""The Julian day of 1970-01-01. Postgres reads J2440588 as that date; every date that it has is a day from J0 on."""

_FILES_PER_TASK = 32
"""A task costs as much as opening some dozens of files does."""


@dataclass(frozen=True)
class VersionedFile:
    """A data file that may hold previous versions; `order` grows with age's opposite: the highest is the newest."""

    path: str
    order: int
    deletes: bool = False
    """It holds keys that had to go, instead of rows: older versions under them are of rows that are gone."""


class HeapFilled:
    """The keys under which rows of one table under copy have values that the heap held later than the stream, until F
    has passed where it was read: from there on they are exact. Of former sessions, before `since`, nothing is known."""

    def __init__(self, since: Lsn) -> None:
        self._since = since
        self._frontier = Lsn(0)
        self._read: deque[tuple[Lsn, set[int]]] = deque()
        """Positions and hashes of keys. Equal ones of other keys cost a look at the heap."""

    def passed(self, frontier: Lsn) -> None:
        """F has come this far."""
        self._frontier = frontier
        while self._read and self._read[0][0] <= frontier:
            self._read.popleft()

    def add(self, position: Lsn, keys: Iterable[Key]) -> None:
        """The heap was read for these."""
        self._read.append((position, {hash(key) for key in keys}))

    def doubtful(self, key: Key) -> bool:
        """Whether the newest version under the key may be of another row."""
        return self._frontier < self._since or any(hash(key) in keys for _, keys in self._read)


@dataclass(frozen=True)
class Completed:
    """Rows made whole, by segment, with every sidecar; and the heap position that they depend on."""

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
    """Fill in what is missing. `incomplete` is by segment number; a file of segment i has order i, older ones less.
    `xids` are the transactions that the rows are of; `heap_filled`, of a table under copy, is kept up to date.

    Raises TableError when a live table's previous version is not to be found: the mirror would be wrong.
    """
    schema = LakeSchema.of_table(table)
    incomplete = {segment: _with_sidecars(one, schema) for segment, one in incomplete.items()}
    columns = _missing_columns(schema, incomplete.values())
    versions = _Versions(table.key, columns)
    _search(table, incomplete, columns, files, runner, storage, versions)
    completed: dict[int, pa.Table] = {}
    heap_read_at: Lsn | None = None
    for segment in sorted(incomplete):
        one = incomplete[segment]
        former, own = keys_of(one.lookup_keys, table.key), keys_of(one.rows, table.key)
        sources = [
            None
            if heap_filled is not None and before != now and heap_filled.doubtful(before)
            else versions.newest(before, before=segment)
            for before, now in zip(former, own, strict=True)
        ]
        absent = [row for row, source in enumerate(sources) if source is None]
        if absent:
            if heap_filled is None:
                raise TableError(
                    f"{table.name}: the previous version of row {former[absent[0]]} is not in the lake, so its"
                    " unchanged large values are unknown",
                    "Copy the table again: mirror-pump unregister, then register.",
                )
            wanted = [column for column in table.columns if column.name in columns]
            heap, heap_read_at = _read_heap(connect, table, wanted, one.rows.take(pa.array(absent)), xids)
            versions.add(-1, heap)
            for row in absent:
                sources[row] = versions.at(own[row], order=-1)
            heap_filled.add(heap_read_at, (own[row] for row in absent))
        rows = versions.fill(one, sources)
        completed[segment] = rows
        versions.add(segment, rows)
    return Completed(completed, heap_read_at)


class _Versions:
    """Rows found so far, by key and order. Loops over rows: unchanged TOAST values without a known source are rare."""

    def __init__(self, key: Sequence[str], columns: Sequence[str]) -> None:
        self._key = tuple(key)
        self._names = [*key, *(name for name in columns if name not in key)]
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._by_key: dict[Key, list[tuple[int, int]]] = {}

    def add(self, order: int, rows: pa.Table) -> None:
        for position, key in enumerate(keys_of(rows, self._key), start=self._rows):
            self._by_key.setdefault(key, []).append((order, position))
        # Sources differ in what they declare NOT NULL; only the values count here.
        self._tables.append(pa.table([rows.column(name) for name in self._names], names=self._names))
        self._rows += rows.num_rows

    def add_deletes(self, order: int, keys: Iterable[Key]) -> None:
        """What is older than `order` under these keys is of rows that are gone; what is of that order is not."""
        for key in keys:
            self._by_key.setdefault(key, []).append((order, _GONE))

    def newest(self, key: Key, before: int) -> int | None:
        """Position of the key's newest row that is older than segment `before`."""
        older = [version for version in self._by_key.get(key, ()) if version[0] < before and version[0] != -1]
        position = max(older)[1] if older else _GONE
        return None if position == _GONE else position

    def at(self, key: Key, order: int) -> int | None:
        return next((position for known, position in self._by_key.get(key, ()) if known == order), None)

    def fill(self, incomplete: IncompleteRows, sources: Sequence[int | None]) -> pa.Table:
        """The incomplete rows with their missing cells taken from `sources`; rows without a source are left out."""
        present = pa.array([source is not None for source in sources])
        take = pa.array([source for source in sources if source is not None], pa.int64())
        rows = incomplete.rows.filter(present)
        missing = incomplete.missing.filter(present)
        known = pa.concat_tables(self._tables)
        for index, name in enumerate(rows.column_names):
            mask = missing.column(name)
            if rows.num_rows and pc.any(mask).as_py():
                values = known.column(name).take(take)
                filled = pc.if_else(mask, values, rows.column(name))
                rows = rows.set_column(index, rows.field(index), filled)
        return rows


def _with_sidecars(incomplete: IncompleteRows, schema: LakeSchema) -> IncompleteRows:
    """A missing value is missing with its sidecar: either may hold it."""
    rows = widened(incomplete.rows, incomplete.raw, schema)
    missing = incomplete.missing
    own = {raw_text_id(field.field_id): field.name for field in schema.fields}
    for field in every_raw_text(schema).fields:
        if is_raw_text(field):
            missing = missing.append_column(field.name, missing.column(own[field.field_id]))
    return IncompleteRows(rows=rows, raw={}, missing=missing, lookup_keys=incomplete.lookup_keys)


def _missing_columns(schema: LakeSchema, incomplete: Iterable[IncompleteRows]) -> tuple[str, ...]:
    """Names of columns and sidecars."""
    found = list(incomplete)
    return tuple(
        field.name
        for field in every_raw_text(schema).fields
        if any(pc.any(one.missing.column(field.name)).as_py() for one in found)
    )


def keys_of(rows: pa.Table, names: Sequence[str]) -> list[Key]:
    """Each row's key."""
    return list(zip(*(_counted(rows.column(name)).to_pylist() for name in names), strict=True))


def _counted(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates and timestamps as days and microseconds since 1970: Python's own end with the years 1 and 9999."""
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
    """Add the versions that the rows need: from the batch's own files, else from the newest older one that has them.

    Rows that change now have mostly changed lately, and a table has many files: those are opened newest first, in
    waves that double, until every row is found.
    """
    keys = pa.concat_tables([one.lookup_keys.select(table.key) for one in incomplete.values()])
    schema = every_raw_text(LakeSchema.of_table(table))

    def find(wave: Sequence[VersionedFile]) -> set[Key]:
        """Take in the versions that these files hold; return the keys seen, alive or deleted."""
        groups = [
            (kind[start : start + _FILES_PER_TASK], wanted)
            for kind, wanted in (
                ([file for file in wave if not file.deletes], columns),
                ([file for file in wave if file.deletes], ()),
            )
            for start in range(0, len(kind), _FILES_PER_TASK)
        ]
        futures: list[Future[list[Found]]] = [
            runner.submit(
                find_rows,
                LookupTask(tuple(file.path for file in group), keys, wanted, schema, storage, table.location),
            )
            for group, wanted in groups
        ]
        seen: set[Key] = set()
        for (group, _), future in zip(groups, futures, strict=True):
            for file, one in zip(group, future.result(), strict=True):
                rows = rows_of(one, storage)
                found = keys_of(rows, table.key)
                seen.update(found)
                if file.deletes:
                    versions.add_deletes(file.order, found)
                else:
                    versions.add(file.order, rows)
        return seen

    find([file for file in files if file.order >= 0])
    # Of one order, rows before deletes: a wave that ends between them must not take a row for gone.
    older = sorted((file for file in files if file.order < 0), key=lambda file: (-file.order, file.deletes))
    wanted = _unknown(table, incomplete, versions)
    begin, size = 0, _FILES_PER_TASK
    while wanted and begin < len(older):
        wanted -= find(older[begin : begin + size])
        begin, size = begin + size, size * 2


def _unknown(table: MirroredTable, incomplete: Mapping[int, IncompleteRows], versions: _Versions) -> set[Key]:
    """The keys whose previous version is not in the batch itself."""
    unknown: set[Key] = set()
    completed: set[Key] = set()
    for segment in sorted(incomplete):
        one = incomplete[segment]
        keys = keys_of(one.lookup_keys, table.key)
        unknown.update(key for key in keys if key not in completed and versions.newest(key, before=segment) is None)
        # Once they are complete, these rows are versions that later segments find.
        completed.update(keys_of(one.rows, table.key))
    return unknown


def _read_heap(
    connect: Callable[[], PgConnection],
    table: MirroredTable,
    columns: Sequence[Column],
    rows: pa.Table,
    xids: Sequence[int],
) -> tuple[pa.Table, Lsn]:
    """The rows' present heap versions (those that exist), none from before `xids`: key, columns and every sidecar; and
    a WAL position by which they all were committed."""
    wanted = [*table.key_columns, *(column for column in columns if column.name not in table.key)]
    key_texts = [_texts(rows.column(column.name), column) for column in table.key_columns]
    with connect() as connection:
        await_visible(connection, xids)
        found = read_rows(connection, table, wanted, list(zip(*key_texts, strict=True)))
        position = wal_end(connection)
    heap, raw = parse_rows(found, {column.name: column.type for column in wanted})
    return widened(pa.table(heap), raw, LakeSchema.of_table(table)), position


def _moment(micros: int) -> str:
    """Microseconds since 1970 as Postgres reads them: a Julian day, and the time of day."""
    days, rest = divmod(micros, 86_400_000_000)
    seconds, fraction = divmod(rest, 1_000_000)
    return f"J{_JULIAN_1970 + days} {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"


def _texts(values: pa.ChunkedArray, column: Column) -> list[str]:
    """Key values as text that Postgres reads back as the same value."""
    if column.type.kind is Kind.UUID:
        return [value.hex() for value in values.to_pylist()]
    if column.type.kind is Kind.BINARY:
        return ["\\x" + value.hex() for value in values.to_pylist()]
    if column.type.kind is Kind.DATE:
        return [f"J{_JULIAN_1970 + days}" for days in _counted(values).to_pylist()]
    if column.type.kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        zone = "+00" if column.type.kind is Kind.TIMESTAMPTZ else ""
        return [_moment(micros) + zone for micros in _counted(values).to_pylist()]
    return [str(value) for value in values.to_pylist()]
