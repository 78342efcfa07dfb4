"""`mirror-pump sql`: query mirrored tables by an embedded DuckDB."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mirror_pump.cli.commands.run import lsn_argument
from mirror_pump.cli.options import SLOT, STORAGE, command
from mirror_pump.cli.output import pass_on, remark
from mirror_pump.config import Settings
from mirror_pump.errors import UsageError


class Mode(StrEnum):
    """Where rows come from."""

    SEAM = "seam"
    LAKE = "lake"
    HEAP = "heap"
    HYBRID = "hybrid"


class Format(StrEnum):
    """How the result is written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def add(app: typer.Typer) -> None:
    @command(app, "sql", (*SLOT, *STORAGE))
    def sql(
        settings: Settings,
        statement: Annotated[str, typer.Argument(metavar="QUERY", help="One query, in DuckDB's SQL")],
        mode: Annotated[
            Mode,
            typer.Option(
                "--mode",
                help="seam: tables with heap retention whole, others from the lake; lake; heap; or hybrid: the newest"
                " rows from the heap",
            ),
        ] = Mode.SEAM,
        at: Annotated[
            str | None,
            typer.Option("--at", metavar="LSN|TIME", help="As of a published F of the past, from the lake"),
        ] = None,
        min_lsn: Annotated[
            str | None,
            typer.Option(
                "--min-lsn", metavar="LSN", help=r"Wait until F has passed this \[hybrid: the present end of WAL]"
            ),
        ] = None,
        max_wait: Annotated[
            float, typer.Option("--max-wait", min=0, metavar="SECONDS", help="Wait for that no longer than this")
        ] = 5.0,
        output_format: Annotated[Format, typer.Option("--format", help="How the result is written")] = Format.TABLE,
        output: Annotated[
            Path | None, typer.Option("--output", metavar="FILE", help="Write the result here instead of stdout")
        ] = None,
    ) -> int:
        """Query mirrored tables, each under its own name, as of one moment (of tables with and without heap retention
        in one statement: two, told on stderr), which is pinned meanwhile.

        DuckDB runs within this process: nothing but the tables that the query names is touched.
        """
        if at is not None and (mode is not Mode.SEAM or min_lsn is not None):
            raise UsageError("--at reads the lake's past", "leave --mode and --min-lsn out")
        if output_format is Format.PARQUET and output is None:
            raise UsageError("Parquet is not for a terminal", "give --output FILE")

        from mirror_pump.ops.past import parse_when
        from mirror_pump.ops.profile import complete
        from mirror_pump.ops.query import Query, run_query
        from mirror_pump.ops.reading import ReadMode

        query = Query(
            statement,
            ReadMode(mode.value),
            None if at is None else parse_when(at),
            None if min_lsn is None else lsn_argument(min_lsn, "--min-lsn"),
            max_wait,
        )
        run_query(
            complete(settings),
            query,
            output_format.value,
            output or pass_on,
            lambda text: remark(f"mirror-pump: {text}"),
        )
        return 0
