"""Iceberg's own tests of REST catalogs ("REST compatibility kit"), from Maven, for `make kit`.

They run with pyspark's jars and those that requirements/iceberg-kit.txt names (tests/support/maven_jars.py).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from mirror_pump.engine.spark_runtime.java import find_java_home
from tests.support.maven_jars import SPARK_JARS, directory_of
from tests.support.rest_catalog import ServedMirror

_TESTS = "org.apache.iceberg.rest.RESTCompatibilityKitCatalogTests"


def results(server: ServedMirror, warehouse: str, work: Path) -> Mapping[str, str]:
    """Runs the tests against a warehouse that can be written to. For each test: "", or "skipped", or why it failed."""
    jars = directory_of("iceberg-kit")
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
        *("-cp", f"{jars}/*:{SPARK_JARS}/*", "org.junit.platform.console.ConsoleLauncher", "execute"),
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
