"""Makes F reach a WAL position: waits for the pump that runs, or runs one for as long as that takes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from pydantic import SecretStr

from mirror_pump.config import ENV_PREFIX, Settings
from mirror_pump.errors import SourceError
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.ops.wait import wait_for
from mirror_pump.source.connect import connect
from mirror_pump.source.leader import is_led

_PATIENCE = 3600.0
"""Seconds in all: a mirror that is behind by more than this is not verified by waiting."""
_GRACE = 10.0
"""Seconds that our pump has to end when we are interrupted."""
_LOOK_INTERVAL = 5.0
"""Seconds after which it is looked again whether a pump runs."""


def reach(settings: Settings, target: Lsn) -> None:
    """Return once F has passed `target`. Raises SourceError when it does not get there."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        with connect(settings.require_dsn(), autocommit=True) as connection:
            if not is_led(connection, settings.slot):
                try:
                    _pump(settings, target)
                except SourceError:
                    # Another pump may have begun meanwhile: then it is that one's work.
                    if not is_led(connection, settings.slot):
                        raise
        result = wait_for(settings, target, _LOOK_INTERVAL)
        if result.error is None:
            return
        if time.monotonic() > deadline:
            raise result.error


def _pump(settings: Settings, target: Lsn) -> None:
    """A pump in a process of its own, since a process has one Spark and ours has other work for it."""
    environment = dict(os.environ)
    for name in settings.model_fields_set:
        value = getattr(settings, name)
        if value is not None:
            revealed = value.get_secret_value() if isinstance(value, SecretStr) else value
            environment[ENV_PREFIX + name.upper()] = str(revealed)
    # Its last lines become the error's.
    environment[f"{ENV_PREFIX}LOG_FORMAT"] = "human"
    command = [sys.executable, "-m", "mirror_pump.cli", "run", "--no-standby", "--until-lsn", format_lsn(target)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            _, errors = process.communicate()
        except BaseException:
            # It ends in order: a terminal's Ctrl-C has reached it as well.
            process.terminate()
            process.wait(_GRACE)
            raise
    if process.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise SourceError(f"catching up to {format_lsn(target)} failed: {' '.join(lines[-2:])}")
