"""Figures and errors in the form that people read."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest
from py4j.protocol import Py4JNetworkError

from mirror_pump.cli.terminal.output import bytes_text, count_text, report_error, seconds_text
from mirror_pump.cli.terminal.progress import verify_progress
from mirror_pump.errors import SourceError, about
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.runtime.telemetry import configure_logging, get_logger, redact


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (16 * 1024**2, "16.0 MiB"), (2**60, "1024.0 PiB")],
)
def test_bytes(count: int | None, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0 s"), (0.42, "0.4 s"), (61, "1 min 1 s"), (3599.9, "1 h 0 min"), (7500, "2 h 5 min")],
)
def test_seconds(seconds: float | None, text: str) -> None:
    assert seconds_text(seconds) == text


def test_counts() -> None:
    assert count_text(1_000_000) == "1,000,000"
    assert count_text(None) == "-"


@pytest.mark.parametrize(
    "text",
    [
        "connection to postgresql://me:hunter2@host:5432/db failed",
        "host=h password=hunter2 dbname=d",
        "host=h password='hunter2 with \\'quotes' dbname=d",
        "s3.secret-access-key: hunter2",
        "SECRET_KEY=hunter2",
        "postgresql://host/db?user=me&password=hunter2&sslmode=require",
        "password=...hunter2",
        "Authorization: Bearer ...hunter2",
    ],
)
def test_passwords_are_redacted_wherever_they_stand(text: str) -> None:
    assert "hunter2" not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "table public.t at 16/B374D848: see https://host:5432/path",
        'write {"access_key": "...", "secret_key": "..."}, or lines access_key=... and secret_key=...',
        "export PGPASSWORD='...'",
        "Authorization: Bearer ...",
    ],
)
def test_harmless_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


def test_an_error_is_two_lines_at_most_for_people_and_one_else(capsys: pytest.CaptureFixture[str]) -> None:
    error = SourceError("connection failed:\n  is the server running?\n\tpassword=hunter2", "start it")
    configure_logging("json", "error")
    report_error(error)
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["remedy"], line["level"]) == (
        "connection failed: is the server running? password=***", "start it", "error"
    )  # fmt: skip

    configure_logging("human")
    report_error(error)
    assert capsys.readouterr().err.splitlines() == [
        "mirror-pump: connection failed: is the server running? password=***",
        "  what to do: start it",
    ]


def test_log_lines_are_json_on_stderr_when_it_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("auto", "info")
    get_logger("test").info("published", frontier="0/1", dsn="postgresql://me:hunter2@h/d")
    get_logger("test").debug("too much")

    captured = capsys.readouterr()
    assert captured.out == ""
    line = json.loads(captured.err)
    assert line["event"] == "published"
    assert line["component"] == "test"
    assert line["level"] == "info"
    assert "hunter2" not in captured.err


@pytest.mark.parametrize("error", [Py4JNetworkError("Error while sending or receiving"), KeyboardInterrupt()])
def test_what_py4j_raises_and_logs_as_well_is_told_once(
    capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    """Ctrl-C ends Java while a thread waits for its answer."""
    configure_logging("json", "info")
    logging.getLogger().error("Exception while sending command.", exc_info=error)
    assert capsys.readouterr().err == ""
    logging.getLogger().error("Exception while sending command.", exc_info=OSError("another one"))
    assert "another one" in capsys.readouterr().err


def test_human_log_lines_have_no_colours_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert not sys.stderr.isatty()
    configure_logging("human", "warning")
    get_logger("test").warning("slow", seconds=3)

    line = capsys.readouterr().err
    assert "slow" in line
    assert "seconds=3" in line
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a row is too large", "public.big: a row is too large"),
        ("public.big: a row is too large", "public.big: a row is too large"),
        ("public.big has no key", "public.big has no key"),
        ("public.big2 is in the way", "public.big: public.big2 is in the way"),
        ("public.big.v is in the way", "public.big: public.big.v is in the way"),
    ],
)
def test_a_name_is_printed_once(text: str, expected: str) -> None:
    assert about("public.big", text) == expected
    assert about("public.big", about("public.big", text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("public.big has no key", "not registered: public.big has no key"),
        ("no room is left", "big: not registered: no room is left"),
        ("public.bigger has no key", "big: not registered: public.bigger has no key"),
    ],
)
def test_what_happened_to_a_table_names_it_once(capsys: pytest.CaptureFixture[str], text: str, expected: str) -> None:
    configure_logging("human")
    report_error(SourceError(text), "not registered", "big")
    assert capsys.readouterr().err == f"mirror-pump: {expected}\n"


class _FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _show_verify(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with verify_progress() as show:
        show(TableProgress("public.tiny", "reading", total=1, is_small=True))
        show(TableProgress("public.[big]", "reading", 1, 2, 12345))
        show(TableProgress("public.[big]", "comparing"))
        show(TableProgress("public.[big]", "done"))
    return stream.getvalue()


def test_verify_has_a_bar_for_each_large_table_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _show_verify(_FakeTerminal(), monkeypatch)
    assert "public.[big]" in shown
    assert "public.tiny" not in shown
    assert _show_verify(io.StringIO(), monkeypatch) == ""
