"""What the operating system says of a file or a directory: its version, and which file system it is on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_ON_DISK = "/var/tmp"  # noqa: S108 - files without names are made in it
"""The directory for temporary files that outlive a restart, so that it is not in memory (hier(7))."""


def file_system_type(path: Path, mounts: Path = MOUNTS) -> str:
    """The type of the file system that holds the path, or will. `mounts` lists the mounted ones
    (proc_pid_mountinfo(5))."""
    path = path.resolve()
    file_system, depth = "unknown", -1
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        mounted = Path(_unescaped(before.split()[4]))
        # Of two that are mounted at one place, the later one is seen.
        if len(mounted.parts) >= depth and path.is_relative_to(mounted):
            file_system, depth = after.split()[0], len(mounted.parts)
    return file_system


def directory_on_disk(candidates: Sequence[str] = (), mounts: Path = MOUNTS) -> Path | None:
    """The first of these directories in which files can be made and do not take memory; by default those of TMPDIR
    (else /tmp) and /var/tmp. None if there is none."""
    for candidate in map(Path, candidates or (tempfile.gettempdir(), _ON_DISK)):
        if os.access(candidate, os.W_OK | os.X_OK) and not (
            mounts.exists() and file_system_type(candidate, mounts) in _IN_MEMORY
        ):
            return candidate
    return None


def file_version(path: str | Path) -> tuple[int, int, int] | None:
    """Differs once the file's content does. None without the file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - before every access to the storage
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
