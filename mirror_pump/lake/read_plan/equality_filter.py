"""Applies equality deletes to Arrow batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mirror_pump.lake.format.columns import plain
from mirror_pump.lake.format.sorted_numbers import found_among


class DeletedRows:
    """The keys of equality deletes on the same columns: a set of rows, in which NULL equals NULL.

    Each column's values are numbered; a row's numbers are then combined column by column, and numbered anew each time,
    so that they never outgrow 64 bits.
    """

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        """`keys`: the columns, all of one length."""
        self._values = [pc.unique(plain(column)) for column in keys]
        self._combined: list[npt.NDArray[np.int64]] = []
        numbers = self._numbers(0, keys[0])
        for place in range(1, len(keys)):
            pairs = numbers * len(self._values[place]) + self._numbers(place, keys[place])
            known, numbers = np.unique(pairs, return_inverse=True)
            self._combined.append(known)

    def among(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """A mask of the rows that are in the set. `columns` have the types of the keys."""
        numbers = self._numbers(0, columns[0])
        found: npt.NDArray[np.bool_] = numbers >= 0
        for place, known in enumerate(self._combined, 1):
            others = self._numbers(place, columns[place])
            pairs = numbers * len(self._values[place]) + others
            numbers, equal = found_among(known, pairs)
            found &= (others >= 0) & equal
        return found

    def _numbers(self, place: int, column: pa.Array) -> npt.NDArray[np.int64]:
        """The place of each value among the distinct ones of the keys; -1 for one that is not there."""
        places = pc.index_in(plain(column), value_set=self._values[place])
        numbers: npt.NDArray[np.int64] = pc.fill_null(places, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        return numbers
