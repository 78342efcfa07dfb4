"""A Java whose start a test holds back: it stands for one that takes a minute on a busy machine."""

from __future__ import annotations

import os
from pathlib import Path

from mirror_pump.engine.spark_runtime.java import find_java_home

_HELD = """#!/bin/sh
while [ ! -e {gate} ]; do
    [ -e /proc/{parent} ] || exit 1
    sleep 0.1
done
exec {java} "$@"
"""

_BROKEN = """#!/bin/sh
echo 'Error: Could not reserve enough space for object heap' >&2
exit 1
"""


class HeldJava:
    """A JAVA_HOME in a directory. Its Java waits until `release` is called, or this process has ended."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "held-java"
        self._gate = directory / "java-may-start"
        real = find_java_home() / "bin" / "java"
        _write(self.home, _HELD.format(gate=self._gate, parent=os.getpid(), java=real))

    def release(self) -> None:
        self._gate.touch()


def broken_java(directory: Path) -> Path:
    """A JAVA_HOME whose Java has the right version and ends at its start."""
    home = directory / "broken-java"
    _write(home, _BROKEN)
    return home


def _write(home: Path, script: str) -> None:
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="21.0.1"\n')
    java = home / "bin" / "java"
    java.write_text(script)
    java.chmod(0o755)
