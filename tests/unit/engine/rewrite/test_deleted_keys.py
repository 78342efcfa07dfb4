"""The key search, compared with a dict of Python values, for every type that a key can have."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_pump.engine.rewrite.deleted_keys import SPAN_LIMIT, deleted_keys

_TEXT = st.one_of(
    st.sampled_from(["", "a", "b", "ab", "A", "ü", "\x00", "12345678", "123456789", "x" * 8, "x" * 9]),
    # Equal in length, first and last eight bytes: only the comparison of the whole values distinguishes them.
    st.integers(0, 3).map(lambda n: f"prefix-----{n}-----suffix"),
    st.text(max_size=20),
)

_VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int32(), st.integers(-5, 5) | st.sampled_from([-(2**31), 2**31 - 1])),
    "long": (pa.int64(), st.integers(-5, 5) | st.sampled_from([-(2**63), 2**63 - 1, 2**40])),
    "string": (pa.string(), _TEXT),
    "binary": (pa.binary(), _TEXT.map(str.encode)),
    "uuid": (pa.binary(16), st.integers(0, 7).map(lambda n: n.to_bytes(8, "big") + (n % 2).to_bytes(8, "big"))),
    "date": (pa.date32(), st.dates(datetime.date(1, 1, 1), datetime.date(1, 1, 9))),
    "timestamp": (pa.timestamp("us"), st.integers(-3, 3).map(lambda n: n * 10**15)),
    "timestamptz": (pa.timestamp("us", "UTC"), st.integers(-3, 3).map(lambda n: n * 10**15)),
    "decimal": (pa.decimal128(38, 2), st.integers(-4, 4).map(lambda n: decimal.Decimal(n * 10**30) / 100)),
    "boolean": (pa.bool_(), st.booleans()),
}


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[str], list[tuple[list[tuple[Any, ...]], int]], list[tuple[Any, ...]]]:
    """Column types, deleted keys by file with its sequence number, and rows to search."""
    kinds = draw(st.lists(st.sampled_from(sorted(_VALUES)), min_size=1, max_size=3))
    row = st.tuples(*(_VALUES[kind][1] for kind in kinds))
    deletes = draw(st.lists(st.tuples(st.lists(row, max_size=6), st.integers(1, 5)), min_size=1, max_size=4))
    return kinds, deletes, draw(st.lists(row, max_size=12))


def _table(kinds: list[str], rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(kinds)
    arrays = [
        # A slice in the middle: values before and after it belong to other rows.
        pa.array([None, *column, None], _VALUES[kind][0]).slice(1, len(rows))
        for kind, column in zip(kinds, columns, strict=True)
    ]
    return pa.table(arrays, names=[str(index) for index in range(len(kinds))])


@pytest.mark.parametrize("span_limit", [SPAN_LIMIT, 3])
@settings(max_examples=200)
@given(case=cases())
def test_rows_are_found_by_their_whole_key(
    span_limit: int, case: tuple[list[str], list[tuple[list[tuple[Any, ...]], int]], list[tuple[Any, ...]]]
) -> None:
    kinds, deletes, rows = case
    # With so low a limit, every composite key is renumbered on the way, which otherwise takes 2^62 combinations.
    newest: dict[tuple[Any, ...], int] = {}
    for keys, number in deletes:
        for key in _table(kinds, keys).to_pylist():
            identity = tuple(key.values())
            newest[identity] = max(number, newest.get(identity, 0))
    searched = _table(kinds, rows)
    expected = [
        (place, newest[identity])
        for place, identity in enumerate(tuple(row.values()) for row in searched.to_pylist())
        if identity in newest
    ]
    searching = deleted_keys([(_table(kinds, part), number) for part, number in deletes], span_limit)
    found, numbers = searching.find([pa.concat_arrays(column.chunks) for column in searched.columns])
    assert list(zip(found.tolist(), numbers.tolist(), strict=True)) == expected


def test_row_groups_are_skipped_by_the_first_column() -> None:
    single = deleted_keys([(pa.table({"0": [5, 10, 20]}), 1)])
    assert [single.first_between(*span) for span in [(0, 4), (0, 5), (11, 19), (20, 30), (21, 30)]] == [
        False, True, False, True, False,
    ]  # fmt: skip
    pair = deleted_keys([(pa.table({"0": [20, 10], "1": ["a", "b"]}), 1)])
    assert [pair.first_between(*span) for span in [(0, 9), (10, 10), (11, 19)]] == [False, True, False]
    assert deleted_keys([(pa.table({"0": ["a"]}), 1)]).first_between(0, 0), "text has no numbers: not skipped"
