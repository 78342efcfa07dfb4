"""`mirror-pump maintain`: compaction, expiry and sweeping of the lake tables."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from mirror_pump.cli.arguments.completion import mirrored_tables
from mirror_pump.cli.arguments.options import SLOT, STORAGE, command
from mirror_pump.cli.terminal.output import one_line, remark, say
from mirror_pump.cli.terminal.stop_signals import StoppedBySignal, StopSignals
from mirror_pump.config import Settings
from mirror_pump.errors import UsageError, about

_NICE = 5
"""The pump and the database come first."""


def add(app: typer.Typer) -> None:
    @command(
        app,
        "maintain",
        (*SLOT, "maintain_interval", "maintain_share", "maintain_cores", "maintain_memory", "master", *STORAGE),
    )
    def maintain(
        settings: Settings,
        tables: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="TABLE",
                help=r"Names as Postgres reads them \[all mirrored tables]",
                autocompletion=mirrored_tables,
            ),
        ] = None,
        no_wait: Annotated[
            bool, typer.Option("--no-wait", help="File the request and return; a maintainer that serves answers it")
        ] = False,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Say what would be done, and which files would be deleted")
        ] = False,
        serve: Annotated[
            bool, typer.Option("--serve", help="Answer requests and pay debt as it becomes due, until Ctrl-C")
        ] = False,
    ) -> int:
        """Keep lake tables cheap to read: merge small files, apply deletes, expire snapshots, delete orphan files.

        Runs Iceberg's own procedures in a Spark of its own, beside a pump that commits. Without --serve, everything
        there is to do is done once; with it, a table is maintained when its debt makes it worth the effort
        (`mirror-pump policy`). Nothing that a read pin, branch, tag, retained snapshot or unfinished commit needs is
        deleted, and tables under copy are left alone.
        """
        if no_wait + dry_run + serve > 1 or (serve and tables):
            raise UsageError(
                "--no-wait, --dry-run and --serve exclude each other, and --serve takes no tables", "give one of them"
            )
        if not no_wait:
            os.nice(_NICE)
        if serve:
            return _serve(settings)

        from mirror_pump.ops.maintenance.maintainer import dry_run as rehearse
        from mirror_pump.ops.maintenance.maintainer import maintain_tables
        from mirror_pump.ops.setup.stored_settings import complete

        settings = complete(settings)
        failed = False
        outcomes = (
            rehearse(settings, tables or ()) if dry_run else maintain_tables(settings, tables or (), wait=not no_wait)
        )
        for outcome in outcomes:
            for line in outcome.lines:
                say(about(outcome.table, line))
            for error in outcome.errors:
                failed = True
                remark(about(outcome.table, one_line(error)), "error")
        return 1 if failed else 0


def _serve(settings: Settings) -> int:
    signals = StopSignals()
    try:
        with signals.handled():
            from mirror_pump.ops.setup.stored_settings import complete_when_up

            settings = complete_when_up(settings)

            from mirror_pump.ops.maintenance.maintainer import MaintenanceServer

            server = MaintenanceServer(settings)
            signals.serve(lambda: True, server.request_stop, " after the operation under way")
            server.run()
    except StoppedBySignal:
        pass
    remark(f"mirror-pump: {signals.name}: stopped maintaining")
    return signals.exit_code
