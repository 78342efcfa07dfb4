"""`mirror-pump config`: the settings, explained."""

from __future__ import annotations

from typing import Annotated

import typer

from mirror_pump.cli.terminal.output import pass_on


def add(app: typer.Typer) -> None:
    # Not by options.command: it reads no settings, so that a broken file of them is no obstacle.
    @app.command("config")
    def config(
        example: Annotated[bool, typer.Option("--example", help="A mirror-pump.toml to begin with")] = False,
        reference: Annotated[bool, typer.Option("--reference", help="docs/settings.md")] = False,
    ) -> None:
        """Print all settings with their units, defaults and meanings, as a file to begin with or as a reference."""
        import io

        from mirror_pump import settings_reference

        if example is reference:
            raise typer.BadParameter("give one of --example and --reference")
        text = settings_reference.example() if example else settings_reference.reference()
        pass_on(io.BytesIO(text.encode()))
