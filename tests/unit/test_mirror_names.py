"""Names that each mirror has for itself: statements have them by their marks, and what users wrote stays as it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import sql
from mirror_pump.cli.main import MODULES
from mirror_pump.database.mirror_dsn import mirror_of, with_mirror
from mirror_pump.errors import TableError, UsageError, speak_of, speaking_of
from mirror_pump.settings.config import Settings, load_settings
from mirror_pump.tables.catalogs.catalog_uris import CatalogUri
from sql.mirror_names import COMMANDS, SCHEMA, SUFFIX, marked, of_mirror, spoken

_ROOT = Path(__file__).parents[2]
_STATEMENT = re.compile(
    r"^\s*(?:SELECT|INSERT|UPDATE|DELETE|LOCK|WITH|GRANT|CREATE|ALTER|DROP)\b.*(?<!\w)modak(?!\w)"
    r"|(?:FROM|JOIN|INTO|UPDATE) modak\.|'modak(?:\.\w+)?'",
    re.DOTALL,
)
_NOT_OF_ONE_MIRROR = {
    "ops/setup/undo.py": "the lock that all mirrors share",
    "source/catalog/catalog_functions.py": "finds any mirror's in an error",
    "source/catalog/server_change.py": "a statement that is printed",
    "testing/demo.py": "the demo's mirror has no name",
    "testing/mirror.py": "is marked where it is run",
    "testing/verification.py": "the same",
}
_PRINTS = {"print", "say_lines", "write", "say_always"}
_WITHOUT_MIRROR = {"config", "lake"}
"""Commands that are about no mirror."""


def _texts() -> Iterator[tuple[str, str]]:
    """The texts of the program but its documentation, each with its module."""
    for path in sorted((_ROOT / "mirror_pump").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        documentation = {node.value for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
                yield path.relative_to(_ROOT / "mirror_pump").as_posix(), node.value


def test_no_statement_names_a_schema_without_a_mark() -> None:
    """It would run in the catalog of the mirror without a name, whichever mirror it is for."""
    named = [(module, text) for module, text in _texts() if _STATEMENT.search(text)]
    assert {module for module, _ in named} == set(_NOT_OF_ONE_MIRROR)


@pytest.mark.parametrize("kind", ["queries", "functions", "migrations"])
def test_no_sql_of_a_named_mirror_names_that_without_a_name(kind: str) -> None:
    for path in (_ROOT / "sql" / kind).glob("*.sql"):
        text = path.read_text(encoding="utf-8")
        named = of_mirror(marked(text), "x")
        assert not re.search(
            r"(?<!\w)modak(?!\w)|zz_modak_(?!x_)|mirror_pump_(?:ddl|drop|rewrite|truncate)\b", named
        ), path
        assert of_mirror(marked(text), None) == text, path


def test_named_statements_are_marked() -> None:
    assert f"{SCHEMA}.mirror_secret" in sql.queries("shape")["secret"]


def test_marks_are_put_behind_names_of_ours() -> None:
    text = "SELECT 'zz_modak_row' FROM modak.tables, modak_events, t.modak WHERE x = 'modak.delta'"
    assert of_mirror(marked(text), "b") == (
        "SELECT 'zz_modak_b_row' FROM modak_b.tables, modak_events, t.modak WHERE x = 'modak_b.delta'"
    )
    assert SUFFIX not in of_mirror(marked(text), "b")


def test_every_command_is_printed_for_its_mirror() -> None:
    plain = [name for name in MODULES if name not in _WITHOUT_MIRROR and name not in ("follow", "moment", "profile")]
    assert sorted(COMMANDS.split("|")) == sorted(plain)
    for name in plain:
        assert spoken(f"run `mirror-pump {name}`", "b") == f"run `mirror-pump {name} --mirror b`"
    assert spoken("mirror-pump profile set-default NAME", "b") == "mirror-pump profile set-default --mirror b NAME"
    for text in ("mirror-pump runs", "mirror-pump init --mirror a"):
        assert spoken(text, "b") == text


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("modak.mirror_secret is empty", "modak_b.mirror_secret is empty"),
        ("schema modak: created", "schema modak_b: created"),
        ('"modak.x" of public.modak', '"modak.x" of public.modak'),
        ("'modak.delta' is a key", "'modak.delta' is a key"),
        ("modak.transactions has no change feed", "modak.transactions has no change feed"),
        ("modak.mirror_migrations, modak.events()", "modak_b.mirror_migrations, modak.events()"),
        ("modak is not mirrored; modak_events is", "modak is not mirrored; modak_events is"),
    ],
)
def test_names_of_users_are_printed_as_they_are(text: str, named: str) -> None:
    assert spoken(text, "b") == named
    assert spoken(text, None) == text


def test_commands_are_printed_by_what_names_their_mirror() -> None:
    """`say` and `remark` do. Other ways to print are for data, which stays as it is."""
    printed = []
    for path in sorted((_ROOT / "mirror_pump").rglob("*.py")):
        if path.name.startswith("demo"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = getattr(node, "func", None)
            if getattr(called, "attr", getattr(called, "id", "")) in _PRINTS:
                texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                printed += [(path.name, text) for text in texts if isinstance(text, str) and marked(text) != text]
    assert not printed


def test_errors_of_a_call_are_about_its_mirror() -> None:
    with speaking_of("b"):
        assert TableError("", "run `mirror-pump status`").remedy == "run `mirror-pump status --mirror b`"
    assert TableError("", "run `mirror-pump status`").remedy == "run `mirror-pump status`"


def test_errors_are_about_the_mirror_of_the_command() -> None:
    speak_of("b")
    try:
        error = TableError("modak.delta is locked", "run `mirror-pump status`")
    finally:
        speak_of(None)
    assert (str(error), error.remedy) == ("modak_b.delta is locked", "run `mirror-pump status --mirror b`")
    assert str(TableError("modak.delta is locked")) == "modak.delta is locked"


@pytest.mark.parametrize(("mirror", "name"), [(None, "modak.delta"), ("b", "modak_b.delta")])
def test_no_error_has_a_mark(mirror: str | None, name: str) -> None:
    """Errors are stored, and no text of PostgreSQL's has the character."""
    speak_of(mirror)
    try:
        error = TableError(f"a row of {SCHEMA}.delta", marked("see modak.delta"))
    finally:
        speak_of(None)
    assert (str(error), error.remedy) == (f"a row of {name}", f"see {name}")


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:p@h/d",
        "postgresql://u:p?w@h:1/d?application_name=x",
        "postgresql://h",
        "postgresql://h/d?",
        "postgresql://h/d?connect_timeout=1&",
        "host=h dbname='a b' options='-c x=1'",
        "host=h",
        "",
    ],
)
def test_a_connection_string_says_its_mirror(dsn: str) -> None:
    named = with_mirror(dsn, "b")
    before, after = conninfo_to_dict(dsn), conninfo_to_dict(named)
    assert mirror_of(named) == "b"
    assert mirror_of(dsn) is None
    assert with_mirror(named, "b") == named
    assert str(after.pop("options")).startswith(str(before.pop("options", "")))
    assert after == before


def test_a_connection_string_cannot_bring_sql() -> None:
    with pytest.raises(psycopg.ProgrammingError, match="no name of a mirror"):
        mirror_of("options='-c mirror_pump.mirror=x;DROP'")


@pytest.mark.parametrize(
    "dsn",
    [
        "host=h options='-c mirror_pump.mirror=b'",
        "host=h options=--MIRROR-pump.mirror=b",
        "postgresql://h/d?options=-c%20mirror%5Fpump.mirror%3Db",
        "postgresql://h/d?option%73=-cmirror_pump.mirror%3DB",
    ],
)
def test_the_option_stands_for_the_setting_in_no_connection_string(dsn: str) -> None:
    """Slot, publication and printed commands would be those of the mirror without a name."""
    with pytest.raises(UsageError, match=r"sets mirror_pump\.mirror"):
        Settings(dsn=dsn).require_dsn()


def test_what_is_no_connection_string_stays() -> None:
    assert with_mirror("postgresql://[", "b") == "postgresql://["


def test_a_named_mirror_has_a_slot_and_a_publication_of_its_own() -> None:
    named, chosen, plain = (load_settings(options) for options in ({"mirror": "b"}, {"mirror": "b", "slot": "s"}, {}))
    assert (named.slot, named.publication) == ("mirror_pump_b", "mirror_pump_b")
    assert (chosen.slot, plain.slot, plain.publication) == ("s", "mirror_pump", "mirror_pump")
    assert "slot" not in named.model_fields_set
    assert mirror_of(Settings(dsn="host=h", mirror="b").require_dsn()) == "b"
    assert Settings(dsn="host=h").require_dsn() == "host=h"


@pytest.mark.parametrize("name", ["", "B", "a-b", "a.b", "x" * 33])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(
        UsageError, match=r"--mirror: a mirror's name has 1 to 32 characters[^;]*; leave it out for none$"
    ):
        load_settings({"mirror": name})


def test_the_longest_names_fit() -> None:
    text = "zz_modak_truncate mirror_pump_truncate mirror_pump_rewrite"
    assert max(map(len, of_mirror(marked(text), "x" * 32).split())) <= 63


def test_a_database_that_a_catalog_names_is_read_without_the_name() -> None:
    """The mirror of the settings is one of their own database."""
    opened = []

    def stored(settings: Settings) -> Settings:
        opened.append((settings.require_dsn(), settings.mirror))
        return settings.model_copy(update={"warehouse": "file:///lake"})

    settings = Settings(dsn="host=h", mirror="b")
    for uri in ("postgres", "postgresql://other/d"):
        CatalogUri.parse(uri).open(settings, stored, create=False).close()
    assert opened == [(with_mirror("host=h", "b"), "b"), ("postgresql://other/d", None)]
