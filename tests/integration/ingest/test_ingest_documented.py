"""docs/ingest.md, block by block, on a tiered table; and the keys of its JSON."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from tests.support.cli import RunCommand
from tests.support.documented import documented_mirror
from tests.support.json_schema import mismatches

DOCUMENT = (Path(__file__).parents[3] / "docs" / "ingest.md").read_text(encoding="utf-8")


def test_the_document_does_what_it_says(database: Database, warehouse: str, run: RunCommand, slot: str) -> None:
    mirror = documented_mirror(database, warehouse, slot)
    blocks = re.findall(r"```(sql|sh|csv|text)\n(.*?)```", DOCUMENT, re.DOTALL)
    assert [language for language, _ in blocks] == ["sql", "sh", "csv", "sh", "text", "sh", "sh"]

    def execute(text: str) -> list[str]:
        results = [run(*shlex.split(line)[1:]) for line in text.strip().splitlines()]
        assert all(result.exit_code == 0 for result in results), [result.stderr for result in results]
        return [result.stdout for result in results]

    with database.connect() as connection:
        connection.execute(blocks[0][1].encode())
    execute(blocks[1][1])
    with mirror.pumping():
        await_true(
            lambda: database.rows("SELECT count(*) FROM modak.partitions WHERE state = 'dropped'") == [(2,)],
            60,
            "January and February are in the lake",
        )
    Path("history.csv").write_text(blocks[2][1], encoding="utf-8")
    dry, done, found = execute(blocks[3][1])
    shown = re.sub(r"in [0-9.]+ s", "in 0.2 s", dry + done)
    assert shown == blocks[4][1]
    assert re.findall(r"(click|view)\W+(\d)", found) == [("click", "2"), ("view", "1")]
    (document,) = map(json.loads, execute(blocks[5][1]))
    assert (document["replaced"], document["heap_rows"]) == (2, 1)
    assert mismatches(document, "ingest") == []
    execute(blocks[6][1])
    assert Path("refused.jsonl").read_text(encoding="utf-8") == ""
    mirror.catch_up()
