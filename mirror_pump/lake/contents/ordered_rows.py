"""Rows of a change feed in the order of their commits, from files that may have parts of the same transactions.

Invariant: every row is yielded once, by ascending position of its commit and, in a transaction, by its number there.
The rows of a file are in that order. Several files may have rows of one transaction, in turns: rows whose values were
looked up, and TRUNCATEs, are in files of their own. Files that have rows of the same transactions are read side by
side, others one after the other. Memory: a batch of each file that is being read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from mirror_pump.lake.format.feed_schema import LSN, SEQ

_ChangePlace = tuple[int, int]
"""Position of the commit, and number in the transaction."""


def in_commit_order(files: Iterable[tuple[int, Callable[[], Iterator[pa.Table]]]]) -> Iterator[pa.Table]:
    """The rows of all files: of each a position that none of its rows is before, and what gives its rows, in batches,
    when it is called. The table of transactions has no numbers, and a row for each transaction."""
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
        row = self._rows.num_rows - 1
        seq = self._rows.column(SEQ)[row].as_py() if SEQ in self._rows.column_names else 0
        return self._rows.column(LSN)[row].as_py(), seq

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


def _sorted(rows: pa.Table) -> pa.Table:
    keys = [name for name in (LSN, SEQ) if name in rows.column_names]
    order = pc.sort_indices(rows.select(keys), sort_keys=[(name, "ascending") for name in keys])
    return rows.take(order)
