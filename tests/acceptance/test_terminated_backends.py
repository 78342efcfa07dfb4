"""An administrator, or a script, ends the pump's sessions again and again: it goes on by itself, and nothing is
lost."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.settings.config import Settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, Steps, audit, await_true
from mirror_pump.testing.program import Program, ProgramFailed
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.error_bounds import printed_seed
from tests.support.events_table import RetentionTables
from tests.support.pipeline import change_rows, writing
from tests.support.terminated_backends import terminating

pytestmark = pytest.mark.further

_TEN_MINUTES = 600.0
_COMMANDS = ("mirror-pump-wait", "mirror-pump-register", "mirror-pump-verify", "mirror-pump-settings")
"""Sessions of commands, which say that they lost their connection and end."""


@pytest.mark.further
def test_sessions_are_ended_at_random(retention_tables: RetentionTables, tasks: ThreadTaskRunner) -> None:
    """While a partition leaves the heap, corrections are folded, deletes are converted and a table is copied."""
    seed = printed_seed()
    gate = GatedCopies(tasks)
    events = retention_tables.automatic(
        partitions=3, runner=gate, fold_age=0.2, convert_age=0.2, reconnect_backoff_max=0.1
    )
    mirror, steps = events.mirror, Steps()
    mirror.database.execute(
        "CREATE TABLE u (id int PRIMARY KEY, v text)",
        "INSERT INTO u SELECT g, md5(g::text) FROM generate_series(1, 3000) g",
    )
    with duckdb_connection() as duckdb:
        with mirror.with_options(copy_chunk_bytes=8192).pumping(steps):
            mirror.await_live("public.events")
            gate.hold()
            mirror.register("u")
            with (
                writing(mirror.database, events.write, seed) as written,
                terminating(mirror.database, seed, 0.05, 0.3, _COMMANDS) as ended,
            ):
                gate.let_go()
                await_true(
                    lambda: ended["mirror-pump-leader"] and ended["walsender"] and ended.total() > 15,
                    60,
                    f"each kind of session was ended: {ended}",
                )
                before, frontier = written(), mirror.frontier()
                await_true(lambda: written() > before and mirror.frontier() > frontier, 60, "the frontier moves")
            mirror.await_live("public.u")
            events.await_state(p0="dropped")
            mirror.await_frontier()
            events.assert_exact(duckdb)
        mirror.assert_equal("public.u")
    mirror.assert_sound()
    errors = [str(error) for error in steps.details(Step.RETRYING, "error")]
    assert errors
    assert all("connection" in error or "leads slot" in error or "lead of slot" in error for error in errors), errors
    assert not [
        error for error, remedy in zip(errors, steps.details(Step.RETRYING, "remedy"), strict=True) if not remedy
    ]


@pytest.mark.soak
@pytest.mark.timeout(_TEN_MINUTES + 400)
def test_ten_minutes_of_ended_sessions(database: Database, tmp_path: Path) -> None:
    """The program with Spark and its maintainer, as it is run in production."""
    seed = printed_seed()
    seconds = float(os.environ.get("SOAK_SECONDS", _TEN_MINUTES))
    columns = "(id bigint PRIMARY KEY, n int, v text, big text)"
    for name in ("t", "u"):
        with database.connect() as connection:
            connection.execute(f"CREATE TABLE {name} {columns}".encode())
            connection.execute(f"ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL".encode())
            connection.execute(f"INSERT INTO {name} SELECT g, 0, 'v' FROM generate_series(1, 20000) g".encode())
    program = Program(database.dsn, tmp_path)
    slot = f"s_{os.urandom(4).hex()}"
    program.run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot, "--publication", slot)
    audit(database)
    mirror = Mirror(database, Settings(dsn=database.dsn, slot=slot), ThreadTaskRunner())
    pump = program.start("run", "--maintain", "--reconnect-backoff-max", "2", log="run.log")
    try:
        program.run("register", "t")
        with (
            writing(database, change_rows("t", 20000), seed) as written,
            terminating(database, seed, 0.2, 4, _COMMANDS) as ended,
        ):
            await_true(lambda: registered(program, "u"), 120, "a table is registered meanwhile")
            frontier = mirror.frontier()
            with pytest.raises(subprocess.TimeoutExpired):
                print(f"the pump ended with {pump.wait(seconds)}: {(tmp_path / 'run.log').read_text()[-3000:]}")
            assert written() > 0
        print(f"ended: {dict(ended)}")
        assert mirror.frontier() > frontier
        assert {"mirror-pump", "mirror-pump-leader", "walsender", "mirror-pump-maintain"} <= set(ended)
        mirror.await_live("public.u")
        report = program.run("verify", "t", "u")
        print(report)
    finally:
        program.kill(pump)
    log = (tmp_path / "run.log").read_text()
    assert "Traceback" not in log, log[-5000:]
    mirror.assert_sound()


def registered(program: Program, table: str) -> bool:
    """Tries once. A command whose session is ended says so, and can be given again."""
    try:
        program.run("register", table, "--no-wait")
    except ProgramFailed as error:
        if "connection" not in str(error):
            raise
        return False
    return True
