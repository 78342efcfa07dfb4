"""The program `mirror-pump`: a list of commands, implemented in mirror_pump.ops and mirror_pump.pipeline."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mirror_pump.cli.commands import (
    config,
    connect,
    doctor,
    ingest,
    init,
    lake,
    load,
    maintain,
    policy,
    profile,
    reader,
    reconcile,
    register,
    resync,
    retain,
    run,
    serve,
    sql,
    status,
    verify,
    wait,
)
from mirror_pump.cli.terminal.output import remark, say
from mirror_pump.config import ENV_PREFIX
from mirror_pump.telemetry import configure_logging


class CommandGroup(TyperGroup):
    """Reports command-line errors like other errors: as a JSON line if log lines are JSON."""

    def main(self, *args: Any, **extra: Any) -> Any:
        early = os.environ.get(f"{ENV_PREFIX}LOG_FORMAT")
        if early == "human" or (early != "json" and sys.stderr.isatty()):
            return super().main(*args, **extra)
        configure_logging("json")
        try:
            result = super().main(*args, **(extra | {"standalone_mode": False}))
        except Exception as error:
            # A ClickException, whose module differs between versions of typer.
            if not hasattr(error, "format_message"):
                raise
            context = getattr(error, "ctx", None)
            path = context.command_path if context is not None else "mirror-pump"
            # Without a command, the message would be the whole help.
            message = "" if type(error).__name__ == "NoArgsIsHelpError" else str(error.format_message())
            remark(message or "no command was given", "error", f"see {path} --help")
            sys.exit(2)
        sys.exit(result if isinstance(result, int) else 0)


app = typer.Typer(
    name="mirror-pump",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Every option can also be set in the environment (MIRROR_PUMP_DSN and so on) or in mirror-pump.toml; the "
        "command line has priority, then the environment. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted."
    ),
)


def _version(wanted: bool) -> None:
    if wanted:
        try:
            say(f"mirror-pump {version('mirror-pump')}")
        except PackageNotFoundError:
            say("mirror-pump (not installed)")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit")
    ] = False,
) -> None:
    """Mirror PostgreSQL tables into Apache Iceberg, provably complete.

    Everything committed up to the frontier, a WAL position, is in the lake, in every mirrored table, at once.

    First steps: [bold]init --warehouse DIR[/bold], [bold]register TABLE[/bold], [bold]run[/bold]; then
    [bold]status[/bold], [bold]wait --now --timeout 60[/bold] and [bold]verify[/bold].
    """


# In the order in which a new user needs them.
for _module in (
    init,
    register,
    run,
    status,
    wait,
    verify,
    sql,
    serve,
    reader,
    connect,
    lake,
    load,
    maintain,
    policy,
    retain,
    ingest,
    profile,
    resync,
    reconcile,
    doctor,
    config,
):
    _module.add(app)

if __name__ == "__main__":
    app()
