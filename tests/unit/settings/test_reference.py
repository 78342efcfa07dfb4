"""Settings as users see them: the reference, the example file, and the metavars in help."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import SecretStr
from typer.testing import CliRunner

from mirror_pump.cli.main import app
from mirror_pump.settings import reference as settings_reference
from mirror_pump.settings.config import USER_SETTINGS, Settings, load_settings
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.settings.units import Unit

_DOCUMENT = Path(__file__).parents[3] / "docs" / "settings.md"

_ENDINGS = {
    "SECONDS": ("_age", "_interval", "_timeout", "_backoff_max", "_wait", "_ready_max_lag", "_within"),
    "SIZE": ("_bytes", "_memory", "_disk"),
    "SHARE": ("_share",),
    "ROWS": ("_rows",),
    "CORES": ("_cores",),
}
"""Metavars of units, and the endings of such options' names."""


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"MIRROR_PUMP_{name.upper()}", raising=False)
    monkeypatch.chdir(tmp_path)


def parameters() -> Iterator[tuple[str, Any]]:
    """Every option and argument of every command, with the command's name."""
    program: Any = typer.main.get_command(app)
    for name, command in program.commands.items():
        yield from ((name, parameter) for parameter in command.params)


def test_the_document_is_what_the_definitions_give() -> None:
    printed = CliRunner().invoke(app, ["config", "--reference"])
    assert printed.exit_code == 0
    assert _DOCUMENT.read_text() == printed.stdout, "mirror-pump config --reference > docs/settings.md"


def test_the_example_parses_as_it_is_and_with_everything_uncommented(tmp_path: Path) -> None:
    text = CliRunner().invoke(app, ["config", "--example"]).stdout
    assert tomllib.loads(text) == {}

    keys = re.findall(r"^# ([a-z_]+) = ", text, re.MULTILINE)
    assert sorted(keys) == sorted(USER_SETTINGS)
    (tmp_path / "mirror-pump.toml").write_text(re.sub(r"^# (?=[a-z_]+ = )", "", text, flags=re.MULTILINE))
    settings = load_settings()
    for name in USER_SETTINGS:
        field = Settings.model_fields[name]
        default = field.get_default(call_default_factory=True, validated_data={})
        if default not in (None, ""):
            assert getattr(settings, name) == default, name
        elif not isinstance(getattr(settings, name), SecretStr):
            assert getattr(settings, name) == field.examples[0] if field.examples else False, name


@pytest.mark.parametrize("name", USER_SETTINGS)
def test_every_key_is_commented_with_value_default_and_meaning(name: str) -> None:
    above = settings_reference.example().partition(f"\n# {name} = ")[0].rpartition("\n\n")[2].splitlines()
    meaning, value = above
    assert meaning == f"# {settings_reference.setting(name).meaning}."
    assert re.fullmatch(r"# Value: .+\. Default: .+\. Environment: MIRROR_PUMP_[A-Z_]+\.", value)


def test_metavars_say_what_is_meant() -> None:
    """Names of each unit end in its own words, and only they have its metavar. A value without a unit has a noun as
    metavar."""
    for command, parameter in parameters():
        name, metavar = f"_{parameter.name}", parameter.metavar
        if metavar is None or parameter.name == "no_wait":
            # Flags have no value, and typer shows the choices of an enumeration.
            continue
        assert metavar not in {"TEXT", "N", "W", "WORD", "FLOAT", "INTEGER"}, (command, name)
        for unit, endings in _ENDINGS.items():
            assert (metavar == unit) is name.endswith(endings), (command, name, metavar)


def test_help_of_an_option_stands_alone() -> None:
    for command, parameter in parameters():
        text = parameter.help or ""
        assert text, (command, parameter.name)
        assert not text.startswith(("...", "…")), (command, parameter.name)
        # Rich takes text in brackets for markup, and leaves it out.
        assert not re.search(r"(?<!\\)\[", text), (command, parameter.name)


def test_every_field_says_what_its_value_is() -> None:
    fields = [(name, Settings.model_fields[name]) for name in USER_SETTINGS]
    for name, field in (*fields, *InternalLimits.model_fields.items()):
        assert [entry for entry in field.metadata if isinstance(entry, Unit)], name


@pytest.mark.parametrize("arguments", [["config"], ["config", "--example", "--reference"]])
def test_config_needs_one_of_its_options(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "--example" in result.stderr


def test_the_example_is_printed_although_the_file_is_broken(tmp_path: Path) -> None:
    (tmp_path / "mirror-pump.toml").write_text("no toml")
    assert CliRunner().invoke(app, ["config", "--example"]).exit_code == 0
