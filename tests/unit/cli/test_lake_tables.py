"""`mirror-pump lake init`, `commit` and `gc` on catalogs without a server."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from mirror_pump.cli.main import app
from mirror_pump.lake.storage import local_path

NAME = "sales.orders"
ROWS = pa.table({"id": pa.array([1]), "name": ["x"]})


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MIRROR_PUMP_DSN", raising=False)
    monkeypatch.setenv("MIRROR_PUMP_STORAGE_FSYNC", "false")


BOTH = pytest.mark.parametrize("catalog", ["path", "sqlite"], indirect=True)


@pytest.fixture
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (
        f"path:{tmp_path}/lake"
        if getattr(request, "param", "path") == "path"
        else f"sqlite:///{tmp_path}/c.db?warehouse={tmp_path}/lake"
    )


@pytest.fixture
def data(catalog: str) -> Path:
    """Directory of the data files of a table in the catalog, with one committed file."""
    done(lake("init", catalog, "--column", "id long not null", "--column", "name string"))
    metadata = done(lake("info", catalog, "--json"))["metadata_location"]
    directory = Path(str(local_path(metadata))).parents[1] / "data"
    directory.mkdir()
    done(lake("commit", catalog, written(directory / "first.parquet")))
    return directory


def lake(verb: str, catalog: str, *arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["lake", verb, NAME, "--catalog", catalog, *arguments], input=stdin)


def done(result: Result) -> Any:
    """The JSON that a command printed; None if it printed none."""
    assert result.exit_code == 0, result.stderr
    return orjson.loads(result.stdout) if result.stdout.startswith("{") else None


def written(path: Path, content: pa.Table = ROWS) -> str:
    pq.write_table(content, path)
    return str(path)


def named(catalog: str) -> set[str]:
    """Names of the table's data files."""
    return {Path(file["path"]).name for file in done(lake("files", catalog, "--json"))["files"]}


@BOTH
def test_commits_by_names_and_by_lines(catalog: str, data: Path) -> None:
    second, third = (written(data / f"{name}.parquet") for name in ("second", "third"))
    relative = Path(third).relative_to(Path.cwd())
    done(lake("commit", catalog, stdin=f'{second}\n\n{{"add": "{relative}"}}\n'))
    assert named(catalog) == {"first.parquet", "second.parquet", "third.parquet"}
    document = done(lake("commit", catalog, "--json", stdin=orjson.dumps({"remove": third}).decode()))
    assert document["snapshot"]["summary"]["deleted-data-files"] == "1"
    done(lake("commit", catalog, written(data / "fourth.parquet"), "--remove", second))
    assert named(catalog) == {"first.parquet", "fourth.parquet"}
    info = done(lake("info", catalog, "--json"))
    assert info["snapshots"] == 5
    assert info["metadata_location"] != document["metadata_location"]
    assert len(done(lake("history", catalog, "--json"))["snapshots"]) == 5
    assert done(lake("plan", catalog, "--where", "id = 2", "--json"))["files"] == []


BAD_INPUT = {
    "of another schema": ("wrong.parquet", "column id", 1),
    "missing": ("missing.parquet", "does not exist", 1),
    "empty": ("empty.parquet", "0 bytes", 1),
    "not Parquet": ("text.parquet", "is not a Parquet file", 1),
    "named twice": ("good.parquet", "is named twice", 1),
    "outside the table": ("../../../../outside.parquet", "is outside the table", 1),
    "in the table already": ("first.parquet", "is in the table", 1),
    "no name": ('{"ad": "x"}', "line 2", 2),
    "half a line": ('{"add": ', "line 2", 2),
}


@pytest.mark.parametrize("kind", BAD_INPUT)
def test_bad_input_changes_nothing(catalog: str, data: Path, tmp_path: Path, kind: str) -> None:
    bad, reason, code = BAD_INPUT[kind]
    good = written(data / "good.parquet")
    written(data / "wrong.parquet", pa.table({"id": ["text"], "name": ["x"]}))
    written(tmp_path / "outside.parquet")
    (data / "empty.parquet").touch()
    (data / "text.parquet").write_text("id,name\n1,x\n" * 100)
    before = everything(tmp_path)
    result = lake("commit", catalog, stdin=f"{good}\n{bad if bad.startswith('{') else data / bad}\n")
    assert result.exit_code == code, result.output
    assert reason in result.stderr
    assert "remedy" in result.stderr or "what to do" in result.stderr
    assert everything(tmp_path) == before, "a path catalog's pointer is a file too"
    done(lake("commit", catalog, good))
    assert named(catalog) == {"first.parquet", "good.parquet"}


def everything(root: Path) -> set[Path]:
    """All files, but those that SQLite makes and removes as it likes."""
    return {path for path in root.rglob("*") if path.is_file() and not path.name.startswith("c.db-")}


def test_nothing_to_commit_is_wrong_usage(catalog: str, data: Path) -> None:
    assert data.is_dir()
    result = lake("commit", catalog, stdin="\n\n")
    assert (result.exit_code, "no file is named" in result.stderr) == (2, True)


@BOTH
def test_gc_removes_what_no_snapshot_needs_once_it_is_old(catalog: str, data: Path) -> None:
    done(lake("commit", catalog, written(data / "second.parquet"), "--remove", str(data / "first.parquet")))
    old, young = Path(written(data / "old.parquet")), Path(written(data / "young.parquet"))
    lost = data.parent / "metadata" / "0a1b-m0.avro"
    lost.write_bytes(b"x")
    for path in everything(data.parent):
        aged(path, 4 * 86400)
    aged(young, 86400)
    before = everything(data.parent)
    document = done(lake("gc", catalog, "--json"))
    assert {file["path"] for file in document["files"]} == {f"file://{old}", f"file://{lost}"}
    assert everything(data.parent) == before, "a dry run removes nothing"
    assert done(lake("gc", catalog, "--yes", "--json"))["removed"] is True
    assert everything(data.parent) == before - {old, lost}
    assert "1 orphan files" in lake("gc", catalog, "--yes", "--older-than", "20h").stdout
    assert not young.exists()
    for snapshot in done(lake("history", catalog, "--json"))["snapshots"]:
        done(lake("files", catalog, "--json", "--snapshot", snapshot["snapshot_id"]))
    assert (data / "first.parquet").exists(), "an older snapshot has it"


def aged(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_gc_leaves_tables_within_a_table_alone(catalog: str, data: Path) -> None:
    inner = data / "x" / "metadata"
    inner.mkdir(parents=True)
    (inner / "v1.metadata.json").write_text("{}")
    result = lake("gc", catalog)
    assert (result.exit_code, "another table" in result.stderr) == (1, True)


def test_init_by_a_file_with_partitions_and_a_log(tmp_path: Path) -> None:
    file = written(tmp_path / "like.parquet", pa.table({"id": [1], "at": pa.array([1], pa.timestamp("us", "UTC"))}))
    arguments = ("--like", file, "--partition", "day(at)", "--property", "owner=me", "--json")
    document = done(lake("init", f"{tmp_path}/lake", *arguments, "--transactions"))
    assert [field["name"] for field in document["schema"]["fields"]] == ["id", "at"]
    assert document["partition_spec"]["fields"][0]["transform"] == "day"
    assert document["properties"]["owner"] == "me"
    assert (tmp_path / "lake" / "_transactions").is_dir()
    again = lake("init", f"{tmp_path}/lake", *arguments)
    assert (again.exit_code, "already" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("verb", "catalog", "arguments"),
    [
        ("init", "path:lake", ()),
        ("init", "path:lake", ("--column", "id long", "--like", "x.parquet")),
        ("init", "path:lake", ("--column", "id bigint")),
        ("init", "path:lake", ("--column", "id long", "--partition", "other")),
        ("init", "path:lake", ("--column", "id long", "--property", "no value")),
        ("info", "sqlite://host/file", ()),
        ("info", "sqlite:///no/directory/c.db", ()),
        ("info", "ftp://host/lake", ()),
        ("info", "lake", ()),
        ("info", "path:none", ()),
        ("info", "sqlite:none.db", ()),
        ("init", "path:none/none", ("--column", "id long")),
        ("init", "memory:.", ("--column", "id long")),
        ("info", "postgres", ()),
        ("gc", "path:lake", ("--older-than", "5 min")),
        ("gc", "path:lake", ("--older-than", "soon")),
    ],
)
def test_wrong_usage(verb: str, catalog: str, arguments: tuple[str, ...]) -> None:
    result = lake(verb, catalog, *arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr
    assert "Traceback" not in result.stderr


def test_a_table_that_is_not_there() -> None:
    Path("lake").mkdir()
    result = lake("info", "path:lake")
    assert (result.exit_code, "no table sales.orders" in result.stderr) == (1, True)
