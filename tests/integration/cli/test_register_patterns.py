"""`mirror-pump register` with patterns: which tables it means, what it leaves out, and in what order it copies."""

from __future__ import annotations

import re

import pytest

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand

_TABLES = (
    "CREATE SCHEMA sales",
    'CREATE SCHEMA "Sales"',
    "CREATE TABLE sales.large (id int PRIMARY KEY, v text)",
    "INSERT INTO sales.large SELECT g, repeat('x', 500) FROM generate_series(1, 3000) g",
    'CREATE TABLE sales."Small one" (id int PRIMARY KEY)',
    'INSERT INTO sales."Small one" VALUES (1)',
    "CREATE TABLE sales.parts (id int, day int, PRIMARY KEY (id, day)) PARTITION BY LIST (day)",
    "CREATE TABLE sales.parts_1 PARTITION OF sales.parts FOR VALUES IN (1)",
    "INSERT INTO sales.parts VALUES (1, 1)",
    "CREATE TABLE sales.tmp_a (id int PRIMARY KEY)",
    "CREATE UNLOGGED TABLE sales.unlogged (id int PRIMARY KEY)",
    "CREATE FOREIGN DATA WRAPPER nowhere",
    "CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere",
    "CREATE FOREIGN TABLE sales.far (id int) SERVER nowhere",
    "CREATE VIEW sales.shown AS SELECT 1 AS id",
    'CREATE TABLE "Sales".other (id int PRIMARY KEY)',
    "CREATE TABLE public.visible (id int PRIMARY KEY)",
    "VACUUM (ANALYZE)",
)


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """Of a database with tables of all sorts, none of which is registered."""
    database.execute(*_TABLES)
    return Mirror.create(database, warehouse, tasks)


def _registered(mirror: Mirror) -> list[str]:
    return [f"{schema}.{name}" for schema, name in mirror.database.rows(
        "SELECT schema_name, table_name FROM modak.tables ORDER BY 1, 2")]  # fmt: skip


def test_the_tables_of_a_schema_come_with_one_command(mirror: Mirror, run: RunCommand) -> None:
    slot = ("--slot", mirror.settings.slot)
    again = ("sales.*", "--exclude", "sales.tmp_*", *slot)
    result = run("register", *again, "--no-wait")
    assert result.exit_code == 0, result.stderr
    assert _registered(mirror) == ["sales.Small one", "sales.large", "sales.parts"]
    assert "sales.unlogged: left out: an unlogged table has no WAL" in result.stderr
    assert "sales.far: left out: a foreign table has no WAL" in result.stderr
    with mirror.pumping() as pump:
        mirror.await_live("sales.large", "sales.parts", 'sales."Small one"')
        planned = pump.steps.details(Step.COPY_PLANNED, "table")
    assert planned[-1] == "sales.large", "small tables come first"
    mirror.database.execute("CREATE TABLE sales.later (id int PRIMARY KEY)")
    result = run("register", *again, "--no-wait")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "sales.later: registered\n"
    assert "3 tables are registered already, and live: nothing was copied" in result.stderr
    mirror.catch_up()
    # Without a line for each of hundreds.
    waited = run("register", *again)
    assert (waited.exit_code, waited.stdout) == (0, ""), waited.stderr
    assert "4 tables are registered already, and live: nothing was copied" in waited.stderr
    assert "sales.large" not in waited.stderr
    mirror.assert_sound()


def test_all_tables_but_those_that_cannot_be_mirrored(mirror: Mirror, run: RunCommand) -> None:
    mirror.database.execute("CREATE TABLE public.keyless (id int)")
    result = run("register", "--all", "--no-wait", "--slot", mirror.settings.slot)
    assert result.exit_code == 1
    assert "keyless has no primary key" in result.stderr
    assert _registered(mirror) == [
        "Sales.other", "public.visible", "sales.Small one", "sales.large", "sales.parts", "sales.tmp_a",
    ]  # fmt: skip
    mirror.catch_up()
    mirror.assert_sound()


def test_without_a_schema_a_pattern_means_what_the_role_finds(mirror: Mirror, run: RunCommand) -> None:
    result = run("register", "vis*", "large*", "--no-wait", "--slot", mirror.settings.slot)
    assert result.exit_code == 1
    assert "large*: not registered" in result.stderr.replace("'", "") or "no table matches" in result.stderr
    assert _registered(mirror) == ["public.visible"]
    mirror.catch_up()


def test_a_dry_run_shows_sizes_and_what_would_be_refused(mirror: Mirror, run: RunCommand) -> None:
    mirror.database.execute("CREATE TABLE sales.keyless (id int)")
    result = run("register", "sales.*", "--dry-run", "--slot", mirror.settings.slot)
    assert result.exit_code == 1
    assert re.search(r"sales\.large: 2 columns; key id; 1\.\d MiB in \d chunks", result.stdout)
    assert "would not be registered" in result.stderr
    assert "keyless has no primary key" in result.stderr
    assert re.search(r"in all: 4 tables, 1\.\d MiB in \d+ chunks", result.stdout), result.stdout
    assert "heap a second (docs/performance.md): less than 1 s\n" in result.stdout
    assert re.search(r"WAL that the slot keeps meanwhile, at the present [\d,.]+ ([KMG]i)?B/s: \d", result.stdout)
    assert _registered(mirror) == []


def test_a_dry_run_says_what_registering_again_would(mirror: Mirror, run: RunCommand) -> None:
    slot = ("--slot", mirror.settings.slot)
    mirror.register("sales.large")
    mirror.catch_up()
    assert run("pause", "sales.large", *slot).exit_code == 0
    for dry_run in ((), ("--dry-run",)):
        paused = run("register", "sales.large", *dry_run, *slot)
        assert (paused.exit_code, "mirror-pump resume sales.large" in paused.stderr) == (1, True)
    assert run("resume", "sales.large", "--no-wait", *slot).exit_code == 0
    mirror.catch_up()
    for options, error in (
        (("--mask", "v=null"), "sales.large is registered without --mask"),
        (("--changes",), "`mirror-pump register sales.large --alter --changes=keys`"),
        (("--sort-by", "v"), "`mirror-pump register sales.large --alter` with --partition-by"),
    ):
        for dry_run in ((), ("--dry-run",)):
            other = run("register", "sales.large", *options, *dry_run, *slot)
            assert (other.exit_code, error in " ".join(other.stderr.split())) == (1, True), (options, other.stderr)
    same = run("register", "sales.large", "--dry-run", *slot)
    assert (same.exit_code, same.stdout) == (0, "sales.large: is registered already\n")
    mirror.assert_equal("sales.large")


def test_a_table_without_a_key_is_registered_once_that_is_said(mirror: Mirror, run: RunCommand) -> None:
    """What PostgreSQL refuses from then on is told before and after."""
    mirror.database.execute("CREATE TABLE sales.keyless (id int)", "INSERT INTO sales.keyless VALUES (1), (1)")
    slot = ("--slot", mirror.settings.slot)
    refused = run("register", "sales.keyless", *slot)
    assert refused.exit_code == 1
    assert "--append-only" in refused.stderr
    shown = run("register", "sales.keyless", "--append-only", "--dry-run", *slot)
    assert "no key, so PostgreSQL refuses UPDATE and DELETE from then on" in shown.stdout
    assert _registered(mirror) == []
    mirror.database.execute("UPDATE sales.keyless SET id = 2")
    done = run("register", "sales.keyless", "--append-only", "--no-wait", *slot)
    assert done.exit_code == 0, done.stderr
    assert "refuses UPDATE and DELETE of it until it is unregistered" in done.stderr
    assert _registered(mirror) == ["sales.keyless"]
    mirror.catch_up()
    mirror.assert_equal("sales.keyless")


_WRONG_USE: list[tuple[tuple[str, ...], str]] = [
    ((), "name a TABLE, or give --all"),
    (("sales.large", "--exclude", "x"), "--exclude requires --all or a pattern"),
    (("sales.*", "--exclude-column", "v"), "it is about one table, which has to be named"),
    (("--all", "--column", "v=string"), "it is about one table, which has to be named"),
    (("--all", "--append-only"), "it is about one table, which has to be named"),
    (("sales.parts", "--append-only", "--mode", "tiered"), "corrections of rows in the lake find them by key"),
    (("sales.parts", "--append-only", "--heap-retention", "1"), "corrections of rows in the lake find them by key"),
    (("sales.*", "--exclude", 'a"'), "is not a pattern"),
    (("a.b.*",), "is not a pattern"),
]


def test_wrong_use(mirror: Mirror, run: RunCommand) -> None:
    for arguments, error in _WRONG_USE:
        result = run("register", *arguments, "--slot", mirror.settings.slot)
        assert result.exit_code == 2, arguments
        assert error in " ".join(result.stderr.split()), arguments
        assert _registered(mirror) == []


def test_the_server_plans_for_what_the_catalog_holds(mirror: Mirror, database: Database) -> None:
    """Without statistics each of hundreds of registrations reads all that came before it: autovacuum is too late."""
    database.execute(
        "CREATE SCHEMA many",
        "DO $$ BEGIN FOR i IN 1..33 LOOP"
        " EXECUTE format('CREATE TABLE many.t%s (id int PRIMARY KEY)', i); END LOOP; END $$",
    )
    mirror.register(*(f"many.t{number}" for number in range(1, 34)))
    known = "SELECT reltuples >= 32 FROM pg_class WHERE oid = 'modak.mirror_tables'::regclass"
    assert database.rows(known) == [(True,)]
    mirror.catch_up()
