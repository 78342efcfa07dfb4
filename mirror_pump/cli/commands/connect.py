"""`mirror-pump connect`: prints settings for reading the mirror with another engine."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from mirror_pump.cli.arguments.completion import mirrored_tables
from mirror_pump.cli.arguments.options import SLOT, STORAGE, command
from mirror_pump.cli.terminal.output import remark, say
from mirror_pump.settings.config import Settings


class ReaderEngine(StrEnum):
    """Engines with known settings."""

    SPARK = "spark"
    DUCKDB = "duckdb"
    PYICEBERG = "pyiceberg"
    TRINO = "trino"
    CLICKHOUSE = "clickhouse"
    """By the REST catalog only."""


def add(app: typer.Typer) -> None:
    @command(app, "connect", (*SLOT, *STORAGE))
    def connect(
        settings: Settings,
        engine: Annotated[ReaderEngine, typer.Option("--engine", case_sensitive=False, help="The engine to connect")],
        user: Annotated[
            str | None, typer.Option("--user", metavar="ROLE", help=r"The role to read as \[a reader's role]")
        ] = None,
        profile: Annotated[
            str, typer.Option("--profile", metavar="NAME", help="The storage profile whose tables are to be read")
        ] = "default",
        table: Annotated[
            str | None,
            typer.Option(
                "--table",
                metavar="TABLE",
                help=r"The table that the settings name \[the first]",
                autocompletion=mirrored_tables,
            ),
        ] = None,
        rest: Annotated[
            str | None,
            typer.Option(
                "--rest", metavar="URI", help="Connect by the REST catalog there (`mirror-pump serve` says where)"
            ),
        ] = None,
        attach: Annotated[
            str,
            typer.Option(
                "--attach",
                metavar="NAME",
                help="With --rest: mirror, mirror@latest, mirror@ a position or time, or mirror@A..B",
            ),
        ] = "mirror@latest",
    ) -> None:
        """Print settings to paste into an engine, for the mirror of this database. Passwords stay placeholders.

        Comments before them say what the engine refuses, or reads wrongly, of the table that they name
        (docs/readers.md).

        They are those of a reader's role: `mirror-pump reader ROLE` allows a role to read the mirror, without changing
        anything of it. With `--rest`,
        engines need no role and no database, but a running `mirror-pump serve`.
        """
        from mirror_pump.ops.reads.engine_snippets import rest_snippet, snippet
        from mirror_pump.ops.setup.stored_settings import complete

        def warn(text: str) -> None:
            remark(f"warning: {text}")

        if rest is not None:
            say(rest_snippet(complete(settings), engine.value, rest, attach, profile, table))
            return
        say(snippet(complete(settings), engine.value, user, warn, profile, table))
