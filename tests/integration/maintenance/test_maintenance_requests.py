"""Requests, their answers, two maintainers, and the published snapshot after other engines' commits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from mirror_pump.engine.iceberg_procedures.procedures import Procedures
from mirror_pump.errors import MirrorPumpError, TableError
from mirror_pump.operation_life import OperationPhase
from mirror_pump.ops.maintenance.maintainer import MaintenanceOutcome, MaintenanceServer, dry_run, maintain_tables
from mirror_pump.ops.maintenance.maintenance_pass import PassResult
from mirror_pump.pipeline.publish.foreign_commits import republish
from mirror_pump.source.catalog.maintenance import (
    COMPACTION,
    MAINTENANCE,
    announce_server,
    answer_to,
    begin,
    claim,
    file_request,
    read_tables,
    requested,
    table_lock,
)
from mirror_pump.source.connect import connect
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import lake_session
from mirror_pump.testing.mirror import await_true
from tests.support.maintenance import STORAGE, Maintained, T, prepare, write_and_publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def maintained(database: Database, warehouse: str, spark: SparkSession) -> Maintained:
    return prepare(database, warehouse, spark)


def pending(maintained: Maintained) -> int:
    return len(maintained.mirror.database.rows("SELECT FROM modak.maintenance_requests"))


def passes(maintained: Maintained) -> list[str]:
    return [phase for operation, phase, _ in maintained.journal(T) if operation == "pass"]


def spark_of(maintained: Maintained) -> SparkSession:
    settings = maintained.mirror.settings
    return lake_session(maintained.spark, settings.require_dsn(), settings.require_warehouse())


def test_a_request_is_claimed_exactly_once(maintained: Maintained) -> None:
    write_and_publish(maintained.mirror, range(3))
    table_id = maintained.table_id(T)
    for _ in range(3):
        answered: list[PassResult] = []
        start = threading.Barrier(4)

        def claim_it(start: threading.Barrier = start, answered: list[PassResult] = answered) -> None:
            with maintained.maintainer() as maintainer:
                start.wait(60)
                # A maintainer that finds the table locked tries again later, like one that serves.
                for _ in range(20):
                    result = maintainer.maintain(table_id, claimed_only=True)
                    if result is not None:
                        answered.append(result)

        before = len(passes(maintained))
        maintained.request(T)
        threads = [threading.Thread(target=claim_it) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert len(answered) == 1
        assert len(passes(maintained)) == before + 1
        assert pending(maintained) == 0
    maintained.assert_equal(T)


def test_a_second_request_refreshes_the_first(maintained: Maintained) -> None:
    for _ in range(3):
        maintained.request(T)
    assert pending(maintained) == 1


@pytest.mark.further
def test_two_servers_answer_every_request_once(maintained: Maintained) -> None:
    mirror = maintained.mirror
    settings = mirror.settings.model_copy(update={"maintain_interval": 3600.0})
    servers = [MaintenanceServer(settings, lambda: Procedures(spark_of(maintained))) for _ in range(2)]
    threads = [threading.Thread(target=server.run) for server in servers]
    for thread in threads:
        thread.start()
    try:
        outcomes: list[MaintenanceOutcome] = []
        for number in range(3):
            write_and_publish(mirror, range(number * 3, number * 3 + 3))
            outcomes.extend(maintain_tables(settings, ["t"], wait=True, start=_nobody_else))
        assert [outcome.errors for outcome in outcomes] == [()] * 3
        assert all(any("rewrite_data_files" in line for line in outcome.lines) for outcome in outcomes)
        assert passes(maintained) == ["done"] * 3
        assert list(maintain_tables(settings, [], wait=False)) == [MaintenanceOutcome(T, ("requested",))]
        await_true(lambda: len(passes(maintained)) == 4, 60, "the request is answered")
    finally:
        for server in servers:
            server.request_stop()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    maintained.assert_equal(T)


def _nobody_else() -> Procedures:
    raise AssertionError("a server runs: this process has no work")


@pytest.mark.further
def test_a_server_pays_debt_when_it_is_due_and_not_before(maintained: Maintained) -> None:
    mirror = maintained.mirror
    maintained.policy(T, rewrite_min_input_files=8, orphan_sweep_enabled=False)
    settings = mirror.settings.model_copy(update={"maintain_interval": 0.1, "maintain_share": 1.0})
    server = MaintenanceServer(settings, lambda: Procedures(spark_of(maintained)))
    thread = threading.Thread(target=server.run)
    write_and_publish(mirror, range(1, 4))
    thread.start()
    try:
        await_true(
            lambda: mirror.database.rows("SELECT FROM modak.lake_stats WHERE stats ->> 'data_files' = '4'"),
            30,
            "a look",
        )
        assert maintained.journal(T) == []
        write_and_publish(mirror, range(4, 14))
        await_true(lambda: "done" in passes(maintained), 60, "the backlog is done")
    finally:
        server.request_stop()
        thread.join(60)
    assert pending(maintained) == 0
    maintained.assert_equal(T)


@pytest.mark.further
def test_without_a_server_the_command_does_the_work(maintained: Maintained) -> None:
    write_and_publish(maintained.mirror, range(4))
    settings = maintained.mirror.settings
    start = lambda: Procedures(spark_of(maintained))  # noqa: E731
    (rehearsed,) = dry_run(settings, ["t"], start)
    assert any(line.startswith("would run rewrite_data_files") for line in rehearsed.lines)
    assert maintained.journal(T) == []
    (outcome,) = maintain_tables(settings, ["public.t"], wait=True, start=start)
    assert outcome.errors == ()
    assert any("rewrite_data_files" in line for line in outcome.lines)
    assert pending(maintained) == 0
    with pytest.raises(MirrorPumpError):
        list(maintain_tables(settings, ["no_such_table"], wait=True, start=start))
    maintained.mirror.database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    with pytest.raises(TableError, match="not mirrored"):
        list(maintain_tables(settings, ["other"], wait=True, start=start))


@pytest.mark.further
def test_what_a_dead_maintainer_left_is_cleared_up(maintained: Maintained) -> None:
    """Its rewrite does not hold up anything any more, and the next maintainer answers the request that it had
    claimed."""
    mirror, table_id = maintained.mirror, maintained.table_id(T)
    write_and_publish(mirror, range(3))
    with connect(mirror.database.dsn, autocommit=True) as connection:
        begin(
            connection, table_id, MAINTENANCE, OperationPhase.RUNNING, {"operation": "pass", "requested_by": "the dead"}
        )
        begin(
            connection,
            table_id,
            COMPACTION,
            OperationPhase.REWRITING,
            {"operation": "rewrite_data_files", "since_sequence": 1},
        )
        assert maintained.rewrite_since(T) == 1
        with maintained.maintainer() as maintainer:
            result = maintainer.maintain(table_id)
        assert result is not None
        assert any("rewrite_data_files" in line for line in result.done), "as a request, below all thresholds"
        assert maintained.rewrite_since(T) is None
    phases = sorted(
        (operation, phase) for operation, phase, _ in maintained.journal(T) if operation != "remove_orphan_files"
    )
    assert phases == [
        ("pass", "abandoned"),
        ("pass", "done"),
        ("rewrite_data_files", "abandoned"),
        ("rewrite_data_files", "done"),
    ]
    assert maintained.journal(T)[0][2]["requested_by"] == "the dead"


@pytest.mark.further
def test_a_server_answers_what_a_dead_one_had_claimed(maintained: Maintained) -> None:
    """Although nothing is due without the request. A maintainer that is only slow keeps its requests."""
    mirror, table_id = maintained.mirror, maintained.table_id(T)
    write_and_publish(mirror, range(3))
    settings = mirror.settings.model_copy(update={"maintain_interval": 3600.0})
    with connect(mirror.database.dsn, autocommit=True) as connection:
        since = file_request(connection, table_id, "a client")
        claimed = claim(connection, table_id, {"operation": "pass"})
        assert claimed is not None
        assert requested(connection, settings.slot) == []
        connection.execute("UPDATE modak.op_log SET updated_at = now() - interval '61 s'")
        assert requested(connection, settings.slot) == [table_id]
        with maintained.maintainer() as alive, table_lock(connection, table_id):
            assert alive.maintain(table_id, claimed_only=True) is None
        server = MaintenanceServer(settings, lambda: Procedures(spark_of(maintained)))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            await_true(lambda: answer_to(connection, table_id, since), 60, "the client's answer")
        finally:
            server.request_stop()
            thread.join(60)
        assert requested(connection, settings.slot) == []
    assert passes(maintained) == ["abandoned", "done"]
    maintained.assert_equal(T)


def test_a_wait_for_a_table_that_is_unregistered_ends_with_an_error(maintained: Maintained) -> None:
    mirror = maintained.mirror
    errors: list[TableError] = []

    def wait() -> None:
        try:
            list(maintain_tables(mirror.settings, ["t"], wait=True, start=_nobody_else))
        except TableError as error:
            errors.append(error)

    with connect(mirror.database.dsn, autocommit=True) as connection:
        announce_server(connection, mirror.settings.slot)
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        await_true(lambda: pending(maintained), 30, "a request")
        assert not errors
        mirror.unregister("t")
        thread.join(60)
    assert [str(error) for error in errors] == ["public.t is not registered any more"]


def test_a_silent_maintainer_is_not_waited_for(maintained: Maintained) -> None:
    mirror, table_id = maintained.mirror, maintained.table_id(T)
    with connect(mirror.database.dsn, autocommit=True) as connection:
        op_id = begin(connection, table_id, COMPACTION, OperationPhase.REWRITING, {"since_sequence": 1})
        connection.execute("UPDATE modak.op_log SET updated_at = now() - interval '61 s' WHERE op_id = %s", (op_id,))
        assert maintained.rewrite_since(T) is None


def test_a_wrong_stored_policy_is_reported_and_nothing_is_guessed(maintained: Maintained) -> None:
    write_and_publish(maintained.mirror, range(3))
    maintained.policy(T, orphan_grace_hours=-5)
    location = maintained.mirror.location(T)
    result = maintained.maintain(T)
    assert any("orphan_grace_hours" in error for error in result.errors)
    assert maintained.mirror.location(T) == location
    assert passes(maintained) == ["failed"]


def _republish(maintained: Maintained) -> bool:
    mirror = maintained.mirror
    with connect(mirror.database.dsn, autocommit=True) as connection:
        (table,) = read_tables(connection, mirror.settings.slot, [maintained.table_id(T)])
        return republish(connection, mirror.settings.slot, table.table_id, table.start_lsn, STORAGE)


@pytest.mark.further
def test_the_published_snapshot_follows_rewrites_of_other_engines_and_nothing_else(maintained: Maintained) -> None:
    mirror, session = maintained.mirror, spark_of(maintained)
    write_and_publish(mirror, range(4))
    published = maintained.published(T)
    assert not _republish(maintained), "nothing to follow"
    session.sql("CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))")
    session.sql("CALL lake.system.rewrite_manifests('public.t')")
    assert maintained.published(T) == published
    assert _republish(maintained)
    state = maintained.lake_table(T)
    assert maintained.published(T) == (state.snapshot_id, state.metadata_location)
    published = maintained.published(T)
    session.sql("INSERT INTO lake.public.t VALUES (-1, 0, 'not from Postgres')")
    session.sql("CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))")
    assert not _republish(maintained), "other rows are not those of the frontier"
    assert maintained.published(T) == published


@pytest.mark.further
def test_a_published_snapshot_that_another_engine_expired_is_replaced(maintained: Maintained) -> None:
    mirror, session = maintained.mirror, spark_of(maintained)
    write_and_publish(mirror, range(2))
    session.sql("CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))")
    session.sql(
        "CALL lake.system.expire_snapshots(table => 'public.t', older_than => TIMESTAMP '2100-01-01', retain_last => 1)"
    )
    assert not maintained.lake_table(T).has_snapshot(maintained.published(T)[0])
    assert _republish(maintained)
    assert maintained.lake_table(T).has_snapshot(maintained.published(T)[0])
    maintained.assert_equal(T)


@pytest.mark.unverified("the published snapshot is spoiled on purpose")
def test_a_publish_in_between_is_not_undone(maintained: Maintained) -> None:
    mirror, session = maintained.mirror, spark_of(maintained)
    write_and_publish(mirror, range(2))
    session.sql("CALL lake.system.rewrite_data_files(table => 'public.t', options => map('rewrite-all', 'true'))")
    moved: list[bool] = []
    with mirror.database.connect(autocommit=False) as connection:
        connection.execute("SELECT FROM modak.mirror_slots FOR UPDATE")
        thread = threading.Thread(target=lambda: moved.append(_republish(maintained)))
        thread.start()
        await_true(
            lambda: mirror.database.rows(
                "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            ),
            30,
            "republishing waits",
        )
        # The statements of a publish under this lock.
        connection.execute(
            'UPDATE modak.cutline SET lake_snapshot_id = 4711, lake_props = \'{"metadata_location": "x"}\''
        )
        connection.commit()
    thread.join(60)
    assert moved == [False]
    assert maintained.published(T) == (4711, "x")
