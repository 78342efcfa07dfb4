"""Keys from sums, of rows that share buckets by chance or because they were chosen to."""

from __future__ import annotations

from itertools import count

import numpy as np

from mirror_pump.engine.comparison.key_sums import KeySums, computed_keys
from mirror_pump.engine.comparison.row_hashes import Words, buckets_of
from mirror_pump.lake.key_index.packed_keys import PackedKeys

_BITS = 4


def _sums(rows: dict[int, int]) -> tuple[Words, KeySums]:
    """Of rows with these hashes by key."""
    keys = PackedKeys(np.array(list(rows), np.int64), None)
    hashes = np.array(list(rows.values()), np.uint64)
    buckets = buckets_of(keys.first, _BITS)
    sums = np.zeros((1 << _BITS, 3), np.uint64)
    for column, words in enumerate((np.ones(len(rows), np.uint64), hashes, hashes)):
        np.add.at(sums[:, column], buckets, words)
    key_sums = KeySums.empty(_BITS, 1)
    key_sums.add(buckets, hashes, keys)
    return sums, key_sums


def _buckets(keys: list[int]) -> list[int]:
    buckets: list[int] = buckets_of(np.array(keys, np.int64), _BITS).tolist()
    return buckets


def test_rows_that_look_like_one_are_no_key() -> None:
    """Three rows whose hashes share a bucket look like a row with a key that no side has."""
    first, second, third = next(
        keys for begin in count(1) if len({*_buckets(keys := [begin, 2 * begin + 7, 5 * begin])}) == 3
    )
    heap = _sums({first: (3 << 60) + 50, second: (3 << 60) + 60})
    lake = _sums({third: (3 << 60) + 20})
    computed = computed_keys(heap, lake)
    assert computed is not None
    assert [sorted(side.first.tolist()) for side in computed] == [sorted([first, second]), [third]]


def test_keys_that_were_chosen_to_look_like_another_are_not_computed() -> None:
    """Their differences are multiples of 2^62, so that products with hashes say little, and they share a bucket."""
    quarter = 1 << 62
    keys = next(
        keys for low in count() if len({*_buckets(keys := [low, low + quarter, low - quarter, low - 2 * quarter])}) == 1
    )
    zero, one, three, two = keys
    assert (zero + three - one - two) % (1 << 64) == 0
    heap = _sums({zero: (3 << 60) + 48, three: (3 << 60) + 64})
    lake = _sums({one: (3 << 60) + 16})
    assert computed_keys(heap, lake) is None
