"""`status` and `wait` while the pump fails and retries: real sessions, whose tasks find the storage full."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mirror_pump.errors import StorageFull
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand

pytestmark = pytest.mark.further

Task = TypeVar("Task")
Result = TypeVar("Result")


class FullStorage:
    """Runs tasks in threads. While `full` is set, they find the storage full."""

    def __init__(self) -> None:
        self._tasks = ThreadTaskRunner()
        self.full = False

    def submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        if not self.full:
            return self._tasks.submit(function, task)
        failed: Future[Result] = Future()
        failed.set_exception(StorageFull("the disk is full; password=hunter2", "make room on it"))
        return failed

    def close(self) -> None:
        self._tasks.close()


@pytest.fixture
def storage() -> Iterator[FullStorage]:
    storage = FullStorage()
    yield storage
    storage.close()


@pytest.fixture
def mirror(database: Database, tmp_path: Path, storage: FullStorage) -> Mirror:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    return Mirror.create(database, str(tmp_path / "lake"), storage, reconnect_backoff_max=0.4)


def status(run: RunCommand) -> dict[str, Any]:
    result = run("status", "--json")
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_a_pump_that_tries_again_is_shown_with_its_error(mirror: Mirror, storage: FullStorage, run: RunCommand) -> None:
    database = mirror.database
    with mirror.pumping():
        mirror.register("t")
        mirror.await_live("public.t")
        mirror.await_frontier()
        assert status(run)["last_error"] is None
        storage.full = True
        database.execute("INSERT INTO t VALUES (1)")

        await_true(lambda: (status(run)["last_error"] or {"attempts": 0})["attempts"] >= 2, 30, "it fails twice")
        seen = [status(run) for _ in range(30)]

        assert all(report["leader"] and report["leader"]["alive"] and report["leader"]["retrying"] for report in seen)
        first, last = seen[0]["last_error"], seen[-1]["last_error"]
        assert last["attempts"] > first["attempts"], "so some of the looks were between two attempts"
        assert last["since"] == first["since"] < first["at"] < last["at"]
        assert last["error"] == "the disk is full; password=***"
        assert last["remedy"] == "make room on it"
        (alert,) = seen[-1]["alerts"]
        assert alert["severity"] == "warning", "it may be over in a moment"
        assert run("status", "--check").exit_code == 0

        database.execute(
            "UPDATE modak.mirror_slots"
            " SET last_error = last_error || jsonb_build_object('since', now() - interval '2 min')"
        )
        waited = run("wait", "--now", "--timeout", "1")
        checked = run("status", "--check")
        for text in (run("status").stdout, checked.stdout, waited.stderr):
            assert "has been failing since" in " ".join(text.split())
            assert "the disk is full" in text
            assert "make room on it" in text
        assert (checked.exit_code, waited.exit_code) == (1, 1)

        storage.full = False
        mirror.await_frontier()
        healed = status(run)
        assert (healed["last_error"], healed["leader"]["retrying"], healed["alerts"]) == (None, False, [])


def test_an_error_is_over_when_nothing_is_left_to_publish(mirror: Mirror, run: RunCommand) -> None:
    mirror = mirror.with_options(limits=InternalLimits(recovered_after=0.2))
    database = mirror.database
    error = {"at": "2026-01-01T00:00:00Z", "since": "2026-01-01T00:00:00Z", "attempts": 3, "error": "e", "remedy": ""}
    with mirror.pumping():
        mirror.register("t")
        mirror.await_live("public.t")
        mirror.await_frontier()
        with database.connect() as connection:
            connection.execute(
                "UPDATE modak.mirror_slots SET last_error = %s::jsonb",
                (json.dumps({**error, "retry_in": 1.0, "host": "h", "pid": 1}),),
            )
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mirror-pump-leader'"
                " AND datname = current_database()"
            )
            connection.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()"
            )
        await_true(lambda: status(run)["last_error"] is None, 30, "the pump has caught up")
        assert status(run)["leader"]["retrying"] is False
