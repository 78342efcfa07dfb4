"""ClickHouse reads the rows below the cut-line from the metadata file that readers are told to use. A soak, since it
needs half a gigabyte of ClickHouse, which `make soak` and `make bench` install."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines import CHDB
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true, lake_rows
from tests.support.events_table import RetentionTables, delete, upsert


@pytest.mark.soak
def test_clickhouse_reads_the_archive_and_the_table(
    retention_tables: RetentionTables, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = retention_tables.manual(fold_age=0.05)
    mirror = events.mirror
    with mirror.pumping() as running:
        mirror.await_live("public.events")
        events.advance(running)
        with database.connect(autocommit=False) as connection:
            upsert(connection, 4, 2, "changed")
            upsert(connection, 5, 1, "new")
            delete(connection, 8, 4)
        unfolded = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"
        await_true(lambda: database.rows(unfolded) == [(0,)], 20, "the fold")
    (location,) = database.rows("SELECT lake_props ->> 'metadata_location' FROM modak.cutline")
    below = lake_rows(location[0])
    assert len(below) == 50
    assert (5, 1, 7, "new", None) in below
    # It reads only local files below the working directory.
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(CHDB))
    assert _clickhouse(location[0]) == sorted(row[:4] for row in below)
    whole = mirror.location("public.events")
    assert _clickhouse(whole) == sorted(row[:4] for row in lake_rows(whole))
    assert _clickhouse(whole, search=True) == _clickhouse(whole), "what it finds by itself is the table's newest"


def _clickhouse(location: str, *, search: bool = False) -> list[tuple[Any, ...]]:
    chdb = importlib.import_module("chdb")
    directory, kind, name = location.removeprefix("file://").rsplit("/", 2)
    named = "" if search else f", SETTINGS iceberg_metadata_file_path = '{kind}/{name}'"
    found = chdb.query(f"SELECT at, id, n, v FROM icebergLocal('{directory}'{named})", "JSONCompactEachRow")
    rows = [json.loads(line) for line in bytes(found.bytes()).splitlines()]
    return sorted((int(at), int(key), n, v) for at, key, n, v in rows)
