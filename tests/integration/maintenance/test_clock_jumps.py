"""Clocks that jump by an hour, or are set wrongly: work goes on, and nothing is taken for older than it is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.maintenance.plan import ExpireSnapshots, SweepFiles
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from tests.support.events_table import RetentionTables, upsert
from tests.support.maintenance import Maintained, T, age, prepare, write, write_and_publish
from tests.support.pending_deletes import pending
from tests.support.shifted_clock import ShiftedClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HOUR = 3600.0
_YEAR = 8760 * _HOUR


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ShiftedClock:
    return ShiftedClock(monkeypatch)


@pytest.fixture
def maintained(database: Database, warehouse: str, spark: SparkSession) -> Maintained:
    """A mirror of table t, 3,000 rows, live."""
    return prepare(database, warehouse, spark)


@pytest.mark.further
def test_the_pumps_clock_jumps_while_it_works(retention_tables: RetentionTables, clock: ShiftedClock) -> None:
    """Commits, conversions of deletes, and folds."""
    events = retention_tables.automatic(partitions=3, fold_age=0.05, convert_age=0.3, index_memory=0)
    mirror, steps = events.mirror, Steps()
    database = mirror.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t SELECT g, 0 FROM generate_series(1, 50) g"
    )
    with mirror.pumping(steps):
        mirror.register("t")
        mirror.await_live("public.events", "public.t")
        events.await_state(p0="dropped")
        for turn, offset in enumerate((0, _HOUR, 0, -_HOUR, 0)):
            clock.offset = offset
            database.execute("UPDATE t SET n = n + 1 WHERE id % 5 = 0")
            with database.connect(autocommit=False) as connection:
                upsert(connection, turn, turn, f"turn {turn}")
            mirror.await_frontier()
            mirror.assert_equal("public.t")
            assert pending(mirror, "public.t") or steps.count(Step.CONVERTED), "there is something to convert"
            await_true(lambda: not pending(mirror, "public.t"), 20, f"deletes are converted, {offset:+.0f} s")
            await_true(
                lambda: database.rows("SELECT count(*) FROM modak.delta") == [(0,)], 20, "corrections are folded"
            )
            events.assert_exact()
        assert steps.count(Step.RETRYING) == 0
    for table in ("public.t", "public.events"):
        assert_in_order(mirror, table)
    mirror.assert_sound()


def assert_in_order(mirror: Mirror, table: str) -> None:
    """No snapshot is older than the one before it: Iceberg's Java library refuses to read a table with such a log."""
    metadata = LakeTable.load(mirror.location(table), StorageOptions()).metadata
    times = [snapshot.timestamp_ms for snapshot in metadata.snapshots.oldest_first()]
    assert times == sorted(times)
    log = [entry["timestamp-ms"] for entry in metadata.document["snapshot-log"]]
    assert log == sorted(log)
    assert metadata.last_updated_ms >= times[-1]


def test_a_maintainer_whose_clock_is_ahead_takes_nothing_for_old(maintained: Maintained, clock: ShiftedClock) -> None:
    maintained.policy(T, orphan_grace_hours=1.0, metadata_grace_hours=0.5, snapshot_retention_hours=0.5)
    write_and_publish(maintained.mirror, range(12))
    root = maintained.lake_table(T).location.removeprefix("file://")
    Path(root, "data", "of-another-engine.parquet").touch()
    clock.offset = _HOUR * 1.5
    backlog = maintained.backlog(T)
    due = backlog.due(requested=True)
    assert not [operation for operation in due if isinstance(operation, ExpireSnapshots)]
    assert [operation for operation in due if isinstance(operation, SweepFiles)]
    with maintained.maintainer() as maintainer:
        _, swept = maintainer.dry_run(backlog)
    assert swept is not None
    assert (swept.candidates, swept.listed > 20) == (0, True)


@pytest.mark.further
def test_a_sweep_by_a_clock_that_is_far_ahead_stops_no_publish(maintained: Maintained, clock: ShiftedClock) -> None:
    write_and_publish(maintained.mirror, range(2))
    clock.offset = _YEAR
    assert maintained.maintain(T).errors == []
    clock.offset = 0
    write_and_publish(maintained.mirror, range(2, 4))
    maintained.assert_equal(T)


@pytest.mark.further
def test_metadata_that_is_about_to_be_published_is_not_swept_whatever_its_time(
    maintained: Maintained,
) -> None:
    """The storage's clock was an hour and a half behind when the file was written."""
    mirror = maintained.mirror
    maintained.policy(T, metadata_grace_hours=0.5)
    write_and_publish(mirror, range(2))
    staged, go = threading.Event(), threading.Event()

    def hold(step: Step, _details: dict[str, object]) -> None:
        if step is Step.STAGED and not staged.is_set():
            staged.set()
            assert go.wait(120)

    with mirror.pumping(Steps(hold)):
        before = maintained.files(T)
        write(mirror, 2)
        assert staged.wait(60)
        age(maintained.files(T) - before, 1.5)
        result = maintained.maintain(T)
        go.set()
        assert result.errors == []
        assert any(line.startswith("remove_orphan_files") for line in result.done), result.done
        mirror.await_frontier()
    maintained.assert_equal(T)
    assert mirror.state(T) == "live"
