"""Tables that are unregistered in the middle of maintenance are passed over, and nothing ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mirror_pump.engine.iceberg_procedures.procedures import Procedures
from mirror_pump.errors import TableError
from mirror_pump.ops.maintenance import maintainer, maintenance_pass
from mirror_pump.ops.maintenance.maintainer import MaintenanceServer, maintain_tables
from mirror_pump.ops.retain import retention
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.events_table import RetentionTables
from tests.support.pipeline import in_thread

pytestmark = pytest.mark.further


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """Tables a and b, mirrored. Nothing but statistics is due for them, so Spark has nothing to do."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    made = Mirror.create(database, warehouse, tasks, maintain_interval=0.1)
    made.register("a", "b")
    made.catch_up()
    _set_policy(database)
    return made


def _set_policy(database: Database, **policy: object) -> None:
    """Of table a; of b, and without a policy, nothing needs Spark."""
    nothing = {"orphan_sweep_enabled": False, "snapshot_expiry_enabled": False, "rewrite_enabled": False}
    for table, values in (("b", {}), ("a", policy)):
        database.execute(
            f"UPDATE modak.tables SET maintenance_policy = '{json.dumps(nothing | values)}'"
            f" WHERE table_name = '{table}'"
        )


def _no_spark() -> Procedures:
    raise AssertionError("there is nothing to do for Spark")


@pytest.fixture
def vanishing(monkeypatch: pytest.MonkeyPatch, mirror: Mirror) -> Callable[..., None]:
    """Has table a unregistered right before a function's next call."""

    def plant(module: Any, name: str, **options: Any) -> None:
        function = getattr(module, name)
        left = ["a"]

        def call(*arguments: Any, **named: Any) -> Any:
            if left:
                mirror.unregister(left.pop(), **options)
            return function(*arguments, **named)

        monkeypatch.setattr(module, name, call)

    return plant


@pytest.mark.parametrize(
    ("function", "options"),
    [("require_files", {}), ("require_files", {"drop_lake": True}), ("store_stats", {}), ("begin", {})],
    ids=["files", "files that are gone", "statistics", "journal"],
)
def test_a_maintainer_goes_on(
    mirror: Mirror, vanishing: Callable[..., None], function: str, options: dict[str, Any]
) -> None:
    database = mirror.database
    if function == "begin":
        # A pass begins only for what is due; Spark is not asked, since the table is gone by then.
        _set_policy(database, orphan_sweep_enabled=True, orphan_sweep_min_commits=1)
    vanishing(maintenance_pass, function, **options)
    server = MaintenanceServer(mirror.settings, _no_spark)
    with in_thread(lambda _: server.run(), "maintainer"):
        try:
            await_true(lambda: not mirror.state("public.a"), 30, "table a is unregistered")
            database.execute("DELETE FROM modak.lake_stats")
            mirror.database.execute("INSERT INTO b VALUES (1)")
            seen = "SELECT FROM modak.lake_stats JOIN modak.tables USING (table_id) WHERE table_name = 'b'"
            await_true(lambda: bool(database.rows(seen)), 30, "the maintainer looks at the other table")
        finally:
            server.request_stop()
    mirror.catch_up()
    mirror.assert_equal("public.b")


@pytest.mark.parametrize("function", ["file_request", "answer_to"])
def test_maintain_passes_over_it(mirror: Mirror, vanishing: Callable[..., None], function: str) -> None:
    vanishing(maintainer, function)
    outcomes = {outcome.table: outcome for outcome in maintain_tables(mirror.settings, (), wait=True, start=_no_spark)}
    assert outcomes["public.a"].lines == ("left alone: it is not registered any more",)
    assert outcomes["public.b"].lines == ("nothing to do",)
    assert not any(outcome.errors for outcome in outcomes.values())
    assert mirror.database.rows("SELECT FROM modak.maintenance_requests") == []
    mirror.assert_equal("public.b")


def test_retain_passes_over_it(retention_tables: RetentionTables, monkeypatch: pytest.MonkeyPatch) -> None:
    events = retention_tables.automatic(partitions=2, rows=5, lag="1000")
    mirror = events.mirror
    mirror.catch_up()

    def unregistered_before(*arguments: Any) -> Any:
        if mirror.state("public.events"):
            mirror.unregister("events")
        return load_table(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(retention, "load_table", unregistered_before)
        assert retention.look(mirror.settings, ()) == ()
    with pytest.raises(TableError, match="has no heap retention"):
        retention.look(mirror.settings, ["events"])
