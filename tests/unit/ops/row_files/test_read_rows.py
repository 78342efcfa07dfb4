"""Rows of files and streams: what is NULL, what is refused and where, and how much is read ahead.

They are read as a load reads them; an ingest does by the same functions (tests/integration/ingest/test_same_input.py).
"""

from __future__ import annotations

import gzip
import io
import random
from decimal import Decimal
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirror_pump.errors import TableError, UsageError
from mirror_pump.ops.load.content_stream import ContentStream, ContentTooLarge
from mirror_pump.ops.load.load_job import MOST_ROW_BYTES, open_rows
from mirror_pump.ops.row_files.file_format import FileFormat, format_of
from mirror_pump.ops.row_files.input_files import InputFile
from mirror_pump.ops.row_files.row_batch import InputError
from mirror_pump.ops.row_files.value_texts import Unfit, column_texts
from mirror_pump.source.relations.target_columns import TargetColumn, ValueKind

Rows = list[tuple[Any, ...]]


def content_of(stream: BinaryIO, most: int | None = None) -> ContentStream:
    """A stream of content."""
    content = ContentStream(most)
    content.begin(stream)
    return content


def rows_of(
    content: BinaryIO | bytes, form: FileFormat, columns: list[str] | None = None
) -> tuple[Rows, dict[int, str]]:
    """The rows with their numbers from 1, and the reasons of those that cannot be read."""
    stream = io.BytesIO(content) if isinstance(content, bytes) else content
    rows: Rows = []
    refused: dict[int, str] = {}
    with open_rows(content_of(stream), InputFile(0, "in", form, 0), columns) as (_, batches):
        for batch in batches:
            begin = len(rows) + len(refused) + 1
            good, bad = batch.numbers()
            columns_of_rows = (column.to_pylist() for column in batch.columns.values())
            rows += zip((begin + good).tolist(), *columns_of_rows, strict=True)
            refused |= zip((begin + bad).tolist(), (row.reason for row in batch.refused), strict=True)
    return rows, refused


def names_of(content: bytes, form: FileFormat, columns: list[str] | None = None) -> tuple[str, ...] | None:
    with open_rows(content_of(io.BytesIO(content)), InputFile(0, "in", form, 0), columns) as (names, _):
        return names


def test_csv_is_what_copy_takes_it_for() -> None:
    text = b'\xef\xbb\xbfid,"odd ""name""",v\r\n1,,""\n2,"a,""b""\nc",NULL\n\n3, x ,\xe2\x98\x83'
    assert names_of(text, FileFormat.CSV) == ("id", 'odd "name"', "v")
    assert rows_of(text, FileFormat.CSV) == (
        [(1, "1", None, ""), (2, "2", 'a,"b"\nc', "NULL"), (3, "3", " x ", "\u2603")],
        {},
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "in, line 1: the file is empty: it has no header line"),
        (b"\n1,2\n", "in, line 1: there is no header line"),
        (b"a,\xfc\n1,2\n", "in, line 1: byte 0xfc is not UTF-8"),
        (b'"a"b,c\n1,2\n', "in, line 1: this is not CSV"),
        (b"a,b\r1,2\r", "in, line 1: this is not CSV"),
        (b"a,b\n1,2\n3,\xfc\n", "in, line 3: byte 0xfc is not UTF-8"),
        (b'a,b\n1,2\n3,"x\n', "in, line 3: a quote that is opened in or after this line is not closed"),
        (b"PAR1 and so on", "in is a Parquet file"),
    ],
)
def test_what_is_no_csv_is_refused_with_its_line(text: bytes, reason: str) -> None:
    with pytest.raises(TableError) as caught:
        rows_of(text, FileFormat.CSV)
    assert reason in str(caught.value)


def test_csv_without_a_header_has_the_names_that_are_given() -> None:
    assert names_of(b'"a\nb",c\n1,2\n', FileFormat.CSV) == ("a\nb", "c")
    assert rows_of(b'"a\nb",c\n1,2\n', FileFormat.CSV) == ([(1, "1", "2")], {})
    assert rows_of(b"1,2\n", FileFormat.CSV, ["b", "a"]) == ([(1, "1", "2")], {})
    assert rows_of(b"", FileFormat.CSV, ["b", "a"]) == ([], {})
    assert rows_of(b"b,a\n", FileFormat.CSV) == ([], {})


def test_rows_with_other_fields_are_numbered_among_the_rows_in_every_block() -> None:
    # Rows of 1 KiB: every thousandth lacks a field, over several blocks.
    count = 3 * MOST_ROW_BYTES // 1024
    lines = [f"{n}" if n % 1000 == 0 else f"{n},{'x' * 1015}" for n in range(1, count + 1)]
    rows, refused = rows_of("\n".join(["a,b", *lines]).encode(), FileFormat.CSV)
    assert sorted(refused) == list(range(1000, count + 1, 1000))
    assert refused[1000] == "it has 1 fields, and not 2"
    assert all(str(number) == value for number, value, _ in rows)
    assert len(rows) + len(refused) == count


def test_json_lines_keep_every_digit_and_texts_as_they_are() -> None:
    text = (
        b'{"id": 12345678901234567890.10, "doc": {"a": [1.50, null, true, "\\u2603"]}, "v": "x"}\r\n'
        b'\n{"v": null, "id": "7"}\n[1]\n{"id": \n{"other": 1}\n{"id": NaN}\n{"id": true}\n{"id": "\\ud800"}'
    )
    rows, refused = rows_of(text, FileFormat.JSONL)
    assert rows == [
        (1, "12345678901234567890.10", '{"a": [1.50, null, true, "\u2603"]}', "x"),
        (2, "7", None, None),
        (7, "true", None, None),
    ]
    assert sorted(refused) == [3, 4, 5, 6, 8]
    assert refused[3] == "it is not a JSON object"
    assert refused[5] == "the first row has no column other; name all with --columns"
    assert rows_of(b'{"a": 1, "b": 2}\n{"b": 3}', FileFormat.JSONL, ["b"]) == ([(1, "2"), (2, "3")], {})


def test_records_with_line_ends_in_quotes_are_not_torn() -> None:
    chance = random.Random(7)
    values = ["".join(chance.choice('a"\n,') for _ in range(chance.randrange(400))) for _ in range(30_000)]
    lines = [f'{number},"{value.replace(chr(34), 2 * chr(34))}"' for number, value in enumerate(values)]
    # Several blocks.
    text = "\n".join(["n,v", *lines]).encode()
    assert len(text) > MOST_ROW_BYTES / 2
    rows, refused = rows_of(text, FileFormat.CSV)
    assert refused == {}
    assert rows == [(number + 1, str(number), value) for number, value in enumerate(values)]
    with pytest.raises(InputError, match="line 2: the row has more than 8 MiB"):
        rows_of(b'n,v\n1,"' + b"x\n" * MOST_ROW_BYTES, FileFormat.CSV)


class _Trickling(io.BytesIO):
    """Gives a few bytes at a time, as a socket may."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or -1, 3) if size is not None and size > 0 else 3)


@pytest.mark.parametrize(
    ("form", "text"),
    [(FileFormat.CSV, b'1,"x\ny"\n2,z\n'), (FileFormat.JSONL, b'{"a": 1, "b": "x\\ny"}\n{"a": 2, "b": "z"}')],
    ids=["csv", "jsonl"],
)
def test_bytes_may_arrive_one_by_one(form: FileFormat, text: bytes) -> None:
    for content in (text, gzip.compress(text)):
        assert rows_of(_Trickling(content), form, ["a", "b"]) == ([(1, "1", "x\ny"), (2, "2", "z")], {})


@pytest.mark.parametrize("codec", ["gzip", "zstd", "bz2", "lz4"])
def test_compressed_files_are_known_by_their_first_bytes(codec: str) -> None:
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, codec) as stream:
        stream.write(b"a\n" + b"".join(b"%d\n" % n for n in range(1000)))
    rows, _ = rows_of(packed.getvalue().to_pybytes(), FileFormat.CSV)
    assert rows[-1] == (1000, "999")


def test_a_file_that_was_cut_off_is_an_error_and_not_a_shorter_file() -> None:
    packed = gzip.compress(b"a\n" + b"".join(b"%d\n" % (n * n) for n in range(100_000)))
    with pytest.raises(InputError):
        rows_of(packed[: len(packed) // 2], FileFormat.CSV)
    assert len(rows_of(gzip.compress(b"a\n1\n") + gzip.compress(b"2\n"), FileFormat.CSV)[0]) == 2


def test_parquet_keeps_its_types_and_its_columns_can_be_chosen() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"a": pa.array([1, None], pa.int16()), "b": ["x", "y"]}), file)
    assert rows_of(file.getvalue(), FileFormat.PARQUET) == ([(1, 1, "x"), (2, None, "y")], {})
    assert rows_of(file.getvalue(), FileFormat.PARQUET, ["b"]) == ([(1, "x"), (2, "y")], {})
    with pytest.raises(UsageError, match="no column c"):
        rows_of(file.getvalue(), FileFormat.PARQUET, ["c"])
    with pytest.raises(InputError):
        rows_of(b"PAR1 and no more", FileFormat.PARQUET)


def test_the_name_tells_the_format() -> None:
    names = {"a.csv": FileFormat.CSV, "b.JSONL.gz": FileFormat.JSONL, "c.d.ndjson.zst": FileFormat.JSONL}
    assert {name: format_of(name) for name in names} == names
    assert format_of("e.parquet") is FileFormat.PARQUET
    assert [format_of(name) for name in ("-", "csv", "a.gz", "a.txt")] == [None] * 4


class _Endless(io.RawIOBase):
    """Repeats a line for ever, after a header."""

    def __init__(self, header: bytes, line: bytes) -> None:
        self._lines = line * (1024 * 1024 // len(line))
        self._rest = header

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        self._rest = self._rest or self._lines
        part, self._rest = self._rest[:size], self._rest[size:]
        return part


@pytest.mark.parametrize(
    ("form", "header", "line"),
    [
        (FileFormat.CSV, b"a,b\n", b"1," + b"x" * 999 + b"\n"),
        (FileFormat.JSONL, b"", b'{"a": "%s"}\n' % (b"x" * 999)),
    ],
    ids=["csv", "jsonl"],
)
def test_what_is_read_ahead_does_not_grow_with_the_input(form: FileFormat, header: bytes, line: bytes) -> None:
    content = content_of(cast("BinaryIO", _Endless(header, line)))
    taken = 0
    with open_rows(content, InputFile(0, "in", form, 0)) as (_, batches):
        for batch in batches:
            taken += batch.rows * len(line)
            assert content.count - taken < 2 * MOST_ROW_BYTES
            if taken > 4 * MOST_ROW_BYTES:
                return


def test_the_hash_is_of_all_bytes_and_the_limit_is_of_bytes() -> None:
    content = content_of(io.BytesIO(b"abc"))
    assert content.read(1) == b"a"
    content.drain()
    assert content.digest() == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with pytest.raises(ContentTooLarge):
        content_of(io.BytesIO(b"abc"), 2).drain()
    parts = content_of(io.BytesIO(b"ab"), 3)
    parts.drain()
    parts.begin(io.BytesIO(b"c"))
    parts.drain()
    assert parts.digest() == content.digest()
    parts.begin(io.BytesIO(b"d"))
    with pytest.raises(ContentTooLarge):
        parts.drain()


def column(kind: ValueKind) -> TargetColumn:
    return TargetColumn(1, "c", 25, -1, kind, False, False, "", None, False, None, False, kind)  # noqa: FBT003


@pytest.mark.parametrize(
    ("values", "kind", "texts"),
    [
        (pa.array([1, None], pa.uint64()), "other", ["1", None]),
        (pa.array([Decimal("-1.10")], pa.decimal128(5, 2)), "other", ["-1.10"]),
        (pa.array([1e300, float("nan"), float("inf"), 0.1]), "other", ["1e+300", "nan", "inf", "0.1"]),
        (pa.array([True]), "other", ["true"]),
        (pa.array([1], pa.timestamp("us", "UTC")), "other", ["1970-01-01 00:00:00.000001Z"]),
        (
            pa.array([-62_135_596_800_000_001, None], pa.int64()).view(pa.timestamp("us")),
            "other",
            ["0001-12-31 23:59:59.999999 BC", None],
        ),
        (pa.array([1000], pa.timestamp("ns")), "other", ["1970-01-01 00:00:00.000001"]),
        (pa.array([b"\x00\xff", None]), "bytes", ["\\x00ff", None]),
        (pa.array([bytes(16)], pa.binary(16)), "uuid", ["0" * 32]),
        (pa.array(["a"]).dictionary_encode(), "other", ["a"]),
        (pa.array([[1, None]]), "array", ['{"1",NULL}']),
        (pa.array([['a"b\\', ""], None]), "array", ['{"a\\"b\\\\",""}', None]),
        (pa.array(['["x", [1.50]]', "[0:0]={1}", "{1}"]), "array", ['{"x",{"1.50"}}', "[0:0]={1}", "{1}"]),
        (pa.array([{"a": 1}]), "json", ['{"a": 1}']),
        (pa.array([[1, 2]]), "json", ["[1, 2]"]),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "json", ['{"k": 1}']),
        (pa.array([bytes(16)], pa.binary(16)), "bytes", ["\\x" + "0" * 32]),
        (pa.array([[bytes(16)]], pa.list_(pa.binary(16))), "array", ['{"\\\\x' + "0" * 32 + '"}']),
        (pa.array([[bytes(16)]], pa.list_(pa.binary(16))), "uuid array", ['{"' + "0" * 32 + '"}']),
        (pa.array([1_500_000, None], pa.duration("us")), "other", ["1500000 microseconds", None]),
        (pa.array([1_000], pa.time64("ns")), "other", ["00:00:00.000001"]),
        (pa.nulls(2), "other", [None, None]),
    ],
)
def test_values_become_the_texts_of_postgres(values: pa.Array, kind: ValueKind, texts: list[str | None]) -> None:
    assert column_texts(values, column(kind)).to_pylist() == texts


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([1], pa.timestamp("ns")), "other"),
        (pa.array([1], pa.time64("ns")), "other"),
        (pa.array([1], pa.duration("ns")), "other"),
        (pa.array([b"x"]), "other"),
        (pa.array([b"x"]), "json"),
        (pa.array([{"a": 1}]), "other"),
        (pa.array([[1]]), "other"),
        (pa.array([{"a": Decimal("1.10")}]), "json"),
        (pa.array([{"a": b"x"}]), "json"),
    ],
)
def test_values_that_would_lose_something_are_refused(values: pa.Array, kind: ValueKind) -> None:
    with pytest.raises(Unfit):
        column_texts(values, column(kind))


def test_json_lines_have_the_columns_of_the_first_object() -> None:
    assert names_of(b'\xef\xbb\xbf\n[1]\n{"b": 1}\n', FileFormat.JSONL) == ("b",)
    # Over a whole block of lines that are none.
    text = b"[1]\n" * 300_000 + b'{"a": 1}\n{"a": 2}\n'
    rows, refused = rows_of(text, FileFormat.JSONL)
    assert (rows, len(refused)) == ([(300_001, "1"), (300_002, "2")], 300_000)
    assert names_of(b"\n\n", FileFormat.JSONL) is None
    assert rows_of(b"[1]\n", FileFormat.JSONL) == ([], {1: "it is not a JSON object"})


@pytest.mark.parametrize("seed", range(10))
def test_rows_keep_their_numbers_between_refused_ones(seed: int) -> None:
    chance = random.Random(seed)
    good = [chance.random() < 0.7 for _ in range(200)]
    lines = [f"{number},x" if fits else f"{number}" for number, fits in enumerate(good, 1)]
    text = "a,b\n" + "".join(line + "\n" * chance.randrange(1, 3) for line in lines)
    rows, refused = rows_of(text.encode(), FileFormat.CSV)
    assert [number for number, *_ in rows] == [number for number, fits in enumerate(good, 1) if fits]
    assert all(str(number) == value for number, value, _ in rows)
    assert sorted(refused) == [number for number, fits in enumerate(good, 1) if not fits]
