"""A session that ends removes the files that its upkeep wrote and no publish has named."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mirror_pump.engine.rewrite.file_merge import merge_files
from mirror_pump.engine.rewrite.merge_plan import FANOUT
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner

Task = TypeVar("Task")
Result = TypeVar("Result")


class _LateMerges(ThreadTaskRunner):
    """Merges that have written their files count as running until a test lets them end."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()
        self.end = threading.Event()

    def submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        running = super().submit(function, task)
        if function is not merge_files:
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
def tasks() -> _LateMerges:
    return _LateMerges()


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: _LateMerges) -> Mirror:
    """A live table with many small files, which a pump merges at once."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 100)")
    mirror = Mirror.create(database, warehouse, tasks, merge_bytes=0)
    mirror.register("t")
    with mirror.pumping():
        for number in range(2 * FANOUT):
            database.execute(f"INSERT INTO t VALUES ({1000 + number})")
            mirror.await_frontier()
    return mirror.with_options(merge_bytes=1 << 20)


def _unreferenced(mirror: Mirror, tmp_path: Path) -> set[str]:
    """Data files that the table's only state, of which nothing was merged, does not name."""
    lake = LakeTable.load(mirror.location("public.t"), StorageOptions(fsync=False))
    named = {file.path for file in (*lake.live_data_files(), *lake.live_equality_deletes())}
    assert len(named) > FANOUT
    return {path.as_uri() for path in tmp_path.rglob("*.parquet")} - named


def test_files_of_an_unpublished_rewrite(mirror: Mirror, tasks: _LateMerges, tmp_path: Path) -> None:
    """The result is in the inbox, or on its way there, when the loop ends."""
    tasks.end.set()
    started, stop = threading.Event(), list[Callable[[], None]]()

    def on(step: Step, _details: dict[str, object]) -> None:
        if step is Step.MERGE_WRITTEN:
            assert started.wait(60)
            stop[0]()

    running = mirror.start(Steps(on))
    stop.append(running.pump.request_stop)
    started.set()
    running.join()
    assert tasks.written.is_set()
    assert _unreferenced(mirror, tmp_path) == set()


def test_files_of_a_task_that_ends_after_its_session(mirror: Mirror, tasks: _LateMerges, tmp_path: Path) -> None:
    with mirror.pumping():
        assert tasks.written.wait(60)
    assert _unreferenced(mirror, tmp_path)
    tasks.end.set()
    await_true(lambda: not _unreferenced(mirror, tmp_path), 20, "they are gone")
