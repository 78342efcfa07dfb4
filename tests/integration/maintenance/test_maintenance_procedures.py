"""Maintenance through Spark's procedures while a pump commits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from mirror_pump.lake.commit.catalog import ENGINE_PROPERTIES
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.manifests.manifest_files import stored_of
from mirror_pump.lake.storage import local_path
from mirror_pump.ops.maintenance.maintenance_pass import PassResult
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import lake_session
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from tests.support.maintenance import (
    MIB,
    NO_UPKEEP,
    STORAGE,
    UPKEEP,
    CommitGate,
    Maintained,
    T,
    prepare,
    write,
    write_and_publish,
)
from tests.support.pending_deletes import await_converted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def maintained(database: Database, warehouse: str, spark: SparkSession) -> Maintained:
    return prepare(database, warehouse, spark)


def test_a_requested_pass_pays_all_debt(maintained: Maintained) -> None:
    write_and_publish(maintained.mirror, range(12))
    before = maintained.backlog(T).figures
    assert before.small_files > 10
    assert before.equality_delete_rows > 100
    result = maintained.maintain(T)
    assert result.errors == []
    assert (result.before, result.after) == (before, maintained.backlog(T).figures)
    after = maintained.backlog(T).figures
    assert (after.data_files, after.position_delete_rows) == (1, 0)
    assert after.equality_delete_rows < before.equality_delete_rows / 5, "those of the newest commit may stay"
    state = maintained.lake_table(T)
    assert maintained.published(T) == (state.snapshot_id, state.metadata_location), (
        "the published snapshot follows, though no pump runs"
    )
    assert state.metadata.properties.items() >= ENGINE_PROPERTIES.items()
    (compacted,) = state.live_data_files()
    columns = pq.read_metadata(local_path(compacted.path)).row_group(0).to_dict()["columns"]
    assert {column["compression"] for column in columns} == {"ZSTD"}, "as the mirror's own files, not as Spark chooses"
    maintained.assert_equal(T)
    operations = [(operation, phase) for operation, phase, _ in maintained.journal(T)]
    assert operations[:2] == [("pass", "done"), ("rewrite_data_files", "done")]
    ((stats, warnings, policy),) = maintained.mirror.database.rows(
        "SELECT stats, warnings, policy FROM modak.lake_stats"
    )
    assert stats["data_files"] == 1
    assert warnings == []
    assert policy["rewrite_target_bytes"] == MIB
    write_and_publish(maintained.mirror, range(12, 15))
    maintained.assert_equal(T)


@pytest.mark.further
def test_nothing_is_done_without_a_request_below_the_thresholds(maintained: Maintained) -> None:
    write_and_publish(maintained.mirror, range(5))
    location = maintained.mirror.location(T)
    assert maintained.maintain(T, requested=False) == PassResult(T)
    assert maintained.journal(T) == []
    maintained.policy(T, rewrite_min_input_files=4)
    assert maintained.maintain(T, requested=False).done
    maintained.policy(T, rewrite_min_input_files=2, maintenance_enabled=False)
    write_and_publish(maintained.mirror, range(5, 10))
    location = maintained.mirror.location(T)
    assert maintained.maintain(T, requested=False).done == []
    assert maintained.mirror.location(T) == location
    assert maintained.maintain(T).done, "a request is answered all the same"
    maintained.assert_equal(T)


@pytest.mark.further
def test_position_delete_files_are_merged(maintained: Maintained) -> None:
    """Other engines write them, and the mirror may, too."""
    mirror = maintained.mirror
    session = lake_session(maintained.spark, mirror.database.dsn, mirror.settings.require_warehouse())
    # By default Spark merges them for each data file when it deletes.
    session.sql("ALTER TABLE lake.public.t SET TBLPROPERTIES ('write.delete.granularity' = 'partition')")
    for number in range(4):
        session.sql(f"DELETE FROM lake.public.t WHERE id % 700 = {number}")
        with mirror.database.connect() as connection:
            connection.execute("DELETE FROM t WHERE id %% 700 = %s", (number,))
    # As an upgrade from a release that let other engines change rows.
    mirror.database.execute("UPDATE modak.mirror_tables SET lake_head = NULL")
    mirror.catch_up()
    before = maintained.backlog(T).figures
    assert before.position_delete_files >= 4
    maintained.policy(T, rewrite_enabled=False, delete_compaction_enabled=False)
    result = maintained.maintain(T)
    assert result.errors == []
    assert any("rewrite_position_delete_files" in line for line in result.done)
    after = maintained.backlog(T).figures
    assert after.position_delete_files < before.position_delete_files
    maintained.assert_equal(T)


def insert(mirror: Mirror, first: int, rows: int) -> None:
    """Inserts rows from this key on, with 64 characters that do not compress: some 40 bytes each in the lake."""
    with mirror.pumping():
        with mirror.database.connect() as connection:
            connection.execute(
                "INSERT INTO t SELECT g, 0, md5(g::text) || md5((-g)::text) FROM generate_series(%s::int, %s::int) g",
                (first, first + rows - 1),
            )
        mirror.await_frontier()


def data_files(maintained: Maintained) -> set[str]:
    """Paths of the live data files."""
    table = maintained.lake_table(T)
    return {
        entry.path
        for manifest in table.manifests
        for entry in stored_of(manifest, STORAGE)
        if entry.content == FileContent.DATA
    }


@pytest.mark.further
def test_deletes_that_concern_no_file_go_without_a_rewrite_of_the_others(maintained: Maintained) -> None:
    """Files that are older than the deletes, but have no deleted row, keep Iceberg from dropping the deletes."""
    mirror = maintained.mirror
    hot = data_files(maintained)
    insert(mirror, 100_000, 30_000)
    cold = data_files(maintained) - hot
    for _ in range(2):
        mirror.database.execute("UPDATE t SET n = n + 1 WHERE id <= 3000")
        mirror.catch_up()
        assert maintained.backlog(T).figures.equality_delete_rows == 3000
        assert maintained.maintain(T).errors == []
        assert maintained.backlog(T).figures.delete_files == 0
        assert cold < data_files(maintained)
    state = maintained.lake_table(T)
    assert maintained.published(T) == (state.snapshot_id, state.metadata_location)
    maintained.assert_equal_by_spark(T)
    mirror.database.execute("DELETE FROM t WHERE id % 5 = 0")
    mirror.catch_up()
    maintained.assert_equal_by_spark(T)


@pytest.mark.further
def test_what_the_policy_switches_off_is_not_done_by_the_way(maintained: Maintained) -> None:
    mirror = maintained.mirror
    small = data_files(maintained)
    insert(mirror, 100_000, 30_000)
    large = data_files(maintained) - small
    insert(mirror, 10_000, 100)
    small = data_files(maintained) - large
    maintained.session.sql("DELETE FROM lake.public.t WHERE id BETWEEN 100000 AND 114999")
    mirror.database.execute("DELETE FROM t WHERE id BETWEEN 100000 AND 114999")
    maintained.policy(T, delete_compaction_enabled=False)
    assert maintained.maintain(T).errors == []
    assert large < data_files(maintained), "half of its rows are deleted"
    assert not small & data_files(maintained)
    insert(mirror, 10_100, 100)
    small = data_files(maintained) - large
    maintained.policy(T, delete_compaction_enabled=None, rewrite_enabled=False)
    assert maintained.maintain(T).errors == []
    assert small < data_files(maintained)
    assert not large & data_files(maintained)
    maintained.assert_equal_by_spark(T)


@pytest.mark.soak
def test_a_large_table_is_compacted_in_parts_that_end(maintained: Maintained) -> None:
    mirror = maintained.mirror
    for number in range(1, 5):
        insert(mirror, number * 100_000, 20_000)
    with mirror.with_options(convert_age=0, convert_rows=1).pumping():
        mirror.database.execute("DELETE FROM t WHERE id % 700 = 0")
        await_converted(mirror, T)
    maintained.policy(T, rewrite_max_group_bytes=MIB, rewrite_min_input_files=2)
    before = maintained.backlog(T).figures
    assert before.data_bytes > 2 * MIB
    assert before.position_delete_rows > 100
    result = maintained.maintain(T)
    assert result.errors == []
    rewrites = [details for operation, _, details in maintained.journal(T) if operation == "rewrite_data_files"]
    assert len(rewrites) > 1
    assert all(rewrite["counts"]["rewritten_data_files_count"] <= 2 for rewrite in rewrites)
    after = maintained.backlog(T).figures
    assert after.delete_files == 0
    assert after.small_files < 2
    maintained.assert_equal_by_spark(T)


@pytest.mark.soak
def test_a_compaction_commits_beside_a_pump_that_thins_its_history(maintained: Maintained) -> None:
    """More commits land during the rewrite than the pump keeps snapshots, and it merges manifests. The landing needs
    neither."""
    mirror = maintained.mirror
    maintained.policy(T, history_newest=20, history_minutes_hours=0.0, history_hours_hours=0.0)
    write_and_publish(mirror, range(6))
    gate = CommitGate(mirror.database)
    results: list[PassResult] = []
    steps = Steps()
    with mirror.pumping(steps):
        thread = threading.Thread(target=lambda: results.append(maintained.maintain(T)), name="maintain")
        with gate.closed():
            thread.start()
            gate.await_commit()
            assert maintained.rewrite_since(T) is not None
            began = steps.count(Step.PUBLISHED)
            for number in range(100, 140):
                write(mirror, number)
                mirror.await_frontier()
            assert steps.count(Step.PUBLISHED) - began > 30
            assert len(maintained.lake_table(T).metadata.snapshots) < 30, "they are thinned while the rewrite runs"
            assert len(maintained.lake_table(T).manifests) < 40, "and manifests are merged"
        thread.join(120)
        assert not thread.is_alive()
        write(mirror, 999)
        mirror.await_frontier()
        assert maintained.rewrite_since(T) is None
    assert results[0].errors == []
    assert maintained.lake_table(T).data_files < 60, "it has landed"
    maintained.assert_equal(T)


@pytest.mark.further
@pytest.mark.parametrize(
    "settings", [pytest.param(NO_UPKEEP, id="no-upkeep", marks=pytest.mark.soak), pytest.param(UPKEEP, id="upkeep")]
)
def test_compactions_succeed_while_commits_come_all_the_time(maintained: Maintained, settings: dict[str, Any]) -> None:
    mirror = maintained.mirror.with_options(**settings)
    stop = threading.Event()
    steps = Steps()

    def load() -> None:
        number = 0
        # There are no merges during a rewrite, so the next one has as many files to merge as there were commits.
        while not stop.wait(0.1):
            write(mirror, number := number + 1)

    writer = threading.Thread(target=load, name="load")
    with mirror.pumping(steps):
        writer.start()
        try:
            await_true(lambda: steps.count(Step.PUBLISHED) > 20, 60, "20 commits")
            with maintained.maintainer() as maintainer:
                for _ in range(2):
                    maintained.request(T)
                    before = steps.count(Step.PUBLISHED)
                    result = maintainer.maintain(maintained.table_id(T))
                    assert result is not None
                    assert result.errors == []
                    assert any("rewrite_data_files" in line for line in result.done)
                    assert steps.count(Step.PUBLISHED) - before >= 2, "the pump went on meanwhile"
        finally:
            stop.set()
            writer.join(60)
        mirror.await_frontier()
    maintained.assert_equal_by_spark(T)
    assert mirror.state(T) == "live"


@pytest.mark.further
def test_the_history_is_thinned_as_the_policy_says(maintained: Maintained) -> None:
    """By the pump's own commits, from the next one on. A wrong stored value does not prevent it."""
    write_and_publish(maintained.mirror, range(12))
    assert len(maintained.lake_table(T).metadata.snapshots) > 12
    maintained.policy(T, history_newest=5, history_minutes_hours=0.0, history_hours_hours=0.0)
    write_and_publish(maintained.mirror, range(12, 14))
    assert len(maintained.lake_table(T).metadata.snapshots) == 5
    maintained.policy(T, history_newest="many")
    write_and_publish(maintained.mirror, range(14, 18))
    assert len(maintained.lake_table(T).metadata.snapshots) > 5
    maintained.assert_equal(T)
