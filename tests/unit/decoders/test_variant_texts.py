"""Texts of variants that other engines wrote, and of bytes that are none."""

from __future__ import annotations

import json
import random
import struct
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoders.variant import document_texts, encoded_documents
from decoders.variant_encoding import EncodedVariant
from decoders.variant_stream import encode_long_document
from decoders.variant_texts import document_text
from tests.support.variant_bytes import loose_variant

_NO_NAMES = b"\x01\x00\x00"
_DAY = 86_400


def primitive(type_id: int, content: bytes = b"") -> bytes:
    return bytes([type_id << 2]) + content


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (primitive(0), "null"),
        (primitive(1), "true"),
        (primitive(2), "false"),
        (primitive(6, struct.pack("<q", -1)), "-1"),
        (primitive(7, struct.pack("<d", 0.1)), "0.1"),
        (primitive(7, struct.pack("<d", 3.0)), "3"),
        (primitive(7, struct.pack("<d", 1e22)), "1" + "0" * 22),
        (primitive(7, struct.pack("<d", 1e-7)), "0.0000001"),
        (primitive(7, struct.pack("<d", -0.0)), "0"),
        (primitive(7, struct.pack("<d", float("nan"))), '"NaN"'),
        (primitive(7, struct.pack("<d", float("inf"))), '"Infinity"'),
        (primitive(14, struct.pack("<f", float("-inf"))), '"-Infinity"'),
        (primitive(14, struct.pack("<f", 0.1)), "0.1"),
        (primitive(14, struct.pack("<f", 16777216.0)), "16777216"),
        (primitive(8, b"\x00" + struct.pack("<i", -5)), "-5"),
        (primitive(8, b"\x02" + struct.pack("<i", -5)), "-0.05"),
        (primitive(9, b"\x01" + struct.pack("<q", 10)), "1.0"),
        (primitive(10, b"\x26" + (10**38 - 1).to_bytes(16, "little")), "0." + "9" * 38),
        (primitive(11, struct.pack("<i", 19_756)), '"2024-02-03"'),
        (primitive(11, struct.pack("<i", -735598)), '"-0044-01-02"'),
        (primitive(11, struct.pack("<i", 2_932_897)), '"+10000-01-01"'),
        (primitive(11, struct.pack("<i", -719_528)), '"0000-01-01"'),
        (primitive(12, struct.pack("<q", 1_704_164_645_678_000)), '"2024-01-02 03:04:05.678+00:00"'),
        (primitive(13, struct.pack("<q", 1_704_164_645_000_000)), '"2024-01-02 03:04:05"'),
        (primitive(13, struct.pack("<q", -1)), '"1969-12-31 23:59:59.999999"'),
        (primitive(12, struct.pack("<q", -(1 << 63))), '"-290308-12-21 19:59:05.224192+00:00"'),
        (primitive(18, struct.pack("<q", 1_704_164_645_000_000_001)), '"2024-01-02 03:04:05.000000001+00:00"'),
        (primitive(19, struct.pack("<q", 10**9)), '"1970-01-01 00:00:01"'),
        (primitive(17, struct.pack("<q", (_DAY - 1) * 10**6 + 110_000)), '"23:59:59.11"'),
        (primitive(15, b"\x03\x00\x00\x00\x00\xff\x10"), '"AP8Q"'),
        (primitive(16, b"\x03\x00\x00\x00a\x01\x00"), '"a\\u0001\\u0000"'),
        (primitive(20, uuid.UUID(int=1).bytes), '"00000000-0000-0000-0000-000000000001"'),
    ],
)
def test_primitive_types_of_other_engines(value: bytes, text: str) -> None:
    assert document_text(_NO_NAMES, value) == text
    json.loads(text)


_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**37), 10**37) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda children: st.lists(children, max_size=5) | st.dictionaries(st.text("abß☃😀\uffff", max_size=3), children),
    max_leaves=30,
)


@given(document=_DOCUMENTS, seed=st.integers(0, 2**32))
def test_any_layout_that_the_format_allows_is_read(document: Any, seed: int) -> None:
    text = json.dumps(document).replace("\\u0000", "")
    document = json.loads(text)
    chooser = random.Random(seed)
    variants = [loose_variant(document, chooser.randrange), encode_long_document(text)]
    loose, canonical = (document_text(metadata, value) for metadata, value in variants)
    assert loose == canonical
    assert json.loads(loose) == document


@pytest.mark.parametrize("count", [255, 256, 300, 70_000])
def test_fields_in_any_place(count: int) -> None:
    document = {f"n{number}": number for number in range(count)}
    assert json.loads(document_text(*loose_variant(document, random.Random(1).randrange))) == document


def test_damaged_bytes_end_in_an_error() -> None:
    text = (
        '{"a": [1, 2.50, null, {"b": "' + "x" * 70 + '", "c": "y"}, -12345678901], "d": {}, "é": ' + str(10**30) + "}"
    )
    variant = encode_long_document(text)
    for end in range(len(variant.value)):
        with pytest.raises(ValueError, match="variant"):
            document_text(variant.metadata, variant.value[:end])
    for end in range(len(variant.metadata)):
        with pytest.raises(ValueError, match="variant"):
            document_text(variant.metadata[:end], variant.value)
    # Others may be variants still: a digit or a letter is another one then.
    for changed in changed_variants(variant, random.Random(1), 3000):
        try:
            document_text(*changed)
        except ValueError as error:
            assert "variant" in str(error)  # noqa: PT017 - most are refused, not all


def changed_variants(variant: EncodedVariant, chooser: random.Random, count: int) -> list[EncodedVariant]:
    """The variant with bytes that are others."""
    variants = []
    for _ in range(count):
        parts = [bytearray(part) for part in variant]
        for _ in range(chooser.choice([1, 1, 2, 5])):
            part = parts[chooser.choice([0, 1, 1])]
            part[chooser.randrange(len(part))] = chooser.choice([0, 1, 255, chooser.randrange(256)])
        variants.append(EncodedVariant(*map(bytes, parts)))
    return variants


@pytest.mark.parametrize(
    ("metadata", "value", "message"),
    [
        (b"", b"\x00", "version 1"),
        (b"\x02\x00\x00", b"\x00", "version 1"),
        (b"\x01\x05\x00", b"\x00", "ends before its names"),
        (b"\x01\x01\x00\x02a", b"\x00", "names in the metadata"),
        (b"\x01\x02\x00\x02\x01ab", b"\x00", "names in the metadata"),
        (b"\x01\x01\x01\x02ab", b"\x00", "names in the metadata"),
        (b"\x01\x01\x00\x01\xff", b"\x00", "not UTF-8"),
        (_NO_NAMES, b"", "damaged"),
        (_NO_NAMES, b"\x05\xff", "not UTF-8"),
        (_NO_NAMES, primitive(16, b"\xff\xff\xff\xff"), "damaged"),
        (_NO_NAMES, primitive(21), "type 21"),
        (_NO_NAMES, primitive(8, b"\x27\x00\x00\x00\x00"), "scale 39"),
        (_NO_NAMES, primitive(17, struct.pack("<q", _DAY * 10**6)), "outside of a day"),
        (_NO_NAMES, b"\x02\x01\x00\x00\x01\x00", "not in the metadata"),
        (b"\x01\x02\x00\x01\x02aa", b"\x02\x02\x00\x01\x00\x01\x02\x00\x00", "name twice"),
        (b"\x01\x01\x00\x01a", b"\x02\x02\x00\x00\x00\x01\x02\x00\x00", "name twice"),
        # An array with a million elements, and one whose elements are the same bytes.
        (_NO_NAMES, b"\x13\x40\x42\x0f\x00\x00", "damaged"),
        (_NO_NAMES, b"\x03\x02\x00\x00\x01\x00", "damaged"),
        (_NO_NAMES, b"\x03\x03\x00\x02\x01\x03\x00\x00\x00", None),
        (_NO_NAMES, b"\x03\x02\x02\x00\x01\x00\x00", "damaged"),
        # Elements that reach into the next one.
        (_NO_NAMES, b"\x03\x02\x00\x02\x04\x09a\x05b", "damaged"),
        (_NO_NAMES, b"\x03\x02\x00\x02\x04\x10\x01\x0c\x01", "damaged"),
        (_NO_NAMES, b"\x03\x02\x00\x05\x07" + primitive(16, b"\x01\x00\x00\x00") + b"\x05b", "damaged"),
    ],
)
def test_what_is_no_variant(metadata: bytes, value: bytes, message: str | None) -> None:
    if message is None:
        assert document_text(metadata, value) == "[null, null, null]"
        return
    with pytest.raises(ValueError, match=message):
        document_text(metadata, value)


def test_children_of_the_same_bytes_do_not_multiply() -> None:
    # Two fields of each object are the same object: as many texts as 2 to the power of 60.
    value = b"\x00"
    for _ in range(60):
        size = len(value)
        assert size < 1 << 16
        value = b"\x06\x02\x00\x01" + struct.pack("<HHH", 0, 0, size) + value
    with pytest.raises(ValueError, match="damaged"):
        document_text(b"\x01\x02\x00\x01\x02ab", value)


@settings(max_examples=20)
@given(document=_DOCUMENTS)
def test_texts_of_arrays(document: Any) -> None:
    text = json.dumps(document).replace("\\u0000", "")
    variants, flags = encoded_documents(pa.array([None, text, None, text]))
    assert flags is None
    texts = document_texts(variants).to_pylist()
    assert texts == [None, texts[1], None, texts[1]]
    assert document_texts(variants[1:2]).to_pylist() == texts[1:2]
