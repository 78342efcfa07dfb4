"""How often a running pump commits: bursts, ceilings, slow storage, and who waits for it (docs/design/stream.md)."""

from __future__ import annotations

import threading
import time
from itertools import count, pairwise
from pathlib import Path
from statistics import median

import pytest

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.stream.batch_pace import SHARE
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.s3_server import s3_server

_TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, n int)"
_OTHER = "CREATE TABLE u (id bigint PRIMARY KEY, n int)"
_SECONDS = 5.0
_CEILING = 3600
"""Files per hour: a batch of four files is followed by the next one 4.4 s later."""


class _CommitTimes(Steps):
    """Remembers when each batch was received and published, and how many files it brought."""

    def __init__(self) -> None:
        super().__init__(self._look)
        self.received: list[float] = []
        self.published: list[tuple[float, int]] = []
        self._batch_is_staged = False

    def _look(self, step: Step, details: dict[str, object]) -> None:
        if step is Step.RECEIVED:
            self.received.append(time.monotonic())
        elif step is Step.STAGED:
            # Merges, which follow some batches, have no frontier of their own.
            self._batch_is_staged = details["frontier"] is not None
        elif step is Step.PUBLISHED and self._batch_is_staged and len(self.published) < len(self.received):
            self.published.append((time.monotonic(), int(str(details["files"]))))

    @property
    def files(self) -> int:
        return sum(files for _, files in self.published)


def _busy(mirror: Mirror, seconds: float) -> int:
    """Inserts one row after the other. Returns their number."""
    end = time.monotonic() + seconds
    with mirror.database.connect() as connection:
        for number in count():
            connection.execute("INSERT INTO t VALUES (%s, 0)", (number,))
            if time.monotonic() > end:
                return number + 1
            time.sleep(0.005)
    raise AssertionError("unreachable")


def _live(mirror: Mirror) -> None:
    mirror.register("t")
    mirror.await_live("public.t")
    mirror.await_frontier()


@pytest.mark.further
def test_default_settings_commit_often_and_not_without_changes(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    database.execute(_TABLE)
    mirror = Mirror.create(database, warehouse, tasks, limits=InternalLimits())
    steps = _CommitTimes()
    with mirror.pumping(steps):
        _live(mirror)
        rows = _busy(mirror, _SECONDS)
        mirror.await_frontier()
        commits = len(steps.published)
        assert 3 <= commits <= _SECONDS / InternalLimits().batch_pause + 3
        assert rows > 10 * commits, "each commit is of many transactions"
        threading.Event().wait(1.5)
        assert len(steps.published) == commits, "an idle mirror commits nothing"
        for number in range(3):
            began = time.monotonic()
            database.execute(f"UPDATE t SET n = 1 WHERE id = {number}")
            mirror.await_frontier()
            assert time.monotonic() - began < 5, "a change after a pause waits for nothing"
            threading.Event().wait(0.5)
    mirror.assert_equal("public.t")


def test_the_ceiling_holds_and_nothing_starves(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    database.execute(_TABLE)
    mirror = Mirror.create(database, warehouse, tasks, files_per_hour=_CEILING, merge_bytes=0)
    steps = _CommitTimes()
    began = time.monotonic()
    with mirror.pumping(steps):
        _live(mirror)
        _busy(mirror, 3 * _SECONDS)
        mirror.await_frontier(seconds=20)
        taken = time.monotonic() - began
    most = max(files for _, files in steps.published)
    assert steps.files <= taken * _CEILING / 3600 + most
    assert len(steps.published) >= 3, "changes are published all the same"
    for (earlier, files), (later, _) in pairwise(steps.published):
        assert later - earlier < files * 3600 / (0.9 * _CEILING) + 3
    mirror.assert_equal("public.t")


@pytest.mark.further
@pytest.mark.parametrize("index_memory", [1 << 30, 0])
def test_each_file_of_a_commit_is_counted(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, index_memory: int
) -> None:
    """Data, deletes by position and by key, manifests and metadata."""
    database.execute(_TABLE, "INSERT INTO t SELECT g, 0 FROM generate_series(1, 100) g")
    mirror = Mirror.create(database, warehouse, tasks, merge_bytes=0, convert_age=3600, index_memory=index_memory)
    directory = Path(warehouse.removeprefix("file://"))
    steps = _CommitTimes()
    with mirror.pumping(steps):
        _live(mirror)
        for statement in ("INSERT INTO t VALUES (0, 0)", "UPDATE t SET n = n + 1", "DELETE FROM t WHERE id > 50"):
            before, commits = {path for path in directory.rglob("*") if path.is_file()}, len(steps.published)
            database.execute(statement)
            await_true(lambda commits=commits: len(steps.published) > commits, 20, "it is published")  # type: ignore[misc]
            written = {path for path in directory.rglob("*") if path.is_file()} - before
            assert steps.published[-1][1] == len(written) >= 3, (statement, sorted(path.name for path in written))
    mirror.assert_equal("public.t")


@pytest.mark.further
def test_registering_and_waiting_below_a_ceiling(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """A table that is copied goes live, and a client hears of its change, when the ceiling allows the next batch."""
    database.execute(_TABLE, _OTHER, "INSERT INTO u SELECT g, 0 FROM generate_series(1, 1000) g")
    mirror = Mirror.create(database, warehouse, tasks, files_per_hour=_CEILING)
    with mirror.pumping() as running:
        _live(mirror)
        for turn in range(2):
            # The first of these is published at once, and uses up what there is.
            database.execute(f"INSERT INTO t VALUES ({turn}, 0)")
            began = time.monotonic()
            mirror.await_frontier(seconds=20)
        assert time.monotonic() - began > 1, "the ceiling was used up"
        database.execute("INSERT INTO t VALUES (7, 0)")
        mirror.register("u")
        await_true(lambda: running.steps.count(Step.CHUNK_COPIED), 20, "copies wait for no ceiling")
        mirror.await_live("public.u", seconds=20)
    mirror.assert_equal("public.t", "public.u")
    mirror.assert_sound()


@pytest.mark.further
def test_a_goal_waits_for_no_ceiling(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    database.execute(_TABLE)
    mirror = Mirror.create(database, warehouse, tasks, files_per_hour=1)
    mirror.register("t")
    mirror.catch_up()
    for number in range(5):
        database.execute(f"INSERT INTO t VALUES ({number}, 0)")
        began = time.monotonic()
        mirror.catch_up()
        assert time.monotonic() - began < 30
    mirror.assert_equal("public.t")


@pytest.mark.further
def test_a_session_after_an_error_has_no_new_allowance(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    database.execute(_TABLE)
    mirror = Mirror.create(database, warehouse, tasks, files_per_hour=_CEILING, reconnect_backoff_max=0.01)
    steps = _CommitTimes()
    began = time.monotonic()
    with mirror.pumping(steps):
        _live(mirror)
        database.execute("INSERT INTO t VALUES (1, 0)")
        mirror.await_frontier(seconds=20)
        _, files = steps.published[-1]
        ended: list[bool] = [
            one
            for (one,) in database.rows(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s",
                (mirror.settings.slot,),
            )
        ]
        assert ended == [True]
        await_true(lambda: steps.count(Step.STREAMING) == 2, 20, "a new session")
        database.execute("INSERT INTO t VALUES (2, 0)")
        mirror.await_frontier(seconds=20)
        # A session that began with nothing to pay would publish it at once.
        assert steps.received[-1] - began >= files * 3600 / (0.9 * _CEILING) > 3
    mirror.assert_equal("public.t")


@pytest.mark.further
@pytest.mark.unverified("DuckDB, as it verifies other lakes, has no access to this one")
def test_slow_storage_slows_commits_down(database: Database, tasks: ThreadTaskRunner) -> None:
    database.execute(_TABLE)
    with s3_server() as server:
        mirror = Mirror.create(database, "s3://lake/slow", tasks, merge_bytes=0, **server.storage_settings)
        server.request_seconds = 0.05
        steps = _CommitTimes()
        with mirror.pumping(steps):
            _live(mirror)
            _busy(mirror, 2 * _SECONDS)
            mirror.await_frontier(seconds=30)
        costs = [done - begun for begun, (done, _) in zip(steps.received, steps.published, strict=True)]
        # Of neighbours, so that a machine that is busy for a while does not decide.
        shares = [cost / (later - begun) for cost, (begun, later) in zip(costs, pairwise(steps.received), strict=False)]
        assert min(costs) > 0.1, "a commit takes several requests"
        assert len(costs) >= 4
        assert median(shares[1:]) < SHARE * 1.3, shares
