"""What the demo may delete."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pump.testing.demo import MARKER, DemoFailed, prepare_directory


def test_an_earlier_demo_is_cleared_away(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    prepare_directory(directory)
    (directory / "lake").mkdir()
    (directory / "lake" / "file").touch()
    (directory / "pump.log").touch()

    prepare_directory(directory)

    assert [entry.name for entry in directory.iterdir()] == [MARKER]


def test_a_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(DemoFailed, match="--work-dir"):
        prepare_directory(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]
