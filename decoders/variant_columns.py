"""Encodes many documents with the same names at once, field by field: Arrow and numpy do for all what
decoders/variant_encoding.py does for each. The bytes are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from decoders.variant_encoding import (
    DECIMAL_HEADS,
    INT_HEADS,
    LITERALS,
    LONG_STRING_HEAD,
    LONGEST_SHORT_STRING,
    SHORT_STRING_HEADS,
    Dictionary,
    array_first_byte,
    encoded_integer,
    encoded_number,
)

_Ints = npt.NDArray[np.int64]
_Places = _Ints | slice
_LITERALS = {None: LITERALS["null"], True: LITERALS["true"], False: LITERALS["false"]}
_SHORT_HEADS = pa.array(SHORT_STRING_HEADS, pa.binary())
_PLAIN_FRACTION = r"^-?[0-9]+\.[0-9]+$"
_DIGITS_OF_LONG = 19
"""Characters of a number with a point, which has fewer digits than 64 bits hold."""
_NOTHING = pa.scalar(b"", pa.binary())


def encode_trees(trees: Sequence[Any], dictionary: Dictionary) -> pa.BinaryArray:
    """The values of parsed documents that have the names of the dictionary, without lone surrogates.

    Raises UnheldDocument if a variant cannot hold all of them.
    """
    return _by_class(trees, [*map(type, trees)], lambda kind, values: _ENCODERS[kind](values, dictionary))


def _literals(values: Sequence[bool | None], _: Dictionary) -> pa.BinaryArray:
    return pa.array([_LITERALS[value] for value in values], pa.binary())


def _integers(values: Sequence[int], _: Dictionary) -> pa.BinaryArray:
    try:
        numbers = np.array(values, np.int64)
    except OverflowError:
        return pa.array([encoded_integer(value) for value in values], pa.binary())
    bits = np.where(numbers < 0, ~numbers, numbers)
    widths = np.sum([bits >= 1 << 7, bits >= 1 << 15, bits >= 1 << 31], axis=0)

    def encode(width: int, rows: _Places) -> pa.BinaryArray:
        return _joined(INT_HEADS[width], _octets(numbers[rows], 1 << width))

    return _by_number(widths, encode)


def _fractions(values: Sequence[bytes], _: Dictionary) -> pa.BinaryArray:
    """Numbers that are not integers, as texts."""
    texts = pa.array(values, pa.string())
    lengths = _lengths(texts)
    if lengths.max() > _DIGITS_OF_LONG or not pc.all(pc.match_substring_regex(texts, _PLAIN_FRACTION)).as_py():
        return pa.array([encoded_number(value.decode()) for value in values], pa.binary())
    numbers = pc.replace_substring(texts, ".", "").cast(pa.int64()).to_numpy()
    scales = lengths - pc.find_substring(texts, ".").to_numpy() - 1
    widths = ((scales > 9) | (np.abs(numbers) >= 10**9)).astype(np.int64)

    def encode(width: int, rows: _Places) -> pa.BinaryArray:
        return _joined(DECIMAL_HEADS[width], _octets(scales[rows], 1), _octets(numbers[rows], 4 << width))

    return _by_number(widths, encode)


def _strings(values: Sequence[str], _: Dictionary) -> pa.BinaryArray:
    contents = pa.array(values, pa.string()).cast(pa.binary())
    lengths = _lengths(contents)
    if lengths.max() <= LONGEST_SHORT_STRING:
        return pc.binary_join_element_wise(_SHORT_HEADS.take(pa.array(lengths)), contents, _NOTHING)
    short = pc.binary_join_element_wise(
        _SHORT_HEADS.take(pa.array(np.minimum(lengths, LONGEST_SHORT_STRING))), contents, _NOTHING
    )
    long = pc.binary_join_element_wise(LONG_STRING_HEAD, _rows(_octets(lengths, 4)), contents, _NOTHING)
    return pc.if_else(pa.array(lengths <= LONGEST_SHORT_STRING), short, long)


def _objects(values: Sequence[dict[str, Any]], dictionary: Dictionary) -> pa.BinaryArray:
    return _by_class(values, [*map(tuple, values)], lambda names, part: _equal_objects(names, part, dictionary))


def _equal_objects(names: tuple[str, ...], values: Sequence[dict[str, Any]], dictionary: Dictionary) -> pa.BinaryArray:
    """Objects with these names in this order."""
    layout = dictionary.layout(names)
    if not names:
        return pa.array([layout.head([0])] * len(values), pa.binary())
    fields = dict(zip(names, zip(*map(dict.values, values), strict=True), strict=True))
    contents = [encode_trees(fields[name], dictionary) for name in layout.names]
    ends = np.zeros((len(values), len(names) + 1), np.int64)
    np.cumsum([_lengths(content) for content in contents], axis=0, out=ends[:, 1:].T)

    def start(size: int, rows: _Places) -> pa.BinaryArray:
        offsets = _octets(ends[rows], size)
        tables = _rows(offsets.reshape(-1, offsets.shape[1] * (len(names) + 1)))
        return pc.binary_join_element_wise(layout.start(size), tables, _NOTHING)

    return pc.binary_join_element_wise(_by_number(_byte_sizes(ends[:, -1]), start), *contents, _NOTHING)


def _arrays(values: Sequence[list[Any]], dictionary: Dictionary) -> pa.BinaryArray:
    counts = np.fromiter(map(len, values), np.int64, len(values))
    elements = [*chain.from_iterable(values)]
    content = encode_trees(elements, dictionary) if elements else pa.array([], pa.binary())
    ends = np.concatenate([[0], np.cumsum(_lengths(content))])
    bounds = np.concatenate([[0], np.cumsum(counts)])
    data = pa.concat_arrays([content]).buffers()[2]
    contents = pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(ends[bounds].astype(np.int32)), data or pa.py_buffer(b"")]
    )
    sizes = _byte_sizes(ends[bounds[1:]] - ends[bounds[:-1]])

    def heads(size_and_large: int, rows: _Places) -> pa.BinaryArray:
        size, large = size_and_large >> 1, bool(size_and_large & 1)
        lengths = counts[rows] + 1
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(starts[-1]) + np.repeat(bounds[:-1][rows] - starts[:-1], lengths)
        offsets = _octets(ends[places] - np.repeat(ends[bounds[:-1][rows]], lengths), size)
        tables = pa.Array.from_buffers(
            pa.binary(), len(lengths), [None, pa.py_buffer((starts * size).astype(np.int32)), pa.py_buffer(offsets)]
        )
        return pc.binary_join_element_wise(
            array_first_byte(size, large=large), _rows(_octets(counts[rows], 4 if large else 1)), tables, _NOTHING
        )

    return pc.binary_join_element_wise(_by_number(sizes << 1 | (counts > 255), heads), contents, _NOTHING)


_ENCODERS: dict[type, Callable[[Any, Dictionary], pa.BinaryArray]] = {
    type(None): _literals,
    bool: _literals,
    int: _integers,
    bytes: _fractions,
    str: _strings,
    dict: _objects,
    list: _arrays,
}


def _by_class(
    values: Sequence[Any], classes: Sequence[Hashable], encode: Callable[[Any, Sequence[Any]], pa.BinaryArray]
) -> pa.BinaryArray:
    """Encodes the values of each class together. `classes`: that of each value."""
    if classes.count(classes[0]) == len(classes):
        return encode(classes[0], values)
    places: dict[Hashable, list[int]] = {}
    for place, of in enumerate(classes):
        places.setdefault(of, []).append(place)
    parts = [encode(of, [values[place] for place in rows]) for of, rows in places.items()]
    return _in_order(parts, [*places.values()])


def _by_number(classes: _Ints, encode: Callable[[int, _Places], pa.BinaryArray]) -> pa.BinaryArray:
    """As `_by_class`, for classes that are numbers. `encode` gets the places of the values."""
    first = int(classes[0])
    if (classes == first).all():
        return encode(first, slice(None))
    numbers = np.unique(classes).tolist()
    places = [np.flatnonzero(classes == number) for number in numbers]
    return _in_order([encode(number, rows) for number, rows in zip(numbers, places, strict=True)], places)


def _in_order(parts: list[pa.BinaryArray], places: Sequence[_Ints | list[int]]) -> pa.BinaryArray:
    """The values of all parts. `places`: where those of each part belong."""
    places_of_all = np.concatenate(places)
    order = np.empty(len(places_of_all), np.int64)
    order[places_of_all] = np.arange(len(places_of_all))
    return pa.concat_arrays(parts).take(pa.array(order))


def _joined(head: int, *columns: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    """A byte, and the bytes of each row."""
    heads = np.full((len(columns[0]), 1), head, np.uint8)
    return _rows(np.ascontiguousarray(np.concatenate([heads, *columns], axis=1)))


def _lengths(contents: pa.BinaryArray) -> _Ints:
    lengths: _Ints = pc.binary_length(contents).to_numpy().astype(np.int64)
    return lengths


def _byte_sizes(largest: _Ints) -> _Ints:
    """Bytes for numbers up to each of these."""
    return 1 + (largest >= 1 << 8) + (largest >= 1 << 16) + (largest >= 1 << 24)


def _octets(numbers: _Ints, size: int) -> npt.NDArray[np.uint8]:
    """The lower `size` bytes of each number, little-endian: one number a row."""
    return np.ascontiguousarray(np.ascontiguousarray(numbers, "<i8").view(np.uint8).reshape(-1, 8)[:, :size])


def _rows(octets: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    """Each row of a matrix as bytes."""
    count, width = octets.shape
    ends = np.arange(count + 1, dtype=np.int32) * width
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(octets)])
