"""Files of a lake that is a local directory."""

from __future__ import annotations

from pathlib import Path

from mirror_pump.lake.storage import local_path


def path_of(location: str) -> Path:
    """The path of a local URI. Fails for a remote one."""
    path = local_path(location)
    assert path is not None, f"{location} is not local"
    return path
