"""`mirror-pump lake` on a table that no catalog knows."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from mirror_pump.cli.main import app
from mirror_pump.lake.format.data_files import write_data_file, write_equality_deletes
from mirror_pump.model import LakePartitioning
from tests.support.growing_table import SCHEMA, STORAGE, GrowingTable, rows_of


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GrowingTable:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MIRROR_PUMP_DSN", raising=False)
    table = GrowingTable(tmp_path / "t", LakePartitioning.by(1, "truncate[10]"))
    for number in (5, 15):
        partition = (number // 10 * 10,)
        rows = rows_of([(number, "a", 1.5)])
        table.add(write_data_file(rows, SCHEMA, table.metadata.location, STORAGE, partition))
    keys = pa.table([[5], ["a"]], schema=SCHEMA.key.arrow)
    table.add(write_equality_deletes(keys, SCHEMA, table.metadata.location, STORAGE, (0,)))
    table.store()
    return table


def _json(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(app, ["lake", *arguments, "--json"])
    assert result.exit_code == 0, result.stderr
    document: dict[str, object] = orjson.loads(result.stdout)
    return document


def _text(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["lake", *arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_what_a_table_is(table: GrowingTable) -> None:
    document = _json("info", table.metadata.location)
    assert document["metadata_location"] == f"{table.metadata.location}/metadata/v3.metadata.json"
    assert (document["format_version"], document["snapshots"]) == (2, 3)
    assert "id long not null" in _text("info", table.metadata.location)


def test_its_history(table: GrowingTable) -> None:
    snapshots = _json("history", table.metadata.location)["snapshots"]
    assert isinstance(snapshots, list)
    assert [snapshot["snapshot_id"] for snapshot in snapshots] == ["3", "2", "1"]
    assert len(_text("history", table.metadata.location).splitlines()) == 3


def test_a_plan_and_what_it_opened(table: GrowingTable) -> None:
    document = _json("plan", table.metadata.location, "--where", "id = 5")
    assert document["manifests"] == {"total": 3, "opened": 2, "skipped": 1}
    assert document["entries"] == {"seen": 1, "kept": 1}
    files = document["files"]
    assert isinstance(files, list)
    assert (files[0]["partition"], len(files[0]["equality_deletes"])) == ([0], 1)
    assert "2 of 3 manifests opened" in _text("plan", table.metadata.location, "--where", "id = 5")


def test_files_of_a_snapshot(table: GrowingTable) -> None:
    assert len(_text("files", table.metadata.location).splitlines()) == 2
    document = _json("files", table.metadata.location, "--snapshot", "1")
    assert document["records"] == 1


def test_the_entries_of_a_manifest(table: GrowingTable) -> None:
    document = _json("inspect-manifest", table.manifests[0].path)
    entries = document["entries"]
    assert isinstance(entries, list)
    assert (entries[0]["status"], entries[0]["content"], entries[0]["records"]) == ("added", "data", 1)
    assert entries[0]["partition"] == {"id_truncate": 0} or list(entries[0]["partition"].values()) == [0]
    assert entries[0]["value_counts"] == {"1": 1, "2": 1, "3": 1}
    assert _text("inspect-manifest", table.manifests[0].path).startswith("added data file://")


def test_relative_paths(table: GrowingTable, tmp_path: Path) -> None:
    """They are relative to the working directory."""
    manifest = table.manifests[0].path.removeprefix(f"{tmp_path.as_uri()}/")
    assert manifest.startswith("t/")
    assert _json("inspect-manifest", manifest)["entries"] == _json("inspect-manifest", f"./{manifest}")["entries"]
    assert _json("info", "t")["location"] == table.metadata.location
    data = next((tmp_path / "t" / "data").glob("*.parquet")).relative_to(tmp_path)
    like = ("init", "a.b", "--catalog", "path:lake", "--like", str(data))
    assert _text(*like).startswith("file://")
    third = ("init", "a.c", "--catalog", "path:lake", "--like", str(data), "--property", "format-version=3")
    assert _json(*third)["format_version"] == 3


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("plan", "{table}", "--where", "missing = 1"), 2),
        (("plan", "{table}", "--where", "id = "), 2),
        (("plan", "{table}", "--snapshot", "77"), 2),
        (("info", "{table}/nothing"), 2),
        (("info", "relative"), 2),
        (("info", "{table}/none.metadata.json"), 1),
        (("inspect-manifest", "{table}/metadata/v3.metadata.json"), 1),
    ],
)
def test_errors_say_what_to_do(table: GrowingTable, arguments: tuple[str, ...], code: int) -> None:
    result = CliRunner().invoke(app, ["lake", *(text.format(table=table.metadata.location) for text in arguments)])
    assert result.exit_code == code, result.output
    assert result.stderr
    assert "Traceback" not in result.stderr
