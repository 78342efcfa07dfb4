"""An option of a table is one entry: command line, files and documentation follow from it."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mirror_pump.cli.arguments.register_options import RegisterOptions
from mirror_pump.cli.commands.apply import KEYS, read_declaration
from mirror_pump.cli.main import MODULES, PANELS, app
from mirror_pump.errors import UsageError
from mirror_pump.model import TableMode
from mirror_pump.ops.register.table_wish import TableOptions, wish_of
from mirror_pump.source.options.option_values import command_text, given_keys
from mirror_pump.source.options.table_option import FOLLOW_NEW, SEVERAL_TABLES, Panel, TableOption
from mirror_pump.source.options.table_options import BY_KEY, OPTIONS
from mirror_pump.source.relations.column_texts import list_text, parse_list
from tests.support.table_options_page import PAGE, written

_PRODUCT = Path(__file__).parents[3] / "mirror_pump"
_ROOMS = ("cli", "ops/register", "ops/resync", "source/relations", "pipeline/schema")
"""What handles options."""
_LISTED = 3
"""So many keys of options in one tuple, list, set or dict are a list of options."""
_NOWHERE = ("--dsn", "host=127.0.0.1 port=1")
"""No server listens there: what is refused before a connection ends with 2."""
_MOST_NEEDED = {
    *("--all", "--exclude", "--follow-new", "--no-wait", "--dry-run"),
    *("--mask", "--where", "--partition-by", "--changes", "--heap-retention"),
}
_TYPED = {
    "column": ["a=string"],
    "exclude_column": ["a"],
    "mask": ["a=null"],
    "columns_only": "a",
    "where": "a > 0",
    "partition_by": "day(a)",
    "sort_by": "a desc",
    "profile": "second",
    "changes": "keys",
    "keep_changes": "90d",
    "snapshot_every": "1 day",
    "mode": TableMode.TIERED,
    "tier_key": "a",
    "lag": "10",
    "lake_retention": "90",
    "heap_retention": "10",
    "width": "1d",
    "drop_grace": "1h",
    "lake_partition": "day",
}
"""Values as they are typed, but of numbers and switches."""


def _typed(key: str) -> object:
    option = BY_KEY[key]
    return _TYPED.get(key, True if option.kind is bool else option.highest)


def _names(keys: tuple[str, ...]) -> list[str]:
    return ["sales.*"] if FOLLOW_NEW in keys else ["a", "b"] if SEVERAL_TABLES in keys else ["a"]


def _refusal(*keys: str) -> str:
    """Why `register` refuses the options."""
    options = command_text({key: _typed(key) for key in keys if key in BY_KEY})
    arguments = [*_names(keys), *(["--follow-new"] if FOLLOW_NEW in keys else []), *shlex.split(options)]
    result = CliRunner().invoke(app, ["register", *_NOWHERE, *arguments])
    assert result.exit_code == 2, result.stderr
    return result.stderr


def _refusal_of_file(directory: Path, *keys: str) -> str:
    """Why `apply` refuses a file with the options."""
    values = {key: _typed(key) for key in keys if key in BY_KEY} | ({FOLLOW_NEW: True} if FOLLOW_NEW in keys else {})
    texts = {
        key: str(value).lower() if isinstance(value, bool) else repr(str(value) if key == "mode" else value)
        for key, value in values.items()
    }
    file = directory / "tables.toml"
    lines = [f"tables = {_names(keys)}", *(f"{key} = {text}" for key, text in texts.items())]
    file.write_text("\n".join(("[[register]]", *lines)), encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        read_declaration(file)
    assert "tables.toml, entry 1: " in str(refused.value)
    return str(refused.value)


def _pairs() -> Iterator[tuple[str, str]]:
    for option in OPTIONS:
        for conflict in option.conflicts:
            yield from ((option.key, other) for other in conflict.others)


@pytest.mark.parametrize(("key", "other"), list(_pairs()))
def test_a_refused_pair_is_refused_before_anything_is_done(key: str, other: str, tmp_path: Path) -> None:
    required = [name for each in (key, other) if each in BY_KEY for name in BY_KEY[each].requires[:1]]
    keys = tuple(dict.fromkeys((*required, key, other)))
    assert "does not go with" in _refusal(*keys)
    assert "does not go with" in _refusal_of_file(tmp_path, *keys)


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.requires], ids=lambda option: option.key)
def test_an_option_that_lacks_another_is_refused(option: TableOption, tmp_path: Path) -> None:
    assert f"{option.name} requires " in _refusal(option.key)
    assert f"{option.key} requires " in _refusal_of_file(tmp_path, option.key)


def test_each_entry_is_on_the_command_line_in_files_and_in_a_wish() -> None:
    shown = CliRunner().invoke(app, ["register", "--help"], env={"COLUMNS": "200"}).stdout
    for option in OPTIONS:
        assert f"{option.flag} " in shown
        assert option.key in KEYS
        wish = wish_of({key: _typed(key) for key in (*option.requires[:1], option.key)})
        assert option.key == "tier_key" or option.of_wish(wish), option.key
        assert option.of_wish(TableOptions()) in (None, option.default, (), {}, frozenset()), option.key


@pytest.mark.parametrize("key", ["where", "columns_only"])
def test_spaces_alone_choose_nothing(key: str) -> None:
    typed = {key: " "}
    assert not given_keys(typed)
    assert wish_of({**typed, "mode": TableMode.TIERED}, [SEVERAL_TABLES]).choices == TableOptions().choices


def test_a_tiered_table_without_a_lag_has_none() -> None:
    wish = wish_of({"mode": TableMode.TIERED, "lag": ""})
    assert wish.retention is not None
    assert wish.retention.lag == "0"


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "a, b", 'a"b', " a"])
def test_a_list_of_columns_is_read_as_it_is_printed(name: str) -> None:
    names = frozenset({"id", name.strip()})
    assert parse_list(list_text(sorted(names))) == names


def test_a_line_end_without_quotes_is_refused() -> None:
    with pytest.raises(UsageError, match="a line end"):
        parse_list("id,a\nb")


def test_no_other_module_lists_options() -> None:
    lists = []
    for path in sorted(path for room in _ROOMS for path in (_PRODUCT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Tuple(elts=names) | ast.List(elts=names) | ast.Set(elts=names) | ast.Dict(keys=names):
                    texts = {name.value for name in names if isinstance(name, ast.Constant)}
                    if len(options := [option.key for option in OPTIONS if option.key in texts]) >= _LISTED:
                        lists.append(f"{path.relative_to(_PRODUCT)}:{node.lineno}: {options}")
    assert not lists, "\n".join(lists)


def test_no_option_of_the_command_is_one_of_tables() -> None:
    assert not set(RegisterOptions.__dataclass_fields__) & BY_KEY.keys()


def test_the_page_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "python -m tests.support.table_options_page"


def _panels(*command: str) -> dict[str, set[str]]:
    """The first words of the lines of a help text, by its panels."""
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).stdout
    panels: dict[str, set[str]] = {}
    panel = ""
    for line in shown.splitlines():
        if line.startswith("╭─"):
            panel = line.strip("╭╮─ ")
        elif line.startswith("│ ") and line[2] != " ":
            panels.setdefault(panel, set()).add(line[2:].split()[0])
    return panels


def test_what_most_people_need_comes_first() -> None:
    panels = _panels("register")
    assert panels["Options"] == {*_MOST_NEEDED, "--help"}
    assert panels.keys() > {panel.value for panel in Panel}


def test_commands_are_grouped() -> None:
    panels = _panels()
    assert {panel: set(commands) for panel, commands in PANELS.items()} == {name: panels[name] for name in PANELS}
    assert "Commands" not in panels
    assert set(MODULES) == set().union(*PANELS.values())
