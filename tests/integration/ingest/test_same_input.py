"""What is accepted of files of rows, and what is refused and why, is the same for an ingest and for a load."""

from __future__ import annotations

import bz2
import datetime
import gzip
import io
import os
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirror_pump.errors import MirrorPumpError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.load.load_job import LoadRequest, load
from mirror_pump.ops.row_files.input_files import find_files, open_stored
from tests.support.ingest_scene import IngestScene

pytestmark = pytest.mark.parametrize("caller", ["ingest", pytest.param("load", marks=pytest.mark.further)])

_COLUMNS = "id int PRIMARY KEY, v text, doc jsonb, tags text[], span interval, b bytea, u uuid, us uuid[], clock time"

_BOM = b"\xef\xbb\xbf"
_TWO = [(1, "x"), (2, None)]
_UUID = "00112233-4455-6677-8899-aabbccddeeff"


def _bring(scene: IngestScene, caller: str, files: Sequence[str], columns: tuple[str, ...] = ()) -> int:
    """Brings files into the table `same`. Returns how many rows."""
    if caller == "ingest":
        return scene.ingest(*files, table="same", columns=columns).rows
    found = find_files(files, None, StorageOptions())
    request = LoadRequest("same", os.urandom(8).hex(), found[0].format, columns=columns or None)
    opened = [(file, partial(open_stored, file, StorageOptions())) for file in found]
    return int(load(scene.database.dsn, request, opened).outcome["rows_loaded"])


@pytest.fixture
def same(scene: IngestScene) -> IngestScene:
    """The scene with a plain table, all rows of which an ingest writes to the heap."""
    scene.database.execute(f"CREATE TABLE same ({_COLUMNS})")
    scene.mirror.register("public.same")
    scene.mirror.catch_up()
    return scene


def _parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def _typed(**values: pa.Array) -> bytes:
    return _parquet(pa.table({"id": [1], **values}))


ACCEPTED: list[tuple[dict[str, bytes], list[tuple[Any, ...]]]] = [
    ({"bom.csv": _BOM + b"id,v\r\n1,x\r\n\r\n2,\r\n"}, _TWO),
    ({"order.csv": b'"v","id"\nx,1\n,2'}, _TWO),
    ({"quotes.csv": b'id,v\n1,"a\n""b"", c"\n\n2,""\n'}, [(1, 'a\n"b", c'), (2, "")]),
    ({"packed.csv.gz": gzip.compress(b"id,v\n1,x\n") + gzip.compress(b"2,\n")}, _TWO),
    ({"nothing-tells.csv": bz2.compress(b"id,v\n1,x\n2,\n")}, _TWO),
    ({"several-1.csv": b"id,v\n1,x\n", "several-2.csv": b"v,id\n,2\n"}, _TWO),
    ({"header.csv": b"id,v\n"}, []),
    ({"header-1.csv": b"id,v\n", "header-2.csv": b"id,v\n\r\n1,x\n\n2,\n"}, _TWO),
    ({"bom.jsonl": _BOM + b'\n{"id": 1, "v": "x"}\r\n\n{"v": null, "id": 2}'}, _TWO),
    ({"lacks.jsonl": b'{"id": 1, "v": "x"}\n{"id": 2}\n'}, _TWO),
    ({"empty.jsonl": b"\n"}, []),
    ({"empty-1.jsonl": b"", "empty-2.jsonl": b'\n{"id": 1, "v": "x"}\n\n{"id": 2}'}, _TWO),
    ({"blank-1.jsonl": b'{"id": 1, "v": "x"}\n\n\n', "blank-2.jsonl": b'\n{"v": null, "id": 2}\n'}, _TWO),
    ({"digits.jsonl": b'{"id": 1, "v": 1.500}\n'}, [(1, "1.500")]),
    ({"groups.parquet": _parquet(pa.table({"v": ["x", None], "id": [1, 2]}), row_group_size=1)}, _TWO),
    ({"words.parquet": _parquet(pa.table({"id": [1], "v": pa.array(["x"]).dictionary_encode()}))}, [(1, "x")]),
]

VALUES: list[tuple[str, bytes, str, Any]] = [
    ("array.jsonl", b'{"id": 1, "tags": ["a, b", null, "1.50", 2.50]}', "tags", ["a, b", None, "1.50", "2.50"]),
    ("array.csv", b'id,tags\n1,"[""a"", 1.50]"\n', "tags", ["a", "1.50"]),
    ("own.csv", b'id,tags\n1,"{a,NULL}"\n', "tags", ["a", None]),
    ("doc.jsonl", '{"id": 1, "doc": {"a": [1, "ü"]}}'.encode(), "doc", {"a": [1, "ü"]}),
    ("doc.csv", b'id,doc\n1,"[1, 2]"\n', "doc", [1, 2]),
    ("struct.parquet", _typed(doc=pa.array([{"a": [1, 2]}])), "doc", {"a": [1, 2]}),
    ("list.parquet", _typed(doc=pa.array([[1, 2]])), "doc", [1, 2]),
    ("map.parquet", _typed(doc=pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))), "doc", {"k": 1}),
    ("lists.parquet", _typed(tags=pa.array([["a", None]])), "tags", ["a", None]),
    ("span.parquet", _typed(span=pa.array([90_000_000], pa.duration("us"))), "span", datetime.timedelta(seconds=90)),
    ("bytes.parquet", _typed(b=pa.array([bytes(range(16))], pa.binary(16))), "b", bytes(range(16))),
    ("uuid.parquet", _typed(u=pa.array([bytes.fromhex(_UUID.replace("-", ""))], pa.binary(16))), "u::text", _UUID),
    (
        "uuids.parquet",
        _typed(us=pa.array([[bytes.fromhex(_UUID.replace("-", ""))]], pa.list_(pa.binary(16)))),
        "us::text",
        f"{{{_UUID}}}",
    ),
    ("clock.parquet", _typed(clock=pa.array([1_000], pa.time64("ns"))), "clock", datetime.time(0, 0, 0, 1)),
]

REFUSED: list[tuple[dict[str, bytes], str]] = [
    ({"empty.csv": b""}, "empty.csv, line 1: the file is empty: it has no header line"),
    ({"blank.csv": b"\n1,2\n"}, "blank.csv, line 1: there is no header line"),
    ({"latin-header.csv": b"id,\xfc\n1,2\n"}, "latin-header.csv, line 1: byte 0xfc is not UTF-8"),
    ({"latin.csv": b"id,v\n1,x\n2,\xfc\n"}, "latin.csv, line 3: byte 0xfc is not UTF-8"),
    ({"mac.csv": b"id,v\r1,x\r"}, "mac.csv, line 1: this is not CSV"),
    ({"open.csv": b'id,v\n1,"x\n'}, "open.csv, line 2: a quote that is opened in or after this line is not closed"),
    ({"disk.csv": b'id,v\n1,5" disk\n'}, "disk.csv, line 2: a quote that is opened in or after this line"),
    ({"disks.csv": b'id,v\n1,x\n2,5" and 6"\n'}, "disks.csv, line 3: a quote within an unquoted field"),
    ({"after.csv": b'id,v\n1,"x"y\n'}, "after.csv, line 2: a quote within an unquoted field"),
    ({"carriage.csv": b"id,v\n1,x\ry\n"}, "carriage.csv, line 2: this is not CSV: "),
    ({"fields.csv": b"id,v\n1,x\n2,y,z\n"}, "it has 3 fields, and not 2"),
    ({"unknown.csv": b"id,w\n1,x\n"}, "has no column w, which the input has"),
    ({"twice.csv": b"id,v,v\n1,x,y\n"}, "the input has two columns v"),
    ({"parquet.csv": _typed()}, "parquet.csv is a Parquet file"),
    ({"cut.csv.gz": gzip.compress(b"id,v\n1,x\n" * 99)[:-20]}, "cut.csv.gz cannot be decompressed"),
    ({"one.csv": b"id,v\n1,x\n", "two.csv": b"id\n2\n"}, "two.csv has the columns id, and"),
    ({"more-1.csv": b"id\n1\n", "more-2.csv": b"id,v\n2,x\n"}, "more-2.csv has the columns id, v, and"),
    ({"no.jsonl": b'{"id": 1}\n{"id": 2\n'}, "it is not JSON: "),
    ({"list.jsonl": b'{"id": 1}\n[2]\n'}, "it is not a JSON object"),
    ({"list-first.jsonl": b'[2]\n{"id": 1}\n'}, "it is not a JSON object"),
    ({"latin.jsonl": b'{"id": 1, "v": "\xfc"}'}, "it is not JSON: "),
    ({"nan.jsonl": b'{"id": NaN}'}, "NaN is no JSON number"),
    ({"deep.jsonl": b'{"id": 1, "doc": ' + b"[" * 300 + b"]" * 300 + b"}"}, "nested too deeply"),
    ({"keys.jsonl": b'{"id": 1}\n{"id": 2, "v": "x"}\n'}, "the first row has no column v; name all with --columns"),
    ({"no.parquet": b"PAR1 and no more"}, "no.parquet is not a Parquet file"),
    ({"nanos.parquet": _typed(clock=pa.array([1], pa.time64("ns")))}, "column clock"),
    ({"money.parquet": _typed(doc=pa.array([{"a": Decimal("1.10")}]))}, "column doc"),
    ({"binary.parquet": _typed(doc=pa.array([b"{}"]))}, "column doc"),
]


def test_rows_that_are_accepted(same: IngestScene, caller: str) -> None:
    for contents, rows in ACCEPTED:
        same.database.execute("DELETE FROM same")
        files = [same.file(name, content) for name, content in contents.items()]
        assert _bring(same, caller, files) == len(rows), files
        assert same.database.rows("SELECT id, v FROM same ORDER BY id") == rows, files
    same.mirror.catch_up()
    same.mirror.assert_equal("public.same")


@pytest.mark.further
def test_values_of_every_kind(same: IngestScene, caller: str) -> None:
    for name, content, column, value in VALUES:
        same.database.execute("DELETE FROM same")
        assert _bring(same, caller, [same.file(name, content)]) == 1, name
        with same.database.session() as connection:
            assert connection.execute(f"SELECT {column} FROM same".encode()).fetchall() == [(value,)], name
    # The comparison knows no `time`, which the lake has as text.
    same.database.execute("UPDATE same SET clock = NULL")
    same.mirror.catch_up()
    same.mirror.assert_equal("public.same")


def test_input_that_is_refused(same: IngestScene, caller: str) -> None:
    for contents, text in REFUSED:
        files = [same.file(name, content) for name, content in contents.items()]
        with pytest.raises(MirrorPumpError) as caught:
            _bring(same, caller, files)
        assert text in str(caught.value), files
        assert caught.value.remedy, files
    assert same.database.rows("SELECT id FROM same") == []
    same.mirror.assert_equal("public.same")


@pytest.mark.further
def test_columns_that_are_chosen(same: IngestScene, caller: str) -> None:
    jsonl = same.file("a.jsonl", b'{"id": 1, "v": "x", "other": 1}\n{"v": "y", "id": 2}')
    assert _bring(same, caller, [jsonl], ("v", "id")) == 2
    parquet = same.file("a.parquet", _parquet(pa.table({"other": [1], "v": ["z"], "id": [3]})))
    assert _bring(same, caller, [parquet], ("id", "v")) == 1
    with pytest.raises(MirrorPumpError, match=r"a\.parquet has no column doc"):
        _bring(same, caller, [parquet], ("id", "doc"))
    assert same.database.rows("SELECT id, v FROM same ORDER BY id") == [(1, "x"), (2, "y"), (3, "z")]
    same.mirror.catch_up()
    same.mirror.assert_equal("public.same")
