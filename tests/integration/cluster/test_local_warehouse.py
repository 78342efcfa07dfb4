"""A cluster whose nodes would not see the warehouse is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pump.errors import UsageError
from mirror_pump.ops.maintenance.maintainer import own_spark
from mirror_pump.settings.config import Settings
from tests.support.cli import RunCommand

_MASTER = "spark://127.0.0.1:1"


def test_a_warehouse_on_this_disk_is_wrong_usage(
    run: RunCommand, slot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("init", "--warehouse", str(tmp_path / "lake"), "--slot", slot).exit_code == 0
    monkeypatch.setenv("MIRROR_PUMP_MASTER", _MASTER)
    refused = run("run", "--once")
    assert refused.exit_code == 2
    assert "is on a disk of this machine" in refused.output
    assert "s3://" in refused.output


def test_maintenance_is_refused_as_well(tmp_path: Path) -> None:
    settings = Settings(dsn="host=127.0.0.1", warehouse=str(tmp_path), master=_MASTER)
    with pytest.raises(UsageError, match="is on a disk of this machine"):
        own_spark(settings)()
