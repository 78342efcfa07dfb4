"""docs/erase.md, block by block: afterwards no file of the warehouse has anything of the person."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from struct import pack

import pytest
from pyspark.sql import SparkSession

from mirror_pump.model import FeedMode
from mirror_pump.ops.moments.keeping import MomentOptions, keep
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.erased import files_with
from tests.support.events_table import RetentionTables
from tests.support.local_files import path_of
from tests.support.maintenance import NO_UPKEEP, Maintained

_TEXT = (Path(__file__).parents[3] / "docs" / "erase.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", _TEXT, re.MULTILINE | re.DOTALL)
_CUSTOMERS = "public.customers"
_EVENTS = "public.events"
_MARKS = ["!person", 4217, pack("<q", 4217)]
"""What only the person's row has: the beginning of a text, so bounds have it, and the key, as bounds have it, too."""


@pytest.mark.further
def test_every_block_runs_and_nothing_of_the_person_is_left(
    database: Database,
    warehouse: str,
    tasks: ThreadTaskRunner,
    spark: SparkSession,
    run: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database.execute(
        "CREATE TABLE customers (id bigint PRIMARY KEY, email text NOT NULL)",
        "ALTER TABLE customers REPLICA IDENTITY FULL",
        "INSERT INTO customers SELECT g * 1000, 'c' || g FROM generate_series(1, 9) g",
        "INSERT INTO customers VALUES (4217, '!person@example.com')",
    )
    mirror = Mirror.create(database, warehouse, tasks, **NO_UPKEEP)
    monkeypatch.setenv("MIRROR_PUMP_SLOT", mirror.settings.slot)
    monkeypatch.setenv("MIRROR_PUMP_LEASE_TIMEOUT", "1")
    maintained = Maintained(mirror, spark)
    root = path_of(warehouse)
    mirror.register("customers", feed=FeedOptions(FeedMode.ROWS))
    with mirror.pumping():
        mirror.await_live(_CUSTOMERS)
        keep(mirror.settings, MomentOptions("closing"))
        database.execute("UPDATE customers SET email = email || '.org' WHERE id = 4217")
        mirror.await_frontier()
        before = files_with(root, _MARKS)
        assert {"data", "metadata"} <= {Path(file).parent.name for file in before}, "rows and bounds"
        assert any("__changes" in file for file in before)
        output = ""
        for language, text in _BLOCKS:
            if language == "sql":
                database.execute(text)
            elif language == "text":
                printed = [re.sub(r"\d+ ", "N ", line) for line in output.splitlines()]
                assert {re.sub(r"\d+ ", "N ", line) for line in text.splitlines()} <= set(printed), output
            else:
                output = "".join(_run(line, run, maintained) for line in text.splitlines())
        assert files_with(root, _MARKS) == set()
        mirror.assert_equal(_CUSTOMERS)


def _run(line: str, run: RunCommand, maintained: Maintained) -> str:
    words = shlex.split(line)
    if words[1] == "maintain":
        # By this run's Spark: to start another one takes longer than all else. The moment's pins are over by then.
        pins = "SELECT FROM modak.read_pins WHERE expires_at > now()"
        await_true(lambda: not maintained.mirror.database.rows(pins), 60, "the pins of the moment have expired")
        assert maintained.maintain(_CUSTOMERS).errors == []
        return ""
    result = run(*words[1:])
    assert result.exit_code == 0, (line, result.output)
    return result.stdout


@pytest.mark.further
def test_a_row_below_the_cut_line_leaves_the_archive_too(
    retention_tables: RetentionTables, database: Database, tmp_path: Path, spark: SparkSession, run: RunCommand
) -> None:
    """By a correction. Former snapshots of the archive branch go as well, though commits keep the newest ten."""
    limits = InternalLimits(archive_check_interval=0.2, archive_refresh_age=0)
    events = retention_tables.manual(fold_age=0.05, limits=limits, **NO_UPKEEP)
    mirror = events.mirror
    maintained = Maintained(mirror, spark)
    maintained.policy(_EVENTS, snapshot_retention_hours=0, snapshot_min_retained=1)
    person = {"at": 5, "id": 4217}

    def is_folded() -> bool:
        return database.rows("SELECT FROM modak.delta") == []

    def kinds() -> set[str]:
        arguments = ("where", "events", "5", "4217", "--json", "--slot", mirror.settings.slot)
        return {state["kind"] for state in json.loads(run(*arguments).stdout)["states"]}

    with mirror.pumping() as running:
        mirror.await_live(_EVENTS)
        events.advance(running)
        database.execute(f"SELECT modak.upsert('events', '{json.dumps(person | {'n': 1, 'v': '!person'})}')")
        await_true(is_folded, 30, "the row is folded, and its correction cleared")
        assert {"heap", "current", "archive"} <= kinds(), "its partition is not dropped yet"
        database.execute(f"SELECT modak.delete('events', '{json.dumps(person)}')")
        await_true(is_folded, 30, "the deletion is folded, and its correction cleared")
        assert {"current", "archive", "history"} == kinds() - {"pin"}
        assert files_with(tmp_path, _MARKS)
        assert maintained.maintain(_EVENTS).errors == []
        await_true(lambda: "archive" not in kinds(), 60, "the archive is of the files that were written again")
        assert maintained.maintain(_EVENTS).errors == []
        assert kinds() == set()
        assert files_with(tmp_path, _MARKS) == set()
