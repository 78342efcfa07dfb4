"""Unpacks tar files, whatever 3.11 runs the tests."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Literal


def unpack(package: tarfile.TarFile, directory: Path, filter: Literal["data", "tar"]) -> None:  # noqa: A002 - tarfile's
    """Unpacks all members. Python before 3.11.4 has no filters; the archives are known by their hashes, or our own."""
    if hasattr(tarfile, "data_filter"):
        package.extractall(directory, filter=filter)
    else:
        package.extractall(directory)
