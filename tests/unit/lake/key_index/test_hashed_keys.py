"""Hashes of keys: those of the definition, for each row by itself, and different ones for different keys."""

from __future__ import annotations

import hashlib
import random

import pyarrow as pa
import pytest

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.key_index.packed_keys import KeyPacking

SECRET = b"a secret"
TEXT, BINARY = ColumnType(Kind.STRING), ColumnType(Kind.BINARY)


def _packed(columns: list[pa.Array], types: list[ColumnType], secret: bytes = SECRET) -> list[tuple[int, int]]:
    keys = KeyPacking(tuple(types), secret).pack(columns)
    assert keys.second is not None
    return list(zip(keys.first.tolist(), keys.second.tolist(), strict=True))


def _coefficient(purpose: str, lane: int, place: int) -> int:
    name = len(SECRET).to_bytes(2, "little") + SECRET + f"{purpose}/{lane}".encode()
    return int.from_bytes(hashlib.shake_128(name).digest(8 * (place + 1))[8 * place :], "little")


def _defined(key: list[bytes]) -> tuple[int, int]:
    """The hash of one key by its definition, number by number."""
    quarters = []
    for lane in range(4):
        total = _coefficient("start", lane, 0)
        for column, value in enumerate(key):
            padded = value + bytes(-len(value) % 8)
            numbers = [len(value), *(int.from_bytes(padded[at : at + 4], "little") for at in range(0, len(padded), 4))]
            total += sum(number * _coefficient(str(column), lane, place) for place, number in enumerate(numbers))
        quarters.append((total >> 32) & 0xFFFFFFFF)
    words = (quarters[0] << 32 | quarters[1], quarters[2] << 32 | quarters[3])
    return tuple(word - (1 << 64 if word >> 63 else 0) for word in words)  # type: ignore[return-value]


def test_each_key_has_the_hash_of_the_definition() -> None:
    chance = random.Random(3)
    lengths = [0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 40, 200]
    values = [chance.randbytes(chance.choice(lengths)) for _ in range(300)]
    others = [chance.choice(["", "a", "ü" * 9]) for _ in values]
    columns = [pa.array(values, pa.binary()), pa.array(others, pa.string())]
    found = _packed(columns, [BINARY, TEXT])
    assert found == [_defined([value, other.encode()]) for value, other in zip(values, others, strict=True)]
    # A slice of an array has its own offset.
    assert _packed([column.slice(7, 50) for column in columns], [BINARY, TEXT]) == found[7:57]
    assert _packed([column.slice(7, 0) for column in columns], [BINARY, TEXT]) == []


def test_different_keys_have_different_hashes() -> None:
    values = [
        b"",
        b"\0",
        b"\0\0",
        b"a",
        b"a\0",
        b"a" + bytes(7),
        b"a" + bytes(8),
        b"a" + bytes(9),
        bytes(16),
        bytes(17),
    ]
    found = _packed([pa.array(values, pa.binary())], [BINARY])
    assert len(set(found)) == len(values)
    one, other = _packed([pa.array(["a", "ab"]), pa.array(["bc", "c"])], [TEXT, TEXT])
    assert one != other
    assert _packed([pa.array(["a"])], [TEXT]) != _packed([pa.array(["a"])], [TEXT], b"another secret")


def test_any_bytes_count_and_null_is_refused() -> None:
    texts = [b"\xff", b"\xfe", b"\xc3\xbc", b"\xc3", b""]
    not_utf8 = pa.array(texts, pa.binary()).view(pa.string())
    assert _packed([not_utf8], [TEXT]) == [_defined([text]) for text in texts]
    for column in (pa.array(["a", None]), pa.array(["a", None, "b"]).slice(1, 1)):
        with pytest.raises(ValueError, match="NULL"):
            _packed([column], [TEXT])


def test_a_quarter_of_keys_that_differ_in_one_bit_is_as_random_as_any() -> None:
    """The bound of the definition is for the upper half of the sums: the lower one would have the same lowest bits."""
    pairs = 0
    for secret in range(400):
        one, other = _packed([pa.array([bytes(4), b"\0\0\0\x80"], pa.binary())], [BINARY], secret.to_bytes(2, "big"))
        pairs += sum((one[word] ^ other[word]) >> bit & 1 for word in range(2) for bit in range(64))
    # 51,200 bits, half of which differ on average: 25,600 with a standard deviation of 113.
    assert abs(pairs - 25_600) < 800


@pytest.mark.parametrize("rows", [1, 16_384, 40_000])
def test_many_rows_and_fixed_widths(rows: int) -> None:
    chance = random.Random(rows)
    texts = [f"key {chance.randrange(rows)}" + "x" * chance.randrange(20) for _ in range(rows)]
    numbers = [chance.randrange(5) for _ in range(rows)]
    found = _packed([pa.array(texts), pa.array(numbers, pa.int64())], [TEXT, ColumnType(Kind.LONG)])
    known: dict[tuple[str, int], tuple[int, int]] = {}
    for text, number, key in zip(texts, numbers, found, strict=True):
        assert known.setdefault((text, number), key) == key
    assert len(set(known.values())) == len(known)
    assert found[-1] == _defined([texts[-1].encode(), numbers[-1].to_bytes(8, "little")])
