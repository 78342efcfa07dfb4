"""What `status` and the pump's log say about missing maintenance: a real mirror, with ages set in the catalog."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mirror_pump.engine.iceberg_procedures.procedures import Procedures
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.operation_life import OperationPhase
from mirror_pump.ops.maintenance.journal import Heartbeat
from mirror_pump.ops.maintenance.maintenance_pass import Maintenance
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.source.catalog.maintenance import (
    MAINTENANCE,
    announce_server,
    begin,
    change_policy,
    finish,
    read_tables,
)
from mirror_pump.source.connect import connect
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand

pytestmark = pytest.mark.further


@pytest.fixture
def mirror(database: Database, tmp_path: Path, tasks: ThreadTaskRunner) -> Mirror:
    """With a live table of a few commits, and no pump."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mirror = Mirror.create(database, str(tmp_path / "lake"), tasks)
    with mirror.pumping():
        mirror.register("t")
        mirror.await_live("public.t")
        for number in range(5):
            database.execute(f"INSERT INTO t VALUES ({number})")
            mirror.await_frontier()
    return mirror


def status(run: RunCommand) -> dict[str, Any]:
    result = run("status", "--json")
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def shown(run: RunCommand) -> str:
    """The output of `status`. A terminal may break lines anywhere."""
    return " ".join(run("status").stdout.split())


def warnings(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [alert for alert in document["alerts"] if alert["severity"] == "warning"]


@contextmanager
def maintainer(mirror: Mirror) -> Iterator[Maintenance]:
    """A maintainer that only examines tables, without Spark."""

    def start() -> Procedures:
        raise AssertionError("a look needs no Spark")

    dsn = mirror.settings.require_dsn()
    with connect(dsn, autocommit=True) as connection, Heartbeat(dsn) as heartbeat:
        yield Maintenance(connection, mirror.settings.slot, StorageOptions(), start, heartbeat)


def test_status_shows_what_is_due(mirror: Mirror, run: RunCommand) -> None:
    document = status(run)
    (table,) = document["tables"]
    assert (table["maintenance"]["due"], table["maintenance"]["problem"]) == ([], None)
    assert table["maintenance"]["unattended_commits"] >= 6
    assert document["maintenance"] == {
        "served": False,
        "tables_due": 0,
        "tables_neglected": 0,
        "unattended_commits": table["maintenance"]["unattended_commits"],
    }
    assert "maintenance: nothing due" in shown(run)
    assert "no maintainer runs" in shown(run)

    policy = {
        "orphan_sweep_min_commits": 3,
        "snapshot_retention_hours": 0,
        "snapshot_min_retained": 1,
        "snapshot_expiry_min_snapshots": 2,
        "rewrite_min_input_files": 3,
    }
    with mirror.database.connect() as connection:
        (found,) = read_tables(connection, mirror.settings.slot)
        change_policy(connection, found.table_id, policy)
    (table,) = status(run)["tables"]
    due = {operation["operation"]: operation["reason"] for operation in table["maintenance"]["due"]}
    with maintainer(mirror) as maintenance:
        (backlog,) = maintenance.read_backlogs()
    decided = {operation.name: operation.reason for operation in backlog.due(requested=False)}
    assert set(decided) == {"rewrite_data_files", "expire_snapshots", "remove_orphan_files"}
    assert due == decided, "as a maintainer decides it, who reads the manifests"
    assert {operation["operation"] for operation in status(run)["tables"][0]["maintenance"]["due"]} == set(decided)
    assert "maintenance: due for 1 of 1 tables" in shown(run)
    assert f"public.t: due: merge data files and apply deletes ({due['rewrite_data_files']})" in shown(run)

    with mirror.database.connect() as connection:
        operation = {"operation": "remove_orphan_files"}
        op_id = begin(connection, found.table_id, MAINTENANCE, OperationPhase.RUNNING, operation)
        finish(connection, op_id, OperationPhase.DONE, {"sequence_number": backlog.figures.sequence_number})
        announce_server(connection, mirror.settings.slot)
        document = status(run)
        assert document["maintenance"]["served"] is True
        left = {operation["operation"] for operation in document["tables"][0]["maintenance"]["due"]}
        assert left == set(decided) - {"remove_orphan_files"}
        assert "a maintainer runs" in shown(run)
        change_policy(connection, found.table_id, {"maintenance_enabled": False})
        assert status(run)["tables"][0]["maintenance"]["due"] == []


def test_a_table_without_maintenance_for_a_day(mirror: Mirror, run: RunCommand) -> None:
    database = mirror.database
    assert not warnings(status(run)), "it is young"
    steps = Steps()
    with mirror.pumping(steps):
        mirror.await_frontier()
    assert steps.count(Step.TABLE_NEGLECTED) == 0

    database.execute("UPDATE modak.tables SET created_at = now() - interval '30 hours'")
    document = status(run)
    (alert,) = warnings(document)
    assert "no maintenance for more than a day: public.t" in alert["message"]
    assert "run --maintain" in alert["remedy"]
    assert document["tables"][0]["maintenance"]["neglected"] is True
    assert document["tables"][0]["maintenance"]["unattended_seconds"] >= 30 * 3600
    assert "no maintenance for more than a day: public.t" in shown(run)
    steps = Steps()
    with mirror.pumping(steps):
        await_true(lambda: steps.count(Step.TABLE_NEGLECTED), 30, "the pump says so")
        result = run("status", "--check")
        assert result.exit_code == 0, "nothing has stopped"
        assert "no maintenance for more than a day" in result.stdout
    assert steps.details(Step.TABLE_NEGLECTED, "table") == ["public.t"]
    assert steps.details(Step.TABLE_NEGLECTED, "hours") == [30]

    with maintainer(mirror) as maintenance:
        maintenance.read_backlogs()
    (table,) = status(run)["tables"]
    assert (table["maintenance"]["unattended_commits"], table["maintenance"]["unattended_seconds"]) == (0, None)
    age = "UPDATE modak.lake_stats SET collected_at = now() - interval '30 hours'"
    database.execute(age)
    assert not warnings(status(run)), "nothing was committed since"
    with mirror.pumping():
        database.execute("INSERT INTO t VALUES (77)")
        mirror.await_frontier()
    document = status(run)
    assert document["tables"][0]["maintenance"]["unattended_commits"] == 1
    assert warnings(document), "but now something was"
    with database.connect() as connection:
        (found,) = read_tables(connection, mirror.settings.slot)
        change_policy(connection, found.table_id, {"maintenance_enabled": False})
    assert not warnings(status(run)), "somebody wants it so"


def test_maintenance_that_failed(mirror: Mirror, run: RunCommand) -> None:
    with mirror.database.connect() as connection:
        (found,) = read_tables(connection, mirror.settings.slot)
        op_id = begin(connection, found.table_id, MAINTENANCE, OperationPhase.RUNNING, {"operation": "pass"})
        finish(connection, op_id, OperationPhase.FAILED, {"errors": ["rewrite_data_files: no room"]})
    (alert,) = warnings(status(run))
    assert alert["table"] == "public.t"
    assert "rewrite_data_files: no room" in alert["message"]
    with mirror.database.connect() as connection:
        op_id = begin(connection, found.table_id, MAINTENANCE, OperationPhase.RUNNING, {"operation": "pass"})
        finish(connection, op_id, OperationPhase.DONE, {})
    assert not warnings(status(run))
