"""`mirror-pump status`: shows what the mirror holds and how far it lags behind."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from mirror_pump.cli.arguments.options import SLOT, STORAGE, AsJson, OptionRule, command, require
from mirror_pump.cli.terminal.output import fitted_stdout, say, write_json
from mirror_pump.runtime.durations import seconds_of
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from mirror_pump.ops.status.status_reader import StatusReader
    from mirror_pump.ops.status.status_report import Alert, MirrorStatus

_PATIENCE = 3.0
"""Seconds that `status` waits until it can say how old the lake is."""
_LAG_PATIENCE = 5.0
"""Seconds that a lag must persist before --check reports it: the lag is only an upper bound until the pump has reached
the end of WAL of the first look."""
_RATE_PATIENCE = 15.0
"""Seconds that --min-wal-time waits for the rate of WAL, which is unknown for 10 s after a checkpoint began."""


@dataclass(frozen=True)
class StatusOptions:
    """The options of `status`, as typed."""

    as_json: AsJson = False
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C")] = False
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, metavar="SECONDS", help="Pause between refreshes of --watch")
    ] = 2.0
    check: Annotated[bool, typer.Option("--check", help="Print only problems; exit 1 if one needs an operator")] = False
    max_lag: Annotated[
        str | None,
        typer.Option(
            "--max-lag", metavar="DURATION", help="With --check: exit 1 if the lag exceeds this, such as 5min"
        ),
    ] = None
    min_wal_time: Annotated[
        str | None,
        typer.Option(
            "--min-wal-time",
            metavar="DURATION",
            help="With --check: exit 1 if the slot would be lost sooner than this without a pump, such as 1h",
        ),
    ] = None


_RULES = (
    OptionRule[StatusOptions](
        lambda given: given.check and given.watch, "--check and --watch exclude each other", "give only one of them"
    ),
    OptionRule[StatusOptions](
        lambda given: given.max_lag is not None and not given.check, "--max-lag requires --check", "add --check"
    ),
    OptionRule[StatusOptions](
        lambda given: given.min_wal_time is not None and not given.check,
        "--min-wal-time requires --check",
        "add --check",
    ),
)


def add(app: typer.Typer) -> None:
    command(app, "status", (*SLOT, *STORAGE))(status)


def status(settings: Settings, options: StatusOptions) -> int:
    """Show problems, each table's state, lag, rows and files, the slot, and the leading pump.

    Lag in bytes is the WAL between the frontier and now. Lag in seconds is how old the lake is at most: it has all
    that was committed before. It is 0 if nothing relevant to the mirror was committed since the frontier.

    `--check` is meant for cron and probes. It prints nothing if all is well. It exits 1 if the slot is lost, no
    pump leads, a table has failed or waits for its owner, retention has stopped, the lag exceeds `--max-lag`, or
    the slot would survive an outage of the pump for less than `--min-wal-time`.
    """
    require(options, _RULES)
    limit = None if options.max_lag is None else seconds_of(options.max_lag, "--max-lag")
    wal_limit = None if options.min_wal_time is None else seconds_of(options.min_wal_time, "--min-wal-time")

    from mirror_pump.ops.setup.stored_settings import complete
    from mirror_pump.ops.status.status_reader import StatusReader, tells_age

    with StatusReader(complete(settings)) as reader:
        if options.check:
            return _report(_checked(reader, limit, wal_limit), as_json=options.as_json)
        first = reader.until(tells_age, _PATIENCE)
        if options.as_json:
            write_json(first.to_json())
            while options.watch:
                time.sleep(options.interval)
                write_json(reader.read().to_json())
        elif options.watch:
            _watch(reader, first, options.interval)
        else:
            from mirror_pump.cli.terminal.status_view import render

            fitted_stdout().print(render(first))
    return 0


def _watch(reader: StatusReader, first: MirrorStatus, interval: float) -> None:
    from rich.live import Live

    from mirror_pump.cli.terminal.status_view import render

    console = fitted_stdout()
    if not sys.stdout.isatty():
        console.print(render(first))
        while True:
            time.sleep(interval)
            console.print(render(reader.read()))
    with Live(render(first), console=console, auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(interval)
            live.update(render(reader.read()), refresh=True)


def _checked(reader: StatusReader, max_lag: float | None, min_wal_time: float | None) -> MirrorStatus:
    """The status, with an alert if the lag stays above `max_lag` although a pump leads, and one if the slot would be
    lost within `min_wal_time`."""
    from mirror_pump.ops.status.alerts import lag_alert, wal_alert

    def lag_of(status: MirrorStatus) -> Alert | None:
        return None if max_lag is None else lag_alert(status, max_lag)

    def lag_stays(status: MirrorStatus) -> bool:
        return lag_of(status) is None or status.leader is None or not status.leader.alive

    def rate_is_known(status: MirrorStatus) -> bool:
        return min_wal_time is None or not status.slot.safe_wal_bytes or status.slot.wal_rate is not None

    status = reader.until(lag_stays, _LAG_PATIENCE)
    if not rate_is_known(status):
        status = reader.until(rate_is_known, _RATE_PATIENCE)
    wal = None if min_wal_time is None else wal_alert(status, min_wal_time)
    return replace(status, alerts=(*(alert for alert in (lag_of(status), wal) if alert is not None), *status.alerts))


def _report(status: MirrorStatus, *, as_json: bool) -> int:
    """Prints the problems. Returns the exit code."""
    from mirror_pump.cli.terminal.status_view import lines_of
    from mirror_pump.ops.status.status_report import Severity

    if as_json:
        write_json(status.to_json())
    else:
        for alert in status.alerts:
            for line in lines_of(alert):
                say(line)
    return int(any(alert.severity is Severity.CRITICAL for alert in status.alerts))
