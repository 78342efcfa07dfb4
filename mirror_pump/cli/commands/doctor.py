"""`mirror-pump doctor`: checks everything that a mirror needs, before and after it is set up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from mirror_pump.cli.arguments.options import SLOT, SOURCE, STORAGE, AsJson, command
from mirror_pump.cli.terminal.output import one_line, say, write_json
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from mirror_pump.ops.doctor.examination import Examined


def add(app: typer.Typer) -> None:
    @command(app, "doctor", (*SOURCE, "warehouse", *SLOT, *STORAGE), needs_dsn=False)
    def doctor(
        settings: Settings,
        as_json: AsJson = False,
    ) -> int:
        """Check the server, the role's rights, the tables, the storage and this machine, and say what to do.

        Nothing has to be set up before: if the database, the mirror or Java is missing, doctor says so and checks the
        rest. It changes nothing, except that it writes a file to the warehouse and deletes it. Each check has a
        deadline.

        Exit code 0 if no check fails, else 1. Warnings, and checks that could not be made, count as no failure.
        """
        from mirror_pump.ops.doctor.check import Outcome
        from mirror_pump.ops.doctor.examination import examine

        examination = examine(settings, report=(lambda _: None) if as_json else _say)
        if as_json:
            write_json(examination.to_json())
        else:
            counts = ", ".join(f"{examination.count(outcome)} {outcome.value}" for outcome in Outcome)
            say(f"{len(examination.checks)} checks: {counts}")
        return int(examination.outcome is Outcome.FAILED)


def _say(examined: Examined) -> None:
    for finding in examined.findings:
        about = examined.check if finding.table is None else f"{examined.check}: {finding.table}"
        say(f"{finding.outcome.value:<8}{about}: {one_line(finding.message)}")
        if finding.remedy:
            say(f"        what to do: {one_line(finding.remedy)}")
