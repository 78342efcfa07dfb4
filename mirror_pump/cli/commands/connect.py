"""`mirror-pump connect`: how to read the mirror from an engine."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from mirror_pump.cli.arguments.options import SLOT, STORAGE, command
from mirror_pump.cli.terminal.output import remark, say
from mirror_pump.config import Settings


class ReaderEngine(StrEnum):
    """The engines whose settings are known."""

    SPARK = "spark"
    DUCKDB = "duckdb"
    PYICEBERG = "pyiceberg"
    TRINO = "trino"


def add(app: typer.Typer) -> None:
    @command(app, "connect", (*SLOT, *STORAGE))
    def connect(
        settings: Settings,
        engine: Annotated[
            ReaderEngine, typer.Option("--engine", case_sensitive=False, help="The engine that is to read")
        ],
        user: Annotated[
            str | None, typer.Option("--user", metavar="ROLE", help=r"The role that reads \[that of the DSN]")
        ] = None,
    ) -> None:
        """Print settings to paste into an engine, for the mirror of this database. Passwords stay placeholders.

        `mirror-pump reader ROLE` makes a role one that can read the mirror, and change nothing of it.
        """
        from mirror_pump.ops.reads.engine_snippets import snippet
        from mirror_pump.ops.setup.stored_settings import complete

        say(snippet(complete(settings), engine.value, user, lambda text: remark(f"warning: {text}")))
