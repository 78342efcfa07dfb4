"""Where temporary files take room on a disk rather than in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pump.runtime.file_systems import directory_on_disk


@pytest.mark.parametrize(
    ("in_memory", "chosen"),
    [((), "first"), (("first",), "second"), (("first", "second"), None), (("first/inner",), "first")],
)
def test_the_first_directory_that_is_not_in_memory_is_chosen(
    tmp_path: Path, in_memory: tuple[str, ...], chosen: str | None
) -> None:
    directories = [tmp_path / "first", tmp_path / "second"]
    for directory in directories:
        directory.mkdir()
    mounts = tmp_path / "mountinfo"
    lines = ["22 1 254:0 / / rw - ext4 /dev/vda rw"]
    lines += [f"23 22 0:40 / {tmp_path / name} rw,relatime shared:2 - tmpfs tmpfs rw" for name in in_memory]
    mounts.write_text("\n".join(lines) + "\n")
    found = directory_on_disk([str(directory) for directory in directories], mounts)
    assert found == (None if chosen is None else tmp_path / chosen)


def test_a_directory_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    assert directory_on_disk([str(tmp_path / "away"), str(tmp_path)], tmp_path / "no mounts") == tmp_path
