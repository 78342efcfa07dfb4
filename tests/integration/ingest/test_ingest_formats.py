"""Rows of every format, compressed or not, become those that an INSERT would have stored, on both sides of the
cut-line."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirror_pump.ops.row_files.csv_rows import CsvForm
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.mirror import await_true
from tests.support.ingest_scene import IngestScene, csv_text

NAMES = ("at", "id", "n", "v")


def _rows(number: int) -> list[tuple[Any, ...]]:
    """Some rows below the cut-line, and some above; of each file others."""
    return [
        (10 + number, 1000 * number, 1, 'a "quoted", field'),
        (11 + number, 1000 * number + 1, None, "line\nbreak"),
        (199, 1000 * number + 2, -5, None),
        (200, 1000 * number + 3, 7, "in the heap"),
        (333, 1000 * number + 4, None, "ü€😀"),
    ]


def _jsonl(rows: list[tuple[Any, ...]]) -> bytes:
    return b"".join(json.dumps(dict(zip(NAMES, row, strict=True))).encode() + b"\n" for row in rows)


def test_formats_and_compressions(scene: IngestScene, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [_rows(number) for number in range(8)]
    zstd = pa.compress(_jsonl(rows[3]), "zstd", asbytes=True)
    table = pa.table({name: pa.array(values) for name, values in zip(NAMES, zip(*rows[4], strict=True), strict=True)})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=2)
    assert scene.ingest(scene.csv("a.csv", rows[0])).rows == 5
    outcome = scene.ingest(scene.file("b.csv.gz", gzip.compress(csv_text(rows[1], NAMES).encode())))
    assert (outcome.lake_rows, outcome.heap_rows, outcome.replaced, outcome.files) == (3, 2, 0, 1)
    # Nothing tells of the compression but the content.
    scene.ingest(scene.file("c", bz2.compress(csv_text(rows[2], NAMES).encode())), format=FileFormat.CSV)
    scene.ingest(scene.file("d.jsonl.zst", zstd))
    scene.ingest(scene.file("e.parquet", sink.getvalue()))
    for number in (5, 6):
        scene.csv(f"many/part-{number}.csv", rows[number])
    scene.ingest(str(scene.directory / "many" / "part-*.csv"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(csv_text(rows[7], NAMES).encode())))
    scene.ingest("-", format=FileFormat.CSV)
    for part in rows:
        scene.into_model(part)
    scene.assert_exact()
    assert scene.phases() == ["done"] * 7
    assert {row[0] for row in scene.lake('SELECT DISTINCT "at" FROM lake')} <= set(range(200))


@pytest.mark.further
def test_forms_of_csv(scene: IngestScene) -> None:
    content = '5;1;\\N;semicolons\n6;2;3;\\N\n\n7;3;4;"\\N"\n'
    names = ("at", "id", "n", "v")
    scene.ingest(scene.file("a.csv", content), columns=names, csv=CsvForm(delimiter=";", null="\\N", header=False))
    scene.into_model([(5, 1, None, "semicolons"), (6, 2, 3, None), (7, 3, 4, "\\N")])
    # Another order, fewer columns, a byte order mark, and the line ends of another system.
    scene.ingest(scene.file("b.csv", b"\xef\xbb\xbfid,at\r\n4,8\r\n5,250\r\n"))
    scene.into_model([(8, 4), (255 - 5, 5)], ("at", "id"))
    scene.assert_exact()


TYPED = (
    "amount numeric(12,2), free numeric, short varchar(5), padded char(4), j jsonb, raw json, tags text[], d date,"
    " moment timestamptz, local timestamp(3), u uuid, b bytea, f float8, r real, flag bool, small smallint,"
    " span interval, mood mood, posi positive, plus int DEFAULT 41 + 1, word text NOT NULL DEFAULT 'none',"
    " serial bigint DEFAULT nextval('numbers'), CHECK (small < 100)"
)
NORMAL: dict[str, list[str | None]] = {
    "amount": ["1.5", "-0.00", "NaN", "1234567890.12", "7", "1e3", "1.0500"],
    "free": ["1.50", "007", "1e5", "NaN", "Infinity", "-0.0", "123456789012345678901234567890123456789012345.678"],
    "short": ["abc", "'", "abcde", "ab   ", "ü€", "abc  ", "x"],
    "padded": ["a", "ab", "abcd", "'", " x", "ü", "zz"],
    "j": ['{"b": 1.50, "a": [1, null]}', "null", '"text"', "12345678901234567890", "[]", "{}", '{"k": "\\u00fc"}'],
    "raw": ['{"b":1.50 ,  "a":1}', "null", '"t"', "1.0", "[ ]", "{ }", '{"k":1,"k":2}'],
    "tags": ['{a,NULL,"b c"}', "{}", "{{1,2},{3,4}}", "[2:3]={x,y}", '{"NULL"}', '{"\\"q\\""}', "{ü}"],
    "d": ["2020-02-29", "infinity", "0044-03-15 BC", "1999-1-8", "12345-01-01", "Jan 8 1999", "2001-01-01"],
    "moment": [
        "2020-01-01 00:00:00+00",
        "2020-01-01 05:30:00+05:30",
        "-infinity",
        "2020-06-01T12:00:00Z",
        "2020-01-01 00:00:00",
        "0100-01-01 00:00:00+00 BC",
        "2020-01-01 10:00:00.123456-03",
    ],
    "local": [
        "2020-01-01 00:00:00.1230",
        "infinity",
        "2020-01-01",
        "2020-01-01T24:00:00",
        "1970-01-01 00:00:00.005",
        "20200101T101010",
        "2020-12-31 23:59:59.999",
    ],
    "u": [
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
        None,
        "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}",
        "a0eebc999c0b4ef8bb6d6bb9bd380a11",
        None,
        None,
    ],
    "b": ["\\x00ff", "\\x", "abc", "\\x DE AD", "\\\\x", None, "\\x0a"],
    "f": ["1.5", "nan", "-Infinity", "1e300", "-0", "0.1", "12345678901234567890"],
    "r": ["1.5", "NaN", "inf", "1e30", "-0", "0.1", "16777217"],
    "flag": ["t", "false", "YES", "off", "1", "F", None],
    "small": ["1", "-32768", " 7", "99", "0x1F" if major_version() >= 16 else "31", "+5", None],
    "span": ["1 day", "P1Y2M", "00:00:01.5", "-1 mon", "1 year 2 days", "0", None],
    "mood": ["sad", "ok", "happy", None, "ok", "ok", "ok"],
    "posi": ["1", "2", None, "3", "4", "5", "6"],
}


def test_values_are_those_of_an_insert(database: Database, warehouse: str, tmp_path: Path) -> None:
    """Half of the rows are ingested, their twins are inserted, routed to modak.delta and folded: the lake holds the
    same values of both, whether these were converted here or by PostgreSQL."""
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy'); CREATE DOMAIN positive AS int CHECK (VALUE > 0);"
        "CREATE SEQUENCE numbers"
    )
    scene = IngestScene.create(database, warehouse, tmp_path, TYPED, fold_age=0.05)
    names = ("at", "id", *NORMAL)
    rows = [(100 + number, 1, *(values[number] for values in NORMAL.values())) for number in range(7)]
    statement = f"COPY events ({', '.join(names)}) FROM STDIN (FORMAT csv, HEADER)"
    with database.connect() as connection, connection.cursor().copy(statement.encode()) as copy:
        copy.write(csv_text([(row[0], 2, *row[2:]) for row in rows], names))
    with scene.mirror.pumping():
        folded = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"
        await_true(lambda: database.rows(folded) == [(0,)], 60, "the twins are folded")
    outcome = scene.ingest(scene.csv("a.csv", rows, names))
    assert (outcome.lake_rows, outcome.heap_rows, outcome.replaced) == (7, 0, 0)
    # The same once more as texts of Parquet, and of JSON lines.
    texts = pa.table(
        {
            name: pa.array([None if row[place] is None else str(row[place]) for row in rows], pa.string())
            for place, name in enumerate(names)
        }
    )
    for number, kind in ((3, "parquet"), (4, "jsonl")):
        texts = texts.set_column(1, "id", pa.array([str(number)] * 7))
        path = scene.directory / f"b.{kind}"
        if kind == "parquet":
            pq.write_table(texts, path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in texts.to_pylist()))
        scene.ingest(str(path))
    found = scene.lake('SELECT COLUMNS(* EXCLUDE (serial, id))::VARCHAR, id FROM lake ORDER BY "at", id')
    assert len(found) == 28
    for first in range(0, 28, 4):
        twins = [repr(row[:-1]) for row in found[first : first + 4]]
        assert len(set(twins)) == 1, "\n".join(twins)
    assert {row[0] for row in scene.lake("SELECT DISTINCT plus FROM lake")} == {42}
    assert len(scene.lake("SELECT DISTINCT serial FROM lake")) == 28, "each row has its own default"


@pytest.mark.further
def test_typed_values_of_parquet(database: Database, warehouse: str, tmp_path: Path) -> None:
    definitions = "amount numeric(12,2), free numeric, moment timestamptz, tags int[], j jsonb, u uuid, b bytea, f real"
    scene = IngestScene.create(database, warehouse, tmp_path, definitions)
    table = pa.table(
        {
            "at": pa.array([1, 2, 250], pa.int32()),
            "id": pa.array([1, 2, 3], pa.uint16()),
            "amount": pa.array([Decimal("1.500"), None, Decimal(-7)], pa.decimal128(20, 3)),
            "free": pa.array([Decimal("1.500"), Decimal("-0.010"), None], pa.decimal128(20, 3)),
            "moment": pa.array([1_600_000_000_000_000_000, -70_000_000_000_000_000, None]).cast(
                pa.timestamp("ns", "Asia/Tokyo")
            ),
            "tags": pa.array([[1, None], [], None]),
            "j": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": []}]),
            "u": pa.array([b"\x01" * 16, None, b"\xff" * 16], pa.binary(16)),
            "b": pa.array([b"\x00\xff", b"", None]),
            "f": pa.array([1.5, float("nan"), None], pa.float64()),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert scene.ingest(str(tmp_path / "a.parquet")).lake_rows == 2
    database.execute(
        "INSERT INTO model VALUES (1, 1, 1.5, 1.500, '2020-09-13 12:26:40+00', '{1,NULL}',"
        " '{\"a\": 1, \"b\": [\"x\"]}', '01010101-0101-0101-0101-010101010101', '\\x00ff', 1.5),"
        " (2, 2, NULL, -0.010, '1967-10-13 19:33:20+00', '{}', NULL, NULL, '\\x', 'NaN'),"
        " (250, 3, -7, NULL, NULL, NULL, '{\"a\": null, \"b\": []}', 'ffffffff-ffff-ffff-ffff-ffffffffffff', NULL,"
        " NULL)"
    )
    found, wanted = scene.seam(), scene.model()
    assert [_plain(row) for row in found] == [_plain(row) for row in wanted]


def _plain(row: tuple[Any, ...]) -> tuple[str, ...]:
    """Values as texts: reads print a json column as text, a uuid in either form, and unbounded numerics as text."""
    return tuple(str(value).replace("-", "").replace("'", '"').replace("None", "null") for value in row)
