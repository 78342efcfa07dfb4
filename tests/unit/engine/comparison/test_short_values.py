"""Hashes of short byte strings: what they are, and that nothing but the string itself decides."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pump.engine.comparison.short_values import LANES, SHORT, lanes_of, lanes_of_rows

SECRET = b"secret"


def lanes(strings: list[bytes], secret: bytes = SECRET) -> list[list[int]]:
    sizes = np.array([len(string) for string in strings], np.int64)
    content = np.frombuffer(b"".join(strings), np.uint8)
    found: list[list[int]] = lanes_of(content, np.cumsum(sizes) - sizes, sizes, secret).T.tolist()
    return found


def expected(string: bytes, secret: bytes = SECRET) -> list[int]:
    """With Python's integers, which know no rounding."""
    drawn = np.frombuffer(hashlib.shake_256(secret).digest((SHORT // 2 + 1) * LANES * 4), np.uint32).tolist()
    weights = [[number >> 1 for number in drawn[LANES * row : LANES * (row + 1)]] for row in range(SHORT // 2 + 1)]
    padded = string + b"\0"
    numbers = [
        len(string),
        *(int.from_bytes(padded[place : place + 2], "little") for place in range(0, len(string), 2)),
    ]
    return [sum(number * weights[row][lane] for row, number in enumerate(numbers)) for lane in range(LANES)]


@pytest.mark.parametrize("sizes", [[0, 1, 2, 7, 8, 9, 64, 65, 127, 128, 129, 500, SHORT], [40] * 5000, [SHORT] * 300])
def test_lanes_are_exact_inner_products(sizes: list[int]) -> None:
    """Also of the largest numbers that there are, whose sums come closest to what floating point holds exactly."""
    random = np.random.default_rng(1)
    for strings in ([random.bytes(size) for size in sizes], [b"\xff" * size for size in sizes]):
        found = lanes(strings)
        for place in {0, len(strings) // 2, len(strings) - 1, *range(min(len(strings), 20))}:
            assert found[place] == expected(strings[place])


@given(strings=st.lists(st.binary(max_size=150), max_size=8), other=st.binary(max_size=300))
def test_a_string_hashes_alike_in_any_company(strings: list[bytes], other: bytes) -> None:
    assert lanes([*strings, other])[:-1] == lanes(strings) == [lanes([string])[0] for string in strings]
    rows = np.frombuffer(other * 3, np.uint8).reshape(3, len(other))
    assert lanes_of_rows(rows, SECRET).T.tolist() == lanes([other]) * 3


@given(strings=st.sets(st.binary(max_size=12), min_size=2, max_size=2), secret=st.binary(max_size=16))
def test_all_lanes_of_different_strings_differ(strings: set[bytes], secret: bytes) -> None:
    """Nothing is dropped on the way: not the padding, nor an odd byte at the end."""
    one, other = lanes(sorted(strings), secret)
    assert all(here != there for here, there in zip(one, other, strict=True))
