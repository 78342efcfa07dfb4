"""`mirror-pump changes` prints each value of each type as PostgreSQL does."""

from __future__ import annotations

import json
from typing import Any

from mirror_pump.model import FeedMode, format_lsn
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.type_oracle import CASES, ROWS, create_pool, pool_values


def test_values_are_printed_as_by_the_server(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, run: RunCommand
) -> None:
    with database.connect() as connection:
        create_pool(connection, "pool")
    database.execute("CREATE TABLE t (LIKE pool INCLUDING ALL)")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("t", feed=FeedOptions(FeedMode.KEYS))
    mirror.catch_up()
    begin = format_lsn(mirror.frontier())
    database.execute("INSERT INTO t SELECT * FROM pool ORDER BY id")
    mirror.catch_up()
    result = run("changes", "t", "--slot", mirror.settings.slot, "--since", begin, "--json")
    assert result.exit_code == 0, result.output
    rows = [line["row"] for line in map(json.loads, result.stdout.rstrip("\n").split("\n")) if "op" in line]
    assert [row["id"] for row in rows] == list(range(ROWS))
    _, texts = pool_values(database, "pool")
    wrong = [
        (case.type, row[f"c{number}"], text)
        for number, case in enumerate(CASES)
        for row, text in zip(rows, texts[f"c{number}"], strict=True)
        if _text(row[f"c{number}"]) != text
    ]
    assert not wrong


def _text(value: Any) -> str | None:
    """What the server prints of a value that JSON has."""
    if value is None or isinstance(value, str):
        return value
    return {True: "t", False: "f"}[value] if isinstance(value, bool) else str(value)
