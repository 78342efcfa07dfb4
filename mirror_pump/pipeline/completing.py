"""Completes rows part by part, so that the values that are looked up for a batch never stand in memory all at once.

One UPDATE of a small column can concern every large value of a table: the batch is small, what it lacks is not. Rows
that cannot find each other's versions are completed apart from each other: a row's previous version is under its key
before the segment, and a row of a later segment may have its own there. So rows that are linked by a key, over all
segments, stay together (a chain); everything else may be apart, whatever the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from decoders.segment import IncompleteRows
from mirror_pump.engine.runner import TaskRunner
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.pipeline.toast import Completed, Key, VersionedFile, complete_rows, keys_of
from mirror_pump.source.connect import PgConnection

PART_BYTES = 64 << 20
"""Of completed rows that a part aims at."""
_FIRST_ROWS = 16
"""Rows of a table's first part, before anything is known of their size."""

Chain = list[tuple[int, int]]
"""Rows that belong together: numbers of segments, and of rows in them."""


class Completer:
    """Remembers how large each table's rows came to be."""

    def __init__(self, runner: TaskRunner, storage: StorageOptions, connect: Callable[[], PgConnection]) -> None:
        self._runner = runner
        self._storage = storage
        self._connect = connect
        self._row_bytes: dict[TableId, float] = {}

    def complete(
        self,
        table: MirroredTable,
        incomplete: Mapping[int, IncompleteRows],
        files: Sequence[VersionedFile],
        xids: Sequence[int],
    ) -> Iterator[Completed]:
        """As `complete_rows`, in parts of about PART_BYTES; a chain is never divided. Raises what that raises."""
        waiting = chains(incomplete, table.key)
        begin = 0
        while begin < len(waiting):
            known = self._row_bytes.get(table.table_id)
            most = _FIRST_ROWS if known is None else max(int(PART_BYTES / known), 1)
            end, rows = begin, 0
            while end < len(waiting) and (end == begin or rows + len(waiting[end]) <= most):
                rows += len(waiting[end])
                end += 1
            part = incomplete if end - begin == len(waiting) else _taken(incomplete, waiting[begin:end])
            completed = complete_rows(table, part, files, self._runner, self._storage, self._connect, xids)
            found = sum(one.nbytes for one in completed.rows.values())
            # The larger of what was and what is seen lately: a few small rows say nothing of the large ones.
            self._row_bytes[table.table_id] = max(found / rows, (known or 0.0) / 2, 1.0)
            yield completed
            begin = end


def chains(incomplete: Mapping[int, IncompleteRows], key: Sequence[str]) -> list[Chain]:
    """The rows, those linked by keys together, in the order of each chain's first row."""
    parent: dict[Key, Key] = {}

    def root(one: Key) -> Key:
        found = one
        while (above := parent.setdefault(found, found)) != found:
            found = above
        while parent[one] != found:
            parent[one], one = found, parent[one]
        return found

    rows: list[tuple[int, int, Key]] = []
    for segment in sorted(incomplete):
        one = incomplete[segment]
        before, own = keys_of(one.lookup_keys, key), keys_of(one.rows, key)
        for row, (former, present) in enumerate(zip(before, own, strict=True)):
            if former != present:
                parent[root(former)] = root(present)
            rows.append((segment, row, present))
    found: dict[Key, Chain] = {}
    for segment, row, present in rows:
        found.setdefault(root(present), []).append((segment, row))
    return list(found.values())


def _taken(incomplete: Mapping[int, IncompleteRows], wanted: Sequence[Chain]) -> dict[int, IncompleteRows]:
    """Only these rows."""
    places: dict[int, list[int]] = {}
    for chain in wanted:
        for segment, row in chain:
            places.setdefault(segment, []).append(row)
    taken = {}
    for segment, rows in places.items():
        one, take = incomplete[segment], pa.array(sorted(rows), pa.int64())
        taken[segment] = IncompleteRows(
            rows=one.rows.take(take),
            raw={name: texts.take(take) for name, texts in one.raw.items()},
            missing=one.missing.take(take),
            lookup_keys=one.lookup_keys.take(take),
        )
    return taken
