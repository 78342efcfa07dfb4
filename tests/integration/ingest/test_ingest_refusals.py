"""What an ingest refuses, with file and line, and that it leaves nothing behind then."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirror_pump.errors import MirrorPumpError
from mirror_pump.ops.ingest.ingest_request import OnConflict, OnError
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.testing.database import Database
from tests.support.german_server import german_server
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
        (scene.file("unknown.csv", "at,id,x\n1,1,1\n"), "no column x", "it has at, id, n, v"),
        (scene.file("fields.csv", header + good + "2,2,2\n"), "fields.csv, line 3", "it has 3 fields, and not 4"),
        (scene.file("empty.csv", ""), "empty.csv, line 1", "the file is empty"),
        (scene.file("quote.csv", header + '1,1,2,"x\n'), "quote.csv, line 2", "not closed"),
        (scene.file("latin.csv", header.encode() + b"1,1,2,\xfc\n"), "latin.csv, line 2", "not UTF-8"),
        (scene.file("zero.csv", header + "1,1,2,a\0b\n"), "zero.csv, line 2", "0x00"),
        (scene.file("twice.csv", header + "1,1,2,x\n2,2,2,x\n1,1,2,y\n"), "the same key", "at 1, id 1"),
        (scene.file("cut.csv.gz", gzip.compress((header + good * 99).encode())[:-20]), "cut.csv.gz", "decompress"),
        (scene.file("no.parquet", "nothing of the kind"), "is not a Parquet file", ""),
        (scene.file("no.jsonl", '{"at": 1, "id": 1}\n{"at": 1\n'), "no.jsonl, line 2", "not JSON"),
        (
            scene.file("other.jsonl", '{"at": 1, "id": 1}\n{"at": 1, "id": 2, "n": 1}\n'),
            "other.jsonl, line 2",
            "no column n",
        ),
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


def test_a_missing_partition_is_understood_in_any_language(scene: IngestScene) -> None:
    path = scene.file("hot.csv", "at,id,n,v\n450,1,2,x\n")
    with german_server(scene.database.dsn) as dsn:
        mirror = scene.mirror.with_options(dsn=dsn)
        with pytest.raises(MirrorPumpError, match="der Server lehnt das ab") as caught:
            replace(scene, mirror=mirror).ingest(path)
    assert "create one for them" in caught.value.remedy


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


@pytest.mark.further
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


KEPT = {
    "amount numeric(6,2)": ["1.50", "1.500", "1e2", " 7 ", "NaN", "0.10000000000"],
    "amounts numeric(6,2)[]": ["{1.5,NULL}", "{1.500}"],
    "word varchar(3)": ["abc", "ab "],
    "padded char(3)": ["abc  "],
    "d date": ["2026-01-02 00:00:00", "Jan 8 1999"],
    "d3 timestamp(3)": ["2026-01-02 03:04:05.12300", "12.11.2026"],
    "moment timestamptz": ["2026-01-02 03:04:05.1234560000+02"],
    "clock time": ["03:04:05.123456"],
    "span interval(0)": ["2 days 00:00:05"],
    "near real": ["0.1"],
}
ROUNDED = {
    "amount numeric(6,2)": ["1.505", "1e-3", "0.10000000001"],
    "amounts numeric(6,2)[]": ["{1.5,1.005}"],
    "word varchar(3)": ["abc "],
    "d date": ["2026-01-02 00:00:01", "2026-01-02T23:59:59+02"],
    "d3 timestamp(3)": ["2026-01-02 03:04:05.1234"],
    "moment timestamptz": ["2026-01-02 03:04:05.1234567+02", "2026-01-02 03:04:05.000000001Z"],
    "clock time": ["03:04:05.1234567"],
    "span interval(0)": ["00:00:05.5"],
}


@pytest.mark.further
def test_texts_that_the_column_would_round(database: Database, warehouse: str, tmp_path: Path) -> None:
    """A value is refused if PostgreSQL would store less than the text says, and taken in any form otherwise."""
    scene = IngestScene.create(database, warehouse, tmp_path / "input", ", ".join(KEPT))
    names = [definition.split()[0] for definition in KEPT]

    def rows(values: dict[str, list[str]], at: int) -> list[list[object]]:
        texts = [(definition.split()[0], text) for definition, each in values.items() for text in each]
        return [
            [at, number, *(text if name == column else None for name in names)]
            for number, (column, text) in enumerate(texts)
        ]

    kept, rounded = rows(KEPT, 100) + rows(KEPT, 300), rows(ROUNDED, 110) + rows(ROUNDED, 310)
    columns = ("at", "id", *names)
    rejects = tmp_path / "rejects.jsonl"
    path = scene.csv("a.csv", [*kept, *rounded], columns)
    outcome = scene.ingest(path, on_error=OnError.SKIP, rejects=rejects)
    refused = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert sorted(row["line"] for row in refused) == list(range(2 + len(kept), 2 + len(kept) + len(rounded)))
    assert all("would be stored as" in row["error"] for row in refused), refused
    assert (outcome.rows, outcome.rejected) == (len(kept), len(rounded))
    scene.into_model(kept, columns)
    # What the lake holds of such texts is compared in test_values_are_those_of_an_insert.
    ingested, modelled = (
        database.rows(f"SELECT t::text FROM {name} t WHERE at = 300 ORDER BY id") for name in ("events", "model")
    )
    assert ingested == modelled
    assert len(ingested) == outcome.heap_rows == outcome.lake_rows
    with pytest.raises(MirrorPumpError, match=r"b\.csv, line 3: column amount: 1\.505 would be stored as 1\.51"):
        scene.ingest(scene.csv("b.csv", [[1, 1, "1.5"], [2, 2, "1.505"]], ("at", "id", "amount")))
    far = [[3, 1, "infinity", "-infinity"], [3, 2, "5874897-01-01", None]]
    assert scene.ingest(scene.csv("c.csv", far, ("at", "id", "d", "d3"))).lake_rows == 2


@pytest.mark.further
def test_objects_that_lack_a_key(scene: IngestScene) -> None:
    """What an object lacks is NULL, as in labelled loads."""
    content = '{"at": 1, "id": 1, "n": 2, "v": "x"}\n{"id": 2, "at": 2}\n{"at": 250, "id": 3, "v": "z"}\n{"id": 4}\n'
    with pytest.raises(MirrorPumpError, match=r"a\.jsonl, line 4: column at must not be NULL"):
        scene.ingest(scene.file("a.jsonl", content))
    scene.ingest(scene.file("b.jsonl", content.replace('{"id": 4}\n', "")))
    scene.into_model([(1, 1, 2, "x"), (2, 2, None, None), (250, 3, None, "z")])
    scene.assert_exact()


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


@pytest.mark.further
def test_a_database_of_another_shape(database: Database, warehouse: str, tmp_path: Path) -> None:
    """A DEFAULT, a NOT NULL and an identity column that the input lacks."""
    definitions = "n int NOT NULL DEFAULT 7, v text, number bigint GENERATED ALWAYS AS IDENTITY"
    scene = IngestScene.create(database, warehouse, tmp_path, definitions)
    scene.ingest(scene.csv("a.csv", [(1, 1), (2, 2), (201, 3)], ("at", "id")))
    assert [row[2] for row in scene.seam() if row[0] in (1, 2, 201)] == [7, 7, 7]
    numbers = [row[4] for row in scene.seam()]
    assert len(set(numbers)) == len(numbers)
