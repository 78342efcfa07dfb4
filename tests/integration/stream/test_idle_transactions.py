"""Sessions that stay idle, ours and those of users, for longer than any limit: limits of milliseconds stand for an
hour."""

from __future__ import annotations

import pytest

from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.events_table import RetentionTables
from tests.support.pipeline import in_thread

_LIMITS = {
    "idle_session_timeout": "100ms",
    "idle_in_transaction_session_timeout": "100ms",
    "statement_timeout": "50ms",
    "lock_timeout": "10ms",
    "transaction_timeout": "50ms",
}
"""What an administrator sets for interactive users, in hours."""

_ENDLESS = "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = ANY (%s)"

_IDLE = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'mirror-pump%'"
    " AND state = 'idle' AND state_change < clock_timestamp() - interval '300 ms'"
)


@pytest.mark.further
def test_limits_for_interactive_users_end_no_session_of_the_pump(database: Database, warehouse: str) -> None:
    """Neither one that is idle by its nature, nor a copy or a transaction of the stream that takes longer."""
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner(), copy_chunk_bytes=1 << 30)
    fill = "SELECT g, md5(g::text) || md5((-g)::text) FROM generate_series(%s::int, %s::int) g"
    limits = {name: limit for name, limit in _LIMITS.items() if major_version() >= 17 or name != "transaction_timeout"}
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        connection.execute(f"INSERT INTO t {fill}".encode(), (1, 60_000))
        for name, limit in limits.items():
            connection.execute(f"ALTER DATABASE \"{database.name}\" SET {name} = '{limit}'".encode())
    steps = Steps()
    with mirror.pumping(steps):
        mirror.register("t")
        mirror.await_live("public.t")
        with database.connect() as connection:
            connection.execute(_ENDLESS, (list(limits),))
            connection.execute(f"INSERT INTO t {fill}".encode(), (100_001, 160_000))
        mirror.await_frontier()
        await_true(lambda: database.rows(_IDLE)[0][0] >= 3, 30, "sessions of the pump are idle for longer")
        database.execute("DELETE FROM t WHERE id = 1")
        mirror.await_frontier()
        assert steps.count(Step.RETRYING) == 0, steps.details(Step.RETRYING, "error")
    with database.connect() as connection:
        connection.execute(_ENDLESS, (list(limits),))
        for name in limits:
            connection.execute(f'ALTER DATABASE "{database.name}" RESET {name}'.encode())
    mirror.assert_equal("public.t")
    mirror.assert_sound()


def test_idle_transactions_of_users_hold_up_only_what_they_lock(retention_tables: RetentionTables) -> None:
    """One that has written to two tables and one that has read a partition."""
    events = retention_tables.automatic(partitions=3)
    mirror = events.mirror
    database = mirror.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE u (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, 'first' FROM generate_series(1, 50) g",
    )
    steps = Steps()
    with (
        StatusReader(mirror.settings) as status,
        database.connect(autocommit=False) as writer,
        database.connect(autocommit=False) as reader,
    ):
        reader.execute("SELECT count(*) FROM p0")
        with mirror.pumping(steps):
            mirror.register("t")
            mirror.await_live("public.events", "public.t")
            writer.execute("UPDATE t SET v = 'open' WHERE id = 1")
            writer.execute("INSERT INTO u VALUES (1, 'open')")
            with in_thread(lambda _stop: mirror.register("u"), "registration"):
                for _ in range(10):
                    database.execute("UPDATE t SET v = v || '.' WHERE id > 1")
                    mirror.await_frontier()
                    mirror.assert_equal("public.t")
                events.await_state(p0="tiered")
                await_true(lambda: "lock" in events.reason("p0"), 30, "the drop waits, and says for what")
                held_by = status.read().slot.held_by
                assert held_by is not None
                assert held_by.pid == writer.info.backend_pid
                assert mirror.state("public.u") == ""
                events.assert_exact()
                writer.commit()
            reader.rollback()
            mirror.await_live("public.u")
            events.await_state(p0="dropped")
            await_true(lambda: mirror.await_frontier() and status.read().slot.held_by is None, 30, "nobody holds WAL")
            mirror.assert_equal("public.t", "public.u")
            events.assert_exact()
        assert steps.count(Step.RETRYING) == 0
    mirror.assert_sound()
