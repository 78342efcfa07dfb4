"""Leaders that are alive and say nothing: stopped at their worst moment, or cut off from the database and not from the
storage. A standby takes over, and nothing that the former leader has in hand is published."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.gate import gated
from tests.support.pipeline import change_rows, writing

pytestmark = pytest.mark.further

_PUBLISHERS = """
CREATE TABLE audit.publishes (seq bigserial, epoch bigint, pump text);
CREATE FUNCTION audit.publish() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO audit.publishes (epoch, pump) VALUES (NEW.leader_epoch, current_setting('test.pump', true));
  RETURN NULL; END $$;
CREATE TRIGGER publishes AFTER UPDATE ON modak.mirror_slots FOR EACH ROW
  WHEN (OLD.publish_id <> NEW.publish_id) EXECUTE FUNCTION audit.publish();
"""
"""Which pump published, in the order of commits: each publish holds the slot's row until its end."""


class Pumps:
    """Two pumps as processes, the first of which leads and stops itself at a step."""

    def __init__(self, mirror: Mirror, directory: Path) -> None:
        self._mirror = mirror
        self._directory = directory
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, dsn: str, step: Step = Step.STREAMING, nth: int = 0) -> None:
        settings = self._mirror.settings
        command = [
            sys.executable, "-m", "tests.support.pump_that_stops", f"{dsn}?options={quote(f'-c test.pump={name}')}",
            settings.require_warehouse(), settings.slot, step.value, str(nth),
        ]  # fmt: skip
        with self._log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def steps(self, name: str, step: Step) -> int:
        lines = self._log(name).read_text().splitlines()
        return sum(line.split(" ")[0] == step.value for line in lines)

    def await_step(self, name: str, step: Step, count: int = 1) -> None:
        def taken() -> bool:
            process = self.processes[name]
            assert process.poll() is None, f"{name} ended: {self._log(name).read_text()[-2000:]}"
            return self.steps(name, step) >= count

        await_true(taken, 60, f"{name}: {step.value} {count} times")

    def await_stopped(self, name: str) -> None:
        process = psutil.Process(self.processes[name].pid)
        await_true(lambda: process.status() == psutil.STATUS_STOPPED, 60, f"{name} has stopped itself")

    def end(self, name: str) -> None:
        process = self.processes[name]
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0, self._log(name).read_text()[-2000:]

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, n int, v text, big text)",
        "INSERT INTO t SELECT g, 0, 'v' FROM generate_series(1, 1000) g",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("t")
    mirror.catch_up()
    with database.connect() as connection:
        connection.execute(_PUBLISHERS.encode())
    return mirror


@pytest.fixture
def pumps(mirror: Mirror, tmp_path: Path) -> Iterator[Pumps]:
    pumps = Pumps(mirror, tmp_path)
    yield pumps
    pumps.close()


@pytest.mark.parametrize(
    "trouble",
    [
        Step.STAGED,
        pytest.param(Step.PUBLISHED, marks=pytest.mark.soak),
        pytest.param("cut off", marks=pytest.mark.soak),
    ],
)
def test_a_standby_takes_over_from_a_leader_that_is_silent(mirror: Mirror, pumps: Pumps, trouble: Step | str) -> None:
    """It is stopped with a commit staged, or one just published; or its network is gone while it goes on working."""
    database = mirror.database
    with gated(database.dsn) as gate:
        with writing(database, change_rows("t", 1000), 1):
            if isinstance(trouble, Step):
                pumps.start("first", database.dsn, trouble, 3)
            else:
                pumps.start("first", gate.dsn)
            pumps.await_step("first", Step.STREAMING)
            pumps.start("second", database.dsn)
            if isinstance(trouble, Step):
                pumps.await_stopped("first")
            else:
                pumps.await_step("second", Step.STANDBY)
                pumps.await_step("first", Step.PUBLISHED, 3)
                gate.shut()
            pumps.await_step("second", Step.LEADER_DEPOSED)
            pumps.await_step("second", Step.PUBLISHED, 3)
            # It wakes up, with whatever it had in hand.
            if isinstance(trouble, Step):
                pumps.processes["first"].send_signal(signal.SIGCONT)
            else:
                gate.open()
            pumps.await_step("first", Step.STANDBY)
            pumps.await_step("second", Step.PUBLISHED, pumps.steps("second", Step.PUBLISHED) + 3)
            assert pumps.steps("first", Step.LEADING) == 1
        # It leads again once the other one has ended in order.
        pumps.end("second")
        pumps.await_step("first", Step.LEADING, 2)
        mirror.await_frontier()
        pumps.end("first")
    publishers = database.rows("SELECT epoch, pump FROM audit.publishes ORDER BY seq")
    epochs = [epoch for epoch, _ in publishers]
    assert epochs == sorted(epochs)
    assert {(epoch, pump) for epoch, pump in publishers} == {
        (epochs[0], "first"),
        (epochs[0] + 1, "second"),
        (epochs[-1], "first"),
    }
    mirror.assert_equal("public.t")
    mirror.assert_sound()
