"""The file system in memory, for servers of tests: there, creating and removing a database takes much less CPU."""

from __future__ import annotations

import shutil
from pathlib import Path

_MEMORY = Path("/dev/shm")
_ENOUGH = 8 << 30
"""Bytes. A server takes some hundred MB, and the machine needs memory for other things."""


def in_memory() -> Path | None:
    """The directory of that file system; None if there is none, or not plenty of room in it."""
    return _MEMORY if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ENOUGH else None
