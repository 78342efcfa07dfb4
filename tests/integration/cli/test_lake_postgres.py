"""`mirror-pump lake` on the mirror's own database."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.cli import RunCommand
from tests.support.local_files import path_of

pytestmark = pytest.mark.empty_database


def test_tables_beside_the_mirror(run: RunCommand, slot: str, tmp_path: Path) -> None:
    before = run("lake", "info", "sales.orders", "--catalog", "postgres")
    assert before.exit_code == 1, "the database has no mirror yet"
    run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot)
    made = run("lake", "init", "sales.orders", "--catalog", "postgres", "--column", "id long", "--json")
    assert made.exit_code == 0, made.stderr
    data = path_of(orjson.loads(made.stdout)["location"]) / "data"
    data.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), data / "a.parquet")
    committed = run("lake", "commit", "sales.orders", "--catalog", "postgres", str(data / "a.parquet"))
    assert committed.exit_code == 0, committed.stderr
    document = orjson.loads(run("lake", "files", "sales.orders", "--catalog", "postgres", "--json").stdout)
    assert [file["path"] for file in document["files"]] == [f"file://{data}/a.parquet"]
