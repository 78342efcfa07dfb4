"""`mirror-pump maintain`: compaction, expiry and sweeping of the lake tables."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Annotated

import typer

from mirror_pump.cli.options import SLOT, STORAGE, command
from mirror_pump.cli.output import one_line, remark, say
from mirror_pump.config import Settings
from mirror_pump.errors import UsageError

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
            typer.Argument(metavar="[TABLE...]", help=r"Names as Postgres reads them \[all mirrored tables]"),
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
        from mirror_pump.ops.profile import complete

        settings = complete(settings)
        if not no_wait:
            os.nice(_NICE)

        from mirror_pump.ops.maintainer import MaintenanceServer, maintain_tables
        from mirror_pump.ops.maintainer import dry_run as rehearse

        if serve:
            _serve(MaintenanceServer(settings))
            return 0
        failed = False
        outcomes = (
            rehearse(settings, tables or ()) if dry_run else maintain_tables(settings, tables or (), wait=not no_wait)
        )
        for outcome in outcomes:
            for line in outcome.lines:
                say(f"{outcome.table}: {line}")
            for error in outcome.errors:
                failed = True
                remark(f"mirror-pump: {outcome.table}: {one_line(error)}")
        return 1 if failed else 0


def _serve(server: object) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from mirror_pump.ops.maintainer import MaintenanceServer

    assert isinstance(server, MaintenanceServer)

    def stop(number: int, _frame: FrameType | None) -> None:
        remark(
            f"mirror-pump: {signal.Signals(number).name}: stopping after the operation under way (once more: at once)"
        )
        signal.signal(number, signal.SIG_DFL)
        server.request_stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    # In a thread, because pyspark takes SIGINT over in the main thread when it starts, and raises from there.
    with ThreadPoolExecutor(1, thread_name_prefix="maintain") as pool:
        pool.submit(server.run).result()
