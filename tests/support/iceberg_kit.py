"""Iceberg's own tests of REST catalogs ("REST compatibility kit"), from Maven, for `make kit`.

`python -m tests.support.iceberg_kit` fetches them with Ivy, the program by which Spark fetches its jars. They run with
pyspark's jars and those that requirements/iceberg-kit.txt names, with their hashes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

import pyspark

from mirror_pump.engine.spark_runtime.java import find_java_home
from tests.support.rest_catalog import ServedMirror

_ROOT = Path(__file__).parents[2]
_DIRECTORY = _ROOT / "build" / "iceberg-kit"
_NAMED = _ROOT / "requirements" / "iceberg-kit.txt"
_SPARK_JARS = Path(pyspark.__file__).parent / "jars"
_TESTS = "org.apache.iceberg.rest.RESTCompatibilityKitCatalogTests"
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
_MODULE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="mirror-pump" module="iceberg-kit"/>
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


def _jars() -> list[_Jar]:
    return [_Jar.parse(line) for line in _NAMED.read_text().splitlines() if not line.startswith("#")]


def install(directory: Path) -> None:
    """Fetches the jars into a directory. Raises CalledProcessError, TimeoutExpired, OSError or ValueError."""
    work = directory.with_name("iceberg-kit-download")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    modules = groupby(_jars(), key=lambda jar: (jar.group, jar.name, jar.version))
    dependencies = (
        f'<dependency org="{group}" name="{name}" rev="{version}" transitive="false">'
        f"{''.join(jar.artifact for jar in jars)}</dependency>"
        for (group, name, version), jars in modules
    )
    (work / "settings.xml").write_text(_SETTINGS)
    (work / "ivy.xml").write_text(_MODULE.format("".join(dependencies)))
    (ivy,) = _SPARK_JARS.glob("ivy-*.jar")
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
    for jar in _jars():
        if hashlib.sha256((work / "jars" / jar.file).read_bytes()).hexdigest() != jar.sha256:
            raise ValueError(f"{jar.file} is not the one that is known")
    shutil.rmtree(directory, ignore_errors=True)
    (work / "jars").rename(directory)
    shutil.rmtree(work)


def results(server: ServedMirror, warehouse: str, work: Path) -> Mapping[str, str]:
    """Runs the tests against a warehouse that can be written to. For each test: "", or "skipped", or why it failed."""
    jars = _DIRECTORY / "jars"
    environment = {
        **os.environ,
        "CATALOG_URI": server.uri,
        "CATALOG_WAREHOUSE": warehouse,
        "CATALOG_IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
    }
    # Namespaces have to be made first, and the catalog chooses where tables are.
    known = ("local=false", "requires-namespace-create=true", "overrides-requested-location=true")
    command = [
        *(str(find_java_home() / "bin" / "java"), *(f"-Drck.{setting}" for setting in known)),
        *("-cp", f"{jars}/*:{_SPARK_JARS}/*", "org.junit.platform.console.ConsoleLauncher", "execute"),
        *("--config", "rck.local=false", "--select-class", _TESTS, "--reports-dir", str(work), "--details=none"),
    ]
    log = work / "kit.log"
    with log.open("wb") as output:
        ended = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=400, check=False
        )
    report = work / "TEST-junit-jupiter.xml"
    assert report.exists(), (ended.returncode, log.read_text(errors="replace")[-2000:])
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        # Of a test with parameters, what failed last.
        name = case.attrib["name"].partition("(")[0]
        found[name] = _outcome(case) or found.get(name, "")
    return found


def _outcome(case: ElementTree.Element) -> str:
    if case.find("skipped") is not None:
        return "skipped"
    found = next((part for part in case if part.tag in ("failure", "error")), None)
    return "" if found is None else found.attrib.get("message", found.attrib.get("type", "?")).strip()


def main() -> None:
    """Fetches the tests unless they are there."""
    if not (_DIRECTORY / "jars").exists():
        try:
            install(_DIRECTORY / "jars")
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            sys.exit(f"no tests of Iceberg's: {error}")


if __name__ == "__main__":
    main()
