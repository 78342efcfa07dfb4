"""Files beside the lake that only their user may read, also in a directory for temporary files that others write to."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path


def private_directory() -> Path:
    """`mirror-pump-UID` in the directory that TMPDIR names (by default /tmp), made for this user alone. Whatever
    another user has put there under that name is not used: then it is a directory with another name, for this process.
    """
    path = Path(tempfile.gettempdir()) / f"mirror-pump-{os.getuid()}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return _unpredictable(str(path.parent))
    if stat.S_IMODE(status.st_mode) != 0o700:
        path.chmod(0o700)
    return path


@cache
def _unpredictable(parent: str) -> Path:
    return Path(tempfile.mkdtemp(prefix="mirror-pump-", dir=parent))


def is_changed_by_this_user_alone(path: Path) -> bool:
    """Whether only this user, and root, can change what is in a directory."""
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def spark_log() -> Path:
    """The file for what a Spark with Iceberg's jars prints, which is too much for a log."""
    return private_directory() / "spark.log"


@contextmanager
def append_privately(path: Path) -> Iterator[int]:
    """A descriptor to append to a file, which is made if it is missing, and is no link. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
