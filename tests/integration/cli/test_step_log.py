"""What an operator has to know is in the log as a warning or an error, with what to do; and nothing floods the log."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from mirror_pump.cli.terminal.step_log import StepLog
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.runtime.telemetry import configure_logging
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.events_table import RetentionTables

pytestmark = pytest.mark.further


@dataclass
class Log:
    """The steps of a pump, and the lines that `mirror-pump run --debug` prints for them."""

    steps: Steps
    capture: pytest.CaptureFixture[str]

    def lines(self, step: Step) -> list[dict[str, Any]]:
        """The lines of one step since the last call."""
        found = [json.loads(line) for line in self.capture.readouterr().err.splitlines() if line.startswith("{")]
        return [line for line in found if line["event"] == step.value]


@pytest.fixture
def log(capsys: pytest.CaptureFixture[str]) -> Iterator[Log]:
    configure_logging("json", "debug")
    step_log = StepLog()
    yield Log(Steps(on=lambda step, details: step_log(step, **details)), capsys)
    structlog.reset_defaults()


def test_changes_of_a_table_say_what_changed_and_why_it_is_copied_again(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, log: Log
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'one')")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("t")
    with mirror.pumping(log.steps):
        mirror.await_live("public.t")
        database.execute("ALTER TABLE t ADD COLUMN x int", "ALTER TABLE t RENAME v TO w", "INSERT INTO t VALUES (2)")
        mirror.await_frontier()
        await_true(lambda: log.steps.count(Step.TABLE_CHANGED), 20, "it is followed")
        (*_, changed) = lines = log.lines(Step.TABLE_CHANGED)
        reasons = " ".join(line["reason"] for line in lines)
        assert changed["level"] == "warning"
        assert changed["table"] == "public.t"
        assert changed["remedy"]
        assert "column x is new" in reasons
        assert "column w was v" in reasons
        # It cannot be copied before it has a key again.
        database.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
        await_true(lambda: log.steps.count(Step.TABLE_WAITING) == 1, 20, "it has to be copied again, and cannot be")
        # The step is reported and logged before the next publish begins.
        mirror.await_frontier()
        (first,) = log.lines(Step.TABLE_WAITING)
        database.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
        await_true(lambda: log.steps.count(Step.TABLE_COPIED_AGAIN) == 1, 20, "it can be")
        mirror.await_live("public.t")
    (second,) = log.lines(Step.TABLE_COPIED_AGAIN)
    assert first["level"] == second["level"] == "warning"
    assert first["remedy"]
    assert "primary key" in first["reason"]
    assert "give it a key again" in first["reason"]
    assert first["reason"].partition(". ")[0] in second["reason"], "still for the first reason"


def test_a_copy_that_begins_again_says_why(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, log: Log
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 10)")
    mirror = Mirror.create(database, warehouse, tasks)
    rewritten = False
    known = log.steps.on
    assert known is not None

    def rewrite(step: Step, details: dict[str, object]) -> None:
        nonlocal rewritten
        known(step, details)
        if step is Step.COPY_PLANNED and not rewritten:
            rewritten = True
            database.execute("VACUUM FULL t")

    log.steps.on = rewrite
    mirror.register("t")
    with mirror.pumping(log.steps):
        mirror.await_live("public.t")
    (line,) = log.lines(Step.TABLE_COPIED_AGAIN)
    assert (line["level"], line["table"]) == ("warning", "public.t")
    assert "rewritten while it was copied" in line["reason"]


def test_a_refused_retention_step_is_one_warning_and_a_stopped_retention_an_error(
    retention_tables: RetentionTables, database: Database, tasks: ThreadTaskRunner, log: Log
) -> None:
    events = retention_tables.automatic(partitions=2, rows=10, lag="1000", premake=2, runner=tasks)
    mirror = events.mirror
    # Its name is taken.
    database.execute("CREATE TABLE events_p300 ()")
    with mirror.pumping(log.steps):
        await_true(lambda: log.steps.count(Step.RETENTION_REFUSED) >= 3, 30, "it is tried again and again")
        database.execute("CREATE TABLE p9 PARTITION OF events FOR VALUES FROM (900) TO (1000) PARTITION BY RANGE (at)")
        await_true(lambda: log.steps.count(Step.RETENTION_STOPPED), 30, "it stops")
    captured = log.capture.readouterr().err.splitlines()
    lines = [line for line in map(json.loads, captured) if line["event"] == Step.RETENTION_REFUSED.value]
    assert [line["level"] for line in lines] == ["warning", *["debug"] * (len(lines) - 1)]
    assert "already exists" in lines[0]["reason"]
    assert "mirror-pump retain" in lines[0]["remedy"]
    (stopped,) = [line for line in map(json.loads, captured) if line["event"] == Step.RETENTION_STOPPED.value]
    assert stopped["level"] == "error"
    assert "partitioned itself" in stopped["reason"]
    assert "mirror-pump retain" in stopped["remedy"]


@pytest.mark.unverified("a data file is away")
def test_an_index_that_cannot_be_built_is_reported(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, log: Log
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 10)")
    mirror = Mirror.create(database, warehouse, tasks, index_memory=0, convert_age=3600)
    mirror.register("t")
    mirror.catch_up()
    root = Path(urllib.parse.urlparse(warehouse).path)
    for path in root.glob("public/t-*/data/*.parquet"):
        # The file exists, else the table would fail, but it cannot be read.
        path.unlink()
        path.mkdir()
    with mirror.with_options(index_memory=1 << 24).pumping(log.steps):

        def failed() -> bool:
            database.execute("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (1)")
            mirror.await_frontier()
            return log.steps.count(Step.INDEX_FAILED) > 0

        await_true(failed, 30, "the keys cannot be read")
    line = log.lines(Step.INDEX_FAILED)[0]
    assert (line["level"], line["table"]) == ("warning", "public.t")
    assert "parquet" in line["error"]
    assert "built again" in line["remedy"]
