"""docs/tiered.md, block by block."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from tests.support.cli import RunCommand
from tests.support.documented import documented_mirror

DOCUMENT = (Path(__file__).parents[3] / "docs" / "tiered.md").read_text(encoding="utf-8")


def test_the_document_does_what_it_says(database: Database, warehouse: str, run: RunCommand, slot: str) -> None:
    mirror = documented_mirror(database, warehouse, slot)
    lines: list[str] = []
    blocks = re.findall(r"```(sql|sh)\n(.*?)```", DOCUMENT, re.DOTALL)
    assert [language for language, _ in blocks] == ["sql", "sh", "sh", "sql", "sql", "sh", "sh"]

    def execute(language: str, text: str) -> None:
        if language == "sql":
            with database.connect() as connection:
                connection.execute(text.encode())
            return
        for line in text.strip().splitlines():
            result = run(*shlex.split(line)[1:])
            assert result.exit_code == 0, (line, result.stderr, result.stdout)
            lines.append(result.stdout)

    execute(*blocks[0])
    execute(*blocks[1])
    assert mirror.state("public.metrics") == "live"
    with mirror.pumping():
        execute(*blocks[2])
        assert "keeps 21 days behind 2026-03-25 08:00:00+00" in lines[2]
        await_true(
            lambda: database.rows("SELECT count(*) FROM modak.partitions WHERE state = 'dropped'") == [(2,)],
            60,
            "two partitions are dropped",
        )
        execute(*blocks[3])
        execute(*blocks[4])
        execute(*blocks[5])
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
        execute(*blocks[6])
        assert "stays: lag is not set" in lines[-1]
