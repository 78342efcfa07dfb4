"""Warehouses that some engine could not read are refused; the engines read a lake in any other."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from mirror_pump.ops.duckdb_connection import open_duckdb
from mirror_pump.tables import Table, path_catalog
from mirror_pump.testing.database import Database
from tests.support.cli import RunCommand

_UNREADABLE = '#?"\n\t'
_READABLE = "plain' %20 *[x]{y}\\;:&+\u00fc@~$x|<>,=^`"


@pytest.mark.empty_database
@pytest.mark.parametrize("character", _UNREADABLE)
def test_init_refuses_what_an_engine_could_not_read(
    run: RunCommand, database: Database, slot: str, tmp_path: Path, character: str
) -> None:
    refused = run("init", "--warehouse", str(tmp_path / f"a{character}b"), "--slot", slot)
    assert refused.exit_code == 2
    assert f"a warehouse cannot have {character!r} in its path" in orjson.loads(refused.stderr)["event"]
    assert not any(tmp_path.glob("a*"))
    assert database.rows("SELECT FROM pg_namespace WHERE nspname = 'modak'") == []


def test_profiles_refuse_it_too(run: RunCommand, database: Database, slot: str, tmp_path: Path) -> None:
    assert run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot).exit_code == 0
    refused = run("profile", "add", "archive", "--warehouse", "s3://bucket/a#b")
    assert refused.exit_code == 2
    assert "a warehouse cannot have '#' in its path" in orjson.loads(refused.stderr)["event"]
    assert database.rows("SELECT FROM modak.storage_profiles WHERE profile_name = 'archive'") == []


def test_other_characters_are_read(tmp_path: Path) -> None:
    table = Table.create(path_catalog(f"file://{tmp_path}/{_READABLE}"), "s.t", pa.schema({"id": pa.int64()}))
    table.append(pa.table({"id": [7]}))
    assert StaticTable.from_metadata(table.metadata_location).scan().to_arrow().to_pylist() == [{"id": 7}]
    with open_duckdb() as connection:
        assert connection.execute("SELECT id FROM iceberg_scan(?)", [table.metadata_location]).fetchall() == [(7,)]
