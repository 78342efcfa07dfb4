"""Which incomplete rows may be completed independently of each other."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from decoders.incomplete_rows import IncompleteRows
from mirror_pump.pipeline.stream.toast_completion import chains


def incomplete(moves: list[tuple[int, int]]) -> IncompleteRows:
    """Rows by their keys before the segment and in it."""
    before, own = ([move[side] for move in moves] for side in (0, 1))
    rows = pa.table({"id": pa.array(own, pa.int64())})
    missing = pa.table({"id": pa.array([False] * len(moves))})
    return IncompleteRows(rows, {}, missing, pa.table({"id": pa.array(before, pa.int64())}))


def found_in(segments: dict[int, IncompleteRows]) -> list[list[tuple[int, int]]]:
    """The chains, with each row as its segment and its position in it."""
    found = chains(segments, ["id"])
    places = [(segment, row) for segment in sorted(segments) for row in range(segments[segment].rows.num_rows)]
    return [[places[row] for row in rows] for rows in np.split(found.rows, found.begins[1:-1])] if places else []


def test_rows_of_one_key_stay_together_over_segments_and_key_changes() -> None:
    found = found_in({0: incomplete([(1, 1), (2, 20), (3, 3)]), 2: incomplete([(20, 21), (3, 3), (9, 9)])})
    assert found == [[(0, 0)], [(0, 1), (2, 0)], [(0, 2), (2, 1)], [(2, 2)]]


@given(st.lists(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=8), min_size=1, max_size=4))
def test_no_key_is_in_two_chains_and_no_row_is_lost(segments: list[list[tuple[int, int]]]) -> None:
    found = found_in({number: incomplete(moves) for number, moves in enumerate(segments)})
    every = [(segment, row) for segment, moves in enumerate(segments) for row in range(len(moves))]
    assert sorted(row for chain in found for row in chain) == every
    keys = [{key for segment, row in chain for key in segments[segment][row]} for chain in found]
    assert sum(map(len, keys)) == len(set().union(*keys))
    assert [min(chain) for chain in found] == sorted(min(chain) for chain in found)


def test_keys_of_several_columns_are_equal_in_all_of_them() -> None:
    """Also if their numbers would be equal when added up, or if they are NULL."""
    own = [(1, "b"), (2, "a"), (1, "a"), (1, "b"), (2, "a"), (2, None), (2, None)]
    rows = pa.table({"n": [row[0] for row in own], "t": [row[1] for row in own]})
    missing = pa.table({name: pa.array([False] * len(own)) for name in ("n", "t")})
    found = chains({0: IncompleteRows(rows, {}, missing, rows)}, ["n", "t"])
    assert [rows.tolist() for rows in np.split(found.rows, found.begins[1:-1])] == [[0, 3], [1, 4], [2], [5, 6]]
