"""The program `mirror-pump`: a list of commands. What they do is in mirror_pump.ops and mirror_pump.pipeline."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from mirror_pump.cli.commands import (
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
from mirror_pump.cli.output import say

app = typer.Typer(
    name="mirror-pump",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Every option can also be given by environment (MIRROR_PUMP_DSN and so on) or in mirror-pump.toml; the command "
        "line wins, then the environment. Exit codes: 0 done, 1 failed, 2 wrong usage."
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
for _module in (init, register, run, status, wait, verify, sql, reader, connect, maintain, policy, retain):
    _module.add(app)

if __name__ == "__main__":
    app()
