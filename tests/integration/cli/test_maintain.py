"""`mirror-pump policy` and `maintain` as separate processes: a maintainer that serves while a pump and a load run."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import orjson
import pytest

from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.maintenance import is_served
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.program import Program
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand, ThreadedProgram
from tests.support.maintenance import write


@pytest.fixture
def program(database: Database, tmp_path: Path, run: RunCommand) -> Program:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL, v text)",
        "INSERT INTO t SELECT g, 0, repeat(md5(g::text), 4) FROM generate_series(1, 3000) g",
    )
    slot = f"s_{os.urandom(4).hex()}"
    program = Program(database.dsn, tmp_path)
    assert run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot, "--publication", slot).exit_code == 0
    return program


@pytest.fixture
def mirror(program: Program, database: Database) -> Mirror:
    ((slot,),) = database.rows("SELECT slot_name FROM modak.mirror_slots")
    settings = complete(Settings(dsn=database.dsn, slot=slot, publication=slot))
    return Mirror(database, settings, ThreadTaskRunner())


def test_policies_are_shown_set_and_unset(mirror: Mirror, run: RunCommand) -> None:
    def policy(*arguments: str, code: int = 0) -> str:
        result = run("policy", *arguments)
        assert result.exit_code == code, result.output
        return result.stdout

    mirror.register("t")
    assert "rewrite_target_bytes = 128.0MiB (default)" in policy("get", "t")
    assert policy("set", "t", "rewrite_target_bytes", "1MiB") == "rewrite_target_bytes = 1.0MiB (set)\n"
    policy("set", "public.t", "snapshot_retention_hours", "0.5")
    stored = mirror.database.rows("SELECT maintenance_policy FROM modak.tables")
    assert stored == [({"rewrite_target_bytes": 1 << 20, "snapshot_retention_hours": 0.5},)]
    shown = orjson.loads(policy("get", "t", "--json"))
    assert shown["rewrite_target_bytes"] == {"value": 1 << 20, "default": 128 << 20, "set": True}
    assert policy("get", "t", "rewrite_enabled") == "rewrite_enabled = true (default)\n"
    assert "(default)" in policy("unset", "t", "rewrite_target_bytes")
    assert "set)" not in policy("unset", "t")
    assert mirror.database.rows("SELECT maintenance_policy FROM modak.tables") == [(None,)]
    mirror.database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    policy("get", "other", code=1)
    policy("get", "no_such_table", code=2)


@pytest.mark.further
@pytest.mark.slow
def test_a_pump_brings_its_maintainer(mirror: Mirror, run: RunCommand, tmp_path: Path) -> None:
    """`run --maintain`: requests are answered while the pump runs; the maintainer ends with the pump."""
    mirror.register("t")
    mirror.catch_up()
    slot = mirror.settings.slot
    threaded = ThreadedProgram(mirror.database.dsn, tmp_path)
    with mirror.database.connect() as connection:
        pump = threaded.start("run", "--maintain", "--maintain-interval", "1", log="pump.log")
        await_true(lambda: is_served(connection, slot), 60, "a maintainer serves")
        assert run("maintain", "--no-wait").stdout == "public.t: requested\n"
        await_true(lambda: not mirror.database.rows("SELECT FROM modak.maintenance_requests"), 60, "it is claimed")
        threaded.stop(pump, timeout=60)
        await_true(lambda: not is_served(connection, slot), 30, "the maintainer ended with the pump")
        pump = threaded.start("run", "--maintain", "--maintain-interval", "1", log="pump.log")
        await_true(lambda: is_served(connection, slot), 60, "a maintainer serves")
        threaded.kill(pump)
        await_true(lambda: not is_served(connection, slot), 30, "the maintainer ends when the pump is killed")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_server_keeps_a_busy_table_small(program: Program, mirror: Mirror) -> None:
    database = mirror.database
    mirror.register("t")
    mirror.catch_up()
    program.run("policy", "set", "t", "rewrite_min_input_files", "10")
    stop = threading.Event()

    def load() -> None:
        number = 0
        while not stop.wait(0.2):
            write(mirror, number := number + 1)

    writer = threading.Thread(target=load)
    pump = program.start("run", "--maintain", "--maintain-interval", "1", log="pump.log")
    writer.start()
    try:
        done = (
            "SELECT count(*) FROM modak.op_log WHERE details ->> 'operation' = 'rewrite_data_files' AND phase = 'done'"
        )
        await_true(lambda: database.rows(done)[0][0] >= 2, 240, "two compactions")
        assert "rewrite_data_files" in program.run("maintain", "t")
        assert program.run("maintain", "--no-wait") == "public.t: requested\n"
        await_true(lambda: not database.rows("SELECT FROM modak.maintenance_requests"), 90, "the request is claimed")
    finally:
        stop.set()
        writer.join(60)
        program.stop(pump, timeout=60)
    with database.connect() as connection:
        await_true(
            lambda: not is_served(connection, mirror.settings.slot), 10, "the maintainer has ended with the pump"
        )
    failed = database.rows("SELECT details FROM modak.op_log WHERE phase NOT IN ('done')")
    assert failed == []
    mirror.catch_up()
    assert '"equal": true' in program.run("verify", "--json")
    rehearsed = program.run("maintain", "--dry-run")
    assert "would" in rehearsed or "nothing to do" in rehearsed
    mirror.assert_equal("public.t")
