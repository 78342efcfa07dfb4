"""ClickHouse reads the rows below the cut-line from the metadata file that readers are told to use. A soak, since it
needs half a gigabyte of ClickHouse, which `make soak` and `make bench` install."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true, lake_rows
from tests.support.clickhouse import clickhouse_rows
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
    assert clickhouse_rows(location[0], "at, id, n, v", monkeypatch) == sorted(row[:4] for row in below)
    whole = mirror.location("public.events")
    found = clickhouse_rows(whole, "at, id, n, v", monkeypatch)
    assert found == sorted(row[:4] for row in lake_rows(whole))
    searched = clickhouse_rows(whole, "at, id, n, v", monkeypatch, search=True)
    assert searched == found, "what it finds by itself is the table's newest"
