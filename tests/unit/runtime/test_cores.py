"""The number of cores by which the program chooses how much it does at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirror_pump.runtime.cores import available_cores

_OWN = len(os.sched_getaffinity(0))


def _groups(directory: Path, own: str, files: dict[str, str]) -> int:
    """What available_cores says with these control groups."""
    for name, content in files.items():
        path = directory / "mounted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (directory / "own").write_text(own)
    return available_cores(directory / "mounted", directory / "own")


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        pytest.param("0::/\n", {"cpu.max": "100000 100000\n"}, 1, id="container"),
        pytest.param("0::/\n", {"cpu.max": "50000 100000\n"}, 1, id="half a core"),
        pytest.param("0::/\n", {"cpu.max": "max 100000\n"}, _OWN, id="no limit"),
        pytest.param("0::/\n", {"cpu.max": "6400000 100000\n"}, _OWN, id="more than there are"),
        pytest.param("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "90000 100000\n"}, 1, id="group around"),
        pytest.param("0::/host/pod\n", {"cpu.max": "100000 100000\n"}, 1, id="path of the host"),
        pytest.param(
            "5:cpu,cpuacct:/x\n2:memory:/x\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "100000\n", "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n"},
            1,
            id="version 1",
        ),
        pytest.param("5:cpu,cpuacct:/x\n", {"cpu,cpuacct/x/cpu.cfs_quota_us": "-1\n"}, _OWN, id="version 1, no limit"),
        pytest.param("", {}, _OWN, id="no groups"),
    ],
)
def test_cores_are_those_that_the_control_group_allows(
    own: str, files: dict[str, str], cores: int, tmp_path: Path
) -> None:
    assert _groups(tmp_path, own, files) == cores


def test_a_quota_is_rounded_up(tmp_path: Path) -> None:
    assert _groups(tmp_path, "0::/\n", {"cpu.max": "150000 100000\n"}) == min(2, _OWN)


def test_cores_are_those_of_the_affinity() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
