"""Equality deletes hide exactly the rows whose key they have."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from mirror_pump.tables.read_plan.file_rows import DeletedRows

_KEYS = st.tuples(st.none() | st.integers(0, 3), st.none() | st.sampled_from(["", "a", "b"]), st.integers(0, 2))
_TYPES = (pa.int64(), pa.string(), pa.int32())


def _columns(rows: list[tuple[int | None, str | None, int]], width: int) -> list[pa.Array]:
    return [pa.array([row[place] for row in rows], _TYPES[place]) for place in range(width)]


@given(st.lists(_KEYS, min_size=1), st.lists(_KEYS), st.integers(1, 3))
def test_rows_are_found_by_their_whole_key(
    deleted: list[tuple[int | None, str | None, int]], rows: list[tuple[int | None, str | None, int]], width: int
) -> None:
    keys = {row[:width] for row in deleted}
    mask = DeletedRows(_columns(deleted, width)).among(_columns(rows, width))
    assert mask.tolist() == [row[:width] in keys for row in rows]
