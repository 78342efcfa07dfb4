"""`mirror-pump retain`: which partitions leave the heap, when, and why one does not; another try after a failure."""

from __future__ import annotations

from typing import Annotated

import typer

from mirror_pump.cli.arguments.completion import mirrored_tables
from mirror_pump.cli.arguments.options import SLOT, command
from mirror_pump.cli.terminal.output import say, write_json
from mirror_pump.config import Settings


def add(app: typer.Typer) -> None:
    @command(app, "retain", SLOT)
    def retain(
        settings: Settings,
        tables: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="TABLE", help=r"Names as Postgres reads them \[all]", autocompletion=mirrored_tables
            ),
        ] = None,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Only say which partition goes when, and why one does not")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="JSON, as docs/cli-json.md describes it")] = False,
    ) -> None:
        """Look at the partitions of tables with heap retention, and have the pump try again what was put off.

        A table whose proof failed goes on after this only; until then nothing leaves its heap. Steps are taken by a
        running pump.
        """
        from mirror_pump.ops.retain.retention import look, resume
        from mirror_pump.ops.setup.stored_settings import complete

        settings = complete(settings)
        if not dry_run:
            resume(settings, tables or ())
        reports = look(settings, tables or ())
        if as_json:
            write_json([report.to_json() for report in reports])
            return
        if not reports:
            say("no table has heap retention: mirror-pump register TABLE --heap-retention N")
        for report in reports:
            say(f"{report.table}: {report.summary}")
            if report.not_made is not None:
                say(f"  {report.not_made}")
            for one in report.partitions:
                say(f"  {one.partition} [{one.lo}, {one.hi}): {one.state}; {one.outlook}")
