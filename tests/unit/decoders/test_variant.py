"""Documents as variants, byte by byte; a real server's documents are in tests/integration/types."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoders.columns import ColumnType, Kind
from decoders.printing import print_values
from decoders.text import parse_text
from decoders.variant import VARIANT_ARROW, document_texts, encoded_documents
from decoders.variant_encoding import LONG_TEXT, MOST_BYTES, EncodedVariant, UnheldDocument
from decoders.variant_stream import encode_long_document
from decoders.variant_texts import document_text
from tests.support.json_documents import DOCUMENTS, NUMBERS
from tests.support.variant_bytes import assert_canonical

_NO_NAMES = b"\x11\x00\x00"
_VARIANT = ColumnType(Kind.VARIANT)


def encode(text: str) -> EncodedVariant:
    variants, flags = encoded_documents(pa.array([text]))
    assert flags is None
    return EncodedVariant(**variants[0].as_py())


def flags_of(texts: Sequence[str | None]) -> list[bool]:
    variants, flags = encoded_documents(pa.array(texts, pa.string()))
    assert variants.type == VARIANT_ARROW
    bits = [False] * len(texts) if flags is None else flags.to_pylist()
    assert variants.is_valid().to_pylist() == [
        text is not None and not flag for text, flag in zip(texts, bits, strict=True)
    ]
    return bits


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", b"\x00"),
        ("true", b"\x04"),
        ("false", b"\x08"),
        ("0", b"\x0c\x00"),
        ("-0", b"\x0c\x00"),
        ("127", b"\x0c\x7f"),
        ("-128", b"\x0c\x80"),
        ("128", b"\x10\x80\x00"),
        ("-129", b"\x10\x7f\xff"),
        ("32768", b"\x14\x00\x80\x00\x00"),
        ("1e2", b"\x0c\x64"),
        ("120e-1", b"\x20\x01\x78\x00\x00\x00"),
        ("-1.50", b"\x20\x02\x6a\xff\xff\xff"),
        ("0.0", b"\x20\x01\x00\x00\x00\x00"),
        ("2147483648", b"\x18" + struct.pack("<q", 1 << 31)),
        ("-9223372036854775808", b"\x18" + struct.pack("<q", -(1 << 63))),
        ("9223372036854775808", b"\x28\x00" + (1 << 63).to_bytes(16, "little")),
        ("9" * 38, b"\x28\x00" + (10**38 - 1).to_bytes(16, "little")),
        ("-" + "9" * 38, b"\x28\x00" + (1 - 10**38).to_bytes(16, "little", signed=True)),
        ("9999999.99", b"\x20\x02" + struct.pack("<i", 999999999)),
        ("99999999.99", b"\x24\x02" + struct.pack("<q", 9999999999)),
        ("0.0000000001", b"\x24\x0a" + struct.pack("<q", 1)),
        ("1E-38", b"\x28\x26" + (1).to_bytes(16, "little")),
        ('""', b"\x01"),
        ('"ü"', b"\x09\xc3\xbc"),
        (f'"{"x" * 63}"', b"\xfd" + b"x" * 63),
        (f'"{"x" * 64}"', b"\x40\x40\x00\x00\x00" + b"x" * 64),
        ("[]", b"\x03\x00\x00"),
        (" [ null , [ ] ] ", b"\x03\x02\x00\x01\x04\x00\x03\x00\x00"),
    ],
)
def test_values(text: str, value: bytes) -> None:
    assert encode(text) == (_NO_NAMES, value)


def test_objects_have_their_fields_in_the_order_of_utf8() -> None:
    # jsonb prints the shorter names first; UTF-16, which Java compares by, has U+FFFF behind U+1F600.
    assert encode('{"b": 1, "aa": {"b": null}, "": 2}') == (
        b"\x11\x03\x00\x00\x02\x03aab",
        b"\x02\x03\x00\x01\x02\x00\x02\x08\x0a" + b"\x0c\x02" + b"\x02\x01\x02\x00\x01\x00" + b"\x0c\x01",
    )
    assert encode('{"\U0001f600": 1, "\uffff": 2}') == (
        b"\x11\x02\x00\x03\x07\xef\xbf\xbf\xf0\x9f\x98\x80",
        b"\x02\x02\x00\x01\x00\x02\x04\x0c\x02\x0c\x01",
    )


def test_objects_are_printed_with_the_shorter_names_first() -> None:
    # By bytes, of which é has two.
    variant = encode('{"é": 1, "b": 2, "ab": 3, "aaa": 4, "": 5}')
    assert document_text(*variant) == '{"": 5, "b": 2, "ab": 3, "é": 1, "aaa": 4}'


@settings(max_examples=60)
@given(text=DOCUMENTS)
def test_all_encoders_write_the_one_encoding(text: str) -> None:
    try:
        expected = encode_long_document(text)
        assert_canonical(*expected)
    except (UnheldDocument, UnicodeEncodeError):
        expected = None
    # One by one, and with many of the same names.
    for count in (1, 40):
        variants, flags = encoded_documents(pa.array([text] * count))
        assert (flags is not None) == (expected is None)
        assert {variant and EncodedVariant(**variant) for variant in variants.to_pylist()} == {expected}


_LEAVES = st.one_of(
    st.sampled_from(["null", "true", "false", "[]", "{}", "127", "128", "-32769", "1e3", "0.5", "-0.00", '"x"']),
    st.builds(lambda length: '"' + "x" * length + '"', st.sampled_from([0, 62, 63, 64, 200, 300, 70_000])),
    NUMBERS,
    st.lists(NUMBERS, max_size=5).map(lambda numbers: f"[{', '.join(numbers)}]"),
    st.builds(lambda count: f"[{', '.join(['1'] * count)}]", st.sampled_from([84, 85, 255, 256, 300])),
    st.builds('{{"b": {}, "a": {}}}'.format, NUMBERS, NUMBERS),
)


@settings(max_examples=40)
@given(columns=st.lists(st.lists(_LEAVES, min_size=1, max_size=4), min_size=1, max_size=4), step=st.integers(1, 5))
def test_documents_of_the_same_names_and_other_values(columns: list[list[str]], step: int) -> None:
    texts = []
    for row in range(40):
        names = [f"n{number}" for number in range(len(columns))]
        if row % 7 == 3:
            names.reverse()
        values = [column[row * step % len(column)] for column in columns]
        fields = [f'"{name}": {value}' for name, value in zip(names, values, strict=True)]
        texts.append(f'{{"a": {{{", ".join(fields)}}}, "b": [{", ".join(values[: row % 3])}]}}')
    variants, flags = encoded_documents(pa.array(texts))
    variants.validate(full=True)
    bits = [False] * len(texts) if flags is None else flags.to_pylist()
    for text, variant, is_unheld in zip(texts, variants.to_pylist(), bits, strict=True):
        if is_unheld:
            with pytest.raises(UnheldDocument):
                encode_long_document(text)
        else:
            assert EncodedVariant(**variant) == encode_long_document(text)


def test_numbers_at_the_bounds_of_each_width() -> None:
    bounds = [sign * 2**bits + step for bits in (0, 7, 15, 31, 63) for sign in (-1, 1) for step in (-1, 0, 1)]
    digits = [
        "".join(str(place % 9 + 1) for place in range(count)) for count in (1, 8, 9, 10, 11, 17, 18, 19, 20, 37, 38)
    ]
    points = [
        f"{sign}{whole}.{fraction}" for sign in ("", "-") for whole in ("0", *digits) for fraction in ("0", *digits)
    ]
    zeros = [f"0.{'0' * count}{end}" for count in (7, 8, 9, 16, 17, 18, 36, 37) for end in (0, 1)]
    for numbers in ([*map(str, bounds)], points, zeros, [*zeros, *points, *map(str, bounds)]):
        # All at once, and each with its like.
        for texts in (numbers, *([number] * 20 for number in numbers[:100])):
            variants, flags = encoded_documents(pa.array([f'{{"n": {number}}}' for number in texts]))
            bits = [False] * len(texts) if flags is None else flags.to_pylist()
            for number, variant, is_unheld in zip(texts, variants.to_pylist(), bits, strict=True):
                assert is_unheld == (len(number.strip("-").replace("0.", "").replace(".", "")) > 38), number
                if not is_unheld:
                    assert EncodedVariant(**variant) == encode_long_document(f'{{"n": {number}}}'), number


def test_strings_and_arrays_at_the_bounds_of_each_size() -> None:
    strings = [f'"{"x" * length}"' for length in (0, 1, 62, 63, 64, 65, *range(245, 258), *range(65_525, 65_537))]
    arrays = [f"[{', '.join(['1'] * count)}]" for count in (0, 1, 127, 128, 255, 256, 257, 32_767, 32_768)]
    arrays += [f'[{string}, "", {string}]' for string in strings]
    for texts in (strings, arrays, [*strings, *arrays], *([text] * 20 for text in [*strings[:8], *arrays[:9]])):
        documents = [f'{{"n": {text}}}' for text in texts]
        variants, flags = encoded_documents(pa.array(documents))
        assert flags is None
        for document, variant in zip(documents, variants.to_pylist(), strict=True):
            assert EncodedVariant(**variant) == encode_long_document(document), document[:100]


@pytest.mark.parametrize("count", [255, 256, 257, 65_536, pytest.param(70_000, marks=pytest.mark.further)])
def test_sizes_are_the_least(count: int) -> None:
    names = sorted({f"{number:x}" for number in range(count)}, key=lambda name: (len(name), name))
    document = json.dumps({name: [] for name in names} | {"list": ["x" * 300] * count if count < 300 else []})
    assert_canonical(*encode(document))
    assert document_texts(encoded_documents(pa.array([document]))[0])[0].as_py() == json.dumps(
        dict(sorted(json.loads(document).items(), key=lambda field: (len(field[0]), field[0])))
    )


def _object(names: Iterable[str]) -> str:
    fields = [f'"{name}":1' for name in names]
    return f"{{{','.join(fields)}}}"


@pytest.mark.parametrize(
    ("text", "is_held"),
    [
        ("9" * 38, True),
        ("9" * 39, False),
        ("1" + "0" * 38, False),
        ("1e37", True),
        ("1e38", False),
        ("0." + "0" * 37 + "1", True),
        ("0." + "0" * 38, True),
        ("0." + "0" * 39, False),
        ("1." + "0" * 37, True),
        ("1." + "0" * 38, False),
        ("1e400", False),
        ("1e1000000000", False),
        ("1e-1000000000", False),
        ("1e" + "9" * 100_000, False),
        ("0e1000000", True),
        ("9" * 1_000_000, False),
        ("0." + "9" * 1_000_000, False),
        ('"\\u0000"', False),
        ('"\\\\u0000"', True),
        ('"\\\\\\u0000"', False),
        ('{"\\u0000": 1}', False),
        ('"\\ud800"', False),
        ('"\\uD800"', False),
        ('{"\\uDFFF": 1}', False),
        ('"\\uD83D\\uDE00"', True),
        ('"\\ud83d\\ude00"', True),
        ('"\\ude00\\ud83d"', False),
        ('{"\\udfff": 1}', False),
        ('{"a": 1, "a": 1}', False),
        ('[{"a": {"b": 1, "c": 2, "\\u0062": 1}}]', False),
        ('[{"a": 1}, {"a": 1}]', True),
        ('{"a": ": ", "b": "\\": "}', True),
        ("[" * 500 + "]" * 500, True),
        ("[" * 501 + "]" * 501, False),
        ("[" * 300 + '{"a":' * 200 + "1" + "}" * 200 + "]" * 300, True),
        ("[" * 300 + '{"a":' * 201 + "1" + "}" * 201 + "]" * 300, False),
        ("[" * 100_000 + "]" * 100_000, False),
        ("[" + "[], " * 1000 + "{}]", True),
        (f'"{"[" * 1000}"', True),
        (_object(chr(0x4E00 + n // 363) + chr(0x4E00 + n % 363) for n in range(131_073)), False),
        (f'[{_object(map(hex, range(131_072)))}, {{"0x0": 1}}]', True),
        (f'[{_object(map(hex, range(131_072)))}, {{"x": 1}}]', False),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_what_is_held(text: str, *, is_held: bool) -> None:
    assert flags_of([text]) == [not is_held]
    # The other encoder comes to the same, whatever the length.
    assert flags_of([" " * LONG_TEXT + text]) == [not is_held]


@pytest.mark.further
def test_documents_up_to_spark_s_limit() -> None:
    longest = MOST_BYTES - 5
    assert flags_of([f'"{"x" * longest}"']) == [False]
    assert flags_of([f'"{"x" * (longest + 1)}"']) == [True]
    assert flags_of([f'["{"x" * longest}"]']) == [True]
    assert flags_of([f'{{"a": "{"x" * longest}"}}']) == [True]
    assert flags_of([f'{{"{"x" * MOST_BYTES}": 1}}']) == [True]
    assert flags_of([f"[{'1,' * (MOST_BYTES // 6)}1]"]) == [True]


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "[", "]", "{", "}", "[1", "[1,", "[1,]", "[,]", "[1 2]", "{a: 1}", "{1: 1}", "[1}", "'a'", "[] []",
        "[]]", '{"a"}', '{"a":}', '{"a":1,}', '{"a" 1}', '{"a":1 "b":2}', '{"a":1]', "nul", "NaN", "Infinity",
        "-Infinity", "[NaN]", "01", "1.", ".5", "+1", "1e", "-", "1 1", "[1]x", "[1_000]", "\u0661", "\ufeff1", "\xa01",
        "1\xa0", "/**/1", '"', '"a', '"\\x"', '"\\u12"', '"\n"', '"\x01"',
    ],
)  # fmt: skip
def test_text_that_is_not_json_is_refused(text: str) -> None:
    for long in (False, True):
        with pytest.raises(ValueError, match="is not JSON"):
            encoded_documents(pa.array(["1", " " * LONG_TEXT + text if long else text]))


def test_nulls_stay_nulls() -> None:
    texts = pa.array([None, "1", '"\\u0000"', None, '{"a": 1}'])
    parsed = parse_text(texts, _VARIANT)
    parsed.values.validate(full=True)
    assert parsed.values.type == _VARIANT.arrow == VARIANT_ARROW
    assert parsed.unrepresentable is not None
    assert parsed.unrepresentable.to_pylist() == [False, False, True, False, False]
    assert print_values(parsed.values, _VARIANT).to_pylist() == [None, "1", None, None, '{"a": 1}']
    assert print_values(parsed.values[2:], _VARIANT).to_pylist() == [None, None, '{"a": 1}']
    assert print_values(parsed.values[:0], _VARIANT).to_pylist() == []
    assert parse_text(texts[:2], _VARIANT).unrepresentable is None
    assert parse_text(texts[4:].cast(pa.string_view()), _VARIANT).values.equals(parsed.values[4:])
    assert parse_text(pa.array([None, None], pa.string()), _VARIANT).values.to_pylist() == [None, None]
    assert parse_text(pa.array([], pa.string()), _VARIANT).values.to_pylist() == []


def test_the_type_is_partial() -> None:
    assert ColumnType.parse("variant") == _VARIANT
    assert str(_VARIANT) == "variant"
    assert not _VARIANT.holds_all


def test_variants_of_many_levels_do_not_reach_the_stack() -> None:
    variant = encode("[" * 500 + "]" * 500)
    value = variant.value
    for _ in range(2500):
        # Other engines write deeper ones.
        value = b"\x0f\x01\0\0\0\0" + struct.pack("<I", len(value)) + value
    assert document_text(variant.metadata, value) == "[" * 3000 + "]" * 3000
