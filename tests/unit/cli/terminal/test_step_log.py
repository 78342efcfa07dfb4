from __future__ import annotations

import json
import time

import pytest

from mirror_pump.cli.terminal.step_log import REPEAT_INTERVAL, StepLog
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.runtime.telemetry import configure_logging


def test_the_same_refusal_is_a_warning_once_an_hour(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_logging("json", "info")
    log = StepLog()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for pin in range(5):
        log(Step.RETENTION_REFUSED, table="public.t", partition=f"p{pin}", reason=f"pin {pin} of a reader lasts")
    log(Step.RETENTION_REFUSED, table="public.t", partition="p0", reason="another one")
    log(Step.RETENTION_REFUSED, table="public.u", partition="p0", reason="pin 1 of a reader lasts")
    now += REPEAT_INTERVAL + 1
    log(Step.RETENTION_REFUSED, table="public.t", partition="p0", reason="pin 99 of a reader lasts")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    reported = [(line["table"], line["reason"], line.get("times_since_last_told")) for line in lines]
    assert reported == [
        ("public.t", "pin 0 of a reader lasts", None),
        ("public.t", "another one", None),
        ("public.u", "pin 1 of a reader lasts", None),
        ("public.t", "pin 99 of a reader lasts", 4),
    ]


def test_a_steps_own_remedy_is_the_one_that_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("json", "info")
    log = StepLog()
    log(Step.RETRYING, error="no room", remedy="make some", pause=1.0)
    log(Step.RETRYING, error="something else", remedy="", pause=1.0)
    remedies = [json.loads(line)["remedy"] for line in capsys.readouterr().err.splitlines()]
    assert remedies == ["make some", Step.RETRYING.remedy]
