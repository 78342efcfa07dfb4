"""Turns fields of Settings into command-line options, so that each option is described once, where it is defined."""

from __future__ import annotations

import functools
import gc
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from mirror_pump.cli.terminal.output import one_line, remark, report_error
from mirror_pump.config import CONFIG_FILE, ENV_PREFIX, load_settings
from mirror_pump.errors import Interrupted, MirrorPumpError
from mirror_pump.settings_reference import setting
from mirror_pump.telemetry import LogFormat, configure_logging, get_logger

SOURCE = ("dsn",)
SLOT = ("slot", "publication")
STORAGE = ("storage_endpoint", "storage_region", "storage_access_key")
"""The secret key is not an option, since everybody on a machine can read a process's command line."""
CATALOG = ("lease_timeout", "vend_credentials")
MONITORING = ("listen", "loads", "load_bytes", "catalog", *CATALOG, "ready_max_lag")
"""The token is not an option either, for the same reason."""
LOGGING = ("log_format", "log_level")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON (docs/cli-json.md)")]

Command = Callable[..., int | None]

_PANELS = (
    dict.fromkeys((*SOURCE, *SLOT), "Source")
    | dict.fromkeys(STORAGE, "Lake storage")
    | dict.fromkeys(MONITORING, "Monitoring")
)


def command(
    app: typer.Typer, name: str, fields: Sequence[str] = (), *, needs_dsn: bool = True
) -> Callable[[Command], Command]:
    """Registers `function(settings, ...)` as command `name`, with options for the DSN and each of `fields`.

    The function's result is the exit code (None means 0). A MirrorPumpError ends with its exit code and at most two
    lines of output.
    """

    def register(function: Command) -> Command:
        hints = get_type_hints(function, include_extras=True)
        own = [
            parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name != "settings"
        ]
        offered = (*SOURCE, *fields, *LOGGING) if needs_dsn else (*fields, *LOGGING)

        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            debug: bool = arguments.pop("debug")
            config: Path | None = arguments.pop("config")
            options = {field: arguments.pop(field) for field in offered}
            raise typer.Exit(_run(function, options, config, debug, needs_dsn, arguments))

        parameters = [*own, *(_setting(field) for field in offered), *_COMMON]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del run.__wrapped__
        app.command(name, help=_reflow(function.__doc__ or ""))(run)
        return function

    return register


def _run(
    function: Command,
    options: dict[str, Any],
    config: Path | None,
    debug: bool,
    needs_dsn: bool,
    arguments: dict[str, Any],
) -> int:
    try:
        # Logging is first configured without the settings, since loading them may fail.
        configure_logging(_early_format(options))
        settings = load_settings(options, config)
        configure_logging(settings.log_format, "debug" if debug else settings.log_level)
        if needs_dsn:
            settings.require_dsn()
        if not gc.isenabled():
            # The program has just begun (mirror_pump.cli.__main__).
            gc.freeze()
            gc.enable()
        return function(settings, **arguments) or 0
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        remark("interrupted")
        return Interrupted.exit_code
    except MirrorPumpError as error:
        if debug:
            get_logger("cli").debug("traceback", exc_info=True)
        report_error(error)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - outermost level of the program: users get two lines for any error
        if debug:
            get_logger("cli").debug("traceback", exc_info=True)
        remark(
            f"{type(error).__name__}: {one_line(str(error))}",
            "error",
            "run the command again with --debug to get the traceback, and report it",
        )
        return 1


def _early_format(options: Mapping[str, Any]) -> LogFormat:
    wanted = options.get("log_format") or os.environ.get(f"{ENV_PREFIX}LOG_FORMAT")
    return "human" if wanted == "human" else "json" if wanted == "json" else "auto"


def _reflow(docstring: str) -> str:
    """A docstring with each paragraph on one line, since the terminal wraps lines."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _setting(field: str) -> inspect.Parameter:
    """The option of one field of Settings. Always text, since Settings itself parses and checks it."""
    described = setting(field)
    default = f" [default: {described.default}]" if described.default else ""
    option = typer.Option(
        described.option,
        help=f"{described.meaning}{default} [env: {described.variable}]".replace("[", r"\["),
        metavar=described.unit.metavar,
        rich_help_panel=_PANELS.get(field, "Logging" if field in LOGGING else "Tuning"),
    )
    return inspect.Parameter(
        field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )


_COMMON = (
    inspect.Parameter(
        "config",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            Path | None,
            typer.Option("--config", help=f"Read settings from this file instead of ./{CONFIG_FILE}", metavar="FILE"),
        ],
    ),
    inspect.Parameter(
        "debug",
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, typer.Option("--debug", help="Log everything and show tracebacks")],
    ),
)
