"""promtool and Prometheus for tests of the alert rules: installed ones, or those of Debian's package.

`make test` runs `python -m tests.support.prometheus present`, which fails if there is none, and then `... install`,
which downloads the package with apt, as any user and without installing it, and unpacks it into build/prometheus.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_DIRECTORY = Path(__file__).parents[2] / "build" / "prometheus"
_VARIABLE = "MIRROR_PUMP_TEST_PROMETHEUS"


class NoPrometheus(Exception):
    """There is no Prometheus to test with; the message says how to get one."""


def executable(name: str) -> Path:
    """The path of `promtool` or `prometheus`. Raises NoPrometheus."""
    named = os.environ.get(_VARIABLE)
    found = shutil.which(name) if named is None else shutil.which(name, path=named)
    unpacked = _DIRECTORY / "usr" / "bin" / name
    if found is not None:
        return Path(found)
    if named is None and unpacked.exists():
        return unpacked
    raise NoPrometheus(
        f"no {name}: `make test` brings it where apt is; otherwise install Prometheus, or name its directory in"
        f" {_VARIABLE}"
    )


def executable_or_skip(name: str) -> Path:
    """The same; without it the test is skipped."""
    try:
        return executable(name)
    except NoPrometheus as error:
        pytest.skip(str(error))


def install(directory: Path) -> None:
    """Unpacks Debian's package into `directory`. Raises CalledProcessError, TimeoutExpired or OSError."""
    shutil.rmtree(directory, ignore_errors=True)
    for part in ("lists/partial", "cache/archives/partial"):
        (directory / part).mkdir(parents=True)
    # Package lists of its own: those of the machine may be missing or old, and only root can update them.
    apt = [
        "apt-get",
        *("-o", f"Dir::State::lists={directory / 'lists'}", "-o", f"Dir::Cache={directory / 'cache'}"),
        *("-o", "APT::Sandbox::User=", "-o", "Acquire::Languages=none", "-qq"),
    ]
    for step in (["update"], ["download", "prometheus"]):
        subprocess.run(
            [*apt, *step], cwd=directory, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=300
        )
    (package,) = directory.glob("prometheus_*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, directory], check=True, timeout=120)
    package.unlink()
    for part in ("lists", "cache"):
        shutil.rmtree(directory / part)


def main(task: str) -> None:
    """`present`: exits with 1 if there is none. `install`: fetches one."""
    try:
        if task == "install":
            install(_DIRECTORY)
        executable("promtool")
        executable("prometheus")
    except (NoPrometheus, OSError, ValueError, subprocess.SubprocessError) as error:
        sys.exit(f"no Prometheus: {error}" if task == "install" else 1)


if __name__ == "__main__":
    main(sys.argv[1])
