"""`mirror-pump run`: runs the pump as a process, with signals and exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from mirror_pump.cli.arguments.options import MONITORING, SLOT, STORAGE, command
from mirror_pump.cli.terminal.output import count_text, remark, say
from mirror_pump.cli.terminal.stop_signals import StoppedBySignal, StopSignals
from mirror_pump.errors import UsageError
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from mirror_pump.http.pump_port import PumpPort
    from mirror_pump.model import Lsn
    from mirror_pump.monitoring.monitor import Monitor
    from mirror_pump.monitoring.pump_state import PumpState
    from mirror_pump.monitoring.sampler import StatusSource
    from mirror_pump.pipeline.session.pump import Pump

TUNING = (
    "master",
    "files_per_hour",
    "batch_bytes",
    "segment_bytes",
    "max_buffered_bytes",
    "max_row_bytes",
    "copy_workers",
    "copy_rate_bytes",
    "copy_chunk_bytes",
    "convert_age",
    "convert_rows",
    "index_memory",
    "index_disk",
    "merge_bytes",
    "fold_age",
    "fold_rows",
    "idle_publish_bytes",
    "idle_publish_interval",
    "retention_interval",
    "wal_guard",
    "wal_guard_bytes",
    "wal_warn_within",
    "wal_act_within",
    "publish_attempts",
    "publish_backoff_max",
    "reconnect_backoff_max",
    "storage_fsync",
    "maintain_interval",
    "maintain_share",
    "maintain_cores",
    "maintain_memory",
)


def add(app: typer.Typer) -> None:
    command(app, "run", (*SLOT, *STORAGE, *MONITORING, *TUNING))(run)


def run(
    settings: Settings,
    once: Annotated[bool, typer.Option("--once", help="Catch up with the current end of WAL, then exit 0")] = False,
    until_lsn: Annotated[
        str | None,
        typer.Option("--until-lsn", metavar="LSN", help="Stop once the frontier has passed this WAL position"),
    ] = None,
    drain: Annotated[
        bool,
        typer.Option(
            "--drain",
            help="Before pg_upgrade: catch up, take the slot past the mirror's own commits too, then exit 0",
        ),
    ] = False,
    maintain: Annotated[
        bool,
        typer.Option(
            "--maintain", help="Also run `mirror-pump maintain --serve`, in a process that ends with the pump"
        ),
    ] = False,
    no_standby: Annotated[
        bool, typer.Option("--no-standby", help="Exit 1 if another pump leads, instead of waiting as a standby")
    ] = False,
) -> int:
    """Run the pump: follow the slot, write Iceberg files, publish all tables at once, acknowledge.

    Tables may be registered while it runs; without any it waits. Ctrl-C or SIGTERM finishes or abandons the current
    batch. The pump then reports where it stopped and exits within seconds, with code 130 or 0; the next run
    continues from there. If the server is down, at the start or later, the pump waits for it.

    One pump leads a database at a time. Any other is a standby: it takes over within a second after the leader's
    end, and only then starts Spark, which its work does not wait for. `--once` and `--until-lsn` also end when the
    leader has reached their position.

    `--drain` is for a server that is about to be upgraded by pg_upgrade, with no other pump and no writers. It does
    not wait for copies. Stop the server right after it.

    `--listen` serves Prometheus metrics, probes and a status page by HTTP. OpenTelemetry's OTEL_* variables export
    metrics and traces. docs/monitoring.md describes both.

    The pump itself keeps tables fast to read. Maintenance deletes files that are not needed any more: `--maintain`
    runs it in a separate process while the pump runs.
    """
    if sum((once, drain, until_lsn is not None)) > 1 or (drain and maintain):
        raise UsageError(
            "--once, --until-lsn and --drain exclude each other, and --drain excludes --maintain", "give one of them"
        )
    until = None if until_lsn is None else lsn_argument(until_lsn, "--until-lsn")

    signals = StopSignals()
    try:
        with signals.handled():
            if drain:
                _drain(settings, signals)
            else:
                _run(settings, signals, until, once=once, maintain=maintain, standby=not no_standby)
    except StoppedBySignal:
        remark(f"mirror-pump: {signals.name}: stopped before anything was received; the frontier is unchanged")
    return signals.exit_code


def _run(
    settings: Settings, signals: StopSignals, until: Lsn | None, *, once: bool, maintain: bool, standby: bool
) -> None:
    from mirror_pump.monitoring.monitor import Monitor
    from mirror_pump.ops.setup.stored_settings import complete_when_up

    # Before the server is known to be up: while the pump waits for it, probes have to find a living process.
    with Monitor(settings, _open_port) as monitor:
        settings = complete_when_up(settings)
        monitor.watch(settings)
        _pump(settings, signals, monitor, until, once=once, maintain=maintain, standby=standby)


_DRAINS = 5
"""Attempts to drain the slot: each change that others commit meanwhile takes another one."""


def _drain(settings: Settings, signals: StopSignals) -> None:
    """Raises SourceError while other sessions write, and NotLeader while another pump leads."""
    from mirror_pump.cli.terminal.step_log import StepLog
    from mirror_pump.errors import SourceError
    from mirror_pump.model import format_lsn
    from mirror_pump.ops.setup.stored_settings import complete
    from mirror_pump.pipeline.session.pump import Pump
    from mirror_pump.source.catalog.catalog_slot import catalog_slot
    from mirror_pump.source.connect import connect
    from mirror_pump.source.stream.drained_slot import drain_slot
    from mirror_pump.source.stream.slot import wal_end

    settings = complete(settings)
    dsn = settings.require_dsn()
    for _ in range(_DRAINS):
        with connect(dsn, autocommit=True) as connection:
            mirror, end = catalog_slot(connection, settings.slot), wal_end(connection)
        if not mirror.streams:
            raise UsageError("this mirror has no stream: there is no slot to drain", "upgrade the server without it")
        pump = Pump(settings, observer=StepLog())
        if _served(pump, signals, end) == "stopped":
            return
        drained = drain_slot(dsn, settings.slot, mirror.publication)
        if drained is not None and drained.quiet:
            say(f"slot {settings.slot} is drained up to {format_lsn(drained.position)}: stop the server now")
            return
    raise SourceError(
        f"slot {settings.slot} cannot be drained: other sessions write meanwhile",
        "stop what writes to the server, and `mirror-pump maintain`; then `mirror-pump run --drain` again",
    )


def _served(pump: Pump, signals: StopSignals, until: Lsn) -> str:
    """Why the pump has ended."""
    signals.serve(lambda: pump.at_work, pump.request_stop, "")
    return pump.run(until=until).reason


def _open_port(settings: Settings, address: str, state: PumpState, source: StatusSource) -> PumpPort:
    # Imported for a pump that listens.
    from mirror_pump.http.pump_port import PumpPort

    return PumpPort(settings, address, state, source)


def _pump(
    settings: Settings,
    signals: StopSignals,
    monitor: Monitor,
    until: Lsn | None,
    *,
    once: bool,
    maintain: bool,
    standby: bool,
) -> None:
    # Imported after loading the settings: this loads Spark, and a wrong DSN should be reported before.
    from mirror_pump.cli.terminal.step_log import StepLog
    from mirror_pump.model import format_lsn
    from mirror_pump.ops.follow.followers_thread import FollowersThread
    from mirror_pump.ops.maintenance.maintainer_process import MaintainerProcess
    from mirror_pump.ops.register.table_follower import TableFollower
    from mirror_pump.ops.resync.snapshots import SnapshotKeeper
    from mirror_pump.pipeline.session.pump import Pump

    observer = monitor.observer(StepLog())

    @contextmanager
    def while_leading() -> Iterator[None]:
        maintainer = MaintainerProcess(settings) if maintain else nullcontext()
        with TableFollower(settings, observer), SnapshotKeeper(settings), FollowersThread(settings), maintainer:
            yield

    pump = Pump(settings, observer=observer, while_leading=while_leading)
    signals.serve(lambda: pump.at_work, pump.request_stop, "")
    result = pump.run(until=until, once=once, standby=standby)
    remark(
        f"mirror-pump: stopped at frontier {format_lsn(result.frontier)} ({result.reason}) after "
        f"{count_text(result.commits)} commits, {count_text(result.changes)} changes"
    )


def lsn_argument(text: str, option: str) -> Lsn:
    """Parses an option's WAL position. Raises UsageError that names the option."""
    from mirror_pump.model import parse_lsn

    try:
        return parse_lsn(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
