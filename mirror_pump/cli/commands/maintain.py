"""`mirror-pump maintain`: compacts lake tables, expires snapshots and sweeps unreferenced files."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from mirror_pump.cli.arguments.completion import tables_argument
from mirror_pump.cli.arguments.options import SLOT, STORAGE, command
from mirror_pump.cli.terminal.output import one_line, remark, say
from mirror_pump.cli.terminal.stop_signals import StoppedBySignal, StopSignals
from mirror_pump.errors import UsageError, about
from mirror_pump.settings.config import Settings

_NICE = 5
"""Niceness: the pump and the database have priority."""


def add(app: typer.Typer) -> None:
    @command(
        app,
        "maintain",
        (*SLOT, "maintain_interval", "maintain_share", "maintain_cores", "maintain_memory", "master", *STORAGE),
    )
    def maintain(
        settings: Settings,
        tables: Annotated[
            list[str] | None, tables_argument(r"Names as Postgres reads them \[all mirrored tables]")
        ] = None,
        no_wait: Annotated[
            bool, typer.Option("--no-wait", help="File a request for a running maintainer, and return at once")
        ] = False,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Print what would be done and which files would be deleted")
        ] = False,
        serve: Annotated[
            bool, typer.Option("--serve", help="Serve maintenance requests and run due maintenance, until Ctrl-C")
        ] = False,
    ) -> int:
        """Keep lake tables cheap to read: merge small files, apply deletes, expire snapshots, delete orphan files.

        Runs Iceberg's own procedures in a separate Spark, while the pump keeps committing. Without --serve, all pending
        work is done once. With --serve, a table is maintained as soon as its backlog makes this worthwhile
        (`mirror-pump policy`). Files that a read pin, branch, tag, retained snapshot or unfinished commit needs are
        never deleted, and tables that are being copied are left alone.
        """
        if no_wait + dry_run + serve > 1 or (serve and tables):
            raise UsageError(
                "--no-wait, --dry-run and --serve exclude each other, and --serve takes no tables",
                "give only one of them",
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
            signals.serve(lambda: True, server.request_stop, " after the current operation")
            server.run()
    except StoppedBySignal:
        pass
    remark(f"mirror-pump: {signals.name}: stopped maintaining")
    return signals.exit_code
