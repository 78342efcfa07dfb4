"""The image's probe: how it reacts to a pump's answers, and to none."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from mirror_pump.monitoring.pump_state import PumpPhase
from mirror_pump.testing.postgres import free_port
from tests.support.deploy_files import DEPLOY
from tests.support.monitored import served, some_of_everything

_LATE = replace(some_of_everything(), lag_seconds=301.0)


def probe(check: str, address: str) -> tuple[int, str]:
    """Exit code and output, with the pump's MIRROR_PUMP_LISTEN."""
    command = [sys.executable, "-I", str(DEPLOY / "image" / "probe.py"), check]
    environment = {"MIRROR_PUMP_LISTEN": address}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()


@pytest.mark.parametrize(
    ("phase", "alive", "ready"),
    [
        (PumpPhase.STREAMING, 0, 0),
        (PumpPhase.STANDBY, 0, 0),
        (PumpPhase.STARTING, 0, 1),
        (PumpPhase.LEADING, 0, 1),
        (PumpPhase.RETRYING, 0, 1),
    ],
)
def test_a_pump_is_ready_if_it_streams_or_stands_by(phase: PumpPhase, alive: int, ready: int) -> None:
    # The endpoints that the probe requests need no token.
    with served(some_of_everything(), phase=phase, token="t" * 16) as pump:
        port = pump.url.rpartition(":")[2].strip("/")
        assert probe("alive", f"0.0.0.0:{port}")[0] == alive
        assert probe("ready", port)[0] == ready


def test_a_leader_that_lags_too_much_is_not_ready_and_the_probe_says_why() -> None:
    with served(_LATE) as pump:
        address = pump.url.partition("//")[2].strip("/")
        assert probe("alive", address) == (0, "ok")
        code, text = probe("ready", address)
    assert code == 1
    assert "ready_max_lag" in text


def test_a_pump_that_is_not_there_is_neither() -> None:
    address = f"127.0.0.1:{free_port()}"
    for check in ("alive", "ready"):
        code, text = probe(check, address)
        assert code == 1
        assert address in text
    assert probe("well", address)[0] == 2
