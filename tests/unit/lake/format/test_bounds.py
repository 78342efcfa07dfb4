"""Bounds: serialised as the spec says, and never on the wrong side of a value."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.types import DecimalType, LongType

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.format.bounds import TRUNCATED_TO, lower_bound, upper_bound

STRING, BINARY = ColumnType(Kind.STRING), ColumnType(Kind.BINARY)


@given(st.lists(st.text(), min_size=1))
def test_text_bounds_hold_every_value(values: list[str]) -> None:
    raw = [value.encode() for value in values]
    low, high = lower_bound(STRING, raw), upper_bound(STRING, raw)
    assert low is not None
    assert all(low <= value for value in raw)
    assert len(low.decode()) <= TRUNCATED_TO
    if high is not None:
        assert all(value <= high for value in raw)
        assert len(high.decode()) <= TRUNCATED_TO


@given(st.lists(st.binary(), min_size=1))
def test_binary_bounds_hold_every_value(values: list[bytes]) -> None:
    low, high = lower_bound(BINARY, values), upper_bound(BINARY, values)
    assert low is not None
    assert all(low <= value for value in values)
    if high is not None:
        assert all(value <= high for value in values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a" * 16, "a" * 16),
        ("a" * 17, "a" * 15 + "b"),
        ("a" * 15 + "\U0010ffff" + "x", "a" * 14 + "b"),
        ("a" * 15 + "\ud7ffx", "a" * 15 + "\ue000"),
        ("\U0010ffff" * 17, None),
    ],
)
def test_a_cut_upper_bound_is_rounded_up(text: str, expected: str | None) -> None:
    assert upper_bound(STRING, [text.encode()]) == (None if expected is None else expected.encode())


def test_binary_that_cannot_be_rounded_up_has_no_upper_bound() -> None:
    assert upper_bound(BINARY, [b"\xff" * 17]) is None
    assert upper_bound(BINARY, [b"a" + b"\xff" * 17]) == b"b"


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_serialise_as_pyiceberg_does(value: int) -> None:
    assert lower_bound(ColumnType(Kind.LONG), [value]) == to_bytes(LongType(), value)


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1))
def test_wide_decimals_order_as_numbers(unscaled: list[int]) -> None:
    kind = ColumnType(Kind.DECIMAL, 38, 4)
    raw = [value.to_bytes(16, "big", signed=True) for value in unscaled]
    low, high = lower_bound(kind, raw), upper_bound(kind, raw)
    assert low is not None
    assert high is not None
    # Compared as integers: Decimal's context would round 38 digits.
    assert int.from_bytes(low, "big", signed=True) == min(unscaled)
    assert int.from_bytes(high, "big", signed=True) == max(unscaled)


@pytest.mark.parametrize("value", [0, 127, 128, -128, -129, 255, -1])
def test_decimals_take_the_fewest_bytes(value: int) -> None:
    serialised = lower_bound(ColumnType(Kind.DECIMAL, 9, 2), [value])
    assert serialised == to_bytes(DecimalType(9, 2), Decimal(value).scaleb(-2))
    assert serialised is not None
    assert from_bytes(DecimalType(9, 2), serialised) == Decimal(value).scaleb(-2)


def test_uuids_have_no_bounds() -> None:
    assert lower_bound(ColumnType(Kind.UUID), [b"\x00" * 16]) is None
    assert upper_bound(ColumnType(Kind.UUID), [b"\xff" * 16]) is None
