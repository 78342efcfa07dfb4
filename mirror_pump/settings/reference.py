"""Describes each setting from its definition in `config`, for help, the example file and docs/settings.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from mirror_pump.settings.config import CONFIG_FILE, ENV_PREFIX, USER_SETTINGS, Settings
from mirror_pump.settings.units import BYTES, DefaultText, Unit

_GROUPS = {
    "Source": ("dsn", "password_command", "mirror", "slot", "publication"),
    "Lake": ("warehouse", *(name for name in USER_SETTINGS if name.startswith("storage_"))),
    "Monitoring": ("listen", "listen_token", "ready_max_lag"),
    "Logging": ("log_format", "log_level"),
}
_TUNING = "Tuning"
_WITHOUT_OPTION = ("storage_secret_key", "storage_session_token", "listen_token", "load_token")
"""Secrets have no option: every user of a machine can read the command lines of its processes."""

_EXAMPLE_HEAD = f"""\
# {CONFIG_FILE}: settings of mirror-pump, read from the working directory or from --config FILE.
# Command-line options and environment variables override it. Remove the # in front of a key to set it."""

_REFERENCE_HEAD = f"""\
# Settings

`mirror-pump config --reference` writes this page.

A setting is an option of the commands that use it (`--convert-age`), an environment variable
(`{ENV_PREFIX}CONVERT_AGE`), or a key (`convert_age`) of `{CONFIG_FILE}` in the working directory or of the file given
with `--config`. The first of these wins. `mirror-pump config --example > {CONFIG_FILE}` writes a file to start from,
`mirror-pump config --show` prints the values that apply, without secrets, and where each is from. Secrets have no
option, because every user of a machine can read command lines. Sizes are bytes, also as `16MiB` or `256kB`; seconds
are at most 86,400.

Pauses, waiting times and sizes that tests change are variables `{ENV_PREFIX}LIMITS__NAME`, explained in
`mirror_pump/settings/limits.py`. Any version may change them."""

_USUAL_LIMITS = ("to 86,400", "above 0")


@dataclass(frozen=True)
class Setting:
    """The description of one field of Settings."""

    name: str
    meaning: str
    unit: Unit
    default: str
    """The default in the form that a user would write. Empty if there is none."""
    limits: str
    """For example `from 1 to 256`. Empty if there are none."""
    example: str
    """A valid TOML value: the default if there is one."""

    @property
    def option(self) -> str | None:
        """The command-line option. None for secrets."""
        return None if self.name in _WITHOUT_OPTION else "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return ENV_PREFIX + self.name.upper()


def setting(name: str) -> Setting:
    """The description of one field. Each field has a Unit, as a test checks."""
    return _described(name, Settings.model_fields[name])


def _described(name: str, field: FieldInfo) -> Setting:
    units = [entry for entry in field.metadata if isinstance(entry, Unit)]
    assert units, f"{name} has no Unit"
    fixed = next((entry.text for entry in field.metadata if isinstance(entry, DefaultText)), None)
    absent = field.default in (None, "", PydanticUndefined)
    default = fixed if fixed is not None else "" if absent else format_value(field.default)
    value = field.examples[0] if field.examples else field.get_default(call_default_factory=True, validated_data={})
    return Setting(name, field.description or "", units[0], default, _limits(field.metadata), _format_toml(value))


def format_value(value: object) -> str:
    """A value as a user would write it."""
    size = getattr(value, "human_readable", None)
    if size is not None:
        number, unit = str(size(separator=" ")).split(" ")
        return f"{float(number):g}{unit}"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _format_toml(value: object) -> str:
    if isinstance(value, bool):
        return format_value(value)
    is_text = isinstance(value, str) or hasattr(value, "human_readable")
    return json.dumps(format_value(value)) if is_text else str(value)


def _limits(metadata: list[object]) -> str:
    limits = {kind: getattr(entry, kind) for entry in metadata for kind in ("ge", "gt", "le") if hasattr(entry, kind)}
    low = f"from {limits['ge']:,}" if limits.get("ge") else f"above {limits['gt']:,}" if "gt" in limits else ""
    return " ".join(part for part in (low, f"to {limits['le']:,}" if "le" in limits else "") if part)


def groups() -> Iterator[tuple[str, list[Setting]]]:
    """All settings, grouped by subject."""
    grouped = {name for names in _GROUPS.values() for name in names}
    yield from ((title, [setting(name) for name in names]) for title, names in _GROUPS.items())
    yield _TUNING, [setting(name) for name in USER_SETTINGS if name not in grouped]


def example() -> str:
    """A mirror-pump.toml with every setting explained and commented out."""
    lines = [_EXAMPLE_HEAD]
    for title, settings in groups():
        lines += ["", f"# ---- {title} ----"]
        for entry in settings:
            value = entry.unit.name + (f", {entry.limits}" if entry.limits else "")
            lines += [
                "",
                f"# {entry.meaning}.",
                f"# Value: {value}. Default: {entry.default or 'none'}. Environment: {entry.variable}.",
                f"# {entry.name} = {entry.example}",
            ]
    return "\n".join(lines) + "\n"


def _value_cell(entry: Setting) -> str:
    """The words that a value is one of, or its kind; limits that are not the usual ones; and that a secret has no
    option."""
    words = entry.unit.metavar.replace("|", "\\|")
    kind = f"`{words}`" if "|" in words else "size" if entry.unit is BYTES else entry.unit.name
    limits = "" if entry.limits in _USUAL_LIMITS else entry.limits
    return ", ".join(filter(None, (kind, limits, "no option" if entry.name in _WITHOUT_OPTION else "")))


def reference() -> str:
    """The text of docs/settings.md."""
    lines = [_REFERENCE_HEAD]
    for title, settings in groups():
        lines += ["", f"## {title}", "", "| key | value | default | meaning |", "|---|---|---|---|"]
        for entry in settings:
            default = f"`{entry.default}`" if entry.default and " " not in entry.default else entry.default or "none"
            lines.append(f"| `{entry.name}` | {_value_cell(entry)} | {default} | {entry.meaning} |")
    return "\n".join(lines) + "\n"
