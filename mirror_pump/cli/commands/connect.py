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
    SNOWFLAKE = "snowflake"
    DATABRICKS = "databricks"
    ATHENA = "athena"
    REDSHIFT = "redshift"
    BIGQUERY = "bigquery"


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
            str | None,
            typer.Option(
                "--attach",
                metavar="NAME",
                help="With --rest: mirror, mirror@latest, mirror@ a position or time, or mirror@A..B"
                r" \[mirror@latest; for a cloud's engine, which stays attached, mirror]",
            ),
        ] = None,
    ) -> None:
        """Print settings to paste into an engine, for the mirror of this database. Passwords stay placeholders.

        Comments before them say what the engine refuses, or reads wrongly, of the table that they name
        (docs/readers.md).

        They are those of a reader's role: `mirror-pump reader ROLE` allows a role to read the mirror, without changing
        anything of it. With `--rest`,
        engines need no role and no database, but a running `mirror-pump serve`.

        For engines of a cloud it prints their SQL, from their documentation (docs/cloud-engines/), and refuses what
        they do not read.
        """
        say(_snippet(settings, engine.value, user, profile, table, rest, attach))


def _snippet(
    settings: Settings,
    engine: str,
    user: str | None,
    profile: str,
    table: str | None,
    uri: str | None,
    attached: str | None,
) -> str:
    """The settings of an engine: those of a cloud's engine, of the REST catalog at `uri`, or of the JDBC catalog."""
    from mirror_pump.ops.reads.cloud_engines import CLOUD_ENGINES
    from mirror_pump.ops.reads.engine_snippets import cloud_snippet, rest_snippet, snippet
    from mirror_pump.ops.setup.stored_settings import complete

    def warn(text: str) -> None:
        remark(f"warning: {text}")

    settings = complete(settings)
    if engine in CLOUD_ENGINES:
        return cloud_snippet(settings, engine, uri, attached or "mirror", warn, profile, table)
    if uri is not None:
        return rest_snippet(settings, engine, uri, attached or "mirror@latest", profile, table)
    return snippet(settings, engine, user, warn, profile, table)
