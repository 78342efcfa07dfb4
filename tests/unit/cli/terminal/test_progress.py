"""Progress of tables where stderr is no terminal: log lines, also while nothing is reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import structlog

from mirror_pump.cli.terminal.progress import copy_progress, verify_progress
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.runtime.telemetry import configure_logging
from mirror_pump.testing.mirror import await_true


@pytest.fixture(autouse=True)
def json_lines() -> Iterator[None]:
    configure_logging("json", "info")
    yield
    structlog.reset_defaults()


class _CapturedLines:
    """The log lines so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._lines: list[dict[str, Any]] = []

    def of(self, stage: str) -> list[dict[str, Any]]:
        self._lines += [json.loads(line) for line in self._capsys.readouterr().err.splitlines()]
        return [line for line in self._lines if stage in (line.get("state"), line.get("phase"))]


def test_a_comparison_tells_what_is_done_and_how_long_it_will_take(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _CapturedLines(capsys)
    with verify_progress(0.02) as show:
        reading = TableProgress("public.t", "reading", total=4)
        show(reading)
        show(replace(reading, done=1, rows=1000))
        await_true(lambda: any("seconds_left" in line for line in lines.of("reading")), 10, "it is told")
        last = lines.of("reading")[-1]
        assert (last["event"], last["table"], last["chunks"], last["rows"]) == ("compare", "public.t", "1/4", 1000)
        # Again and again, though nothing is reported.
        show(TableProgress("public.t", "comparing"))
        await_true(lambda: len(lines.of("comparing")) >= 3, 10, "it is told thrice")
        show(TableProgress("public.t", "done"))
    assert lines.of("done") == []


def test_a_copy_tells_each_state_at_once_and_then_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _CapturedLines(capsys)
    with copy_progress(3600) as show:
        for state in ("waiting", "copying", "copying", "live"):
            show([TableProgress("public.t", state, 0, 8, 0)])
        assert [len(lines.of(state)) for state in ("waiting", "copying", "live")] == [1, 1, 1]
    with copy_progress(0.02) as show:
        show([TableProgress("public.t", "copying", 2, 8, 2000)])
        show([TableProgress("public.t", "copying", 3, 8, 3000)])
        await_true(lambda: any("seconds_left" in line for line in lines.of("copying")), 10, "it is told")
    assert lines.of("copying")[-1]["chunks"] == "3/8"
