"""Sorted arrays of numbers: making them, and looking up numbers in them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]


def sorted_distinct(numbers: Ints) -> Ints:
    """The distinct numbers in order. numpy's `unique` hashes them first, which takes five times as long."""
    if not len(numbers):
        return numbers
    ordered = np.sort(numbers)
    distinct: Ints = ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])]
    return distinct


def found_among(values: Ints, numbers: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The index in `values` of each of the numbers, and a mask of those that are there.

    `values` is sorted; of equal ones the first is found. The index of a number that is not there is that of another
    one, so that the whole array can be used as an index unless `values` is empty.
    """
    places: Ints = np.searchsorted(values, numbers)
    if not len(values):
        return places, np.zeros(len(numbers), np.bool_)
    np.minimum(places, len(values) - 1, out=places)
    return places, values[places] == numbers
