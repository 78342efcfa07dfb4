"""`apply` and `export`: what a file declares is what is mirrored, and nothing leaves unasked."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from orjson import loads

from mirror_pump.cli.commands.apply import KEYS
from mirror_pump.model import FeedMode, TableMode
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.ops.setup.profiles import add_profile, described_profile
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand
from tests.support.table_wishes import parse_choices

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
        "public.events", retention=RetentionOptions(lag="5000", premake=2, drop_grace="90s", lake_partition="1000")
    )
    tiered = RetentionOptions(lag="500", mode=TableMode.TIERED, lake_retention="90000", detach=True)
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
    assert run("register", "sales.*", "--no-follow-new", *slot).exit_code == 0
    again = run("apply", str(file), "--yes", "--no-wait", *slot)
    assert again.exit_code == 0, again.stderr
    mirror.catch_up()
    assert _registered(mirror) == before
    assert run("export", *slot).stdout == exported.stdout
    mirror.assert_equal("sales.a", "public.plain", "public.events")
    verified = run("verify", "public.documents", "--json", *slot)
    assert loads(verified.stdout)["tables"][0]["equal"], verified.stderr


def test_the_table_that_leaves_is_not_another_one_of_its_name(mirror: Mirror, run: RunCommand, tmp_path: Path) -> None:
    """The pump has not followed the renames yet."""
    mirror.register("sales.a", "sales.b")
    mirror.catch_up()
    mirror.database.execute("ALTER TABLE sales.a RENAME TO a_old", "ALTER TABLE sales.b RENAME TO a")
    file = tmp_path / "tables.toml"
    file.write_text('[[register]]\ntables = ["sales.a"]\n', encoding="utf-8")
    applied = run("apply", str(file), "--yes", "--no-wait", "--slot", mirror.settings.slot)
    assert applied.exit_code == 0, applied.stderr
    assert "unregister sales.a_old\n" in applied.stdout
    assert mirror.database.rows("SELECT table_id = 'sales.a'::regclass::oid::bigint FROM modak.tables") == [(True,)]
    mirror.catch_up()
    mirror.assert_equal("sales.a")


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
    assert "sales.b is registered without --mask" in errors
    assert "nothing" in errors
    assert _registered(mirror) == ["public.plain", "sales.a", "sales.b"]


_REFUSED = (
    ("sales.keyless", "", "refused: sales.keyless has no primary key"),
    ("sales.a", 'mask = ["nope=null"]', "nope of mask is not a column"),
    ("sales.b", 'exclude_column = ["nope"]', "nope of exclude_column is not a column"),
    ("sales.tmp_c", 'columns_only = "id,nope"', "nope of columns_only is not a column"),
    ("documents", 'sort_by = "nope"', "has no mirrored column nope, which sort_by names"),
    ("sales.d", 'profile = "third"', "there is no storage profile third"),
    ("events", 'heap_retention = "soon"', "heap_retention"),
    ("old", 'changes = "rows"', "would have no old rows"),
    ("sales.orderz", "", "tables: refused: there is no table sales.orderz"),
)
"""Tables, with keys of their entries and what refuses them."""


def test_new_tables_are_looked_at_before_anything_is_done(mirror: Mirror, run: RunCommand, tmp_path: Path) -> None:
    """A dry run says what `apply` says, with file, entry and key. The rest is done."""
    slot = ("--slot", mirror.settings.slot)
    mirror.database.execute("CREATE TABLE sales.keyless (v text)", "CREATE TABLE sales.d (id int PRIMARY KEY)")
    file = tmp_path / "tables.toml"
    entries = [f'[[register]]\ntables = ["{table}"]\n{keys}\n' for table, keys, _ in _REFUSED]
    file.write_text("\n".join(('[[register]]\ntables = ["plain"]', *entries)), encoding="utf-8")
    for options in (("--dry-run",), ("--no-wait",)):
        result = run("apply", str(file), *options, *slot)
        errors = [" ".join(line.split()) for line in result.stderr.splitlines()]
        assert (result.exit_code, result.stdout) == (1, "register public.plain\n"), errors
        for number, (_, _, error) in enumerate(_REFUSED, 2):
            assert any(f"{file}, entry {number}: " in line and error in line for line in errors), (error, errors)
        assert _registered(mirror) == ([] if "--dry-run" in options else ["public.plain"])
    mirror.catch_up()
    mirror.assert_equal("public.plain")


def test_what_a_registered_table_cannot_become_is_said_before_anything_is_done(
    mirror: Mirror, run: RunCommand, tmp_path: Path
) -> None:
    slot = ("--slot", mirror.settings.slot)
    mirror.register("sales.a", feed=FeedOptions(FeedMode.KEYS))
    mirror.register("sales.b", "public.plain")
    file = tmp_path / "tables.toml"
    file.write_text(
        '[[register]]\ntables = ["sales.a"]\nchanges = "rows"\n[[register]]\ntables = ["sales.b"]\nsort_by = "nope"\n'
        '[[register]]\ntables = ["sales.orderz"]\n[[register]]\ntables = ["nowhere.*"]\nfollow_new = true\n'
        'profile = "third"\n',
        encoding="utf-8",
    )
    planned = run("apply", str(file), "--dry-run", *slot)
    errors = " ".join(planned.stderr.split())
    assert (planned.exit_code, planned.stdout) == (1, ""), errors
    assert f"{file}, entry 1: differs: the change feed of sales.a is of --changes=keys" in errors
    assert f"{file}, entry 2: differs: sales.b has no mirrored column nope" in errors
    assert f"{file}, entry 4: follow: there is no storage profile third" in errors
    # A misspelled name may be that of the table that would leave.
    assert "public.plain stays while the file has names that mean no table" in errors
    assert run("apply", str(file), "--yes", *slot).exit_code == 1
    assert _registered(mirror) == ["public.plain", "sales.a", "sales.b"]
    mirror.catch_up()
    mirror.assert_equal("sales.a", "sales.b")


@pytest.mark.parametrize("content", ["", "# no tables\n", '[[register]]\ntables = ["nothing.*"]\n'])
def test_a_file_without_a_table_ends_no_mirror_by_accident(
    mirror: Mirror, run: RunCommand, tmp_path: Path, content: str
) -> None:
    """`export > tables.toml` leaves an empty file while the server is down."""
    slot = ("--slot", mirror.settings.slot)
    file = tmp_path / "tables.toml"
    file.write_text(content, encoding="utf-8")
    assert run("apply", str(file), *slot).stdout == "nothing differs\n"
    mirror.register("sales.a", "sales.b")
    mirror.catch_up()
    for options in (("--yes",), ("--dry-run",)):
        refused = run("apply", str(file), *options, *slot)
        assert refused.exit_code == 2
        assert "declares no table that exists" in refused.stderr
    assert _registered(mirror) == ["sales.a", "sales.b"]
    ended = run("apply", str(file), "--end-mirror-of-all-tables", "--yes", *slot)
    assert (ended.exit_code, _registered(mirror)) == (0, []), ended.stderr


def test_an_unchanged_export_changes_nothing(mirror: Mirror, run: RunCommand, tmp_path: Path) -> None:
    """Also with tables that match a followed pattern and are refused, were unregistered, or rest."""
    slot = ("--slot", mirror.settings.slot)
    mirror.database.execute("CREATE TABLE sales.keyless (v text)", "CREATE TABLE sales.gone (id int PRIMARY KEY)")
    assert run("register", "sales.*", "--follow-new", "--no-wait", *slot).exit_code == 1
    mirror.catch_up()
    mirror.unregister("sales.gone")
    assert run("pause", "sales.b", *slot).exit_code == 0
    before = _registered(mirror)
    file = tmp_path / "tables.toml"
    file.write_text(run("export", *slot).stdout, encoding="utf-8")
    for options in (("--dry-run",), ("--yes", "--no-wait")):
        same = run("apply", str(file), *options, *slot)
        assert (same.exit_code, same.stdout, same.stderr) == (0, "nothing differs\n", "")
    assert _registered(mirror) == before
    mirror.assert_equal("sales.a")


_WRONG_FILES: list[tuple[str, str]] = [
    ("not toml", "cannot be read"),
    ("[tables]\nx = 1\n", "has more than [[register]] entries: tables"),
    ('[[register]]\ntables = ["plain"]\nmasks = ["v=null"]\n', "entry 1: unknown key masks"),
    ('[[register]]\ntables = "plain"\n', "entry 1: tables"),
    ('[[register]]\ntables = ["plain"]\nmode = "tired"\n', "entry 1: mode"),
    ("[[register]]\npremake = 1\n", "entry 1: name a TABLE"),
    (
        '[[register]]\ntables = ["plain"]\n[[register]]\ntables = ["public.plain"]\n',
        "tables.toml, entry 2: tables: public.plain is declared twice: tables.toml, entry 1 names it too",
    ),
    (
        '[[register]]\ntables = ["sales.a", "sales.b"]\nappend_only = true\n',
        "append_only does not go with several tables",
    ),
    ('[[register]]\ntables = ["sales.*"]\nwhere = "id > 0"\n', "where does not go with several tables"),
    ('[[register]]\ntables = ["sales.a"]\nmask = ["v=rot13"]\n', "entry 1: mask v: not a mask"),
    ('[[register]]\ntables = ["plain"]\nformat_version = 7\n', "entry 1: format_version"),
    ('[[register]]\ntables = ["events"]\nheap_retention = "1"\npremake = -1\n', "entry 1: premake"),
    ('[[register]]\ntables = ["sales.a"]\nno_copy = true\n', "entry 1: unknown key no_copy"),
    ('[[register]]\ntables = ["sales.a"]\nkeep_changes = "1d"\n', "entry 1: keep_changes requires changes"),
    ('[[register]]\ntables = ["plain"]\nmask = ["id=hmac(env:NO_SUCH_KEY)"]\n', "the key of a mask is missing"),
]


def test_wrong_files(mirror: Mirror, run: RunCommand, tmp_path: Path) -> None:
    """What ends with 2 has changed nothing, though the file lacks a table that is registered."""
    slot = ("--slot", mirror.settings.slot)
    mirror.register("sales.tmp_c")
    before = run("export", *slot).stdout
    file = tmp_path / "tables.toml"
    for content, error in _WRONG_FILES:
        file.write_text(content, encoding="utf-8")
        for options in (("--dry-run",), ("--yes", "--no-wait")):
            result = run("apply", str(file), *options, *slot)
            errors = " ".join(result.stderr.replace(str(file), file.name).split())
            assert (result.exit_code, error in errors) == (2, True), (content, result.stderr)
            assert run("export", *slot).stdout == before
    mirror.catch_up()


def test_what_is_refused_midway_is_a_failure_and_no_wrong_usage(
    mirror: Mirror, run: RunCommand, tmp_path: Path
) -> None:
    """No pump runs, and the executors that would copy the tables cannot reach the warehouse."""
    mirror.register("sales.b")
    mirror.catch_up()
    file = tmp_path / "tables.toml"
    file.write_text('[[register]]\ntables = ["plain"]\n[[register]]\ntables = ["sales.a"]\n', encoding="utf-8")
    options = ("--yes", "--master", "spark://127.0.0.1:1", "--slot", mirror.settings.slot)
    done = run("apply", str(file), *options)
    assert (done.exit_code, done.stderr.count("is on a disk of this machine")) == (1, 2), done.stderr
    assert _registered(mirror) == ["public.plain", "sales.a"]
    mirror.catch_up()
    mirror.assert_equal("public.plain", "sales.a")


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
