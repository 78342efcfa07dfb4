"""What maintenance makes publishes wait for: the landing of its result, and nothing of Spark's."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from mirror_pump.database.catalog_cursor import CatalogCursor
from mirror_pump.engine.spark_runtime.session import FORKS
from mirror_pump.lake.commit import merged_manifests
from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.forked_rewrite import ForkedRewrite
from mirror_pump.lake.commit.presence import require_all
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.ops.maintenance import maintenance_pass
from mirror_pump.ops.maintenance.maintenance_pass import PassResult
from mirror_pump.pipeline.landing.table_landing import TableLanding
from mirror_pump.source.catalog.maintenance import MaintainedTable, read_tables
from mirror_pump.source.catalog.published_state import PublishedState
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.testing.database import Database
from sql import queries
from tests.support.maintenance import (
    STORAGE,
    CommitGate,
    Maintained,
    T,
    prepare,
    write,
    write_and_publish,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCK = queries("publish")["lock_slot"]
_FORKS = f"SELECT count(*) FROM modak.iceberg_tables WHERE catalog_name = '{FORKS}'"


@pytest.fixture
def maintained(database: Database, warehouse: str, spark: SparkSession) -> Maintained:
    return prepare(database, warehouse, spark)


def _await_publish(maintained: Maintained) -> float:
    """Seconds that a publish waits for the slot's row now, at most ten."""
    began = time.monotonic()
    with psycopg.connect(maintained.mirror.database.dsn, cursor_factory=CatalogCursor) as connection:
        connection.execute("SET lock_timeout = '10s'")
        connection.execute(_LOCK, {"slot": maintained.mirror.settings.slot})
    return time.monotonic() - began


@pytest.mark.further
def test_no_publish_waits_while_spark_rewrites_and_commits(maintained: Maintained) -> None:
    """Spark's commit may take as long as it likes: the pump goes on, and all of its commits stay."""
    mirror = maintained.mirror
    write_and_publish(mirror, range(6))
    gate = CommitGate(mirror.database)
    results: list[PassResult] = []
    thread = threading.Thread(target=lambda: results.append(maintained.maintain(T)), name="maintain")
    with mirror.pumping(), gate.closed():
        thread.start()
        gate.await_commit()
        for number in range(100, 110):
            write(mirror, number)
            mirror.await_frontier()
        assert _await_publish(maintained) < 5
    thread.join(120)
    assert results[0].errors == []
    assert any("rewrite_data_files" in line for line in results[0].done)
    maintained.assert_equal(T)


def test_the_lock_is_held_for_one_short_commit(maintained: Maintained) -> None:
    mirror = maintained.mirror
    write_and_publish(mirror, range(12))
    done = threading.Event()
    waits: list[float] = []

    def publish() -> None:
        while not done.wait(0.005):
            waits.append(_await_publish(maintained))

    thread = threading.Thread(target=publish, name="publishes")
    thread.start()
    try:
        result = maintained.maintain(T)
    finally:
        done.set()
        thread.join()
    assert result.errors == []
    assert len(waits) > 20
    # It was seconds when Spark committed under the lock. The rest is room for a busy machine.
    assert max(waits) < 1.5


def test_a_fork_leaves_neither_its_pointer_nor_its_metadata(maintained: Maintained) -> None:
    mirror = maintained.mirror
    write_and_publish(mirror, range(6))
    before = maintained.files(T)
    assert maintained.maintain(T).errors == []
    assert mirror.database.rows(_FORKS) == [(0,)]
    metadata = {path for path in maintained.files(T) - before if path.name.endswith(".metadata.json")}
    known = {location.rpartition("/")[2] for location in maintained.lake_table(T).metadata.former_locations}
    known.add(mirror.location(T).rpartition("/")[2])
    assert {path.name for path in metadata} <= known
    require_all(mirror.location(T), STORAGE)


@pytest.mark.further
def test_the_fork_of_a_maintainer_that_died_does_not_matter(maintained: Maintained) -> None:
    mirror = maintained.mirror
    write_and_publish(mirror, range(3))
    mirror.database.execute(
        "INSERT INTO modak.iceberg_tables SELECT 'lake_forks', table_namespace, table_name, metadata_location, NULL,"
        " 'TABLE' FROM modak.iceberg_tables WHERE catalog_name = 'lake' AND table_name = 't'"
    )
    write_and_publish(mirror, range(3, 6))
    assert maintained.maintain(T).errors == []
    assert mirror.database.rows(_FORKS) == [(0,)]
    assert maintained.backlog(T).figures.data_files == 1
    maintained.assert_equal(T)


def test_a_rewrite_that_does_not_fit_any_more_is_made_again(
    maintained: Maintained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files go, those of the next one land."""
    write_and_publish(maintained.mirror, range(6))
    checked = ForkedRewrite.checked
    refused: list[ForkedRewrite] = []

    def check(self: ForkedRewrite, *arguments: object) -> ForkedRewrite:
        if not refused:
            refused.append(self)
            raise FileRewriteSuperseded("a row was deleted by position")
        return checked(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ForkedRewrite, "checked", check)
    assert maintained.maintain(T).errors == []
    (former,) = refused
    assert former.data
    names = {path.name for path in maintained.files(T)}
    assert names.isdisjoint(file.path.rpartition("/")[2] for file in former.data)
    assert maintained.backlog(T).figures.data_files == 1
    maintained.assert_equal(T)


@pytest.mark.further
def test_a_stopped_maintainer_holds_publishes_up_for_a_limited_time(maintained: Maintained) -> None:
    """As one that is suspended in the middle of its landing, with the lock."""
    mirror = maintained.mirror
    write_and_publish(mirror, range(3))
    go_on = threading.Event()
    held = threading.Event()

    tries = iter(range(10))

    def stage(_: PublishedState, state: LakeTable) -> LakeTable:
        # The table moves whenever a state is staged, so that the last one is staged under the lock.
        if (number := next(tries)) < 4:
            write_and_publish(mirror, range(10 + number, 11 + number))
            return state
        held.set()
        go_on.wait(60)
        raise AssertionError("it went on")

    def land(connection: PgConnection, table: MaintainedTable) -> None:
        name = maintained.backlog(T).lake_name
        landing = TableLanding(connection, mirror.settings.slot, table.table_id, table.start_lsn, name, STORAGE)
        landing.stopped_seconds = 1
        with pytest.raises(Exception, match=r"connection|went on"):
            landing.land_change(stage)

    with connect(mirror.database.dsn, autocommit=True) as connection:
        (table,) = read_tables(connection, mirror.settings.slot, [maintained.table_id(T)])
        thread = threading.Thread(target=land, args=(connection, table), name="landing")
        thread.start()
        assert held.wait(60)
        assert 0.3 < _await_publish(maintained) < 9
        go_on.set()
        thread.join(60)
    maintained.assert_equal(T)


@pytest.mark.further
def test_a_manifest_that_has_gone_meanwhile_is_no_loss(maintained: Maintained, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pump has merged some itself: the others are merged again."""
    mirror = maintained.mirror
    maintained.policy(T, rewrite_enabled=False, delete_compaction_enabled=False, position_delete_rewrite_enabled=False)
    write_and_publish(mirror, range(14))
    before = maintained.backlog(T).figures.manifests
    merge = merged_manifests.merge_manifests
    merges = 0

    def merge_and_publish(table: object) -> object:
        nonlocal merges
        merged = merge(table)  # type: ignore[arg-type]
        if not merges:
            write_and_publish(mirror, range(20, 34))
        merges += 1
        return merged

    monkeypatch.setattr(maintenance_pass, "merge_manifests", merge_and_publish)
    result = maintained.maintain(T)
    assert result.errors == []
    assert merges >= 2, "the first one did not fit"
    assert maintained.backlog(T).figures.manifests < before
    maintained.assert_equal(T)
