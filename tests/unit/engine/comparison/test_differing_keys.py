"""Keys of rows that differ, computed from the sums of both sides, or from the rows themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.engine.comparison.differing_keys import DifferingKeys, unequal_buckets
from mirror_pump.engine.comparison.digests import ComparisonParameters, Digest, Digester, DigestTotal
from mirror_pump.engine.comparison.key_sums import KeySums
from mirror_pump.engine.comparison.row_hashes import BUCKETS, HashSecret, buckets_of
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.model import Column

LONG, UUID, TEXT = ColumnType(Kind.LONG), ColumnType(Kind.UUID), ColumnType(Kind.STRING)
Rows = Sequence[tuple[object, str | None]]
Sides = dict[object, tuple[bool, bool]]


def _comparing(key: ColumnType) -> ComparisonParameters:
    columns = (
        Column(1, "id", 20, -1, "bigint", key, 1, not_null=True),
        Column(2, "text", 25, -1, "text", TEXT, 2, not_null=False),
    )
    packing = KeyPacking((key,), b"secret")
    none = PackedKeys.concatenated([], packing.words)
    return ComparisonParameters(
        columns, ("id",), packing, HashSecret((11, 12), (13, 14)), none, sums_keys=packing.reversible
    )


def _digest(comparing: ComparisonParameters, rows: Rows) -> Digest:
    """In two parts, as of two tasks."""
    total = DigestTotal(comparing)
    for part in (rows[::2], rows[1::2]):
        digester = Digester(comparing)
        keys = pa.array([key for key, _ in part], comparing.packing.types[0].arrow)
        digester.add({1: keys, 2: pa.array([text for _, text in part], pa.string())}, len(part))
        total.add(digester.digest())
    return total.digest()


def _sides(keys: DifferingKeys | None) -> Sides | None:
    if keys is None:
        return None
    (column,) = keys.columns
    return dict(zip(column.to_pylist(), zip(keys.in_heap.tolist(), keys.in_lake.tolist(), strict=True), strict=True))


def _both_ways(comparing: ComparisonParameters, heap: Rows, lake: Rows) -> tuple[Sides | None, Sides | None]:
    """From the sums, and from the rows of unequal buckets."""
    sums = _digest(comparing, heap), _digest(comparing, lake)
    returning = replace(comparing, returned_buckets=unequal_buckets(*sums))
    rows = (_digest(returning, side).rows for side in (heap, lake))
    return _sides(DifferingKeys.computed(*sums, comparing)), _sides(DifferingKeys.of_rows(*rows))


@pytest.mark.parametrize("key", [LONG, UUID, ColumnType(Kind.DECIMAL, 20, 2), ColumnType(Kind.DATE)])
def test_keys_that_few_rows_differ_in(key: ColumnType) -> None:
    numbers = np.random.default_rng(5).permutation(3000)
    scalars = pa.array(numbers, pa.int32())
    if key is UUID:
        values = [number.to_bytes(16, "big") for number in numbers.tolist()]
    else:
        values = scalars.cast(key.arrow if key.kind is not Kind.DECIMAL else pa.decimal128(20, 0)).to_pylist()
    rows: list[tuple[object, str | None]] = [(value, f"text of {value!r}") for value in values]
    heap = [*rows[:2900], (values[2900], "other"), (values[2901], None), (values[2902], "")]
    lake = [*rows[5:2901], (values[2901], ""), (values[2902], None), rows[2903], rows[7]]
    expected = {
        **dict.fromkeys(values[:5], (True, False)),
        **dict.fromkeys(values[2900:2903], (True, True)),
        values[2903]: (False, True),
    }
    computed, of_rows = _both_ways(_comparing(key), heap, lake)
    # The lake has a row twice: its key is replaced, whichever side is said to have it.
    for found in (computed, of_rows):
        assert found is not None
        assert found.pop(values[7])[1]
        assert found == expected


def test_equal_sides_and_a_side_without_rows() -> None:
    rows = [(number, "x") for number in range(100)]
    comparing = _comparing(LONG)
    assert _both_ways(comparing, rows, rows[::-1]) == ({}, None)
    computed, of_rows = _both_ways(comparing, rows, [])
    assert computed == of_rows == dict.fromkeys(range(100), (True, False))


def test_many_keys_are_computed_and_too_many_are_not() -> None:
    rows = [(number, "a") for number in range(BUCKETS)]
    comparing = _comparing(LONG)
    computed, _ = _both_ways(comparing, rows, [*rows[:-200], *((key, "b") for key, _ in rows[-200:])])
    assert computed == dict.fromkeys(range(BUCKETS - 200, BUCKETS), (True, True))
    computed, of_rows = _both_ways(comparing, rows, [(key, "b") for key, _ in rows])
    assert computed is None
    assert of_rows == dict.fromkeys(range(BUCKETS), (True, True))


def test_keys_that_were_chosen_for_one_bucket_are_read_again() -> None:
    every = np.arange(3_000_000)
    crowded = every[buckets_of(every) == 7][:300].tolist()
    rows = [(key, "x") for key in crowded]
    computed, of_rows = _both_ways(_comparing(LONG), rows, [])
    assert of_rows == dict.fromkeys(crowded, (True, False))
    # Their hashes are anywhere, so that they are found all the same.
    assert computed in (None, of_rows)
    computed, of_rows = _both_ways(_comparing(LONG), rows * 3, rows)
    assert computed is None
    assert of_rows is not None


def test_hashed_keys_are_not_computed() -> None:
    comparing = _comparing(TEXT)
    computed, of_rows = _both_ways(comparing, [("a", "x"), ("b", "x")], [("a", "x"), ("b", None)])
    assert computed is None
    assert of_rows == {"b": (True, True)}


def test_sums_that_no_rows_have_yield_no_keys() -> None:
    """Three rows in one bucket that look like a single one: nothing but the marks tells."""
    comparing = _comparing(LONG)
    nothing = _digest(comparing, [])
    key_sums = KeySums.empty(comparing.bucket_bits, 1)
    key = PackedKeys(np.array([5]), None)
    hashed = np.array([1 << 60], np.uint64)
    buckets = buckets_of(key.first)
    key_sums.add(buckets, hashed, key)
    sums = np.zeros((BUCKETS, 3), np.uint64)
    sums[buckets[0]] = 1, hashed[0], 9
    one = Digest(sums, None, key_sums)
    assert _sides(DifferingKeys.computed(one, nothing, comparing)) == {5: (True, False)}
    key_sums.marks += 1
    assert DifferingKeys.computed(one, nothing, comparing) is None
    key_sums.marks -= 1
    sums[buckets[0] ^ 1, 2] = 1
    assert DifferingKeys.computed(one, nothing, comparing) is None, "a difference that no key explains"
