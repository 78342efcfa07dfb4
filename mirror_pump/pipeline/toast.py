"""Completes rows whose large values an UPDATE did not send: unchanged TOAST values are looked up, never guessed.

A value that the stream marks unchanged is the one in the row's previous version. That version is the newest row under
the same key written before: in an earlier segment of the batch, else in the lake. Newest means the highest data
sequence number; whether delete files have hidden the row since does not matter, for the row is being updated, so
its newest version is the live one (design section 5).

While a table is being copied the previous version may not be in the lake yet. Then the heap has it. What the heap
holds now may be newer than the update; in that case the stream brings the newer value later, so the table is exact
once F has passed the position at which the heap was read, and it is not promised to readers before that. A row that
the heap no longer holds is left out: its delete, or its move to another key, is in the stream as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from decoders.columns import Kind
from decoders.segment import IncompleteRows
from decoders.text import parse_text
from mirror_pump.engine.lookup import LookupTask, find_rows
from mirror_pump.engine.runner import TaskRunner
from mirror_pump.errors import TableError
from mirror_pump.lake.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Column, Lsn, MirroredTable, TableState
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.rows import read_rows

Key: TypeAlias = tuple[object, ...]


@dataclass(frozen=True)
class VersionedFile:
    """A data file that may hold previous versions; `order` grows with age's opposite: the highest is the newest."""

    path: str
    order: int


@dataclass(frozen=True)
class Completed:
    """Rows made whole, by segment, and the heap position that they depend on."""

    rows: Mapping[int, pa.Table]
    heap_read_at: Lsn | None


def complete_rows(
    table: MirroredTable,
    incomplete: Mapping[int, IncompleteRows],
    files: Sequence[VersionedFile],
    runner: TaskRunner,
    storage: StorageOptions,
    connect: Callable[[], PgConnection],
) -> Completed:
    """Fill in what is missing. `incomplete` is by segment number; a file of segment i has order i, older ones less.

    Raises TableError when a live table's previous version is not to be found: the mirror would be wrong.
    """
    columns = _missing_columns(table, incomplete.values())
    keys = pa.concat_tables([one.lookup_keys.select(table.key) for one in incomplete.values()])
    versions = _Versions(table.key, columns)
    for order, found in _find(keys, columns, files, runner, LakeSchema.of_table(table), storage):
        versions.add(order, found)
    completed: dict[int, pa.Table] = {}
    heap_read_at: Lsn | None = None
    for segment in sorted(incomplete):
        one = incomplete[segment]
        sources = [versions.newest(key, before=segment) for key in _keys(one.lookup_keys, table.key)]
        absent = [row for row, source in enumerate(sources) if source is None]
        if absent:
            if table.state is TableState.LIVE:
                (key,) = _keys(one.lookup_keys.slice(absent[0], 1), table.key)
                raise TableError(
                    f"{table.name}: the previous version of row {key} is not in the lake, so its unchanged large "
                    "values are unknown",
                    "Copy the table again: mirror-pump unregister, then register.",
                )
            heap, heap_read_at = _read_heap(connect, table, columns, one.rows.take(pa.array(absent)))
            versions.add(-1, heap)
            for row, key in zip(absent, _keys(one.rows.take(pa.array(absent)), table.key), strict=True):
                sources[row] = versions.at(key, order=-1)
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
        for position, key in enumerate(_keys(rows, self._key), start=self._rows):
            self._by_key.setdefault(key, []).append((order, position))
        # Sources differ in what they declare NOT NULL; only the values count here.
        self._tables.append(pa.table([rows.column(name) for name in self._names], names=self._names))
        self._rows += rows.num_rows

    def newest(self, key: Key, before: int) -> int | None:
        """Position of the key's newest row that is older than segment `before`."""
        older = [version for version in self._by_key.get(key, ()) if version[0] < before and version[0] != -1]
        return max(older)[1] if older else None

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


def _missing_columns(table: MirroredTable, incomplete: Iterable[IncompleteRows]) -> tuple[str, ...]:
    return tuple(
        column.name
        for column in table.columns
        if any(pc.any(one.missing.column(column.name)).as_py() for one in incomplete)
    )


def _keys(rows: pa.Table, names: Sequence[str]) -> list[Key]:
    return list(zip(*(rows.column(name).to_pylist() for name in names), strict=True))


def _find(
    keys: pa.Table,
    columns: tuple[str, ...],
    files: Sequence[VersionedFile],
    runner: TaskRunner,
    schema: LakeSchema,
    storage: StorageOptions,
) -> list[tuple[int, pa.Table]]:
    """Rows with these keys in the files, each with its file's order."""
    futures: list[tuple[int, Future[pa.Table]]] = [
        (file.order, runner.submit(find_rows, LookupTask(file.path, keys, columns, schema, storage))) for file in files
    ]
    return [(order, future.result()) for order, future in futures]


def _read_heap(
    connect: Callable[[], PgConnection], table: MirroredTable, columns: Sequence[str], rows: pa.Table
) -> tuple[pa.Table, Lsn]:
    """The rows' present heap versions (those that exist), and a WAL position by which they all were committed."""
    by_name = {column.name: column for column in table.columns}
    wanted = [by_name[name] for name in (*table.key, *(name for name in columns if name not in table.key))]
    key_texts = [_texts(rows.column(column.name), column) for column in table.key_columns]
    with connect() as connection:
        found = read_rows(connection, table, wanted, list(zip(*key_texts, strict=True)))
        row = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
    assert row is not None
    arrays = []
    for place, column in enumerate(wanted):
        parsed = parse_text(pa.array([one[place] for one in found], pa.string()), column.type)
        if parsed.unrepresentable is not None and pc.any(parsed.unrepresentable).as_py():
            raise TableError(f"{table.name}: column {column.name} holds a value that {column.type} cannot hold")
        arrays.append(parsed.values)
    return pa.table(arrays, names=[column.name for column in wanted]), Lsn(row[0])


def _texts(values: pa.ChunkedArray, column: Column) -> list[str]:
    """Key values as text that Postgres reads back as the same value."""
    if column.type.kind is Kind.UUID:
        return [value.hex() for value in values.to_pylist()]
    if column.type.kind is Kind.BINARY:
        return ["\\x" + value.hex() for value in values.to_pylist()]
    return [str(value) for value in values.to_pylist()]
