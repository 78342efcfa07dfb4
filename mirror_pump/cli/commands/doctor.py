"""`mirror-pump doctor`: checks everything that a mirror needs, before and after it is set up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mirror_pump.cli.arguments.completion import other_tables
from mirror_pump.cli.arguments.options import SLOT, SOURCE, STORAGE, AsJson, command
from mirror_pump.cli.terminal.output import one_line, remark, say, write_json
from mirror_pump.errors import UsageError
from mirror_pump.runtime.durations import seconds_of
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from mirror_pump.ops.doctor.examination import Examined


_MEASURE = "10s"
_LONGEST_MEASURE = 86_400.0
"""Seconds."""


def add(app: typer.Typer) -> None:
    @command(app, "doctor", (*SOURCE, "warehouse", *SLOT, *STORAGE), needs_dsn=False)
    def doctor(
        settings: Settings,
        tables: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="TABLE|PATTERN",
                help=r"With --plan: names, or patterns, such as 'sales.*' \[all tables]",
                autocompletion=other_tables,
                show_default=False,
            ),
        ] = None,
        plan: Annotated[
            bool, typer.Option("--plan", help="Say what a mirror of these tables would be, and do to the server")
        ] = False,
        measure: Annotated[
            str | None, typer.Option("--measure", metavar="DURATION", help=r"With --plan: for how long \[10s]")
        ] = None,
        as_json: AsJson = False,
    ) -> int:
        """Check the server, the role's rights, the tables, the storage and this machine, and say what to do.

        Nothing has to be set up before: if the database, the mirror or Java is missing, doctor says so and checks the
        rest. It changes nothing, except that it writes a file to the warehouse and deletes it. Each check has a
        deadline.

        Exit code 0 if no check fails, else 1. Warnings, and checks that could not be made, count as no failure.

        With --plan it makes no check, and says what a mirror of the database would be: how each table can be mirrored,
        how long the copy takes, what the slot does to the server. It takes one session, which only reads catalogs and
        statistics, by any role. It measures what is written meanwhile, for --measure: an hour that is busy says most.
        """
        if plan:
            return _plan(settings, tables or (), measure, as_json=as_json)
        if tables or measure is not None:
            raise UsageError("tables and --measure are for --plan", "add --plan, or leave them out")
        from mirror_pump.ops.doctor.check import Outcome
        from mirror_pump.ops.doctor.examination import examine

        examination = examine(settings, report=(lambda _: None) if as_json else _say)
        if as_json:
            write_json(examination.to_json())
        else:
            counts = ", ".join(f"{examination.count(outcome)} {outcome.value}" for outcome in Outcome)
            say(f"{len(examination.checks)} checks: {counts}")
        return int(examination.outcome is Outcome.FAILED)


def _plan(settings: Settings, names: Sequence[str], measure: str | None, *, as_json: bool) -> int:
    from mirror_pump.ops.plan.plan import make_plan
    from mirror_pump.ops.plan.plan_text import plan_lines

    seconds = seconds_of(measure or _MEASURE, "--measure")
    if seconds > _LONGEST_MEASURE:
        raise UsageError(f"--measure {measure} is longer than a day", "measure for a day at most")
    if seconds >= 1:
        remark(f"measuring for {seconds:g} s")
    planned = make_plan(settings, names, seconds)
    if as_json:
        write_json(planned.to_json())
    else:
        for line in plan_lines(planned):
            # Names may have line breaks.
            say(line[: len(line) - len(line.lstrip(" "))] + one_line(line))
    return 0


def _say(examined: Examined) -> None:
    for finding in examined.findings:
        about = examined.check if finding.table is None else f"{examined.check}: {finding.table}"
        say(f"{finding.outcome.value:<8}{about}: {one_line(finding.message)}")
        if finding.remedy:
            say(f"        what to do: {one_line(finding.remedy)}")
