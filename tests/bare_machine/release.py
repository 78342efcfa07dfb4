"""`make release`: what is handed out of a version, in one directory: the wheel; a list of what the wheel and the image
contain (SBOM, CycloneDX 1.6, by cyclonedx-bom); how they were made (SLSA provenance 1.0 in an in-toto statement); and
the checksums of all of these (SHA256SUMS).

Two runs from one commit differ in the two times of the provenance alone. It is not signed, so it proves nothing to
others: sign SHA256SUMS with a key of yours.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_REQUIREMENTS = ROOT / "requirements"
SBOMS = {"wheel": "run.txt", "image": "image.txt"}
"""The requirements, with hashes, of what each list is about."""
SUMS = "SHA256SUMS"
_BUILD_TYPE = "urn:mirror-pump:make-release:1"
"""These names of ours: no service runs it."""


def release(directory: Path, tools: Path) -> Sequence[Path]:
    """Makes the files in a directory, which is emptied, and returns them. `tools`: where cyclonedx-bom is installed.
    Raises CalledProcessError."""
    began = _now()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    wheel = _wheel(directory)
    made = [wheel, *(_sbom(directory, name, requirements, tools) for name, requirements in SBOMS.items())]
    provenance = directory / f"{wheel.stem}.provenance.json"
    provenance.write_text(json.dumps(_provenance(made, began), indent=1, sort_keys=True) + "\n")
    made.append(provenance)
    sums = directory / SUMS
    sums.write_text("".join(f"{_sha256(path)}  {path.name}\n" for path in sorted(made)))
    return [*made, sums]


def _wheel(directory: Path) -> Path:
    # The build back-end of this environment, which is pinned, by the commit's time.
    environment = {"SOURCE_DATE_EPOCH": _git("show", "--no-patch", "--format=%ct", "HEAD"), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = directory.glob("*.whl")
    return wheel


def _sbom(directory: Path, name: str, requirements: str, tools: Path) -> Path:
    path = directory / f"mirror-pump-{_version()}.{name}.cdx.json"
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "--output-reproducible", "--spec-version", "1.6"]
    command += [
        "--pyproject",
        str(ROOT / "pyproject.toml"),
        "--output-file",
        str(path),
        str(_REQUIREMENTS / requirements),
    ]
    subprocess.run(command, env={"PYTHONPATH": str(tools)}, check=True, stderr=subprocess.DEVNULL)
    return path


def _provenance(made: Iterable[Path], began: str) -> dict[str, Any]:
    commit = _git("rev-parse", "HEAD")
    inputs = [_REQUIREMENTS / name for name in SBOMS.values()]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": _sha256(path)}} for path in sorted(made)],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {"command": "make release", "version": _version()},
                "internalParameters": {"python": platform.python_version(), "system": platform.system()},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit}},
                    *({"name": str(path.relative_to(ROOT)), "digest": {"sha256": _sha256(path)}} for path in inputs),
                ],
            },
            "runDetails": {
                "builder": {"id": "urn:mirror-pump:a-machine-of-its-user"},
                "metadata": {"invocationId": commit, "startedOn": began, "finishedOn": _now()},
            },
        },
    }


def _version() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return version


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def main() -> None:
    """Makes a release in the directory that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tools", type=Path, required=True, help="where cyclonedx-bom is installed")
    arguments = parser.parse_args()
    if changed := _git("status", "--porcelain"):
        sys.exit(f"make release: these files differ from the commit, which the provenance names:\n{changed}")
    for path in release(arguments.directory, arguments.tools):
        print(f"{path.name}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
