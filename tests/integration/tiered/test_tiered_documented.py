"""docs/tiered.md, block by block."""

from __future__ import annotations

import json

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from tests.support.cli import RunCommand
from tests.support.documented import DocumentBlocks, documented_mirror


def test_the_document_does_what_it_says(database: Database, warehouse: str, run: RunCommand, slot: str) -> None:
    mirror = documented_mirror(database, warehouse, slot)
    blocks = DocumentBlocks.of("tiered.md", database, run)
    assert blocks.languages == ["sql", "sh", "sh", "sql", "sql", "sh", "sh"]

    blocks.execute(0, 1)
    assert mirror.state("public.metrics") == "live"
    with mirror.pumping():
        blocks.execute(2)
        assert "keeps 21 days behind 2026-03-25 08:00:00+00" in blocks.outputs[2]
        await_true(
            lambda: database.rows("SELECT count(*) FROM modak.partitions WHERE state = 'dropped'") == [(2,)],
            60,
            "two partitions are dropped",
        )
        blocks.execute(3, 4, 5)
        await_true(
            lambda: (
                database.rows("SELECT state FROM modak.partitions WHERE partition_id = 'public.ledger_0'")
                == [("tiered",)]
            ),
            60,
            "the ledger's first partition is in the lake",
        )
        count = json.loads(run("sql", "SELECT count(*) AS n FROM metrics", "--format", "json").stdout)
        assert count == [{"n": 2001}], "one more, one deleted"
        status = json.loads(run("status", "--json").stdout)["tables"]
        assert {table["table"]: (table["mode"], table["retention"]["keep_heap"]) for table in status} == {
            "public.ledger": ("tiered", True),
            "public.metrics": ("tiered", False),
        }
        verified = {table["table"]: table for table in json.loads(run("verify", "--json").stdout)["tables"]}
        assert all(table["equal"] for table in verified.values())
        assert "public.ledger_0" in verified["public.ledger"]["compared"]
        assert verified["public.ledger"]["heap_rows"] == 1000
        blocks.execute(6)
        assert "stays: lag is not set" in blocks.outputs[-1]
