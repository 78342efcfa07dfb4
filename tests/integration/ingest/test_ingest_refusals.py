"""What an ingest refuses, with file and line, and that it leaves nothing behind then."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirror_pump.errors import MirrorPumpError
from mirror_pump.ops.ingest.ingest_request import OnConflict, OnError
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.testing.database import Database
from tests.support.ingest_scene import IngestScene


def test_bad_input_is_named_and_nothing_stays(scene: IngestScene) -> None:
    scene.database.execute("ALTER TABLE events ADD CONSTRAINT even CHECK (n IS NULL OR n % 2 = 0)")
    header = "at,id,n,v\n"
    good = "1,1,2,x\n"
    scene.directory.mkdir()
    pq.write_table(pa.table({"at": [1, 2], "id": [1, 2], "n": [2.0, 2.5]}), scene.directory / "half.parquet")
    pq.write_table(pa.table({"at": [1], "id": [1], "n": [b"x"]}), scene.directory / "type.parquet")
    pq.write_table(pa.table({"at": [1, None], "id": [1, 2]}), scene.directory / "null.parquet")
    bad = [
        (scene.file("type.csv", header + good + "2,two,2,x\n"), "type.csv, line 3", "id"),
        (scene.file("check.csv", header + good + '2,2,2,"a\nb"\n3,3,3,x\n'), "check.csv, line 5", "even"),
        (scene.file("null.csv", header + good + ",2,2,x\n"), "null.csv, line 3", "column at must not be NULL"),
        (scene.file("missing.csv", "at,n\n1,1\n"), "no column id", ""),
        (scene.file("unknown.csv", "at,id,x\n1,1,1\n"), "no column 'x'", "it has at, id, n, v"),
        (scene.file("fields.csv", header + good + "2,2,2\n"), "fields.csv, line 3", "3 fields instead of 4"),
        (scene.file("empty.csv", ""), "empty.csv, line 1", "the file is empty"),
        (scene.file("quote.csv", header + '1,1,2,"x\n'), "quote.csv, line 2", "not closed"),
        (scene.file("latin.csv", header.encode() + b"1,1,2,\xfc\n"), "latin.csv, line 2", "not UTF-8"),
        (scene.file("zero.csv", header + "1,1,2,a\0b\n"), "zero.csv, line 2", "0x00"),
        (scene.file("twice.csv", header + "1,1,2,x\n2,2,2,x\n1,1,2,y\n"), "the same key", "at 1, id 1"),
        (scene.file("cut.csv.gz", gzip.compress((header + good * 99).encode())[:-20]), "cut.csv.gz", "decompress"),
        (scene.file("no.parquet", "nothing of the kind"), "is not a Parquet file", ""),
        (scene.file("no.jsonl", '{"at": 1, "id": 1}\n{"at": 1\n'), "no.jsonl, line 2", "not JSON"),
        (scene.file("other.jsonl", '{"at": 1, "id": 1}\n{"at": 1, "id": 2, "n": 1}\n'), "other.jsonl, line 2", "has n"),
        (str(scene.directory / "half.parquet"), "half.parquet, row 2", "2.5"),
        (str(scene.directory / "type.parquet"), "column n is binary", "integer"),
        (str(scene.directory / "null.parquet"), "null.parquet, row 2", "column at must not be NULL"),
        (str(scene.directory / "gone*.csv"), "there is no file", ""),
        (scene.file("hot.csv", header + "1,1,2,x\n450,1,2,x\n"), "no partition of relation", ""),
    ]
    before = scene.files_in_lake()
    for path, place, reason in bad:
        with pytest.raises(MirrorPumpError) as caught:
            scene.ingest(path)
        text = f"{caught.value} {caught.value.remedy}"
        assert place in text, (path, text)
        assert reason in text, (path, text)
    assert scene.files_in_lake() == before
    assert set(scene.phases()) <= {"undone"}
    scene.assert_exact()


def test_tables_that_nothing_can_be_ingested_into(scene: IngestScene) -> None:
    path = scene.csv("a.csv", [(1, 1, 1, "x")])
    with pytest.raises(MirrorPumpError, match="not registered"):
        scene.ingest(path, table="model")
    with pytest.raises(MirrorPumpError, match="no table"):
        scene.ingest(path, table="nothing")
    scene.database.execute("ALTER TABLE events ADD COLUMN later int")
    with pytest.raises(MirrorPumpError, match=r"altered \(column later\).*not followed"):
        scene.ingest(path)
    scene.mirror.catch_up()
    scene.database.execute("UPDATE modak.cutline SET retention_line = 50")
    with pytest.raises(MirrorPumpError, match=r"a\.csv, line 2: at is below the retention line 50"):
        scene.ingest(path)
    scene.database.execute("UPDATE modak.cutline SET retention_line = NULL")


def test_rows_that_are_left_out(scene: IngestScene, tmp_path: Path) -> None:
    rejects = tmp_path / "rejects.jsonl"
    content = "at,id,n,v\n1,1,2,x\n2,2,two,x\n3,3\n4,4,99999999999,x\n,5,5,x\n250,6,6,y\n"
    outcome = scene.ingest(scene.file("a.csv", content), on_error=OnError.SKIP, rejects=rejects)
    assert (outcome.rows, outcome.rejected, outcome.lake_rows, outcome.heap_rows) == (2, 4, 1, 1)
    refused = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert sorted(row["line"] for row in refused) == [3, 4, 5, 6]
    by_line = {row["line"]: row for row in refused}
    assert "two" in by_line[3]["error"]
    assert by_line[3]["row"] == {"at": "2", "id": "2", "n": "two", "v": "x"}
    assert by_line[4]["row"] == "3,3"
    scene.into_model([(1, 1, 2, "x"), (250, 6, 6, "y")])
    scene.assert_exact()
    with pytest.raises(MirrorPumpError, match="go together"):
        scene.ingest(scene.file("b.csv", content), on_error=OnError.SKIP)


def test_keys_that_exist(scene: IngestScene) -> None:
    first = [(at, 1, 2, "first") for at in range(10)] + [(300, 77, 1, "first")]
    scene.ingest(scene.csv("a.csv", first))
    again = [(at, 1, 3, "second") for at in range(5, 15)] + [(300, 77, 2, "second"), (305, 77, 2, "new")]
    with pytest.raises(MirrorPumpError, match=r"5 rows of the input have keys .* at \d, id 1"):
        scene.ingest(scene.csv("b.csv", again[:10]), on_conflict=OnConflict.REFUSE)
    with pytest.raises(MirrorPumpError, match="duplicate key"):
        scene.ingest(scene.csv("c.csv", again[10:]), on_conflict=OnConflict.REFUSE)
    scene.into_model(first)
    scene.assert_exact()
    outcome = scene.ingest(scene.csv("d.csv", again))
    assert outcome.replaced == 5
    scene.into_model(again)
    scene.assert_exact()
    # A key whose row was deleted is free.
    scene.database.execute("SELECT modak.delete('events', '{\"at\": 1, \"id\": 1}')")
    outcome = scene.ingest(scene.csv("e.csv", [(1, 1, 9, "third")]), on_conflict=OnConflict.REFUSE)
    assert (outcome.replaced, outcome.corrected) == (0, 1)
    scene.into_model([(1, 1, 9, "third")])
    scene.assert_exact()


def test_a_plain_mirrored_table_gets_all_rows_by_copy(scene: IngestScene) -> None:
    scene.database.execute("CREATE TABLE flat (id int PRIMARY KEY, v text); INSERT INTO flat VALUES (1, 'old')")
    scene.mirror.register("public.flat")
    scene.mirror.catch_up()
    outcome = scene.ingest(scene.file("a.jsonl", '{"id": 1, "v": "new"}\n{"id": 2, "v": null}\n'), table="flat")
    assert (outcome.rows, outcome.lake_rows, outcome.heap_rows) == (2, 0, 2)
    assert scene.database.rows("SELECT * FROM flat ORDER BY id") == [(1, "new"), (2, None)]
    with pytest.raises(MirrorPumpError, match="same key"):
        scene.ingest(scene.file("b.csv", "id,v\n3,x\n3,y\n"), table="flat")
    outcome = scene.ingest(scene.file("c.csv", "id,v\n4,x\n"), table="flat", dry_run=True, format=FileFormat.CSV)
    assert (outcome.rows, outcome.op_id) == (1, "")
    scene.mirror.catch_up()
    scene.mirror.assert_equal("public.flat")


def test_a_database_of_another_shape(database: Database, warehouse: str, tmp_path: Path) -> None:
    """A DEFAULT, a NOT NULL and an identity column that the input lacks."""
    definitions = "n int NOT NULL DEFAULT 7, v text, number bigint GENERATED ALWAYS AS IDENTITY"
    scene = IngestScene.create(database, warehouse, tmp_path, definitions)
    scene.ingest(scene.csv("a.csv", [(1, 1), (2, 2), (201, 3)], ("at", "id")))
    assert [row[2] for row in scene.seam() if row[0] in (1, 2, 201)] == [7, 7, 7]
    numbers = [row[4] for row in scene.seam()]
    assert len(set(numbers)) == len(numbers)
