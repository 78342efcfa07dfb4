"""What each setting is, from its definition in mirror_pump.config: for help, an example file and docs/settings.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic_core import PydanticUndefined

from mirror_pump.config import CONFIG_FILE, ENV_PREFIX, DefaultText, Settings, Unit

_GROUPS = {
    "Source": ("dsn", "slot", "publication"),
    "Lake": ("warehouse", *(name for name in Settings.model_fields if name.startswith("storage_"))),
    "Logging": ("log_format", "log_level"),
}
_TUNING = "Tuning"
_WITHOUT_OPTION = ("storage_secret_key", "storage_session_token")
"""Everybody on a machine can read a process's command line."""

_EXAMPLE_HEAD = f"""\
# {CONFIG_FILE}: settings of mirror-pump, read from the working directory or from --config FILE.
# Options of the command line and environment variables go over it. Remove the # in front of a key to set it."""

_REFERENCE_HEAD = f"""\
# Settings

Made by `mirror-pump config --reference` from the definitions in `mirror_pump/config.py`: change those.

Each setting can be given as an option of the commands that it concerns (`mirror-pump COMMAND --help`), as an
environment variable, which is `{ENV_PREFIX}` and the key in capitals (`{ENV_PREFIX}BATCH_AGE`), or as a key of
`{CONFIG_FILE}` in the working directory (or of the file that `--config` names). The command line wins, then the
environment. `mirror-pump config --example > {CONFIG_FILE}` writes a file to begin with, in which everything is
commented out. Secrets have no option: everybody on a machine can read a process's command line."""


@dataclass(frozen=True)
class Setting:
    """One field of Settings, as people are told of it."""

    name: str
    meaning: str
    unit: Unit
    default: str
    """Of sizes and numbers as they would be written; empty if there is none."""
    limits: str
    """Such as `from 1 to 256`; empty without any."""
    example: str
    """A TOML value that it may have: the default if there is one."""

    @property
    def option(self) -> str | None:
        """The command-line option; None for secrets."""
        return None if self.name in _WITHOUT_OPTION else "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return ENV_PREFIX + self.name.upper()


def setting(name: str) -> Setting:
    """The description of one field. Each field has a Unit (a test sees to that)."""
    field = Settings.model_fields[name]
    units = [entry for entry in field.metadata if isinstance(entry, Unit)]
    assert units, f"{name} has no Unit"
    fixed = next((entry.text for entry in field.metadata if isinstance(entry, DefaultText)), None)
    absent = field.default in (None, "", PydanticUndefined)
    default = fixed if fixed is not None else "" if absent else _written(field.default)
    value = field.examples[0] if field.examples else field.get_default(call_default_factory=True, validated_data={})
    return Setting(name, field.description or "", units[0], default, _limits(field.metadata), _toml(value))


def _written(value: object) -> str:
    size = getattr(value, "human_readable", None)
    if size is not None:
        number, unit = str(size(separator=" ")).split(" ")
        return f"{float(number):g}{unit}"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return _written(value)
    return json.dumps(_written(value)) if isinstance(value, str) or hasattr(value, "human_readable") else str(value)


def _limits(metadata: list[object]) -> str:
    found = {kind: getattr(entry, kind) for entry in metadata for kind in ("ge", "gt", "le") if hasattr(entry, kind)}
    low = f"from {found['ge']:,}" if found.get("ge") else f"above {found['gt']:,}" if "gt" in found else ""
    return " ".join(part for part in (low, f"to {found['le']:,}" if "le" in found else "") if part)


def groups() -> Iterator[tuple[str, list[Setting]]]:
    """All settings, by what they are about."""
    grouped = {name for names in _GROUPS.values() for name in names}
    yield from ((title, [setting(name) for name in names]) for title, names in _GROUPS.items())
    yield _TUNING, [setting(name) for name in Settings.model_fields if name not in grouped]


def example() -> str:
    """A mirror-pump.toml in which everything is commented out, and says what it is."""
    lines = [_EXAMPLE_HEAD]
    for title, settings in groups():
        lines += ["", f"# ---- {title} ----"]
        for each in settings:
            limits = f", {each.limits}" if each.limits else ""
            lines += [
                "",
                f"# {each.meaning}.",
                f"# Value: {each.unit.name}{limits}. Default: {each.default or 'none'}. Environment: {each.variable}.",
                f"# {each.name} = {each.example}",
            ]
    return "\n".join(lines) + "\n"


def reference() -> str:
    """docs/settings.md."""
    lines = [_REFERENCE_HEAD]
    for title, settings in groups():
        lines += ["", f"## {title}", "", "| key | option | value | default | meaning |", "|---|---|---|---|---|"]
        for each in settings:
            option = f"`{each.option} {each.unit.metavar}`".replace("|", "\\|") if each.option else "none"
            unit = each.unit.name + (f", {each.limits}" if each.limits else "")
            default = f"`{each.default}`" if each.default and " " not in each.default else each.default or "none"
            lines.append(f"| `{each.name}` | {option} | {unit} | {default} | {each.meaning} |")
    lines += [
        "",
        f"The environment variable of a key is `{ENV_PREFIX}` and the key in capitals: `{ENV_PREFIX}BATCH_AGE`.",
    ]
    return "\n".join(lines) + "\n"
