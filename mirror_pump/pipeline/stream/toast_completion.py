"""Completes rows part by part, so that the values looked up for a batch are never all in memory at once.

One UPDATE of a small column can concern every large value of a table: the batch is small, but its missing values are
not. Rows that cannot be each other's previous versions are completed separately. A row's previous version is stored
under the key that the row had before its segment, and a row of a later segment may find its own previous version under
the same key. So rows that are linked by a key, across all segments, stay together (a chain). All other rows may be
separated, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from decoders.incomplete_rows import IncompleteRows
from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.pipeline.stream.toast_lookup import Completed, HeapFilled, VersionedFile, complete_rows
from mirror_pump.runtime.spill import release_spilled
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.stream.slot import wal_end

_FIRST_ROWS = 16
"""Number of rows in a table's first part, before their size is known."""

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Chains:
    """Rows grouped into chains. Rows are numbered consecutively through all segments, in the order of the segments."""

    rows: Ints
    """The row numbers, chain after chain, in the order of each chain's first row."""
    begins: Ints
    """The index in `rows` at which each chain begins, followed by the end."""

    @property
    def count(self) -> int:
        return len(self.begins) - 1


class Completer:
    """Completes rows in parts, and remembers how large each table's completed rows were."""

    def __init__(
        self, runner: TaskRunner, storage: StorageOptions, connect: Callable[[], PgConnection], part_bytes: int
    ) -> None:
        """`part_bytes`: target size of a part, in bytes of completed rows."""
        self._runner = runner
        self._storage = storage
        self._connect = connect
        self._part_bytes = part_bytes
        self._row_bytes: dict[TableId, float] = {}
        self._heap_filled: dict[tuple[TableId, Lsn], HeapFilled] = {}
        """For tables under copy, by table and start LSN."""

    def complete(
        self,
        table: MirroredTable,
        incomplete: Mapping[int, IncompleteRows],
        files: Sequence[VersionedFile],
        xids: Sequence[int],
        frontier: Lsn,
        take: Callable[[Completed], None],
    ) -> None:
        """Like `complete_rows`, in parts of about `part_bytes`, each of which `take` gets; nothing here refers to it
        afterwards. A chain is never divided. Raises TableError as that does. `frontier` is the frontier before the
        batch."""
        heap_filled = self._heap_filled_of(table, frontier)
        waiting = chains(incomplete, table.key)
        begin = 0
        while begin < waiting.count:
            row_bytes = self._row_bytes.get(table.table_id)
            most = _FIRST_ROWS if row_bytes is None else max(int(self._part_bytes / row_bytes), 1)
            first = waiting.begins[begin]
            end = max(int(np.searchsorted(waiting.begins, first + most, side="right")) - 1, begin + 1)
            rows = int(waiting.begins[end] - first)
            part = (
                incomplete if rows == len(waiting.rows) else _take_rows(incomplete, waiting.rows[first : first + rows])
            )
            size = self._complete_part(table, part, files, xids, heap_filled, take)
            release_spilled()
            # Keep the larger of half the earlier size and the size just seen: a few small rows say nothing about the
            # large ones.
            self._row_bytes[table.table_id] = max(size / rows, (row_bytes or 0.0) / 2, 1.0)
            begin = end
        # Arrow's allocator keeps what a part took for the next one.
        pa.default_memory_pool().release_unused()

    def _complete_part(
        self,
        table: MirroredTable,
        part: Mapping[int, IncompleteRows],
        files: Sequence[VersionedFile],
        xids: Sequence[int],
        heap_filled: HeapFilled | None,
        take: Callable[[Completed], None],
    ) -> int:
        """The bytes of the completed rows."""
        completed = complete_rows(table, part, files, self._runner, self._storage, self._connect, xids, heap_filled)
        take(completed)
        return sum(rows.nbytes for rows in completed.rows.values())

    def _heap_filled_of(self, table: MirroredTable, frontier: Lsn) -> HeapFilled | None:
        identity = table.table_id, table.start_lsn
        if table.state.has_all_rows:
            self._heap_filled.pop(identity, None)
            return None
        if identity not in self._heap_filled:
            with self._connect() as connection:
                self._heap_filled[identity] = HeapFilled(wal_end(connection))
        self._heap_filled[identity].passed(frontier)
        return self._heap_filled[identity]


def chains(incomplete: Mapping[int, IncompleteRows], key: Sequence[str]) -> Chains:
    """Group the rows that are linked by keys. There may be millions of rows, so this takes only some fifty bytes a
    row."""
    before, new_keys = _key_numbers([incomplete[segment] for segment in sorted(incomplete)], key)
    parent: dict[int, int] = {}

    def root(number: int) -> int:
        top = number
        while (above := parent.setdefault(top, top)) != top:
            top = above
        while parent[number] != top:
            parent[number], number = top, parent[number]
        return top

    for row in np.flatnonzero(before != new_keys):
        parent[root(int(before[row]))] = root(int(new_keys[row]))
    roots = np.arange(max(before.max(initial=-1), new_keys.max(initial=-1)) + 1)
    roots[list(parent)] = [root(number) for number in parent]
    _, firsts, numbers = np.unique(roots[new_keys], return_index=True, return_inverse=True)
    places = np.empty(len(firsts), np.int64)
    places[np.argsort(firsts)] = np.arange(len(firsts))
    chain = places[numbers]
    rows = np.argsort(chain, kind="stable")
    return Chains(rows, np.searchsorted(chain[rows], np.arange(len(firsts) + 1)))


def _key_numbers(incomplete: Sequence[IncompleteRows], key: Sequence[str]) -> tuple[Ints, Ints]:
    """Numbers for the keys that all rows had before their segments, and for their own keys. Equal keys have equal
    numbers."""
    tables = [unfinished.lookup_keys.select(key) for unfinished in incomplete] + [
        unfinished.rows.select(key) for unfinished in incomplete
    ]
    keys = pa.concat_tables(tables)
    numbers = np.zeros(keys.num_rows, np.int64)
    for column in keys.columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        digits = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks] or [numbers])
        # Make the numbers dense again after each column, so that the product does not overflow.
        numbers = np.unique(numbers * (int(digits.max(initial=0)) + 1) + digits, return_inverse=True)[1]
    return numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]


def _take_rows(incomplete: Mapping[int, IncompleteRows], rows: Ints) -> dict[int, IncompleteRows]:
    """Select these rows from the segments."""
    taken = {}
    rows, begin = np.sort(rows), 0
    for segment in sorted(incomplete):
        unfinished = incomplete[segment]
        end = begin + unfinished.rows.num_rows
        segment_rows = rows[np.searchsorted(rows, begin) : np.searchsorted(rows, end)] - begin
        if len(segment_rows):
            take = pa.array(segment_rows)
            taken[segment] = IncompleteRows(
                rows=unfinished.rows.take(take),
                raw={name: texts.take(take) for name, texts in unfinished.raw.items()},
                missing=unfinished.missing.take(take),
                lookup_keys=unfinished.lookup_keys.take(take),
            )
        begin = end
    return taken
