"""A session that ends removes the files that its upkeep wrote and no publish has named."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mirror_pump.engine.rewrite.delete_conversion import convert_deletes
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, RunningPump, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner

Task = TypeVar("Task")
Result = TypeVar("Result")


class _LateConversions(ThreadTaskRunner):
    """Conversions that have written their files count as running until a test lets them end."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()
        self.end = threading.Event()

    def submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        running = super().submit(function, task)
        if function is not convert_deletes:
            return running
        late: Future[Any] = Future()
        late.set_running_or_notify_cancel()

        def pass_on() -> None:
            result = running.result()
            self.written.set()
            self.end.wait(60)
            late.set_result(result)

        threading.Thread(target=pass_on, daemon=True).start()
        return late


@pytest.fixture
def tasks() -> _LateConversions:
    return _LateConversions()


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: _LateConversions) -> Mirror:
    """A live table, whose pump converts each delete at once."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 100)")
    mirror = Mirror.create(database, warehouse, tasks, index_memory=0, convert_age=0, merge_bytes=0)
    mirror.register("t")
    mirror.catch_up()
    return mirror


def unreferenced(mirror: Mirror, tmp_path: Path) -> set[str]:
    """Data and delete files that the table's only state, which has no position deletes, does not name."""
    lake = LakeTable.load(mirror.location("public.t"), StorageOptions(fsync=False))
    assert not lake.position_deletes
    named = {file.path for file in (*lake.live_data_files(), *lake.live_equality_deletes())}
    return {path.as_uri() for path in tmp_path.rglob("*.parquet")} - named


def test_files_of_an_unpublished_rewrite(mirror: Mirror, tasks: _LateConversions, tmp_path: Path) -> None:
    """The result is in the inbox, or on its way there, when the loop ends."""
    tasks.end.set()
    computed = threading.Event()
    running: list[RunningPump] = []

    def on(step: Step, _details: dict[str, object]) -> None:
        if step is Step.POSITIONS_WRITTEN:
            computed.set()
        elif step is Step.ACKNOWLEDGED and not computed.is_set() and running:
            assert computed.wait(60)
            running[0].pump.request_stop()

    running.append(mirror.start(Steps(on)))
    mirror.database.execute("DELETE FROM t WHERE id < 10")
    running[0].join()
    assert tasks.written.is_set()
    assert unreferenced(mirror, tmp_path) == set()


def test_files_of_a_task_that_ends_after_its_session(mirror: Mirror, tasks: _LateConversions, tmp_path: Path) -> None:
    with mirror.pumping():
        mirror.database.execute("DELETE FROM t WHERE id < 10")
        assert tasks.written.wait(60)
    assert unreferenced(mirror, tmp_path)
    tasks.end.set()
    await_true(lambda: not unreferenced(mirror, tmp_path), 20, "they are gone")
