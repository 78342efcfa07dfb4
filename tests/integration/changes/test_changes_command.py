"""`mirror-pump changes` and `sql --changes`: every change once, in order, with frontiers to go on from."""

from __future__ import annotations

import json
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mirror_pump.model import format_lsn, parse_lsn
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.program import Program
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


def test_changes_in_files_that_are_out_of_order_are_printed_in_order(
    mirror: Mirror, feed: MadeFeed, run: RunCommand
) -> None:
    feed.scatter()
    feed.change(10)
    positions = sorted((feed.position(), feed.position()))
    for since, until in ((0, feed.newest_lsn + 1), positions):
        *changes, _ = _lines(run, mirror, "--since", format_lsn(since), "--until", format_lsn(until))
        assert [(line["lsn"], line["seq"], line["op"]) for line in changes] == _places(feed.between(since, until))


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
    assert "`mirror-pump register public.plain --alter --changes` keeps one from then on" in result.stderr
    followed = run("changes", "plain", "--since", "0/1", "--slot", mirror.settings.slot)
    assert followed.exit_code == 1
    assert "`mirror-pump register public.plain --alter --changes` keeps one from then on" in followed.stderr
    reversed_ends = run("sql", "SELECT 1", "--slot", mirror.settings.slot, "--changes", "latest..0/1")
    assert reversed_ends.exit_code == 2


def _followed(mirror: Mirror, directory: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command in a process of its own, which follows the table."""
    program = Program(mirror.database.dsn, directory, {"MIRROR_PUMP_SLOT": mirror.settings.slot})
    command = program.command("changes", "orders", "--since", "0/0", "--json", *arguments)
    with (directory / "changes.log").open("w", encoding="utf-8") as errors:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=program.environment, cwd=directory, text=True
        )


def _until_frontier(process: subprocess.Popen[str], frontier: int) -> list[dict[str, Any]]:
    """The lines up to that of a frontier that is not before this one."""
    assert process.stdout is not None
    lines = []
    for text in process.stdout:
        lines.append(json.loads(text))
        if parse_lsn(lines[-1].get("frontier", "0/0")) >= frontier:
            return lines
    raise AssertionError(f"the command ended with {process.wait()}")


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.further)]
)
def test_a_follower_goes_on_until_a_signal(
    mirror: Mirror, feed: MadeFeed, tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    """Also after its sessions were ended by the server."""
    with _followed(mirror, tmp_path, "--follow") as process:
        try:
            first = _until_frontier(process, mirror.frontier())
            assert first.pop() == {"frontier": format_lsn(mirror.frontier())}
            assert [(line["lsn"], line["seq"], line["op"]) for line in first] == _places(feed.rows)
            mirror.database.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mirror-pump-changes'"
            )
            mirror.database.execute("INSERT INTO orders VALUES (1)")
            mirror.catch_up()
            *changes, last = _until_frontier(process, mirror.frontier())
            assert last == {"frontier": format_lsn(mirror.frontier())}
            assert [(line["op"], line["row"]["id"]) for line in changes if "op" in line] == [("insert", 1)]
            process.send_signal(sent)
            assert process.wait(60) == code, (tmp_path / "changes.log").read_text()
        finally:
            process.kill()


@pytest.mark.usefixtures("feed")
def test_a_reader_that_closes_the_pipe_ends_the_command(mirror: Mirror, tmp_path: Path) -> None:
    with _followed(mirror, tmp_path, "--follow") as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())
            process.stdout.close()
            mirror.database.execute("INSERT INTO orders VALUES (1)")
            mirror.catch_up()
            assert process.wait(60) == 0
            assert "Traceback" not in (tmp_path / "changes.log").read_text()
        finally:
            process.kill()


@pytest.mark.further
@pytest.mark.usefixtures("feed")
def test_a_table_that_has_failed_ends_where_it_ended(mirror: Mirror, run: RunCommand) -> None:
    """Without an end, the command stops at the table's own frontier. One beyond it is refused."""
    frontier = mirror.frontier()
    mirror.database.execute("UPDATE modak.mirror_tables SET state = 'failed', error = 'a test'")
    mirror.database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    mirror.register("other")
    mirror.catch_up()
    assert mirror.frontier() > frontier
    *_, last = _lines(run, mirror, "--since", "0/0")
    assert last == {"frontier": format_lsn(frontier)}
    until = format_lsn(mirror.frontier())
    result = run("changes", "orders", "--slot", mirror.settings.slot, "--since", "0/0", "--until", until)
    assert result.exit_code == 1
    assert f"public.orders is failed: its changes end at {format_lsn(frontier)}" in result.stderr
    mirror.database.execute("UPDATE modak.mirror_tables SET state = 'live', error = NULL WHERE state = 'failed'")


def test_lines_for_people(mirror: Mirror, feed: MadeFeed, run: RunCommand) -> None:
    result = run("changes", "orders", "--slot", mirror.settings.slot, "--since", "0/0", "--until", "0/5DC")
    lines = result.stdout.splitlines()
    assert lines[-1] == "-- frontier 0/5DC"
    assert [line.split(" ")[:2] for line in lines[:-1]] == [[lsn, op] for lsn, _, op in _places(feed.between(0, 1500))]
