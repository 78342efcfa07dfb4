"""The files in deploy/ and compose/, as their programs read them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = ROOT / "compose" / "compose.yaml"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "mirror-pump.json"
DOCKERFILE = DEPLOY / "image" / "Dockerfile"
MANIFESTS = sorted(path for path in (DEPLOY / "kubernetes").glob("*.yaml") if path.name != "kustomization.yaml")
UNIT = DEPLOY / "systemd" / "mirror-pump.service"


def manifests() -> list[dict[str, Any]]:
    """All objects of the Kubernetes manifests."""
    return [each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def alert_rules() -> list[dict[str, Any]]:
    """The alert rules, as Prometheus reads them."""
    return [rule for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def dashboard_queries() -> dict[str, list[str]]:
    """The queries of the dashboard by panel, with Grafana's variables filled in."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return {
        f"{panel['id']} {panel['title']}": [
            target["expr"].replace("$job", "mirror-pump.*").replace("$__rate_interval", "1m")
            for target in panel["targets"]
        ]
        for panel in panels
        if panel["type"] != "row"
    }


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, with their continuation lines."""
    lines = [line for line in DOCKERFILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines()) if word]


def image_entrypoint() -> list[str]:
    """The image's entrypoint."""
    entrypoint: list[str] = json.loads(next(rest for word, rest in instructions() if word == "ENTRYPOINT"))
    return entrypoint
