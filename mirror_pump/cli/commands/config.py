"""`mirror-pump config`: prints and explains the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirror_pump.cli.terminal.output import one_line, pass_on, remark, report_error, say
from mirror_pump.errors import MirrorPumpError, UsageError
from mirror_pump.settings.config import Settings


def add(app: typer.Typer) -> None:
    # Does not use options.command, as it reads no settings: a broken configuration file must not prevent it.
    @app.command("config")
    def config(
        example: Annotated[
            bool, typer.Option("--example", help="Print an example mirror-pump.toml to start from")
        ] = False,
        reference: Annotated[bool, typer.Option("--reference", help="Print the reference, docs/settings.md")] = False,
        show: Annotated[
            bool, typer.Option("--show", help="Print the values that apply here, and where each is from")
        ] = False,
        config_file: Annotated[
            Path | None,
            typer.Option("--config", help="With --show: read settings from this file", metavar="FILE"),
        ] = None,
    ) -> None:
        """Print all settings with units, defaults and meanings, as an example file or as a reference; or their values.

        --show prints what the environment, the configuration file, the database and the defaults come to. Options of
        a command override these. Passwords and keys are not shown.
        """
        import io

        from mirror_pump.settings import reference as settings_reference

        if sum((example, reference, show)) != 1:
            raise typer.BadParameter("give either --example, --reference or --show")
        if config_file is not None and not show:
            raise typer.BadParameter("--config is for --show")
        if show:
            raise typer.Exit(_show(config_file))
        text = settings_reference.example() if example else settings_reference.reference()
        pass_on(io.BytesIO(text.encode()))


def _show(config_file: Path | None) -> int:
    """Prints the values. Returns the exit code."""
    from mirror_pump.cli.arguments.options import warn_of_unknown_variables
    from mirror_pump.settings.values import setting_values

    warn_of_unknown_variables()
    try:
        values = setting_values(config_file, _completed)
    except UsageError as error:
        report_error(error)
        return error.exit_code
    widths = [max(len(getattr(value, part)) for value in values) for part in ("name", "value")]
    for value in values:
        say(f"{value.name.ljust(widths[0])}  {value.value.ljust(widths[1])}  {value.source}")
    return 0


def _completed(settings: Settings) -> Settings:
    """With what the database has stored, as far as it can be asked."""
    from mirror_pump.ops.setup.stored_settings import complete

    try:
        return complete(settings)
    except MirrorPumpError as error:
        text = one_line(str(error))
        remark(f"what is stored in the database is not shown: {text}", "warning", one_line(error.remedy))
        return settings
