"""A machine with a shell and Python and nothing else: without Java, earlier files, or this checkout."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]

_HIDDEN = ("JAVA_HOME", "PYTHON", "VIRTUAL_ENV", "MIRROR_PUMP_", "SPARK_", "PYSPARK_", "XDG_", "IVY_", "HOME")
"""Prefixes of environment variables that a bare machine does not have. Settings of pip and of TLS stay: they belong to
the site."""


class BareMachine:
    """A machine in `directory`, which must be empty and outside of the checkout."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.work = directory / "work"
        self._programs = directory / "programs"
        self._wheels = directory / "wheel"
        for path in (self.home, self.work, self._programs):
            path.mkdir()
        self._link_programs()

    def _link_programs(self) -> None:
        """Links to the system's programs except Java and Python, for a PATH that leads to nothing else."""
        for place in ("/usr/bin", "/bin", "/usr/sbin", "/sbin"):
            for program in Path(place).iterdir() if Path(place).is_dir() else ():
                link = self._programs / program.name
                if program.name.startswith(("java", "python", "pip")) or link.is_symlink():
                    continue
                link.symlink_to(program)
        # A script: a Python that is started by a link may take the link's directory for its home.
        python = self._programs / "python3"
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(_base_python())} "$@"\n')
        python.chmod(0o755)

    def build_wheel(self) -> Path:
        """Builds the checkout's wheel. From then on, `pip install mirror-pump` installs it, as if it came from a
        registry."""
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(self._wheels)]
        subprocess.run(command, cwd=CHECKOUT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        (wheel,) = self._wheels.glob("*.whl")
        # Versions of that name in a registry must not win.
        (self._wheels / "constraints.txt").write_text(f"mirror-pump=={wheel.name.split('-')[1]}\n")
        return wheel

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of the machine's processes."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_HIDDEN)}
        kept |= {"HOME": str(self.home), "PATH": str(self._programs)}
        if self._wheels.exists():
            kept["PIP_CONSTRAINT"] = str(self._wheels / "constraints.txt")
            kept["PIP_FIND_LINKS"] = f"{kept.get('PIP_FIND_LINKS', '')} {self._wheels}".strip()
        return kept | more


def _base_python() -> str:
    """This process's Python, without the virtual environment around it."""
    program: str = getattr(sys, "_base_executable", sys.executable)
    return str(Path(program).resolve())
