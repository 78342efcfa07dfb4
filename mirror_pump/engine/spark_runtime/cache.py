"""The directory for files that are made once and used by every later Spark of this user."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from mirror_pump.runtime.private_files import is_changed_by_this_user_alone


def cache_directory() -> Path:
    """`mirror-pump` below XDG_CACHE_HOME or ~/.cache; a temporary directory if that cannot be written, or if others can
    change what is in it: a program in it is executed."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mirror-pump"
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError:
        # A service account may have no writable home directory.
        return Path(tempfile.mkdtemp(prefix="mirror-pump-"))
    usable = os.access(base, os.W_OK) and is_changed_by_this_user_alone(base)
    return base if usable else Path(tempfile.mkdtemp(prefix="mirror-pump-"))
