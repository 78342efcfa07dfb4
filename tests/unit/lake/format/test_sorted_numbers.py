"""Numbers are found in a sorted array: by the first of equal ones, and none beyond its ends."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mirror_pump.lake.format.sorted_numbers import found_among, sorted_distinct

_NUMBERS = st.integers(-3, 12) | st.sampled_from([np.iinfo(np.int64).min, np.iinfo(np.int64).max])


@given(st.lists(_NUMBERS), st.lists(_NUMBERS))
def test_it_finds_what_a_list_finds(known: list[int], numbers: list[int]) -> None:
    known.sort()
    places, found = found_among(np.array(known, np.int64), np.array(numbers, np.int64))
    assert found.tolist() == [number in known for number in numbers]
    assert places[found].tolist() == [known.index(number) for number in numbers if number in known]
    if known:
        assert ((places >= 0) & (places < len(known))).all()


@given(st.lists(st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)))
def test_distinct_numbers_are_sorted(numbers: list[int]) -> None:
    assert sorted_distinct(np.array(numbers, np.int64)).tolist() == sorted(set(numbers))
