"""What `make release` hands out: complete, with the checksums of all, and the same from the same commit."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.bare_machine import release

_TOOLS = release.ROOT / "build" / "deploy-tools"


@pytest.mark.further
@pytest.mark.skipif(not (_TOOLS / "cyclonedx_py").is_dir(), reason="`make test` brings cyclonedx-bom if it can be had")
def test_a_release_says_what_it_contains(tmp_path: Path) -> None:
    directory, again = tmp_path / "dist", tmp_path / "again"
    made = {path.name: path for path in release.release(directory, _TOOLS)}
    assert set(made) == {path.name for path in directory.iterdir()}
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", release.SUMS], cwd=directory, check=True)
    summed = [line.split()[1] for line in made[release.SUMS].read_text().splitlines()]
    assert sorted([*summed, release.SUMS]) == sorted(made)

    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        assert {"decoders", "mirror_pump", "sql"} <= {name.partition("/")[0] for name in content.namelist()}
    for kind, requirements in release.SBOMS.items():
        (path,) = directory.glob(f"*.{kind}.cdx.json")
        sbom = json.loads(path.read_text())
        pins = (release.ROOT / "requirements" / requirements).read_text()
        components = {(entry["name"].lower(), entry["version"]) for entry in sbom["components"]}
        assert components == {
            (name.lower(), version) for name, version in re.findall(r"^([\w.-]+)==([^ ;\\]+)", pins, re.MULTILINE)
        }
        assert all(hashed["content"] for entry in sbom["components"] for hashed in _hashes(entry))
        assert sbom["metadata"]["component"]["name"] == "mirror-pump"

    (path,) = directory.glob("*.provenance.json")
    statement = json.loads(path.read_text())
    assert {entry["name"] for entry in statement["subject"]} == set(made) - {path.name, release.SUMS}
    commit = statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"]["gitCommit"]
    assert re.fullmatch(r"[0-9a-f]{40}", commit)

    for other in release.release(again, _TOOLS):
        if other.name not in (path.name, release.SUMS):
            assert other.read_bytes() == made[other.name].read_bytes(), other.name


def _hashes(component: dict[str, object]) -> list[dict[str, str]]:
    references = component["externalReferences"]
    assert isinstance(references, list)
    return [hashed for reference in references for hashed in reference["hashes"]]
