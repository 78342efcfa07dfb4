"""Reads a compose file as `docker compose` does, and starts its services as processes of this machine.

There are no containers and no names of other hosts: texts of the file are replaced by the test's own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

_VARIABLE = re.compile(r"\$(\$|\{(\w+)(?:(:?[-?])([^}]*))?\})")


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """The value with `${NAME}`, `${NAME:-default}` and `${NAME:?message}` replaced. Raises KeyError with the
    message."""
    if isinstance(value, dict):
        return {key: interpolated(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [interpolated(item, variables) for item in value]
    return _VARIABLE.sub(lambda found: _value(found, variables), value) if isinstance(value, str) else value


def _value(found: re.Match[str], variables: Mapping[str, str]) -> str:
    escaped, name, operator, text = found.groups()
    if escaped == "$":
        return "$"
    value = variables.get(name)
    if value is None or (operator and operator.startswith(":") and not value):
        if operator and operator.endswith("-"):
            return str(text)
        raise KeyError(f"{name}: {text}")
    return value


def load(file: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """The compose file, with the variables of its .env."""
    document: dict[str, Any] = interpolated(yaml.safe_load(file.read_text(encoding="utf-8")), variables)
    return document


class Services:
    """The services of a compose file, as processes."""

    def __init__(
        self,
        document: Mapping[str, Any],
        entrypoint: Sequence[str],
        replacements: Mapping[str, str],
        environment: Mapping[str, str],
        directory: Path,
    ) -> None:
        """`entrypoint`: that of the image. `replacements`: texts to replace in commands and environments; where two
        begin at the same place, the first one counts. `environment`: variables of the image and of this machine. Logs
        are written to `directory`."""
        self._services = document["services"]
        self._entrypoint = list(entrypoint)
        self._replacements = dict(replacements)
        self._environment = dict(environment)
        self._directory = directory
        self._started: list[subprocess.Popen[bytes]] = []

    def command(self, name: str, *arguments: str) -> list[str]:
        """The command line of a service. `arguments` replace its command, as with `docker compose run`."""
        service = self._services[name]
        given = list(arguments) or service.get("command", [])
        # The entrypoints of third-party images are not known.
        entrypoint = service.get("entrypoint", self._entrypoint if "build" in service else [])
        return self._replaced([*entrypoint, *given])

    def environment(self, name: str) -> dict[str, str]:
        """The environment of a service."""
        own: dict[str, str] = self._services[name].get("environment", {})
        return self._environment | dict(zip(own, self._replaced(list(own.values())), strict=True))

    def start(
        self, name: str, extra: Mapping[str, str] = MappingProxyType({}), log: str = ""
    ) -> subprocess.Popen[bytes]:
        """Starts a service. `extra`: changes to its environment."""
        with (self._directory / f"{log or name}.log").open("ab") as output:
            process = subprocess.Popen(
                self.command(name),
                env={**self.environment(name), **extra},
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def run(self, name: str, *arguments: str) -> str:
        """Runs a service to its end and returns its stdout. Raises AssertionError unless it ends with 0."""
        done = subprocess.run(
            self.command(name, *arguments),
            env=self.environment(name),
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{name} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    def healthy(self, name: str, extra: Mapping[str, str] = MappingProxyType({})) -> bool:
        """The present result of the service's health check."""
        kind, *command = self._services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        return self.succeeds(name, command, extra)

    def succeeds(self, name: str, command: Sequence[str], extra: Mapping[str, str] = MappingProxyType({})) -> bool:
        """Whether a command ends with 0 in the service's environment."""
        environment = {**self.environment(name), **extra}
        command = self._replaced(command)
        return subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False).returncode == 0

    def kill(self) -> None:
        """Ends all processes that were started."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _replaced(self, texts: Sequence[str]) -> list[str]:
        # In one pass, since inserted texts may contain texts to replace.
        found = re.compile("|".join(re.escape(old) for old in self._replacements))
        return _without_tini([found.sub(lambda match: self._replacements[match[0]], text) for text in texts])


def _without_tini(command: list[str]) -> list[str]:
    """Removes the image's init process, which only passes on signals."""
    return command[2:] if command[:2] == ["tini", "--"] else command
