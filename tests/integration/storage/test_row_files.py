"""Files of rows in S3, for ingests and loads: patterns, credentials by storage profile, and what is wrong with them."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.s3_server import S3Server, s3_server

pytestmark = pytest.mark.further

COMMANDS = ("ingest", "load")
"""Both read files by mirror_pump.ops.row_files."""

KEYS = {
    "MIRROR_PUMP_STORAGE_REGION": "eu-central-1",
    "MIRROR_PUMP_STORAGE_ACCESS_KEY": "own",
    "MIRROR_PUMP_STORAGE_SECRET_KEY": "secret of its own",
}


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def mirror(
    database: Database,
    s3: S3Server,
    warehouse: str,
    run: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
    tasks: ThreadTaskRunner,
) -> Mirror:
    """public.orders in a lake on this machine, and files of its rows in the bucket `input`. (`run` comes
    first, since it clears the environment.)"""
    monkeypatch.setenv("MIRROR_PUMP_STORAGE_ENDPOINT", s3.endpoint)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    made = Mirror.create(database, warehouse, tasks)
    database.execute("CREATE TABLE public.orders (id int PRIMARY KEY, v text)")
    made.register("public.orders")
    made.catch_up()
    for number in range(3):
        rows = pa.table({"v": [f"parquet {number}"], "id": [number]})
        sink = io.BytesIO()
        pq.write_table(rows, sink)
        s3.objects[f"input/new/{number}.parquet"] = sink.getvalue()
    s3.objects["input/new/deeper/9.parquet"] = b"not matched by a star"
    s3.objects["input/new/a.csv"] = b"id,v\n10,csv a\n"
    s3.objects["input/new/b.csv"] = b"v,id\ncsv b,11\ncsv b,12\n"
    return made


def _rows(database: Database) -> list[tuple[object, ...]]:
    return database.rows("SELECT id, v FROM orders ORDER BY id")


def _arguments(command: str, *files: str) -> tuple[str, ...]:
    """The same for both commands: a load has a label besides, a new one each time."""
    label = ("--label", os.urandom(8).hex()) if command == "load" else ()
    return (command, "orders", *files, *label)


def test_files_are_named_or_matched(mirror: Mirror, s3: S3Server, run: RunCommand) -> None:
    for command in COMMANDS:
        mirror.database.execute("DELETE FROM orders")
        result = run(*_arguments(command, "s3://input/new/*.parquet"))
        assert result.exit_code == 0, result.output
        parquet = [(number, f"parquet {number}") for number in range(3)]
        assert _rows(mirror.database) == parquet
        result = run(*_arguments(command, "s3://input/new/a.csv", "s3://input/new/[b-z].csv"))
        assert result.exit_code == 0, result.output
        assert _rows(mirror.database) == [*parquet, (10, "csv a"), (11, "csv b"), (12, "csv b")]
    assert s3.keys == {"own"}
    mirror.catch_up()


@pytest.mark.unverified("nothing was written")
def test_what_is_not_there(mirror: Mirror, s3: S3Server, run: RunCommand) -> None:
    for command in COMMANDS:
        s3.forbidden = False
        for name in (
            "s3://input/old/*.csv",
            "s3://input/new/c.csv",
            "s3://no-such-bucket/a.csv",
            "s3://no-such-bucket/*.csv",
        ):
            result = run(*_arguments(command, name))
            assert (result.exit_code, f"there is no object {name}" in result.stderr) == (2, True), result.output
        s3.forbidden = True
        for name in ("s3://input/new/a.csv", "s3://input/new/*.csv"):
            result = run(*_arguments(command, name))
            assert result.exit_code == 1, result.output
            assert "access key" in result.stderr
            assert KEYS["MIRROR_PUMP_STORAGE_SECRET_KEY"] not in result.output
    assert _rows(mirror.database) == []


def test_files_in_the_warehouse_of_a_profile_are_read_with_its_credentials(
    mirror: Mirror, s3: S3Server, run: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = tmp_path / "incoming"
    secret.write_text('{"access_key": "theirs", "secret_key": "secret of others"}')
    monkeypatch.setenv("MODAK_CREDENTIALS_INCOMING_FILE", str(secret))
    added = run(
        "profile", "add", "incoming", "--warehouse", "s3://input/new", "--endpoint", s3.endpoint,
        "--region", "eu-central-1", "--credentials", "incoming", "--no-test",
    )  # fmt: skip
    assert added.exit_code == 0, added.output
    for command in COMMANDS:
        mirror.database.execute("DELETE FROM orders")
        s3.keys.clear()
        result = run(*_arguments(command, "s3://input/new/*.parquet"))
        assert result.exit_code == 0, result.output
        assert s3.keys == {"theirs"}
        assert len(_rows(mirror.database)) == 3
    mirror.catch_up()
