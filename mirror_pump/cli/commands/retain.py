"""`mirror-pump retain`: shows which partitions leave the heap and when, and resumes after a failure."""

from __future__ import annotations

from typing import Annotated

import typer

from mirror_pump.cli.arguments.completion import tables_argument
from mirror_pump.cli.arguments.options import SLOT, AsJson, command
from mirror_pump.cli.terminal.output import say, write_json
from mirror_pump.settings.config import Settings


def add(app: typer.Typer) -> None:
    @command(app, "retain", SLOT)
    def retain(
        settings: Settings,
        tables: Annotated[
            list[str] | None,
            tables_argument(r"Table names as Postgres reads them \[all tiered tables, and those with heap retention]"),
        ] = None,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Only print which partitions leave and when, and why one does not")
        ] = False,
        as_json: AsJson = False,
    ) -> None:
        """Show the partitions of tiered tables and those with heap retention, and let the pump retry postponed steps.

        A table whose proof failed only continues after this command; until then nothing leaves its heap. A running pump
        does the actual work.
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
            say("no table has partitions that leave: mirror-pump register TABLE --mode tiered, or --heap-retention N")
        for report in reports:
            say(f"{report.table}: {report.summary}")
            if report.not_made is not None:
                say(f"  {report.not_made}")
            for partition in report.partitions:
                say(f"  {partition.partition} [{partition.lo}, {partition.hi}): {partition.state}; {partition.outlook}")
