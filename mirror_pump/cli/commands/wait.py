"""`mirror-pump wait`: block until F has passed a WAL position."""

from __future__ import annotations

from typing import Annotated

import typer

from mirror_pump.cli.arguments.options import SLOT, command
from mirror_pump.cli.commands.run import lsn_argument
from mirror_pump.cli.terminal.output import report_error, say
from mirror_pump.config import Settings
from mirror_pump.errors import UsageError


def add(app: typer.Typer) -> None:
    @command(app, "wait", SLOT)
    def wait(
        settings: Settings,
        timeout: Annotated[float, typer.Option("--timeout", min=0, metavar="SECONDS", help="Give up after this long")],
        lsn: Annotated[
            str | None, typer.Option("--lsn", metavar="LSN", help="The WAL position to wait for, such as 16/B374D848")
        ] = None,
        now: Annotated[
            bool, typer.Option("--now", help="Wait for the WAL position that the database has reached now")
        ] = False,
    ) -> int:
        """Wait until everything committed up to a WAL position is readable in every live table of the lake.

        Asks an idle pump to publish, so that it answers at once. Exit 1 when the time is up.
        """
        if (lsn is None) is not now:
            raise UsageError("wait needs a position", "give exactly one of --lsn LSN and --now")
        target = None if lsn is None else lsn_argument(lsn, "--lsn")

        from mirror_pump.model import format_lsn
        from mirror_pump.ops.setup.stored_settings import complete
        from mirror_pump.ops.status.wait_for_frontier import wait_for

        result = wait_for(complete(settings), target, timeout)
        if result.error is not None:
            report_error(result.error)
            return 1
        say(f"F = {format_lsn(result.frontier)} has passed {format_lsn(result.target)}")
        return 0
