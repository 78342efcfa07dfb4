"""Where the values of settings come from: for `mirror-pump config --show`, and for variables that set nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from mirror_pump.runtime.telemetry import redact
from mirror_pump.settings.config import (
    CONFIG_FILE,
    ENV_PREFIX,
    FORMER_SETTINGS,
    USER_SETTINGS,
    Settings,
    load_settings,
    read_environment,
)
from mirror_pump.settings.reference import format_value, groups

_OTHER_VARIABLES = re.compile(
    # Names that `connect` prints, and that tests and this program's limits have.
    r"CATALOG_TOKEN|TEST_\w+|LIMITS(__\w+)?"
    # What Kubernetes gives each container for a service whose name begins like this program's.
    r"|(?:\w+_)?SERVICE_(?:HOST|PORT(?:_\w+)?)|(?:\w+_)?PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)?"
)
_HIDDEN = "***"
_DSN_SECRETS = frozenset({"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"})
"""Parameters of libpq whose values are never shown."""


@dataclass(frozen=True)
class SettingValue:
    """The value of one setting, without secrets, and where it is from, both for people."""

    name: str
    value: str
    source: str


def unknown_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables that look like settings and are none, each with the one that was probably meant, which is empty if none
    is alike."""
    names = {name.upper() for name in USER_SETTINGS}
    for variable in sorted(environment):
        # Their case does not matter.
        prefix, name = variable[: len(ENV_PREFIX)].upper(), variable[len(ENV_PREFIX) :].upper()
        if prefix != ENV_PREFIX or name in names or _OTHER_VARIABLES.fullmatch(name):
            continue
        import difflib

        new_name = FORMER_SETTINGS.get(name.lower())
        alike = difflib.get_close_matches(name, names, 1) if new_name is None else [new_name.upper()]
        yield variable, ENV_PREFIX + alike[0] if alike else ""


def setting_values(config: Path | None, complete: Callable[[Settings], Settings]) -> list[SettingValue]:
    """The values of all settings, in the order of the reference. `complete` adds those that `init` has stored.

    Raises UsageError for wrong values and an unreadable file, and the errors of `complete`.
    """
    given = load_settings(config=config)
    completed = complete(given) if given.dsn else given
    environment = read_environment()
    values = []
    for name in (entry.name for _, settings in groups() for entry in settings):
        value = getattr(completed, name)
        if value != getattr(given, name):
            source = "stored in the database by `mirror-pump init`"
        elif name in environment:
            source = f"environment, {ENV_PREFIX}{name.upper()}"
        elif name in given.model_fields_set:
            source = str(config or CONFIG_FILE)
        else:
            source = "default"
        values.append(SettingValue(name, _shown(name, value), source))
    return values


def _shown(name: str, value: object) -> str:
    if value in (None, ""):
        return "-"
    if name == "dsn":
        return _without_password(str(value))
    if isinstance(value, SecretStr) or not Settings.model_fields[name].repr:
        return _HIDDEN
    return redact(format_value(value))


def _without_password(dsn: str) -> str:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        parameters = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # Nothing tells where its secrets are.
        return _HIDDEN
    shown = {key: str(value) for key, value in parameters.items() if value is not None}
    return make_conninfo("", **(shown | dict.fromkeys(_DSN_SECRETS & shown.keys(), _HIDDEN)))
