"""docs/retention.md, block by block, and its statements about the command line."""

from __future__ import annotations

import json

from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import await_true
from tests.support.cli import RunCommand
from tests.support.documented import DocumentBlocks, documented_mirror
from tests.support.json_schema import mismatches


def test_the_document_does_what_it_says(database: Database, warehouse: str, run: RunCommand, slot: str) -> None:
    mirror = documented_mirror(database, warehouse, slot, fold_age=0.2)
    blocks = DocumentBlocks.of("retention.md", database, run)
    assert blocks.languages == ["sql", "sh", "sh", "sql", "sql", "sql", "sh", "sh"]

    blocks.execute(0, 1)
    with mirror.pumping():
        blocks.execute(2)
        assert "keeps 21 days behind 2026-03-25 08:00:00+00" in blocks.outputs[2]
        await_true(
            lambda: database.rows("SELECT count(*) FROM modak.partitions WHERE state = 'dropped'") == [(2,)],
            60,
            "two partitions are dropped",
        )
        blocks.execute(3)
        assert database.rows("SELECT n FROM events WHERE id = 9000") == [(5,)]
        await_true(
            lambda: database.rows("SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL") == [(0,)],
            30,
            "three corrections are folded",
        )
        blocks.execute(4, 5)
        mirror.await_frontier()
        mirror.await_live("public.events")
        filled = "SELECT DISTINCT source, token, count(DISTINCT checked_at) FROM lake GROUP BY ALL"
        rows = read_duckdb(mirror.location("public.events"), filled)
        assert [column.to_pylist() for column in rows.columns] == [["web"], [None], [1]]
        blocks.execute(6)
        document = json.loads(run("status", "--json").stdout)["tables"][0]["retention"]
        assert mismatches(document, "retention") == []
        assert document["cut"] == "2026-03-01 00:00:00+00"
        assert document["partitions"]["dropped"] == 2
        assert document["heap_retention"] is None, "it was unset at the end"
        outlooks = json.loads(run("retain", "--dry-run", "--json").stdout)
        assert mismatches(outlooks, "retain") == []
        (outlook,) = outlooks
        assert outlook["partitions"][0]["outlook"] == "stays: heap_retention is not set"
        plain = run("status").stdout
        assert "cut-line 2026-03-01 00:00:00+00" in plain
        assert "2 dropped" in plain
        blocks.execute(7)
        assert "2 partitions with" in blocks.outputs[-1]
        assert database.rows("SELECT n FROM events WHERE id IN (1, 2, 7001) ORDER BY id") == [(100,), (1,)]
        assert database.rows("SELECT count(*) FROM events WHERE created_at < '2026-03-01 00:00:00+00'") == [(1416,)]
        assert database.rows("SELECT to_regclass('events_202601')::text") == [("events_202601",)]
