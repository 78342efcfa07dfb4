"""What mirror_pump.tables offers to other programs."""

from __future__ import annotations

import subprocess
import sys

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
