"""Rows of a change feed in the order of their commits, from files that may have parts of the same transactions.

Invariant: every row is yielded once, by ascending position of its commit and, in a transaction, by its number there.
Several files may have rows of one transaction, in turns: rows whose values were looked up, and TRUNCATEs, are in files
of their own. Files that have rows of the same transactions are read side by side, others one after the other. Memory: a
batch of each file that is being read.

The rows of a file that the pump wrote are in that order. An engine's rewrite puts them in any (rewrite_data_files joins
files as they come), so no file is trusted: the positions of its rows are read before the rows. A file that is out of
order is sorted by runs, which wait on the disk and are read as if each were a file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from mirror_pump.lake.format.feed_schema import LSN, LSN_ID, SEQ, SEQ_ID
from mirror_pump.runtime.spill import Spill

_ChangePlace = tuple[int, int]
"""Position of the commit, and number in the transaction."""
_PLACE = {LSN_ID: LSN, SEQ_ID: SEQ}
RUN_BYTES = 32 << 20
"""Rows of a file that is out of order are sorted this many bytes at a time, in Arrow's format."""
_RUN_BATCH_ROWS = 4096

Batches = Callable[[], Iterator[pa.Table]]
"""Reads a file from its beginning."""


def sorted_batches(batches: Batches, places: Batches, run_bytes: int = RUN_BYTES) -> Iterator[pa.Table]:
    """The rows of one file in the order of their commits, whatever order the file has. `places`: the columns of the
    order alone, of the same rows; a file of a single batch is not read twice. Memory: two batches, or three runs."""
    rows = batches()
    first, second = next(rows, None), next(rows, None)
    if first is None:
        return
    if second is None:
        yield first if _is_sorted(iter([first])) else _sorted(first)
    elif _is_sorted(places()):
        yield from chain([first, second], rows)
    else:
        yield from in_commit_order(_runs(chain([first, second], rows), run_bytes))


def place_columns(names: Mapping[int, str]) -> list[str]:
    """The columns of a file that tell the order of its rows. `names`: those of its columns, by field ID."""
    return [names[field_id] for field_id in _PLACE if field_id in names]


def places_of(batch: pa.RecordBatch, names: Mapping[int, str]) -> pa.Table:
    """The columns of `place_columns` under the names that `sorted_batches` expects."""
    return pa.table({name: batch.column(names[field_id]) for field_id, name in _PLACE.items() if field_id in names})


def _is_sorted(batches: Iterator[pa.Table]) -> bool:
    last: _ChangePlace | None = None
    for rows in batches:
        if not rows.num_rows:
            continue
        if last is not None and _place(rows, 0) < last:
            return False
        earlier, later = rows.slice(0, rows.num_rows - 1), rows.slice(1)
        precedes = pc.less(later[LSN], earlier[LSN])
        if SEQ in rows.column_names:
            same = pc.equal(later[LSN], earlier[LSN])
            precedes = pc.or_(precedes, pc.and_(same, pc.less(later[SEQ], earlier[SEQ])))
        if pc.any(precedes).as_py():
            return False
        last = _place(rows, rows.num_rows - 1)
    return True


def _runs(batches: Iterator[pa.Table], run_bytes: int) -> list[tuple[int, Batches]]:
    """The rows in sorted runs, each with the position of its first row. All but the first are on the disk."""
    spill = Spill(run_bytes)
    runs: list[tuple[int, Batches]] = []
    waiting: list[pa.Table] = []

    def end_run() -> None:
        run = _sorted(pa.concat_tables(waiting))
        waiting.clear()
        stored = spill.stored(run, run.nbytes)
        runs.append((_place(stored, 0)[0], partial(_slices, stored)))

    for rows in batches:
        if rows.num_rows:
            waiting.append(rows)
        if sum(table.nbytes for table in waiting) >= run_bytes:
            end_run()
    if waiting:
        end_run()
    return runs


def _slices(run: pa.Table) -> Iterator[pa.Table]:
    for begin in range(0, run.num_rows, _RUN_BATCH_ROWS):
        yield run.slice(begin, _RUN_BATCH_ROWS)


def in_commit_order(files: Iterable[tuple[int, Batches]]) -> Iterator[pa.Table]:
    """The rows of all files: of each a position that none of its rows is before, and what gives its rows, sorted and in
    batches, when it is called. The table of transactions has no numbers, and a row for each transaction."""
    waiting = deque(sorted(files, key=lambda file: file[0]))
    being_read: list[_OpenFeedFile] = []
    while waiting or being_read:
        # What may come before the last of the rows that are read is read first.
        while waiting and (not being_read or waiting[0][0] <= min(file.last for file in being_read)[0]):
            file = _OpenFeedFile(waiting.popleft()[1]())
            if file.advance():
                being_read.append(file)
        if not being_read:
            return
        limit = min(file.last for file in being_read)
        taken = [rows for file in being_read if (rows := file.take(limit)).num_rows]
        being_read = [file for file in being_read if file.advance()]
        yield taken[0] if len(taken) == 1 else _sorted(pa.concat_tables(taken))


class _OpenFeedFile:
    """A file that is being read."""

    def __init__(self, batches: Iterator[pa.Table]) -> None:
        self._batches = batches
        self._rows: pa.Table | None = None
        """Those that are read and not taken yet."""

    def advance(self) -> bool:
        """Reads on if nothing is left. False at the end of the file."""
        while self._rows is None or not self._rows.num_rows:
            self._rows = next(self._batches, None)
            if self._rows is None:
                return False
        return True

    @property
    def last(self) -> _ChangePlace:
        """The place of the last row that is read."""
        assert self._rows is not None
        return _place(self._rows, self._rows.num_rows - 1)

    def take(self, limit: _ChangePlace) -> pa.Table:
        """Removes the rows up to a place, and returns them."""
        assert self._rows is not None
        lsn, seq = limit
        positions = self._rows.column(LSN)
        inside = pc.less_equal(positions, lsn)
        if SEQ in self._rows.column_names:
            earlier = pc.less_equal(self._rows.column(SEQ), seq)
            inside = pc.or_(pc.less(positions, lsn), pc.and_(inside, earlier))
        count = pc.sum(inside).as_py() or 0
        taken, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        return taken


def _place(rows: pa.Table, row: int) -> _ChangePlace:
    seq = rows.column(SEQ)[row].as_py() if SEQ in rows.column_names else 0
    return rows.column(LSN)[row].as_py(), seq


def _sorted(rows: pa.Table) -> pa.Table:
    keys = [name for name in (LSN, SEQ) if name in rows.column_names]
    order = pc.sort_indices(rows.select(keys), sort_keys=[(name, "ascending") for name in keys])
    return rows.take(order)
