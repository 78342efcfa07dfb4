"""A slot that is taken past the mirror's own commits, as pg_upgrade demands, and a pump that goes on from there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mirror_pump.errors import NotLeader
from mirror_pump.source.stream.drained_slot import DrainedSlot, drain_slot
from mirror_pump.source.stream.slot import SlotLost
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import Runner, major_version
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import ThreadedProgram


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """A mirror of one table whose pump has stopped."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'copied')")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("t")
    mirror.catch_up()
    return mirror


def _drain(mirror: Mirror) -> DrainedSlot | None:
    settings = mirror.settings
    return drain_slot(settings.require_dsn(), settings.slot, settings.publication)


def test_a_pump_goes_on_from_a_drained_slot(mirror: Mirror) -> None:
    before = mirror.frontier()
    drained = _drain(mirror)
    assert drained is not None
    assert mirror.acknowledged() == drained.position > mirror.frontier() == before
    # The decoded end of the mirror's own commits is behind the slot's position.
    assert drained.position <= mirror.database.lsn()
    mirror.database.execute("INSERT INTO t VALUES (2, 'behind it')")
    mirror.catch_up()
    mirror.assert_equal("public.t")
    mirror.assert_sound()


def test_a_change_behind_the_frontier_stays_in_the_slot(mirror: Mirror) -> None:
    acknowledged = mirror.acknowledged()
    mirror.database.execute("INSERT INTO t VALUES (2, 'not published')")
    assert _drain(mirror) is None
    assert mirror.acknowledged() == acknowledged
    # An attempt that came to nothing means nothing to the next pump.
    mirror.catch_up()
    mirror.assert_equal("public.t")
    assert _drain(mirror) is not None


def test_the_slot_of_a_mirror_with_a_name_is_drained(mirror: Mirror, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """What the one writes to drain its slot is nothing of a table to the other, which publishes nothing for it."""
    light = Mirror.create(replace(mirror.database, mirror="light"), f"{warehouse}-light", tasks)
    for drained in (light, mirror):
        drained.catch_up()
        assert _drain(drained) is not None
        assert drained.acknowledged() > drained.frontier()


@pytest.mark.unverified("the slot is lost")
def test_a_slot_that_others_move_after_it_is_lost(mirror: Mirror) -> None:
    assert _drain(mirror) is not None
    mirror.database.execute("INSERT INTO t VALUES (2, 'consumed by others')")
    mirror.database.rows("SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", (mirror.settings.slot,))
    with pytest.raises(SlotLost, match="ahead of what the mirror has applied"):
        mirror.catch_up()


def test_a_slot_is_not_drained_beside_a_pump(mirror: Mirror) -> None:
    with mirror.pumping():
        mirror.database.execute("INSERT INTO t VALUES (2, 'published')")
        mirror.await_frontier()
        with pytest.raises(NotLeader, match="lead"):
            _drain(mirror)


@pytest.mark.further
@pytest.mark.skipif(major_version() < 17, reason="pg_upgrade looks at slots since PostgreSQL 17")
def test_pg_upgrade_takes_a_drained_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a clean stop of the pump alone it refuses the slot."""
    with EmbeddedPostgres(settings={"autovacuum": "off"}) as server:
        server.create_database("shop")
        database = Database(server, "shop")
        database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        program = ThreadedProgram(database.dsn, tmp_path)
        program.run("init", "--warehouse", str(tmp_path / "lake"))
        program.run("register", "t")
        program.run("run", "--once")
        monkeypatch.setenv("PGPASSWORD", server.password)
        refused, output = _checked_upgrade(server)
        assert "consumed the WAL" in output
        assert refused
        server.start()
        database.execute("INSERT INTO t VALUES (2)")
        assert "stop the server now" in program.run("run", "--drain")
        refused, output = _checked_upgrade(server)
        assert not refused, output
        server.start()
        database.execute("INSERT INTO t VALUES (3)")
        program.run("run", "--once")
        assert '"equal": true' in program.run("verify", "--json")


def _checked_upgrade(server: EmbeddedPostgres) -> tuple[bool, str]:
    """Stops the server and asks pg_upgrade, whether it refuses to upgrade it, and for what it says."""
    server.stop()
    runner, new = Runner.choose(), server.directory / "new"
    if not new.exists():
        initdb = [str(server.binary("initdb")), f"--pgdata={new}", "--username=postgres", "--auth=trust", "--no-sync"]
        code, output = runner.run([*initdb, "--encoding=UTF8", "--locale=C.UTF-8"], timeout=120)
        assert code == 0, output
    binaries = str(server.binary("postgres").parent)
    options = "-c wal_level=logical -c max_replication_slots=10 -c autovacuum=off"
    code, output = runner.run(
        [
            "sh", "-c", 'cd "$0" && exec "$@"', str(server.directory),
            str(server.binary("pg_upgrade")), "--check", "--username=postgres", "-b", binaries, "-B", binaries,
            "-d", str(server.directory / "data"), "-D", str(new), "-s", str(server.directory), "-o", options,
            "-O", options,
        ],
        timeout=240,
    )  # fmt: skip
    reasons = [path.read_text() for path in new.rglob("invalid_logical_slots.txt")]
    return code != 0, output + "\n".join(reasons)
