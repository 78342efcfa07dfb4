"""`mirror-pump wait`: waits until the frontier has passed a WAL position."""

from __future__ import annotations

from typing import Annotated

import typer

from mirror_pump.cli.arguments.options import SLOT, command
from mirror_pump.cli.commands.run import lsn_argument
from mirror_pump.cli.terminal.output import report_error, say
from mirror_pump.errors import UsageError
from mirror_pump.settings.config import Settings


def add(app: typer.Typer) -> None:
    @command(app, "wait", SLOT)
    def wait(
        settings: Settings,
        timeout: Annotated[
            float, typer.Option("--timeout", min=0, metavar="SECONDS", help="Give up after this many seconds")
        ],
        lsn: Annotated[
            str | None, typer.Option("--lsn", metavar="LSN", help="The WAL position to wait for, such as 16/B374D848")
        ] = None,
        now: Annotated[bool, typer.Option("--now", help="Wait for the database's current WAL position")] = False,
    ) -> int:
        """Wait until everything committed up to a WAL position is readable in the lake.

        Also waits for tables that are copied again. Tables that have failed or are copied for the first time are named,
        but not waited for. Asks an idle pump to publish, so that the answer comes at once. Exit code 1 if the time is
        up. In a mirror without a stream there is nothing to wait for: it says so, with exit code 0.
        """
        if (lsn is None) is not now:
            raise UsageError("wait needs a position", "give either --lsn LSN or --now")
        target = None if lsn is None else lsn_argument(lsn, "--lsn")

        from mirror_pump.model import format_lsn
        from mirror_pump.ops.setup.stored_settings import complete
        from mirror_pump.ops.status.wait_for_frontier import wait_for

        result = wait_for(complete(settings), target, timeout, copied_again=True)
        if result.error is not None:
            report_error(result.error)
            return 1
        if not result.streams:
            say("nothing to wait for: this mirror has no stream, and reads of tiered tables show what is committed")
            return 0
        say(f"frontier {format_lsn(result.frontier)} has passed {format_lsn(result.target)}")
        if result.behind:
            say(f"not waited for: {', '.join(map(str, result.behind))}")
        return 0
