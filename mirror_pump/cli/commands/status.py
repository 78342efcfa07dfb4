"""`mirror-pump status`: what the mirror holds and how far behind it is."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from mirror_pump.cli.options import SLOT, STORAGE, command
from mirror_pump.cli.output import write_json
from mirror_pump.config import Settings


def add(app: typer.Typer) -> None:
    @command(app, "status", (*SLOT, *STORAGE))
    def status(
        settings: Settings,
        as_json: Annotated[bool, typer.Option("--json", help="JSON, as docs/cli-json.md describes it")] = False,
        watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C")] = False,
        interval: Annotated[
            float, typer.Option("--interval", min=0.1, metavar="SECONDS", help="Pause between two looks of --watch")
        ] = 2.0,
    ) -> None:
        """Show what needs a person; per table the state, lag, rows and files; the slot; and who leads.

        Lag in bytes is the WAL between F and now. Lag in seconds is the age of the newest published commit, and 0
        when nothing that concerns the mirror was committed since F.
        """
        from mirror_pump.ops.profile import complete
        from mirror_pump.ops.status import StatusReader

        with StatusReader(complete(settings)) as reader:
            if as_json:
                while write_json(reader.read().to_json()) and watch:
                    time.sleep(interval)
                return

            from rich.live import Live

            from mirror_pump.cli.output import fitted_stdout
            from mirror_pump.cli.status_view import render

            if not watch:
                fitted_stdout().print(render(reader.read()))
                return
            with Live(
                render(reader.read()), console=fitted_stdout(), auto_refresh=False, screen=sys.stdout.isatty()
            ) as live:
                while True:
                    time.sleep(interval)
                    live.update(render(reader.read()), refresh=True)
