"""`mirror-pump register`: what it prints, and when."""

from __future__ import annotations

from pathlib import Path

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.program import Program
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.cli import RunCommand


def test_what_is_refused_is_told_before_the_others_are_copied(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, tmp_path: Path
) -> None:
    """A copy may take hours. Here a pump copies, and its first chunk does not end before it may."""
    database.execute(
        "CREATE TABLE good (id int PRIMARY KEY)", "INSERT INTO good VALUES (1)", "CREATE TABLE bad (id int)"
    )
    gate = GatedCopies(tasks)
    gate.hold()
    mirror = Mirror.create(database, warehouse, gate)
    program = Program(database.dsn, tmp_path, mirror.settings.environment())
    output = tmp_path / "register.log"
    with mirror.pumping():
        process = program.start("register", "good", "bad", log=output.name)
        try:
            await_true(lambda: "bad has no primary key" in output.read_text(), 30, "it is told")
            assert process.poll() is None
            assert mirror.state("public.good") == "copying"
            gate.let_go()
            assert process.wait(60) == 1
        finally:
            program.kill(process)
    assert "public.good: live, 1 rows copied" in output.read_text()
    assert output.read_text().count("bad has no primary key") == 1, "it is told once"


def test_a_table_that_is_live_is_not_copied_and_that_is_said(
    run: RunCommand, database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("t")
    mirror.catch_up()
    for arguments in ((), ("--no-wait",)):
        again = run("register", "t", "--slot", mirror.settings.slot, *arguments)
        assert again.exit_code == 0, again.stderr
        assert again.stdout == "public.t: is registered already, and live: nothing was copied\n"


def test_numbers_that_are_text_in_the_lake_are_named(
    run: RunCommand, database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    database.execute(
        "CREATE DOMAIN amount AS numeric",
        'CREATE TABLE t (id int PRIMARY KEY, n numeric, "A b" amount, l numeric[], fine numeric(10,2), v text)',
    )
    mirror = Mirror.create(database, warehouse, tasks)
    slot = ("--slot", mirror.settings.slot)
    shown = run("register", "t", "--dry-run", "--column", "l=list<decimal(38,3)>", *slot)
    assert shown.exit_code == 0, shown.stderr
    assert "  lake types: id int (integer), n string (numeric), A b string (public.amount)" in shown.stdout.replace(
        "(amount)", "(public.amount)"
    )
    assert "l list<decimal(38,3)> (numeric[]), fine decimal(10,2) (numeric(10,2)), v string (text)" in shown.stdout
    assert "column n is numeric, and text in the lake (string): --column 'n=decimal(38,9)' makes" in shown.stdout
    assert shown.stdout.count("text in the lake") == 2, (
        "what was chosen, and what is text in Postgres too, is not named"
    )
    registered = run("register", "t", "--no-wait", *slot)
    assert registered.exit_code == 0, registered.stderr
    assert "column n is numeric, and text in the lake (string)" in registered.stderr
    assert "--column 'A b=decimal(38,9)'" in registered.stderr
    assert "--column 'l=list<decimal(38,9)>'" in registered.stderr
    mirror.catch_up()
    assert "text in the lake" not in run("register", "t", *slot).stderr, "it was told when the table was new"
