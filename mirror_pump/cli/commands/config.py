"""`mirror-pump config`: prints and explains the settings."""

from __future__ import annotations

from typing import Annotated

import typer

from mirror_pump.cli.terminal.output import pass_on


def add(app: typer.Typer) -> None:
    # Does not use options.command, as it reads no settings: a broken configuration file must not prevent it.
    @app.command("config")
    def config(
        example: Annotated[
            bool, typer.Option("--example", help="Print an example mirror-pump.toml to start from")
        ] = False,
        reference: Annotated[bool, typer.Option("--reference", help="Print the reference, docs/settings.md")] = False,
    ) -> None:
        """Print all settings with units, defaults and meanings, as an example file or as a reference."""
        import io

        from mirror_pump import settings_reference

        if example is reference:
            raise typer.BadParameter("give either --example or --reference")
        text = settings_reference.example() if example else settings_reference.reference()
        pass_on(io.BytesIO(text.encode()))
