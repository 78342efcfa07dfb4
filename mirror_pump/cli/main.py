"""The program `mirror-pump`: a list of commands. What they do is in mirror_pump.ops and mirror_pump.pipeline."""

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
    init,
    maintain,
    policy,
    reader,
    register,
    retain,
    run,
    sql,
    status,
    verify,
    wait,
)
from mirror_pump.cli.terminal.output import remark, say
from mirror_pump.config import ENV_PREFIX
from mirror_pump.telemetry import configure_logging


class CommandGroup(TyperGroup):
    """Says what is wrong with a command line as everything else is said: where log lines are JSON, in one."""

    def main(self, *args: Any, **extra: Any) -> Any:
        early = os.environ.get(f"{ENV_PREFIX}LOG_FORMAT")
        if early == "human" or (early != "json" and sys.stderr.isatty()):
            return super().main(*args, **extra)
        configure_logging("json")
        try:
            result = super().main(*args, **(extra | {"standalone_mode": False}))
        except Exception as error:
            # A ClickException, which has another home in each version of typer.
            if not hasattr(error, "format_message"):
                raise
            context = getattr(error, "ctx", None)
            path = context.command_path if context is not None else "mirror-pump"
            # Without a command the message is the whole help.
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
        "Every option can also be given by environment (MIRROR_PUMP_DSN and so on) or in mirror-pump.toml; the command "
        "line wins, then the environment. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 ended by Ctrl-C."
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
    """Mirror PostgreSQL tables into Apache Iceberg, and prove what it says.

    Everything committed at or below the frontier F is in the lake, in every mirrored table, at once.

    A first mirror: [bold]init --warehouse DIR[/bold], [bold]register TABLE[/bold], [bold]run[/bold]; then
    [bold]status[/bold], [bold]wait --now --timeout 60[/bold] and [bold]verify[/bold].
    """


# In the order in which a newcomer needs them.
for _module in (init, register, run, status, wait, verify, sql, reader, connect, maintain, policy, retain, config):
    _module.add(app)

if __name__ == "__main__":
    app()
