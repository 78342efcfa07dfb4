"""`sql --at` finds the rows of a published frontier from the time when a table went live, and none before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import duckdb
import pytest

from mirror_pump.cli.terminal.output import one_line
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import format_lsn
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Row, await_true, normalised
from mirror_pump.testing.tasks import GatedCopies
from tests.support.cli import RunCommand

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def mirror(database: Database, warehouse: str, gate: GatedCopies) -> Mirror:
    database.execute(
        "CREATE TABLE changing (id int PRIMARY KEY, v text)",
        "INSERT INTO changing SELECT g, repeat('x', 500) || g FROM generate_series(1, 100) g",
        "CREATE TABLE resting (id int PRIMARY KEY, v text)",
        "INSERT INTO resting SELECT g, 'v' || g FROM generate_series(1, 10) g",
        "CREATE TABLE nothing (id int PRIMARY KEY)",
    )
    return Mirror.create(database, warehouse, gate, copy_chunk_bytes=8192)


class Traveller:
    """Reads tables as of positions or times with the program."""

    def __init__(self, run: RunCommand, directory: Path) -> None:
        self._run = run
        self._directory = directory
        self._results = 0

    def rows(self, table: str, at: int | str) -> list[Row]:
        """The rows that the table had."""
        text = at if isinstance(at, str) else format_lsn(at)
        # Each has a file of its own: a DuckDB may go on with what it has read of a file that was written anew since.
        self._results += 1
        file = self._directory / f"rows{self._results}.parquet"
        written = ("--format", "parquet", "--output", str(file))
        result = self._run("sql", f"FROM {table}", "--at", text, *written)
        assert result.exit_code == 0, result.output
        return normalised(duckdb.sql(f"FROM '{file}'").fetchall())

    def refusal(self, table: str, at: int | str, code: int = 1) -> str:
        """The error of a read that is refused."""
        result = self._run("sql", f"FROM {table}", "--at", at if isinstance(at, str) else format_lsn(at))
        assert result.exit_code == code, result.output
        return one_line(result.stderr)


@pytest.fixture
def traveller(run: RunCommand, tmp_path: Path) -> Traveller:
    return Traveller(run, tmp_path)


def frontiers(mirror: Mirror) -> list[int]:
    """Every frontier that was published, oldest first."""
    return [row[0] for row in mirror.database.rows("SELECT present FROM audit.frontiers ORDER BY seen")]


def live_since(mirror: Mirror, table: str) -> int:
    """The first frontier that was published when the table's copy was complete."""
    ((complete,),) = mirror.database.rows(
        "SELECT live_after_lsn FROM modak.mirror_tables WHERE table_id = %s::regclass::oid::bigint", (table,)
    )
    return min(frontier for frontier in frontiers(mirror) if frontier >= complete)


def change(mirror: Mirror, gate: GatedCopies, first: int) -> None:
    """Changes rows during their copy, some before their chunk is read and some after it."""
    mirror.database.execute(
        f"UPDATE changing SET v = 'changed' WHERE id IN ({first}, {first + 50})",
        f"DELETE FROM changing WHERE id IN ({first + 1}, {first + 51})",
        f"INSERT INTO changing VALUES ({first + 1000}, 'new')",
    )
    mirror.await_frontier()
    gate.let_go(1)


def test_a_table_can_be_read_at_every_frontier_since_it_went_live(
    mirror: Mirror, gate: GatedCopies, traveller: Traveller
) -> None:
    mirror.database.execute("CREATE TABLE early (id int PRIMARY KEY)", "INSERT INTO early VALUES (1)")
    with mirror.pumping():
        mirror.register("early")
        mirror.await_live("public.early")
        gate.hold()
        mirror.register("changing", "resting", "nothing")
        await_true(lambda: gate.waiting, 30, "the copies wait")
        for first in range(1, 7):
            change(mirror, gate, first)
        assert mirror.state("public.changing") == "copying"
        before = time.time()
        gate.let_go()
        mirror.await_live("public.changing", "public.resting", "public.nothing")
        since = {table: live_since(mirror, table) for table in ("changing", "resting", "nothing")}
        states = {since["changing"]: mirror.heap("changing")}
        for _ in range(2):
            mirror.database.execute("UPDATE changing SET v = v || '+' WHERE id % 7 = 0", "INSERT INTO early VALUES (0)")
            mirror.database.execute("DELETE FROM early WHERE id = 0")
            states[int(mirror.await_frontier())] = mirror.heap("changing")
        last = mirror.frontier()
    for frontier, rows in states.items():
        assert traveller.rows("changing", frontier) == rows
    for table in ("resting", "nothing"):
        for frontier in (since[table], *(state for state in states if state > since[table]), last):
            assert traveller.rows(table, frontier) == mirror.heap(table)
    # Before that, the lake has some chunks, and rows as they were at later positions.
    assert len([frontier for frontier in frontiers(mirror) if frontier < since["changing"]]) > 5
    for table, frontier in since.items():
        earlier = [former for former in frontiers(mirror) if former < frontier]
        for absent in (earlier[len(earlier) // 2], frontier - 1):
            refusal = traveller.refusal(table, absent)
            assert f"public.{table} has been live since frontier {format_lsn(frontier)} (20" in refusal
            assert "before that it was being copied" in refusal
            assert f"--at {format_lsn(frontier)}" in refusal
    # Of several tables, the one that went live last decides.
    late = max(since, key=lambda table: since[table])
    assert f"public.{late} has been live" in traveller.refusal("resting, nothing, changing", frontiers(mirror)[0])
    # The same with times. Future times are refused like future positions.
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(before - 1))
    assert "public.resting has been live since" in traveller.refusal("resting", text)
    assert traveller.rows("resting", time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())) == mirror.heap("resting")
    tomorrow = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(before + 86400))
    assert f"{tomorrow[:-1]}.000Z is in the future: it is 20" in traveller.refusal("resting", tomorrow, 2)


@pytest.mark.further
def test_a_table_that_was_copied_again_can_be_read_from_there_on(
    mirror: Mirror, gate: GatedCopies, traveller: Traveller
) -> None:
    with mirror.pumping():
        mirror.register("changing")
        mirror.await_live("public.changing")
        mirror.database.execute("UPDATE changing SET v = 'first life' WHERE id < 10")
        former = int(mirror.await_frontier())
        content = mirror.heap("changing")
        gate.hold()
        mirror.database.execute("ALTER TABLE changing ALTER v TYPE varchar USING v || '!'")
        mirror.await_frontier()
        await_true(lambda: gate.waiting, 30, "the copy waits")
        # The content that readers see meanwhile has a history, however long the copy takes.
        assert traveller.rows("changing", former) == content
        for first in range(11, 14):
            change(mirror, gate, first)
        during = mirror.frontier()
        assert mirror.state("public.changing") == "copying"
        gate.let_go()
        mirror.await_live("public.changing")
        since = live_since(mirror, "changing")
        content = mirror.heap("changing")
    assert traveller.rows("changing", since) == content
    for frontier in (former, during, since - 1):
        assert f"public.changing has been live since frontier {format_lsn(since)} (20" in traveller.refusal(
            "changing", frontier
        )


@pytest.mark.further
def test_readers_of_the_lake_alone_learn_the_frontier(mirror: Mirror, gate: GatedCopies) -> None:
    with mirror.pumping():
        gate.hold()
        mirror.register("changing", "resting")
        await_true(lambda: gate.waiting, 30, "the copies wait")
        change(mirror, gate, 1)
        gate.let_go()
        mirror.await_live("public.changing", "public.resting")
    for table in ("changing", "resting"):
        *earlier, newest = read_metadata(mirror.location(f"public.{table}"), StorageOptions({})).snapshots
        assert newest.summary.get("mirror-pump.frontier") == format_lsn(live_since(mirror, table))
        assert newest.summary.get("total-equality-deletes") == "0" or table == "changing"
        assert all("mirror-pump.frontier" not in snapshot.summary for snapshot in earlier)
        assert all(snapshot.summary.get("mirror-pump.copying") == "true" for snapshot in earlier[1:])


def test_a_statement_compares_moments_of_tables(mirror: Mirror, gate: GatedCopies, run: RunCommand) -> None:
    with mirror.pumping():
        mirror.register("changing", "resting")
        mirror.await_live("public.changing", "public.resting")
        states = []
        for change_of in ("UPDATE changing SET v = 'second' WHERE id = 1", "DELETE FROM changing WHERE id > 90"):
            states.append((format_lsn(int(mirror.await_frontier())), len(mirror.heap("changing"))))
            mirror.database.execute(change_of)
        mirror.await_frontier()
    (first, rows), (second, _) = states
    statement = (
        f"SELECT (SELECT count(*) FROM changing AT '{first}') AS was, (SELECT count(*) FROM changing) AS is_now,"
        f" (SELECT count(*) FROM resting AT (VERSION => '{second}')) AS rested,"
        f" (SELECT count(*) FROM public.changing old AT '{first}' JOIN changing AT '{second}' USING (id)"
        " WHERE old.v <> changing.v) AS changed"
    )
    found = run("sql", statement, "--format", "csv")
    assert found.exit_code == 0, found.output
    assert found.stdout == f"was,is_now,rested,changed\n{rows},{rows - 10},10,1\n"
    assert '"public.changing: read at frontier' in found.stderr
    assert '"public.changing, public.resting: read at frontier' in found.stderr
    refused = run("sql", f"FROM nothing AT '{first}'")
    assert refused.exit_code == 2
    assert "nothing is not a mirrored table, and only these have a past" in one_line(refused.stderr)
