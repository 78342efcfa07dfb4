"""Looks up numbers in a sorted array."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]


def found_among(known: Ints, numbers: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The index in `known` of each of the numbers, and a mask of those that are there.

    `known` is sorted; of equal ones the first is found. The index of a number that is not there is that of another
    one, so that the whole array can be used as an index unless `known` is empty.
    """
    places: Ints = np.searchsorted(known, numbers)
    if not len(known):
        return places, np.zeros(len(numbers), np.bool_)
    np.minimum(places, len(known) - 1, out=places)
    return places, known[places] == numbers
