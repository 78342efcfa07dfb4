"""The program `mirror-pump`: a list of commands, implemented in mirror_pump.ops and mirror_pump.pipeline.

A process imports the module of the command that it runs, and no other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from mirror_pump.cli.terminal.output import remark, say
from mirror_pump.runtime.telemetry import configure_logging, redact
from mirror_pump.settings.config import ENV_PREFIX, FORMER_SETTINGS

PANELS = {
    "Set up": {
        "init": "init",
        "register": "register",
        "unregister": "unregister",
        "apply": "apply",
        "export": "apply",
        "profile": "profile",
        "config": "config",
    },
    "Run": {
        "run": "run",
        "serve": "serve",
        "pause": "pause",
        "resume": "pause",
        "resync": "resync",
        "reconcile": "reconcile",
        "load": "load",
        "ingest": "ingest",
    },
    "Look": {"status": "status", "wait": "wait", "verify": "verify", "doctor": "doctor", "where": "where"},
    "Read": {"sql": "sql", "changes": "changes", "connect": "connect", "follow": "follow", "reader": "reader"},
    "Keep": {"moment": "moment", "maintain": "maintain", "policy": "policy", "retain": "retain"},
    "Lake tables": {"lake": "lake"},
}
"""By heading of the help, each command's module in mirror_pump.cli.commands, in the order in which a new user needs
them."""
MODULES = {name: module for modules in PANELS.values() for name, module in modules.items()}
_PANEL_OF = {name: panel for panel, modules in PANELS.items() for name in modules}

_Command = TyperCommand | TyperGroup


class _Commands(MutableMapping[str, _Command]):
    """The commands by name. One is imported when it is looked up; to list their names imports none."""

    def __init__(self) -> None:
        self._loaded: dict[str, _Command] = {}

    def __getitem__(self, name: str) -> _Command:
        if name not in self._loaded:
            part = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)
            import_module(f"mirror_pump.cli.commands.{MODULES[name]}").add(part)
            for command_name, command in get_group(part).commands.items():
                command.rich_help_panel = _PANEL_OF[command_name]  # type: ignore[attr-defined]  # as typer's commands
                self._loaded[command_name] = command  # type: ignore[assignment]  # typer makes no other commands
        return self._loaded[name]

    def __setitem__(self, name: str, command: _Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands stay")

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Takes secrets out of complaints about arguments, which quote them: one may be a connection string. Names what has
    taken the place of a former option."""
    try:
        yield
    except Exception as error:
        if isinstance(message := getattr(error, "message", None), str) and hasattr(error, "format_message"):
            error.message = redact(message)  # type: ignore[attr-defined]
            option = str(getattr(error, "option_name", "")).removeprefix("--").replace("-", "_")
            if option in FORMER_SETTINGS:
                error.possibilities = ["--" + FORMER_SETTINGS[option].replace("_", "-")]  # type: ignore[attr-defined]
        raise


class CommandGroup(TyperGroup):
    """Reports command-line errors like other errors: as a JSON line if log lines are JSON, and without a frame where
    there is no terminal."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast("MutableMapping[str, Any]", _Commands())

    def list_commands(self, ctx: object) -> list[str]:  # noqa: ARG002 - typer gives it
        return list(self.commands)

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with _usage_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _usage_errors():
            return super().invoke(ctx)

    def main(self, args: Sequence[str] | None = None, *others: Any, **extra: Any) -> Any:
        early = _log_format(sys.argv[1:] if args is None else args)
        if early != "json" and sys.stderr.isatty():
            return super().main(args, *others, **extra)
        configure_logging("human" if early == "human" else "json")
        try:
            result = super().main(args, *others, **(extra | {"standalone_mode": False}))
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


def _log_format(arguments: Sequence[str]) -> str | None:
    """The format that is asked for, before the arguments are understood: they may be what is wrong."""
    for number, option in enumerate(arguments, 1):
        if option == "--log-format":
            return next(iter(arguments[number:]), "")
        if option.startswith("--log-format="):
            return option.partition("=")[2]
    return os.environ.get(f"{ENV_PREFIX}LOG_FORMAT")


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


def _version(requested: bool) -> None:
    if requested:
        # Imported here, since it takes 20 ms, for a mail parser.
        from importlib.metadata import PackageNotFoundError, version

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


if __name__ == "__main__":
    app()
