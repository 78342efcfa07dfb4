"""`mirror-pump changes` and `sql --changes`: every change once, in order, with frontiers to go on from."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from mirror_pump.model import format_lsn
from mirror_pump.testing.mirror import Mirror
from tests.support.cli import RunCommand
from tests.support.made_feeds import MadeFeed, Row


def _lines(run: RunCommand, mirror: Mirror, *arguments: str) -> list[dict[str, Any]]:
    result = run("changes", "orders", "--slot", mirror.settings.slot, "--json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def _places(rows: list[Row]) -> list[tuple[str, int, str]]:
    return [(format_lsn(row["_lsn"]), row["_seq"], row["_op"]) for row in rows]


def test_changes_are_printed_once_in_order(mirror: Mirror, feed: MadeFeed, run: RunCommand) -> None:
    for _ in range(4):
        since, until = sorted((feed.position(), feed.position()))
        *changes, last = _lines(run, mirror, "--since", format_lsn(since), "--until", format_lsn(until))
        assert last == {"frontier": format_lsn(until)}
        assert [(line["lsn"], line["seq"], line["op"]) for line in changes] == _places(feed.between(since, until))
        feed.merge()


def test_a_reader_that_remembers_the_frontier_reads_all_once(mirror: Mirror, feed: MadeFeed, run: RunCommand) -> None:
    printed: list[tuple[str, int, str]] = []
    position = "0/0"
    for _ in range(3):
        *changes, last = _lines(run, mirror, "--since", position, "--until", format_lsn(_later(feed, position)))
        printed += [(line["lsn"], line["seq"], line["op"]) for line in changes]
        position = last["frontier"]
        feed.change(random.randint(1, 5))
    *changes, last = _lines(run, mirror, "--since", position)
    printed += [(line["lsn"], line["seq"], line["op"]) for line in changes]
    assert printed == _places(feed.rows)
    assert last == {"frontier": format_lsn(mirror.frontier())}


def _later(feed: MadeFeed, position: str) -> int:
    high, low = position.split("/")
    begin = int(high + low.rjust(8, "0"), 16)
    return random.randint(begin, max(begin, feed.newest_lsn + 1))


def test_values_are_as_postgres_prints_them(mirror: Mirror, feed: MadeFeed, run: RunCommand) -> None:
    """The server makes the texts of the same values."""
    *changes, _ = _lines(run, mirror, "--since", "0/0")
    with mirror.database.session() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for line, row in zip(changes, feed.rows, strict=True):
            for values, printed in ((row, line["row"]), (row["_old"], line["old"])):
                if values is None:
                    assert printed is None
                    continue
                if row["_op"] == "delete" and printed is line["row"]:
                    assert printed == {"id": row["id"]}
                    continue
                texts = connection.execute(
                    "SELECT %s::numeric(9,2)::text, encode(%s::bytea, 'hex')::uuid::text, %s::timestamptz::text,"
                    " %s::int[]::text, %s::float8::text",
                    tuple(values[name] for name in ("amount", "u", "at", "tags", "share")),
                ).fetchone()
                assert texts is not None
                assert printed == {
                    "id": values["id"],
                    "name": values["name"],
                    **dict(zip(("amount", "u", "at", "tags", "share"), texts, strict=True)),
                }


@pytest.mark.usefixtures("feed")
def test_expired_changes_are_an_error(mirror: Mirror, run: RunCommand) -> None:
    mirror.database.execute("UPDATE modak.change_feeds SET expired_lsn = 1500")
    result = run("changes", "orders", "--slot", mirror.settings.slot, "--since", format_lsn(1400))
    assert result.exit_code == 1
    assert "changes of public.orders before 0/5DC have expired" in result.stderr
    assert not result.stdout
    assert _lines(run, mirror, "--since", format_lsn(1500))


@pytest.mark.parametrize("until", ["latest", "0/7D0"])
def test_sql_reads_the_changes_of_tables_by_their_names(
    mirror: Mirror, feed: MadeFeed, run: RunCommand, until: str
) -> None:
    end = mirror.frontier() if until == "latest" else 2000
    query = "SELECT count(*) AS n, coalesce(sum(_lsn), 0)::bigint AS s FROM orders"
    result = run("sql", query, "--slot", mirror.settings.slot, "--changes", f"0/5DC..{until}", "--format", "json")
    assert result.exit_code == 0, result.output
    rows = feed.between(1500, end)
    assert json.loads(result.stdout) == [{"n": len(rows), "s": sum(row["_lsn"] for row in rows)}]


@pytest.mark.usefixtures("feed")
def test_sql_says_which_table_has_no_feed(mirror: Mirror, run: RunCommand) -> None:
    mirror.database.execute("CREATE TABLE plain (id int PRIMARY KEY)")
    mirror.register("plain")
    mirror.catch_up()
    result = run("sql", "FROM plain", "--slot", mirror.settings.slot, "--changes", "0/1..latest")
    assert result.exit_code == 2
    assert "public.plain has no change feed" in result.stderr
    reversed_ends = run("sql", "SELECT 1", "--slot", mirror.settings.slot, "--changes", "latest..0/1")
    assert reversed_ends.exit_code == 2
