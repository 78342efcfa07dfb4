"""The parts of an ingest that need no server: blocks of CSV, texts of values, what is left to PostgreSQL, and keys."""

from __future__ import annotations

import csv
import datetime
import io
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from decoders.columns import ColumnType
from decoders.pgtypes import column_type
from mirror_pump.errors import UsageError
from mirror_pump.lake.key_index.key_index import NOWHERE
from mirror_pump.lake.key_index.packed_keys import PackedKeys
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Column
from mirror_pump.ops.ingest.convert.conversions import LeftToPostgres, converted
from mirror_pump.ops.ingest.write.ingested_keys import IngestedKeys
from mirror_pump.ops.row_files.csv_rows import TextLayout, parse_csv
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.ops.row_files.input_files import InputFile, find_files, first_double, open_stored
from mirror_pump.ops.row_files.text_blocks import TextBlock, newlines_in, text_blocks
from mirror_pump.ops.row_files.text_rows import named_blocks
from mirror_pump.ops.row_files.value_texts import Unfit, texts_of
from mirror_pump.source.relations.target_columns import TargetColumn

_FIELDS = ["", "a", '"', "\n", ",", 'x"y', "line\nbreak", '""', "\r\n", "ü"]


@pytest.mark.parametrize("seed", range(20))
def test_blocks_of_any_size_have_the_rows_and_lines_of_the_file(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    # Long stretches without quotes, too.
    rows = [[chance.choice(_FIELDS[:2] if row % 20 < 12 else _FIELDS) for _ in range(3)] for row in range(40)]
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n", quoting=chance.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))
    writer.writerow("abc")
    writer.writerows(rows)
    path = tmp_path / "a.csv"
    path.write_bytes(stream.getvalue().encode())
    file = InputFile(0, str(path), FileFormat.CSV, 1)
    found: list[list[str]] = []
    lines: list[int] = []
    size = chance.choice([1, 7, 64, 10_000])
    blocks = text_blocks(file, open_stored(file, StorageOptions()), block_bytes=size)
    names, blocks = named_blocks(blocks, TextLayout(file))
    assert names == ("a", "b", "c")
    for block in blocks:
        batch = parse_csv(block, TextLayout(file, names))
        # An empty field without quotes is NULL.
        columns = (batch.columns[name].fill_null("").to_pylist() for name in "abc")
        found += [list(row) for row in zip(*columns, strict=True)]
        lines += batch.lines.tolist()
    # The line breaks of values are kept as they are.
    assert found == rows
    begins, line = [], 2
    for row in rows:
        begins.append(line)
        line += 1 + sum(value.count("\n") for value in row)
    assert lines == begins


def test_a_field_may_be_large() -> None:
    file, field = InputFile(0, "a.csv", FileFormat.CSV, 1), "x" * 140_000
    data = f"1,{field}\n\n2,y\n".encode()
    batch = parse_csv(TextBlock(file, 1, data, newlines_in(data), len(data)), TextLayout(file, ("a", "b")))
    assert (batch.columns["b"].to_pylist(), batch.lines.tolist(), batch.refused) == ([field, "y"], [1, 3], ())


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        (pa.date32(), [0, -719_162, -719_163, 3_000_000], ["1970-01-01", "0001-01-01", "0001-12-31 BC", "10183-09-21"]),
        (pa.timestamp("us"), [0, -62_135_596_800_000_001], ["1970-01-01 00:00:00.000000",
                                                            "0001-12-31 23:59:59.999999 BC"]),
        (pa.binary(), [b"\x00\xff", b""], ["\\x00ff", "\\x"]),
        (pa.list_(pa.int32()), [[1, None], []], ['{"1",NULL}', "{}"]),
        (pa.float64(), [0.1, float("inf")], ["0.1", "inf"]),
    ],
)  # fmt: skip
def test_texts_of_values(kind: pa.DataType, values: list[object], texts: list[str]) -> None:
    numbers = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    width = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    array = pa.array(values, width).view(kind) if numbers else pa.array(values, kind)
    found = texts_of(array).to_pylist()
    if numbers:
        # One unusual value has all of a batch printed here.
        found = [text if "." in texts[0] else text.split(".")[0] for text in found]
    assert found == texts


def test_days_of_the_calendar() -> None:
    days = [*range(-700_000, 2_900_000, 997), -719_163]
    printed = texts_of(pa.array(days, pa.int32()).view(pa.date32())).to_pylist()
    epoch = datetime.date(1970, 1, 1)
    for number, text in zip(days[:-1], printed[:-1], strict=True):
        assert text == (epoch + datetime.timedelta(number)).isoformat()


def _column(oid: int, modifier: int = -1) -> tuple[Column, TargetColumn]:
    kind: ColumnType = column_type(oid, modifier)
    column = Column(1, "c", oid, modifier, "t", kind, 1, not_null=False)
    target = TargetColumn(1, "c", oid, modifier, "t", False, False, "", None, False, None, False, "other")  # noqa: FBT003
    return column, target


@pytest.mark.parametrize(
    ("oid", "modifier", "good", "left"),
    [
        (20, -1, ["1", "-9223372036854775808", None], ["0x1", "1.0", " 1", "9223372036854775808", "1_000"]),
        (21, -1, ["32767"], ["32768"]),
        (701, -1, ["1.5", "-0", "1e10"], ["nan", "1e999", "1e-999", "0x1p3", "1e400"]),
        (700, -1, ["1e30"], ["1e40", "1e-60"]),
        (16, -1, ["t", "false"], ["yes", "T", "1"]),
        (1700, 786438, ["1.5", "-0.01"], ["1.005", "NaN", "1e3", "12345678901"]),
        (1700, -1, ["1.50", "-0.010", "0"], ["007", "1e5", "-0", "NaN", "1.", ".5"]),
        (1082, -1, ["2020-02-29"], ["2020-02-30", "0000-01-01", "infinity", "20200101"]),
        (1184, -1, ["2020-01-01 00:00:00+00", "2020-01-01T00:00:00.5Z"], ["2020-01-01 00:00:00", "2020-01-01 05+00"]),
        (1114, -1, ["2020-01-01 00:00:00"], ["2020-01-01 24:00:00", "2020-01-01T00:00:60", "2020-01-01 00:00:00Z"]),
        (25, -1, ["", "ü\n"], ["a\0b"]),
        (1043, 9, ["abcde"], ["abcdef", "abcde "]),
        (2950, -1, ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"], ["a0eebc999c0b4ef8bb6d6bb9bd380a11"]),
        (17, -1, ["\\x00ff"], ["abc", "\\x0"]),
    ],
)
def test_what_is_left_to_postgres(oid: int, modifier: int, good: list[str | None], left: list[str]) -> None:
    column, target = _column(oid, modifier)
    found = converted(pa.array(good, pa.string()), column, target)
    assert found.type == column.type.arrow
    assert found.null_count == sum(text is None for text in good)
    for text in left:
        with pytest.raises(LeftToPostgres):
            converted(pa.array([good[0], text], pa.string()), column, target)


def test_typed_values_fit_without_loss_or_not_at_all() -> None:
    for oid, modifier, values in (
        (23, -1, pa.array([2**31])),
        (23, -1, pa.array([1.5])),
        (21, -1, pa.array([40000])),
        (700, -1, pa.array([0.1], pa.float64())),
        (1700, 786438, pa.array(["1.005"]).cast(pa.decimal128(20, 3))),
        (1184, -1, pa.array([1], pa.timestamp("ns"))),
        (16, -1, pa.array([1])),
        (25, -1, pa.array([1])),
    ):
        column, target = _column(oid, modifier)
        with pytest.raises(Unfit):
            converted(values, column, target)


@pytest.mark.parametrize("words", [1, 2])
def test_keys_are_found_at_their_places(words: int) -> None:
    chance = np.random.default_rng(1)
    first = chance.integers(-50, 50, 3000) if words == 2 else chance.permutation(6000)[:3000] - 3000
    second = chance.permutation(6000)[:3000] if words == 2 else None
    keys = PackedKeys(first.astype(np.int64), second)
    ingested = IngestedKeys(words)
    half = np.arange(1500)
    ingested.add(keys.take(half), half + 7)
    assert ingested.finish() == []
    found = ingested.find(keys)
    assert (found[:1500] == half + 7).all()
    assert (found[1500:] == NOWHERE).all()
    ingested.close()


def test_keys_that_occur_twice() -> None:
    ingested = IngestedKeys(1)
    ingested.add(PackedKeys(np.array([5, 6, 7]), None), np.array([0, 1, 2]))
    ingested.add(PackedKeys(np.array([8, 6]), None), np.array([3, 4]))
    assert [set(pair) for pair in ingested.finish()] == [{1, 4}]
    ingested.close()


@pytest.mark.parametrize(
    ("texts", "typed"),
    [
        (["1.5", "-0.01", "", "9999999999.99", "-9999999999.99", "007", ".5", "5.", "+1", "1e3"], True),
        (["10000000000"], False),
        (["-10000000000.0"], False),
        (["1e10"], False),
        (["1.005"], False),
        (["NaN"], False),
        (["1_000"], False),
        (["."], False),
        (["-"], False),
        (['""'], False),
        (["99999999999999999999999999999999999999"], False),
        (["1e30"], False),
    ],
)
def test_decimals_are_parsed_at_once_if_postgres_reads_them_so(texts: list[str], *, typed: bool) -> None:
    kind = pa.decimal128(12, 2)
    data = "".join(f"{text},x\n" for text in texts).encode()
    block = TextBlock(InputFile(0, "a.csv", FileFormat.CSV, 1), 1, data, len(texts), len(data))
    batch = parse_csv(block, TextLayout(block.file, ("a", "b"), typed={"a": kind}))
    assert batch.columns["a"].type == (kind if typed else pa.string())
    if typed:
        # As numeric(12,2) reads them.
        found = ["1.50", "-0.01", None, "9999999999.99", "-9999999999.99", "7.00", "0.50", "5.00", "1.00", "1000.00"]
        assert [None if value is None else str(value) for value in batch.columns["a"].to_pylist()] == found


class _CountedName(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        _CountedName.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_doubles_are_found_without_comparing_all_names(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number}.csv").touch()
    names = [_CountedName(tmp_path / f"{number}.csv") for number in range(300)]
    assert first_double(names) is None
    assert _CountedName.comparisons < 1000
    assert first_double([*names, _CountedName(tmp_path / "7.csv")]) == str(tmp_path / "7.csv")
    with pytest.raises(UsageError, match=r"/7\.csv is named twice"):
        find_files([f"{tmp_path}/*.csv", f"{tmp_path}/7.csv"], None, StorageOptions())
