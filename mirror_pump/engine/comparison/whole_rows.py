"""Finds rows of data files by all their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.engine.comparison.row_hashes import HashSecret, Words, row_hashes
from mirror_pump.lake.format.columns import cast_to
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.raw_text_columns import every_raw_text
from mirror_pump.lake.format.row_batches import stored_rows
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.whole_rows import RemovedRows
from mirror_pump.lake.storage import StorageOptions

_BATCH_ROWS = 64 * 1024


class RowDemand:
    """How many rows of each value are still to be found."""

    def __init__(self, rows: RemovedRows, secret: HashSecret) -> None:
        columns = {
            field.field_id: cast_to(_whole(rows.rows.column(field.name)), field.arrow.type)
            for field in rows.schema.fields
        }
        first, second = row_hashes(columns, rows.rows.num_rows, secret)
        pairs, self._codes, counts = np.unique(
            np.stack([first, second], axis=1), axis=0, return_inverse=True, return_counts=True
        )
        self._codes = self._codes.reshape(-1)
        self._first, self._second = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
        self._counts = counts.astype(np.int64)
        self._rows = rows

    @property
    def missing(self) -> int:
        """Number of rows that were not found yet."""
        return int(self._counts.sum())

    def left(self) -> RemovedRows:
        """The rows that were not found yet."""
        order = np.argsort(self._codes, kind="stable")
        chosen = np.sort(order[_ranks(self._codes[order]) < self._counts[self._codes[order]]])
        return RemovedRows(self._rows.schema, self._rows.rows.take(pa.array(chosen)))

    def take_from(self, file: HashedFile, hidden: Positions) -> Positions:
        """Sorted positions of rows of the file that are wanted, no more of each value than that. `hidden`: positions
        of rows that are not there any more, sorted."""
        demanded = np.flatnonzero(self._counts)
        begin = np.searchsorted(file.first, self._first[demanded], "left")
        lengths = np.searchsorted(file.first, self._first[demanded], "right") - begin
        codes = np.repeat(demanded, lengths)
        places = np.arange(len(codes)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + np.repeat(begin, lengths)
        equal = file.second[places] == self._second[codes]
        codes, positions = codes[equal], file.order[places[equal]]
        visible = ~np.isin(positions, hidden)
        codes, positions = codes[visible], positions[visible]
        # `codes` are ascending, as `demanded` is.
        taken = _ranks(codes) < self._counts[codes]
        self._counts -= np.bincount(codes[taken], minlength=len(self._counts))
        return np.sort(positions[taken])


@dataclass(frozen=True)
class HashedFile:
    """The hashes of all rows of a data file under one schema."""

    first: Words
    """Ascending."""
    second: Words
    order: Positions
    """The rows' positions."""

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.first.nbytes + self.second.nbytes + self.order.nbytes

    @classmethod
    def read(
        cls,
        path: str,
        schema: LakeSchema,
        initial: Mapping[int, pa.Array],
        storage: StorageOptions,
        secret: HashSecret,
    ) -> Self:
        """`initial`: by field ID, the value of rows whose file lacks the column, as an array of one value. Raises
        LakeError."""
        parts: list[tuple[Words, Words]] = []
        whole = every_raw_text(schema)
        for _, columns, live in stored_rows(path, whole, None, storage, _BATCH_ROWS):
            for field in whole.fields:
                if field.field_id not in columns and field.field_id in initial:
                    value = cast_to(_whole(initial[field.field_id]), field.arrow.type)
                    columns[field.field_id] = value.take(pa.array(np.zeros(len(live), np.int64)))
            parts.append(row_hashes(columns, len(live), secret))
        none = np.zeros(0, np.uint64)
        first = np.concatenate([none, *(part for part, _ in parts)])
        second = np.concatenate([none, *(part for _, part in parts)])
        order = np.argsort(first, kind="stable")
        return cls(first[order], second[order], order)


@dataclass(frozen=True)
class HashTask:
    """Data files whose rows to hash."""

    paths: tuple[str, ...]
    schema: LakeSchema
    initial: Mapping[int, pa.Array]
    """As of `HashedFile.read`."""
    storage: StorageOptions
    secret: HashSecret
    urgent: bool
    """Whether a batch waits for it (TaskRunner.submit)."""


def hash_files(task: HashTask) -> list[HashedFile]:
    """The hashes of each file's rows. Memory: 24 bytes a row. Raises LakeError."""
    return [HashedFile.read(path, task.schema, task.initial, task.storage, task.secret) for path in task.paths]


def _ranks(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each of the ascending codes, how many equal ones are before it."""
    begins = np.flatnonzero(np.diff(codes, prepend=-1))
    return np.arange(len(codes)) - np.repeat(begins, np.diff(np.append(begins, len(codes))))


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
