"""A scan returns the rows that no delete hides and that match, whatever batches, threads and schemas they come by."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import parser
from pyiceberg.expressions.visitors import rewrite_not

from mirror_pump.errors import FileMissing, LakeError
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.data_files import write_data_file, write_equality_deletes
from mirror_pump.lake.storage import local_path
from mirror_pump.model import LakePartitioning
from mirror_pump.tables.read_plan.plan import read_plan
from mirror_pump.tables.read_plan.scan import Scan
from tests.support.growing_table import SCHEMA, STORAGE, GrowingTable, rows_of
from tests.support.local_files import path_of
from tests.support.position_delete_files import write_position_deletes
from tests.support.random_lake import matches

_Row = tuple[int, str, float | None]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**64))
def test_deletes_hide_what_they_say(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    table = GrowingTable(tmp_path / str(seed))
    live: dict[str, list[_Row | None]] = {}
    for _ in range(random.randint(2, 6)):
        step = random.choice(("rows", "rows", "keys", "positions")) if live else "rows"
        keys = [(random.randint(0, 5), random.choice("ab")) for _ in range(random.randint(1, 6))]
        location = table.metadata.location
        if step == "rows":
            added: list[_Row] = [(number, part, random.choice((None, 1.5, math.nan))) for number, part in keys]
            file = write_data_file(rows_of(added), SCHEMA, location, STORAGE)
            live[file.path] = list(added)
        elif step == "keys":
            named = pa.table([[k[0] for k in keys], [k[1] for k in keys]], schema=SCHEMA.key.arrow)
            file = write_equality_deletes(named, SCHEMA, location, STORAGE)
            for path, former in live.items():
                live[path] = [None if row is None or row[:2] in keys else row for row in former]
        else:
            hidden = {}
            for path in random.sample(sorted(live), random.randint(1, len(live))):
                chosen = sorted(random.sample(range(len(live[path])), 1))
                hidden[path] = pa.array(chosen).to_numpy()
                for place in chosen:
                    live[path][place] = None
            file = write_position_deletes(hidden, location, STORAGE)
        table.add(file)
    expected = [repr(row) for path in live for row in live[path] if row is not None]
    for threads in (1, 3):
        found = table.scan().to_arrow(threads)
        assert sorted(repr(tuple(row.values())) for row in found.to_pylist()) == sorted(expected)
    text = random.choice(("id > 2", "v is null", "part = 'a' and v != 1.5", "not (id in (1, 2, 3))"))
    scan = table.scan(text)
    plain = rewrite_not(parser.parse(text))
    rows = [row for path in live for row in live[path] if row is not None]
    wanted = [row for row in rows if matches(plain, dict(zip(("id", "part", "v"), row, strict=True)))]
    answers = [tuple(row.values()) for row in scan.to_arrow().to_pylist()]
    assert sorted(map(repr, answers)) == sorted(map(repr, wanted))


def test_columns_are_found_by_id_and_those_added_later_are_null(tmp_path: Path) -> None:
    table = GrowingTable(tmp_path)
    table.add(write_data_file(rows_of([(1, "a", 1.5)]), SCHEMA, table.metadata.location, STORAGE))
    document = dict(table.metadata.document)
    fields = [dict(field) for field in document["schemas"][0]["fields"]]
    fields[2]["name"] = "renamed"
    fields.append({"id": 9, "name": "later", "required": False, "type": "string"})
    document["schemas"] = [{**document["schemas"][0], "fields": fields}]
    scan = Scan(read_plan(TableMetadata(document), STORAGE, "later is null", columns=["renamed", "later"]))
    assert scan.to_arrow().to_pylist() == [{"renamed": 1.5, "later": None}]
    assert scan.schema.names == ["renamed", "later"]


def test_files_without_field_ids_are_read_by_the_name_mapping(tmp_path: Path) -> None:
    table = GrowingTable(tmp_path)
    file = write_data_file(rows_of([(1, "a", 1.5)]), SCHEMA, table.metadata.location, STORAGE)
    table.add(file)
    plain = pa.table({"id": [1], "part": ["a"], "old_v": [1.5]})
    pq.write_table(plain, str(local_path(file.path)))
    with pytest.raises(LakeError, match=r"name-mapping"):
        table.scan().to_arrow()
    mapping = '[{"field-id":1,"names":["id"]},{"field-id":2,"names":["part"]},{"field-id":3,"names":["v","old_v"]}]'
    document = {**table.metadata.document, "properties": {"schema.name-mapping.default": mapping}}
    found = Scan(read_plan(TableMetadata(document), STORAGE)).to_arrow()
    assert found.to_pylist() == [{"id": 1, "part": "a", "v": 1.5}]


def test_an_abandoned_scan_leaves_no_thread(tmp_path: Path) -> None:
    table = GrowingTable(tmp_path)
    for number in range(6):
        table.add(write_data_file(rows_of([(number, "a", None)]), SCHEMA, table.metadata.location, STORAGE))
    batches = table.scan().to_batches(3)
    assert next(batches).num_rows == 1
    batches.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name == "lake-scan"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    table = GrowingTable(tmp_path)
    paths = []
    for number in range(3):
        file = write_data_file(rows_of([(number, "a", None)]), SCHEMA, table.metadata.location, STORAGE)
        paths.append(file.path)
        table.add(file)
    path = path_of(paths[1])
    path.unlink()
    with pytest.raises(FileMissing, match=path.name):
        table.scan().to_arrow(2)
    assert table.scan("id = 2").to_arrow().num_rows == 1


def test_pruned_manifests_are_not_opened(tmp_path: Path) -> None:
    """Their files are gone: opening one would fail."""
    table = GrowingTable(tmp_path, LakePartitioning.by(1, "truncate[10]"))
    location = table.metadata.location
    for number in (5, 15, 25):
        partition = (number // 10 * 10,)
        table.add(write_data_file(rows_of([(number, "a", None)]), SCHEMA, location, STORAGE, partition))
        keys = pa.table([[number], ["b"]], schema=SCHEMA.key.arrow)
        table.add(write_equality_deletes(keys, SCHEMA, location, STORAGE, partition))
    assert read_plan(table.metadata, STORAGE).counts.manifests_opened == 6
    for manifest in (*table.manifests[:2], *table.manifests[4:]):
        path = path_of(manifest.path)
        path.unlink()
    plan = read_plan(table.metadata, STORAGE, "id = 15")
    counts = plan.counts
    assert (counts.manifests, counts.manifests_opened, counts.manifests_skipped) == (6, 2, 4)
    assert (counts.entries_seen, counts.entries_kept, counts.deletes_kept) == (1, 1, 1)
    (file,) = plan.files
    assert (file.partition, len(file.equality_deletes)) == ((10,), 1)
    assert Scan(plan).to_arrow().to_pylist() == [{"id": 15, "part": "a", "v": None}]
    with pytest.raises(FileMissing):
        read_plan(table.metadata, STORAGE, "id = 15 or id = 25")


def test_deletes_older_than_what_is_planned_are_not_opened(tmp_path: Path) -> None:
    table = GrowingTable(tmp_path)
    location = table.metadata.location
    table.add(write_equality_deletes(pa.table([[1], ["a"]], schema=SCHEMA.key.arrow), SCHEMA, location, STORAGE))
    table.add(write_data_file(rows_of([(1, "a", None)]), SCHEMA, location, STORAGE))
    path = path_of(table.manifests[0].path)
    path.unlink()
    assert table.scan().to_arrow().num_rows == 1


def test_an_old_snapshot_has_its_own_files(tmp_path: Path) -> None:
    table = GrowingTable(tmp_path)
    paths = []
    for number in range(3):
        file = write_data_file(rows_of([(number, "a", None)]), SCHEMA, table.metadata.location, STORAGE)
        table.add(file)
        paths.append(file.path)
    assert read_plan(table.metadata, STORAGE, snapshot_id=2).paths == paths[:2]
    assert [file.path for file in read_plan(table.metadata, STORAGE).files[1:]] == paths[1:]
