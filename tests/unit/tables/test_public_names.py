"""What mirror_pump.tables offers to other programs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mirror_pump.lake
import mirror_pump.tables


def test_each_public_name_is_there() -> None:
    for name in mirror_pump.tables.__all__:
        assert getattr(mirror_pump.tables, name).__name__ == name
    assert set(mirror_pump.tables._MODULES) == set(mirror_pump.tables.__all__)
    assert not hasattr(mirror_pump.tables, "Tabel")


def test_a_task_that_needs_one_module_does_not_import_the_others() -> None:
    code = "import sys, mirror_pump.lake, mirror_pump.tables; sys.exit('pyiceberg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names_can_be_imported_from_their_former_place_for_one_release() -> None:
    for name in mirror_pump.tables.__all__:
        with pytest.warns(DeprecationWarning, match=f"import {name} from mirror_pump.tables"):
            assert getattr(mirror_pump.lake, name) is getattr(mirror_pump.tables, name)
    assert not hasattr(mirror_pump.lake, "Tabel")
