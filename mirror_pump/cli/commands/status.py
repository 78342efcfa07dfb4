"""`mirror-pump status`: what the mirror holds and how far behind it is."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from mirror_pump.cli.arguments.durations import seconds_of
from mirror_pump.cli.arguments.options import SLOT, STORAGE, command
from mirror_pump.cli.terminal.output import fitted_stdout, say, write_json
from mirror_pump.config import Settings
from mirror_pump.errors import UsageError

if TYPE_CHECKING:
    from mirror_pump.ops.status.status_reader import StatusReader
    from mirror_pump.ops.status.status_report import MirrorStatus

_LAG_PATIENCE = 5.0
"""Seconds for which a lag has to stand before --check tells of it: after a quiet time it is only an upper bound, until
the pump publishes what came."""
_LAG_POLL = 0.5


def add(app: typer.Typer) -> None:
    @command(app, "status", (*SLOT, *STORAGE))
    def status(
        settings: Settings,
        as_json: Annotated[bool, typer.Option("--json", help="JSON, as docs/cli-json.md describes it")] = False,
        watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C")] = False,
        interval: Annotated[
            float, typer.Option("--interval", min=0.1, metavar="SECONDS", help="Pause between two looks of --watch")
        ] = 2.0,
        check: Annotated[
            bool, typer.Option("--check", help="Print only what needs attention; exit 1 if a person is needed")
        ] = False,
        max_lag: Annotated[
            str | None,
            typer.Option("--max-lag", metavar="DURATION", help="With --check: exit 1 beyond this lag, such as 5min"),
        ] = None,
    ) -> int:
        """Show what needs a person; per table the state, lag, rows and files; the slot; and who leads.

        Lag in bytes is the WAL between F and now. Lag in seconds is the age of the newest published commit, and 0
        when nothing that concerns the mirror was committed since F.

        `--check` is for cron and probes. It prints nothing when all is well, and exits 1 when the slot is lost, no pump
        leads, a table has failed, retention has stopped, or the lag exceeds `--max-lag`.
        """
        if check and watch:
            raise UsageError("--check and --watch exclude each other", "give one of them")
        if max_lag is not None and not check:
            raise UsageError("--max-lag is for --check", "add --check")
        limit = None if max_lag is None else seconds_of(max_lag, "--max-lag")

        from mirror_pump.ops.setup.stored_settings import complete
        from mirror_pump.ops.status.status_reader import StatusReader

        with StatusReader(complete(settings)) as reader:
            if check:
                return _report(_checked(reader, limit), as_json=as_json)
            if as_json:
                while write_json(reader.read().to_json()) and watch:
                    time.sleep(interval)
            elif watch:
                _watch(reader, interval)
            else:
                from mirror_pump.cli.terminal.status_view import render

                fitted_stdout().print(render(reader.read()))
        return 0


def _watch(reader: StatusReader, interval: float) -> None:
    from rich.live import Live

    from mirror_pump.cli.terminal.status_view import render

    console, screen = fitted_stdout(), sys.stdout.isatty()
    with Live(render(reader.read()), console=console, auto_refresh=False, screen=screen) as live:
        while True:
            time.sleep(interval)
            live.update(render(reader.read()), refresh=True)


def _checked(reader: StatusReader, max_lag: float | None) -> MirrorStatus:
    """The status, with an alert for a lag beyond `max_lag` that did not go away while a pump leads."""
    from mirror_pump.ops.status.alerts import lag_alert

    deadline = time.monotonic() + _LAG_PATIENCE
    while True:
        status = reader.read()
        alert = None if max_lag is None else lag_alert(status, max_lag)
        if alert is None:
            return status
        if status.leader is None or not status.leader.alive or time.monotonic() >= deadline:
            return replace(status, alerts=(alert, *status.alerts))
        time.sleep(_LAG_POLL)


def _report(status: MirrorStatus, *, as_json: bool) -> int:
    """Says what needs attention; the exit code."""
    from mirror_pump.cli.terminal.status_view import lines_of
    from mirror_pump.ops.status.status_report import Severity

    if as_json:
        write_json(status.to_json())
    else:
        for alert in status.alerts:
            for line in lines_of(alert):
                say(line)
    return int(any(alert.severity is Severity.CRITICAL for alert in status.alerts))
