"""`make audit`: looks up known vulnerabilities of the pinned requirements, with pip-audit, and fails if there are any.

The answer comes from the package index, whose mirrors often have none, or from OSV. Without an answer nothing is known,
which is said and is no failure: `make lint` works offline too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_VERSION = "2.10.1"
_SERVICES = ("pypi", "osv")
_SECONDS = 120

RunPipAudit = Callable[[Sequence[str]], str]
"""Runs a command and returns its stdout, empty if it could not be run or did not end in time."""


def audit(run: RunPipAudit, uv: str, requirements: Path) -> tuple[bool, str]:
    """Whether no vulnerability is known, and what to print."""
    unknown: set[str] = set()
    for service in _SERVICES:
        output = run(
            (
                *(uv, "tool", "run", "--quiet", f"pip-audit=={_VERSION}", "--requirement", str(requirements)),
                *("--require-hashes", "--disable-pip", "--vulnerability-service", service),
                *("--format", "json", "--progress-spinner", "off"),
            )
        )
        try:
            found = json.loads(output)["dependencies"]
        except (ValueError, KeyError, TypeError):
            continue
        holes = [
            f"{package['name']} {package['version']}: {hole['id']}, fixed in {_versions(hole)}"
            for package in found
            for hole in package.get("vulns", ())
        ]
        if holes:
            return False, "\n".join(["known vulnerabilities:", *holes])
        unknown = {package["name"] for package in found if "skip_reason" in package}
        if found and not unknown:
            return True, f"no known vulnerability in {len(found)} packages, says {service}"
    if unknown:
        some = ", ".join(sorted(unknown)[:3])
        return True, f"audit: no answer about {len(unknown)} packages of {requirements.name}: {some} ..."
    return True, f"audit: no service could be reached; nothing is known about {requirements.name}"


def _versions(hole: Mapping[str, Any]) -> str:
    return ", ".join(hole["fix_versions"]) or "none yet"


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


if __name__ == "__main__":
    fine, text = audit(_run, sys.argv[1], _ROOT / "requirements" / "dev.txt")
    print(text)
    sys.exit(0 if fine else 1)
