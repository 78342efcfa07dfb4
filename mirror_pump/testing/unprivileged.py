"""Runs the server's programs as a user that postgres accepts, since it refuses to run as root."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO

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

    def own(self, path: Path) -> None:
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
