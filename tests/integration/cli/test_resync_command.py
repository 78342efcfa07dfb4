"""`mirror-pump resync`: what it prints, its JSON, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.program import Program
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.json_schema import mismatches
from tests.support.resyncs import drop_slot

pytestmark = pytest.mark.further


def test_the_command_of_a_lost_slot(
    run: RunCommand, database: Database, warehouse: str, tasks: ThreadTaskRunner, tmp_path: Path
) -> None:
    for usage in (("resync",), ("resync", "--all", "t")):
        assert run(*usage).exit_code == 2
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", "CREATE TABLE u (id int PRIMARY KEY)"
    )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("t", "u")
    mirror.catch_up()
    unknown = run("resync", "nothing", "--no-wait")
    assert unknown.exit_code in (1, 2)
    assert "there is no table nothing" in unknown.stderr
    planned = run("resync", "t", "--dry-run")
    assert (planned.exit_code, mirror.state("public.t")) == (0, "live")
    assert "usable, stays" in planned.stdout
    assert "public.t: would be copied again" in planned.stdout
    drop_slot(mirror)
    database.execute(
        "INSERT INTO t VALUES (2)",
        "UPDATE modak.mirror_tables SET state = 'failed', error = 'why' WHERE table_id = 'u'::regclass::oid",
    )
    # No Spark starts, for seconds in which the pump would keep `resync` from leading. This one could not start.
    Program(database.dsn, tmp_path).run("run", "--slot", mirror.settings.slot, "--master", "local[nonsense]", code=1)
    assert "does not exist (any more)" in " ".join((tmp_path / "run.log").read_text(encoding="utf-8").split())
    named = run("resync", "t", "--no-wait")
    assert named.exit_code == 1
    assert "mirror-pump resync --all" in " ".join(named.stderr.split())
    planned = run("resync", "--all", "--dry-run", "--json")
    document = json.loads(planned.stdout)
    assert planned.exit_code == 0
    assert "does not exist" in document["slot_lost"]
    assert document["new_position"] is None
    begun = run("resync", "--all", "--no-wait")
    assert begun.exit_code == 0, begun.stderr
    assert "the stream begins at" in begun.stdout
    assert "public.t: is copied again" in begun.stdout
    assert "public.u has failed: why" in begun.stdout
    with mirror.pumping():
        done = run("resync", "--all", "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    (table,) = [table for table in document["tables"] if table["table"] == "public.t"]
    assert (table["state"], table["action"], table["rows"]) == ("live", "continue", 2)
    assert (document["slot_lost"], document["new_position"]) == (None, None)
    assert mismatches(document, "resync") == []
    named = run("resync", "u", "--no-wait", "--json")
    assert (named.exit_code, json.loads(named.stdout)["tables"][0]["action"]) == (1, "leave")
    assert mirror.state("public.t") == "live"


def test_the_commands_of_a_pause(run: RunCommand, database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    assert run("pause").exit_code == 2
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("t")
    mirror.catch_up()
    several = run("pause", "t", "nothing")
    assert (several.exit_code, "not paused: there is no table nothing" in several.stderr) == (1, True), several.stderr
    assert "public.t: paused since" in several.stdout
    again = run("pause", "public.t")
    assert (again.exit_code, "already" in again.stdout) == (0, True)
    assert "mirror-pump resume public.t" in run("status").stdout
    compared = run("verify", "t")
    assert compared.exit_code == 1
    assert "public.t: NOT COMPARED (the table is paused since" in compared.stdout
    assert "`mirror-pump resume public.t` brings it up to date" in compared.stdout
    database.execute("INSERT INTO t VALUES (2)")
    with mirror.pumping():
        told = run("sql", "SELECT count(*) FROM t", "--format", "csv")
        assert told.stdout.split()[1] == "1"
        assert "public.t is paused since" in " ".join(told.stderr.split())
        done = run("resume", "t")
        assert (done.exit_code, "public.t: live, 2 rows read" in done.stdout) == (0, True), done.stderr
    not_paused = run("resume", "t")
    assert (not_paused.exit_code, not_paused.stdout) == (0, "public.t: is not paused\n")
