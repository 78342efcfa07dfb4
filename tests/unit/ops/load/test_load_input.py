"""Rows of files and streams: what is NULL, what is refused and where, and how much is read ahead."""

from __future__ import annotations

import gzip
import io
import random
from decimal import Decimal
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirror_pump.errors import UsageError
from mirror_pump.ops.load.content_stream import ContentStream, ContentTooLarge
from mirror_pump.ops.load.load_input import (
    BATCH_BYTES,
    InputError,
    LoadBatch,
    UnreadableRow,
    read_batches,
)
from mirror_pump.ops.load.postgres_texts import column_texts
from mirror_pump.ops.row_files.file_format import FileFormat, format_of
from mirror_pump.source.loads.load_target import LoadColumn, ValueKind

Rows = list[tuple[Any, ...]]


def content_of(stream: BinaryIO, most: int | None = None) -> ContentStream:
    """A stream of content."""
    content = ContentStream(most)
    content.begin(stream)
    return content


def rows_of(content: bytes, form: FileFormat, columns: list[str] | None = None) -> tuple[Rows, dict[int, str]]:
    """The rows with their numbers, and the reasons of those that cannot be read."""
    rows: Rows = []
    refused = {}
    for part in read_batches(io.BytesIO(content), form, columns):
        if isinstance(part, UnreadableRow):
            refused[part.number] = part.reason
        else:
            rows += zip(part.numbers, *(column.to_pylist() for column in part.rows.columns), strict=True)
    return rows, refused


def test_csv_is_what_copy_takes_it_for() -> None:
    text = b'\xef\xbb\xbfid,"odd ""name""",v\r\n1,,""\n2,"a,""b""\nc",NULL\n\n3, x ,\xe2\x98\x83'
    first, *_ = read_batches(io.BytesIO(text), FileFormat.CSV)
    assert isinstance(first, LoadBatch)
    assert first.rows.schema.names == ["id", 'odd "name"', "v"]
    assert rows_of(text, FileFormat.CSV) == (
        [(1, "1", None, ""), (2, "2", 'a,"b"\nc', "NULL"), (3, "3", " x ", "\u2603")],
        {},
    )


def test_csv_without_a_header_has_the_names_that_are_given() -> None:
    assert rows_of(b"1,2\n", FileFormat.CSV, ["b", "a"]) == ([(1, "1", "2")], {})
    assert rows_of(b"", FileFormat.CSV, ["b", "a"]) == ([], {})
    assert rows_of(b"b,a\n", FileFormat.CSV) == ([], {})
    with pytest.raises(InputError, match="no header"):
        rows_of(b"", FileFormat.CSV)


def test_rows_with_other_fields_are_numbered_among_the_rows_in_every_block() -> None:
    # Rows of 1 KiB: every thousandth lacks a field, over several blocks.
    count = 3 * BATCH_BYTES // 1024
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
        (3, "7", None, None),
        (8, "true", None, None),
    ]
    assert sorted(refused) == [4, 5, 6, 7, 9]
    assert "not a JSON object" in refused[4]
    assert "the first row has no column other" in refused[6]
    assert rows_of(b'{"a": 1, "b": 2}\n{"b": 3}', FileFormat.JSONL, ["b"]) == ([(1, "2"), (2, "3")], {})


def test_records_with_line_ends_in_quotes_are_not_torn() -> None:
    chance = random.Random(7)
    values = ["".join(chance.choice('a"\n,') for _ in range(chance.randrange(400))) for _ in range(30_000)]
    lines = [f'{number},"{value.replace(chr(34), 2 * chr(34))}"' for number, value in enumerate(values)]
    # Several blocks.
    text = "\n".join(["n,v", *lines]).encode()
    assert len(text) > BATCH_BYTES / 2
    rows, refused = rows_of(text, FileFormat.CSV)
    assert refused == {}
    assert rows == [(number + 1, str(number), value) for number, value in enumerate(values)]
    with pytest.raises(InputError, match="a row has more than 8 MiB"):
        rows_of(b'n,v\n1,"' + b"x\n" * BATCH_BYTES, FileFormat.CSV)


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
        (batch,) = read_batches(_Trickling(content), form, ["a", "b"])
        assert isinstance(batch, LoadBatch)
        assert batch.rows.to_pydict() == {"a": ["1", "2"], "b": ["x\ny", "z"]}


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
    for part in read_batches(cast("BinaryIO", content), form):
        assert isinstance(part, LoadBatch)
        taken += part.rows.num_rows * len(line)
        assert content.count - taken < 2 * BATCH_BYTES
        if taken > 4 * BATCH_BYTES:
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


def column(kind: ValueKind) -> LoadColumn:
    return LoadColumn("c", kind, in_key=False, generated=False, always=False, kind=kind)


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
        (pa.nulls(2), "other", [None, None]),
    ],
)
def test_values_become_the_texts_of_postgres(values: pa.Array, kind: ValueKind, texts: list[str | None]) -> None:
    assert column_texts(values, column(kind)).to_pylist() == texts


@pytest.mark.parametrize(
    ("values", "kind"),
    [(pa.array([1], pa.timestamp("ns")), "other"), (pa.array([b"x"]), "other"), (pa.array([{"a": 1}]), "other")],
)
def test_values_that_would_lose_something_are_refused(values: pa.Array, kind: ValueKind) -> None:
    with pytest.raises(InputError, match="column c"):
        column_texts(values, column(kind))
