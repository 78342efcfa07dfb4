"""`apply` and `export`: what a file declares is what is mirrored, and nothing leaves unasked."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from orjson import loads

from mirror_pump.cli.commands.apply import KEYS
from mirror_pump.model import TableMode
from mirror_pump.ops.setup.profiles import add_profile, described_profile
from mirror_pump.source.relations.column_choices import parse_choices
from mirror_pump.source.retention.retention_plan import RetentionWish
from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand

_TABLES = (
    "CREATE SCHEMA sales",
    "CREATE TABLE sales.a (id int PRIMARY KEY, v text)",
    "CREATE TABLE sales.b (id int PRIMARY KEY, v text)",
    "CREATE TABLE sales.tmp_c (id int PRIMARY KEY)",
    "CREATE TABLE public.plain (id int PRIMARY KEY)",
    """CREATE TABLE public."Odd, ""name" (id int PRIMARY KEY, amount numeric, "x, y" text, secret text)""",
    "CREATE TABLE public.events (id bigint, at bigint, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
    "CREATE TABLE public.p1 PARTITION OF public.events FOR VALUES FROM (0) TO (1000)",
    "CREATE TABLE public.old (id bigint, at bigint, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
    "CREATE TABLE public.old_1 PARTITION OF public.old FOR VALUES FROM (0) TO (1000)",
    "CREATE TABLE public.documents (id int PRIMARY KEY, doc jsonb)",
    """INSERT INTO public.documents VALUES (1, '{"a": [1, 2.50]}'), (2, 'null'), (3, NULL)""",
    "CREATE TABLE public.p2 PARTITION OF public.events FOR VALUES FROM (1000) TO (2000)",
)
_NAMED = ("public.documents", "public.events", "public.old", "public.plain")
_ODD = '''public."Odd, ""name"'''


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(*_TABLES)
    mirror = Mirror.create(database, warehouse, tasks)
    add_profile(
        mirror.settings, described_profile("second", f"{warehouse}-second", [], None, None, None), default=False
    )
    return mirror


def _registered(mirror: Mirror) -> list[str]:
    rows = mirror.database.rows("SELECT schema_name, table_name FROM modak.tables ORDER BY 1, 2")
    return [f"{schema}.{name}" for schema, name in rows]


def test_what_is_exported_is_what_apply_makes(mirror: Mirror, run: RunCommand, tmp_path: Path) -> None:
    slot = ("--slot", mirror.settings.slot)
    mirror.register(_ODD, choices=parse_choices(["amount=decimal(20,4)"], ["x, y"], ["secret=sha256"]))
    mirror.register("public.plain", profile="second")
    mirror.register("public.documents", choices=parse_choices(["doc=variant"], []), format_version=3)
    mirror.register(
        "public.events", retention=RetentionWish(lag="5000", premake=2, drop_grace="90s", lake_partition="1000")
    )
    tiered = RetentionWish(lag="500", mode=TableMode.TIERED, lake_retention="90000", detach=True)
    mirror.register("public.old", retention=tiered)
    assert run("register", "sales.*", "--exclude", "sales.tmp_*", "--follow-new", "--no-wait", *slot).exit_code == 0
    mirror.catch_up()
    exported = run("export", *slot)
    assert exported.exit_code == 0, exported.stderr
    entries = tomllib.loads(exported.stdout)["register"]
    assert entries[0] == {"tables": ["sales.*"], "exclude": ["sales.tmp_*"], "follow_new": True}
    assert {entry["tables"][0] for entry in entries[1:]} == {_ODD, *_NAMED}
    file = tmp_path / "tables.toml"
    file.write_text(exported.stdout, encoding="utf-8")
    same = run("apply", str(file), *slot)
    assert (same.exit_code, same.stdout) == (0, "nothing differs\n"), same.stderr

    # The same file makes the same mirror again.
    before = _registered(mirror)
    for table in ("sales.a", "sales.b", _ODD, *_NAMED):
        mirror.unregister(table)
    assert run("register", "sales.*", "--exclude", "*", "--no-follow-new", "--no-wait", *slot).exit_code == 0
    again = run("apply", str(file), "--yes", "--no-wait", *slot)
    assert again.exit_code == 0, again.stderr
    mirror.catch_up()
    assert _registered(mirror) == before
    assert run("export", *slot).stdout == exported.stdout
    mirror.assert_equal("sales.a", "public.plain", "public.events")
    verified = run("verify", "public.documents", "--json", *slot)
    assert loads(verified.stdout)["tables"][0]["equal"], verified.stderr


def test_nothing_leaves_unasked(mirror: Mirror, run: RunCommand, tmp_path: Path) -> None:
    slot = ("--slot", mirror.settings.slot)
    mirror.register("sales.a", "sales.b")
    mirror.catch_up()
    file = tmp_path / "tables.toml"
    file.write_text(
        '[[register]]\ntables = ["sales.b", "plain"]\n[[register]]\ntables = ["events"]\nheap_retention = "5000"\n',
        encoding="utf-8",
    )
    planned = run("apply", str(file), "--dry-run", *slot)
    assert planned.exit_code == 0, planned.stderr
    assert set(planned.stdout.splitlines()) == {
        "unregister sales.a",
        "register public.plain",
        "register public.events, partitions leave its heap",
    }
    refused = run("apply", str(file), *slot)
    assert (refused.exit_code, "no terminal to ask" in refused.stderr) == (2, True)
    assert _registered(mirror) == ["sales.a", "sales.b"]
    done = run("apply", str(file), "--yes", "--no-wait", *slot)
    assert done.exit_code == 0, done.stderr
    assert _registered(mirror) == ["public.events", "public.plain", "sales.b"]
    assert "lake table stays" in done.stdout


def test_what_apply_cannot_mend_is_told_and_the_rest_is_done(mirror: Mirror, run: RunCommand, tmp_path: Path) -> None:
    slot = ("--slot", mirror.settings.slot)
    mirror.register("sales.a", choices=parse_choices([], [], ["v=null"]))
    mirror.register("sales.b")
    file = tmp_path / "tables.toml"
    file.write_text(
        '[[register]]\ntables = ["sales.a", "nothing", "plain"]\n'
        '[[register]]\ntables = ["sales.b"]\nmask = ["v=sha256"]\n',
        encoding="utf-8",
    )
    result = run("apply", str(file), "--no-wait", *slot)
    errors = " ".join(result.stderr.split())
    assert result.exit_code == 1
    assert "sales.a is registered with --mask v=null" in errors
    assert "sales.b is registered with its columns as they are" in errors
    assert "nothing" in errors
    assert _registered(mirror) == ["public.plain", "sales.a", "sales.b"]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("not toml", "cannot be read"),
        ("[tables]\nx = 1\n", "has more than [[register]] entries: tables"),
        ('[[register]]\ntables = ["plain"]\nmasks = ["v=null"]\n', "entry 1: unknown key masks"),
        ('[[register]]\ntables = "plain"\n', "entry 1: tables"),
        ('[[register]]\ntables = ["plain"]\nmode = "tired"\n', "entry 1: mode"),
        ("[[register]]\npremake = 1\n", "entry 1: name a TABLE"),
        ('[[register]]\ntables = ["plain"]\n[[register]]\ntables = ["public.plain"]\n', "is declared twice"),
        ('[[register]]\ntables = ["plain"]\nmask = ["id=hmac(env:NO_SUCH_KEY)"]\n', "the key of a mask is missing"),
    ],
)
def test_wrong_files(mirror: Mirror, run: RunCommand, tmp_path: Path, content: str, error: str) -> None:
    file = tmp_path / "tables.toml"
    file.write_text(content, encoding="utf-8")
    result = run("apply", str(file), "--yes", "--slot", mirror.settings.slot)
    assert (result.exit_code, error in " ".join(result.stderr.split())) == (2, True), result.stderr
    assert _registered(mirror) == []


@pytest.mark.skipif(major_version() < 15, reason="row filters and column lists exist since PostgreSQL 15")
def test_rules_that_the_publication_has(mirror: Mirror, run: RunCommand, tmp_path: Path) -> None:
    slot = ("--slot", mirror.settings.slot)
    mirror.register("sales.a", choices=parse_choices([], [], listed="id,v"))
    mirror.register("sales.tmp_c", choices=parse_choices([], [], where="id > 0"))
    mirror.database.execute("CREATE TABLE sales.keyless (v text)")
    mirror.register("sales.keyless", choices=parse_choices([], [], append_only=True))
    exported = run("export", *slot).stdout
    entries = {entry["tables"][0]: entry for entry in tomllib.loads(exported)["register"]}
    listed, filtered = entries["sales.a"], entries["sales.tmp_c"]
    assert entries["sales.keyless"]["append_only"]
    assert (listed["columns_only"], filtered["where"]) == ("id,v", "(id > 0)")
    file = tmp_path / "tables.toml"
    file.write_text(exported, encoding="utf-8")
    same = run("apply", str(file), *slot)
    assert (same.exit_code, same.stdout) == (0, "nothing differs\n"), same.stderr


def test_every_option_about_tables_can_be_declared() -> None:
    assert {"tables", "exclude", "follow_new", "mask", "where", "heap_retention", "profile"} <= set(KEYS)
