"""Jars from Maven, each named in a file of requirements/ with its version and hash.

Ivy fetches them, the program by which Spark fetches its own. `python -m tests.support.maven_jars NAME` fetches those of
requirements/NAME.txt into build/NAME/jars, unless they are there.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pyspark

from mirror_pump.engine.spark_runtime.java import find_java_home

_ROOT = Path(__file__).parents[2]
SPARK_JARS = Path(pyspark.__file__).parent / "jars"
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
_MODULE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="mirror-pump" module="{}"/>
  <dependencies>{}</dependencies>
</ivy-module>
"""


@dataclass(frozen=True)
class _Jar:
    """One of the file's lines."""

    group: str
    name: str
    version: str
    classifier: str
    sha256: str

    @classmethod
    def parse(cls, line: str) -> _Jar:
        coordinates, sha256 = line.split()
        group, name, version, *classifier = coordinates.split(":")
        return cls(group, name, version, "".join(classifier), sha256)

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}{'-' * bool(self.classifier)}{self.classifier}.jar"

    @property
    def artifact(self) -> str:
        """In Ivy's words."""
        classifier = f' m:classifier="{self.classifier}"' if self.classifier else ""
        return f'<artifact name="{self.name}" type="jar" ext="jar"{classifier}/>'


def directory_of(name: str) -> Path:
    """Where the jars are of requirements/NAME.txt."""
    return _ROOT / "build" / name / "jars"


def _jars(name: str) -> list[_Jar]:
    lines = (_ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    return [_Jar.parse(line) for line in lines if not line.startswith("#")]


def install(name: str) -> None:
    """Fetches the jars. Raises CalledProcessError, TimeoutExpired, OSError or ValueError."""
    directory = directory_of(name)
    work = directory.with_name("download")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    modules = groupby(_jars(name), key=lambda jar: (jar.group, jar.name, jar.version))
    dependencies = (
        f'<dependency org="{group}" name="{module}" rev="{version}" transitive="false">'
        f"{''.join(jar.artifact for jar in jars)}</dependency>"
        for (group, module, version), jars in modules
    )
    (work / "settings.xml").write_text(_SETTINGS)
    (work / "ivy.xml").write_text(_MODULE.format(name, "".join(dependencies)))
    (ivy,) = SPARK_JARS.glob("ivy-*.jar")
    pattern = f"{work}/jars/[artifact]-[revision](-[classifier]).[ext]"
    subprocess.run(
        [
            *(find_java_home() / "bin" / "java", "-jar", ivy, "-warn", "-settings", work / "settings.xml"),
            *("-cache", work / "cache", "-ivy", work / "ivy.xml", "-retrieve", pattern),
        ],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        timeout=900,
    )
    for jar in _jars(name):
        if hashlib.sha256((work / "jars" / jar.file).read_bytes()).hexdigest() != jar.sha256:
            raise ValueError(f"{jar.file} is not the one that is known")
    shutil.rmtree(directory, ignore_errors=True)
    (work / "jars").rename(directory)
    shutil.rmtree(work)


def main() -> None:
    """Fetches the jars unless they are there."""
    (name,) = sys.argv[1:]
    if not directory_of(name).exists():
        try:
            install(name)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            sys.exit(f"no jars of {name}: {error}")


if __name__ == "__main__":
    main()
