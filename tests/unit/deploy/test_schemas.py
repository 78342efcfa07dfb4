"""The files in deploy/ are valid: by the schemas of their formats, and for the programs that read them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.deploy_files import ALERTS, COMPOSE, DEPLOY, DOCKERFILE, MANIFESTS, ROOT, UNIT, dashboard_queries
from tests.support.prometheus import executable_or_skip

_TOOLS = ROOT / "build" / "deploy-tools"
"""Where `make test` installs the programs that requirements/deploy.txt names."""

_EXPOSURE = 25
"""Of 100 in `systemd-analyze security`, where an ordinary service has more than 90."""


def _run(*command: str | Path, tools: bool = False) -> str:
    """The output of a program. Raises AssertionError unless it ends with 0."""
    environment = os.environ | ({"PYTHONPATH": str(_TOOLS)} if tools else {})
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def tools() -> Path:
    """The directory of programs that check schemas."""
    if not (_TOOLS / "bin" / "check-jsonschema").exists():
        pytest.skip("no schemas: `make test` brings them if PyPI can be reached")
    return _TOOLS / "bin"


@pytest.fixture
def promtool() -> Path:
    return executable_or_skip("promtool")


def test_the_compose_file(tools: Path) -> None:
    check = (sys.executable, tools / "check-jsonschema", "--builtin-schema", "vendor.compose-spec")
    assert "ok" in _run(*check, COMPOSE, tools=True)


def test_a_compose_file_with_a_wrong_key_is_refused(tools: Path, tmp_path: Path) -> None:
    document = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    document["services"]["pump"]["healtcheck"] = {"disable": True}
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(yaml.safe_dump(document))
    check = (sys.executable, tools / "check-jsonschema", "--builtin-schema", "vendor.compose-spec")
    with pytest.raises(AssertionError, match="healtcheck"):
        _run(*check, wrong, tools=True)


def test_the_manifests(tools: Path) -> None:
    said = _run(sys.executable, tools / "kubernetes-validate", "--strict", *MANIFESTS, tools=True)
    objects = sum(len(list(yaml.safe_load_all(path.read_text(encoding="utf-8")))) for path in MANIFESTS)
    assert said.count(" passed for resource ") == objects


def test_the_dockerfile(tools: Path) -> None:
    assert _run(tools / "hadolint", "--no-color", DOCKERFILE) == ""


def test_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    program = tmp_path / "mirror-pump"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/mirror-pump/bin/mirror-pump", str(program)))
    assert "mirror-pump.service" not in _run("systemd-analyze", "verify", unit)
    _run("systemd-analyze", "security", "--offline=true", f"--threshold={_EXPOSURE}", unit)


def test_prometheus_reads_its_configuration_and_the_rules(promtool: Path, tmp_path: Path) -> None:
    assert "SUCCESS" in _run(promtool, "check", "rules", "--lint=all", "--lint-fatal", ALERTS)
    token = tmp_path / "token"
    token.touch()
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    config = tmp_path / "prometheus.yml"
    config.write_text(
        text.replace("/etc/prometheus/alerts.yml", str(ALERTS)).replace("/run/secrets/listen_token", str(token))
    )
    _run(promtool, "check", "config", config)


def test_prometheus_reads_the_queries_of_the_dashboard(promtool: Path, tmp_path: Path) -> None:
    queries = [query for queries in dashboard_queries().values() for query in queries]
    rules = [{"record": f"query_{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(queries)} rules found" in _run(promtool, "check", "rules", file)
