"""Turns fields of Settings into command-line options, so that each option is described once, where it is defined."""

from __future__ import annotations

import functools
import gc
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

from mirror_pump.cli.terminal.output import one_line, remark, report_error
from mirror_pump.errors import Interrupted, MirrorPumpError, TransientRefusal, UsageError, speak_of
from mirror_pump.runtime.telemetry import LogFormat, configure_logging, get_logger
from mirror_pump.settings.config import CONFIG_FILE, ENV_PREFIX, Settings, load_settings
from mirror_pump.settings.reference import setting
from mirror_pump.settings.values import unknown_variables

SOURCE = ("dsn", "password_command", "mirror")
SLOT = ("slot", "publication")
STORAGE = ("storage_endpoint", "storage_region", "storage_access_key", "warehouse_mode")
"""The secret key is not an option, since everybody on a machine can read a process's command line."""
COPIES = (*SLOT, "copy_workers", "copy_chunk_bytes", "copy_rate_bytes", "lock_timeout", "master", *STORAGE)
"""Settings of commands that copy tables."""
CATALOG = ("lease_timeout", "vend_credentials", "access_file")
MONITORING = ("listen", "loads", "load_bytes", "catalog", *CATALOG, "ready_max_lag")
"""The token is not an option either, for the same reason."""
LOGGING = ("log_format", "log_level")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON (docs/cli-json.md)")]

Command = Callable[..., int | None]
_Choice = TypeVar("_Choice", bound=StrEnum)
_Chosen = TypeVar("_Chosen")
_FIELDS = "__dataclass_fields__"
"""What makes a class a dataclass."""


@dataclass(frozen=True)
class ParameterMap:
    """In the annotation of a dataclass's field: it is a map, by name, of what these parameters are given."""

    parameters: tuple[inspect.Parameter, ...]


_LOGGING_PANEL = "Configuration and logging"
_PANELS = (
    dict.fromkeys((*SOURCE, *SLOT), "Source")
    | dict.fromkeys(STORAGE, "Lake storage")
    | dict.fromkeys(MONITORING, "Monitoring")
)


def command(
    app: typer.Typer,
    name: str,
    fields: Sequence[str] = (),
    *,
    needs_dsn: bool = True,
    bare: Mapping[str, str] | None = None,
) -> Callable[[Command], Command]:
    """Registers `function(settings, ...)` as command `name`, with options for the DSN and each of `fields`. `bare`:
    options that may come without a value, which is then this one; another one is given by `=`.

    A parameter whose type is a dataclass stands for an option of each of its fields; a field with a ParameterMap for
    those in there.

    The function's result is the exit code (None means 0). A MirrorPumpError ends with its exit code and at most two
    lines of output.
    """

    def register(function: Command) -> Command:
        hints = get_type_hints(function)
        groups = {name: hint for name, hint in hints.items() if name != "settings" and hasattr(hint, _FIELDS)}
        parameters_of_function = [
            *_parameters(function, ("settings", *groups)),
            *chain.from_iterable(chain.from_iterable(map(_mapped, _parameters(group))) for group in groups.values()),
        ]
        offered = (*SOURCE, *fields, *LOGGING) if needs_dsn else (*fields, *LOGGING)

        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            debug: bool = arguments.pop("debug")
            config: Path | None = arguments.pop("config")
            options = {field: arguments.pop(field) for field in offered}
            for name, group in groups.items():
                arguments[name] = group(
                    **{parameter.name: _taken(parameter, arguments) for parameter in _parameters(group)}
                )
            raise typer.Exit(_run(function, options, config, debug, needs_dsn, arguments))

        parameters = [*parameters_of_function, *(_setting(field) for field in offered), *_COMMON]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del run.__wrapped__
        app.command(name, cls=_with_bare(bare or {}), help=_reflow(function.__doc__ or ""))(run)
        return function

    return register


def _with_bare(bare: Mapping[str, str]) -> type[TyperCommand]:
    """A command whose options may come without a value."""

    class WithBareOptions(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            return super().parse_args(ctx, [f"{part}={bare[part]}" if part in bare else part for part in args])

    return WithBareOptions if bare else TyperCommand


def _mapped(parameter: inspect.Parameter) -> tuple[inspect.Parameter, ...]:
    """The parameter, or those of its ParameterMap."""
    maps = (part for part in getattr(parameter.annotation, "__metadata__", ()) if isinstance(part, ParameterMap))
    return next((part.parameters for part in maps), (parameter,))


def _taken(parameter: inspect.Parameter, arguments: dict[str, Any]) -> Any:
    """The value of a parameter, or the map that it has, which is taken out of the arguments."""
    values = {mapped.name: arguments.pop(mapped.name) for mapped in _mapped(parameter)}
    return values.get(parameter.name, values)


def _parameters(described: Callable[..., object], without: Sequence[str] = ()) -> list[inspect.Parameter]:
    """The parameters of a function, or of a dataclass, by keyword and with their types."""
    hints = get_type_hints(described, include_extras=True)
    return [
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(described).parameters.values()
        if parameter.name not in without
    ]


@dataclass(frozen=True)
class OptionRule(Generic[_Chosen]):
    """A combination of options that makes no sense."""

    is_broken: Callable[[_Chosen], bool]
    error: str
    remedy: str = ""


def require(options: _Chosen, rules: Iterable[OptionRule[_Chosen]]) -> None:
    """Raises UsageError for the first rule that the options break."""
    for rule in rules:
        if rule.is_broken(options):
            raise UsageError(rule.error, rule.remedy)


def chosen(option: str, text: str, kind: type[_Choice], verb: str = "choose") -> _Choice:
    """The value of an option that is one of a few words. Raises UsageError for another word."""
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{option} {text} is not known", f"{verb} {', '.join(kind)}") from None


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
        warn_of_unknown_variables()
        settings = load_settings(options, config)
        speak_of(settings.mirror)
        configure_logging(settings.log_format, "debug" if debug else settings.log_level)
        if needs_dsn:
            settings.require_dsn()
        if not gc.isenabled():
            # The program has just begun (mirror_pump.cli.__main__).
            gc.freeze()
            gc.enable()
        return _called(function, settings, arguments)
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
    except UnicodeEncodeError as error:
        # Python keeps bytes of an argument that are no text as single surrogates.
        if debug:
            get_logger("cli").debug("traceback", exc_info=True)
        remark(
            f"an argument is not UTF-8: it has {error.object[error.start : error.end]!a}", "error", "give it in UTF-8"
        )
        return UsageError.exit_code
    except Exception as error:  # noqa: BLE001 - outermost level of the program: users get two lines for any error
        if debug:
            get_logger("cli").debug("traceback", exc_info=True)
        remark(
            f"{type(error).__name__}: {one_line(str(error))}",
            "error",
            "run the command again with --debug to get the traceback, and report it",
        )
        return 1


def _called(function: Command, settings: Settings, arguments: dict[str, Any]) -> int:
    """The exit code of the command. An error about a lock that was not granted in time names who holds it."""
    try:
        return function(settings, **arguments) or 0
    except TransientRefusal as error:
        if not settings.dsn:
            raise
        from mirror_pump.source.catalog.lock_holders import naming_lock_holders

        named = naming_lock_holders(error, settings.require_dsn())
        raise named from named.__cause__


def warn_of_unknown_variables() -> None:
    """Names variables that were probably meant to set something. They are no error: others may have a use for them."""
    for name, meant in unknown_variables(os.environ):
        remark(
            f"{name} is no setting, and has no effect",
            "warning",
            f"did you mean {meant}?" if meant else "unset it; `mirror-pump config --reference` lists all settings",
        )


def _early_format(options: Mapping[str, Any]) -> LogFormat:
    log_format = options.get("log_format") or os.environ.get(f"{ENV_PREFIX}LOG_FORMAT")
    return "human" if log_format == "human" else "json" if log_format == "json" else "auto"


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
        rich_help_panel=_PANELS.get(field, _LOGGING_PANEL if field in LOGGING else "Tuning"),
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
            typer.Option(
                "--config",
                help=f"Read settings from this file instead of ./{CONFIG_FILE}",
                metavar="FILE",
                rich_help_panel=_LOGGING_PANEL,
            ),
        ],
    ),
    inspect.Parameter(
        "debug",
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[
            bool, typer.Option("--debug", help="Log everything and show tracebacks", rich_help_panel=_LOGGING_PANEL)
        ],
    ),
)
