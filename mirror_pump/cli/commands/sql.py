"""`mirror-pump sql`: queries mirrored tables with an embedded DuckDB."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirror_pump.cli.arguments.options import SLOT, STORAGE, OptionRule, command, require
from mirror_pump.cli.commands.run import lsn_argument
from mirror_pump.cli.terminal.output import pass_on, remark
from mirror_pump.errors import UsageError
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from mirror_pump.ops.reads.query import Query
    from mirror_pump.ops.reads.query_results import Opens

_STDIN = "-"
_INTERRUPTED = 130
"""Exit code that shells use for SIGINT."""


class QueryMode(StrEnum):
    """Where rows are read from: the values of ReadMode, whose module is imported when the command runs."""

    SEAM = "seam"
    LAKE = "lake"
    HEAP = "heap"
    HYBRID = "hybrid"


class OutputFormat(StrEnum):
    """Output format of the result."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


@dataclass(frozen=True)
class SqlOptions:
    """The options of `sql` about the queries, as typed."""

    statement: Annotated[
        str | None,
        typer.Argument(
            metavar="QUERY",
            help="Queries in DuckDB's SQL; - reads them from stdin. Without a query: a shell, if on a terminal",
        ),
    ] = None
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="Read the queries from this file")
    ] = None
    mode: Annotated[
        QueryMode,
        typer.Option(
            "--mode",
            help="seam: tiered tables and those with heap retention as a whole, others from the lake; lake; heap;"
            " or hybrid: the newest rows from the heap, the others from the lake",
        ),
    ] = QueryMode.SEAM
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="LSN|TIME|NAME", help="Read the lake as of a past, published frontier, or a kept moment"
        ),
    ] = None
    changes: Annotated[
        str | None,
        typer.Option(
            "--changes",
            metavar="A..B",
            help="Read the change feeds of the tables: what changed after frontier A, up to and including B. Each is a"
            " WAL position, a time or a kept moment; B may be latest",
        ),
    ] = None
    min_lsn: Annotated[
        str | None,
        typer.Option(
            "--min-lsn",
            metavar="LSN",
            help=r"Wait until the frontier has passed this WAL position \[hybrid: the current end of WAL]",
        ),
    ] = None
    max_wait: Annotated[
        float,
        typer.Option("--max-wait", min=0, metavar="SECONDS", help="Wait at most this long for the frontier"),
    ] = 5.0
    output_format: Annotated[
        OutputFormat | None,
        typer.Option(
            "--format",
            show_default=False,
            help=r"Output format of the result \[default: by the suffix of --output, else table]",
        ),
    ] = None
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write the result to this file, not to stdout")
    ] = None

    def opens(self) -> Opens:
        """What the tables of a query are. Raises UsageError."""
        if self.changes is None:
            from mirror_pump.ops.reads.query import open_query

            return open_query
        from mirror_pump.ops.changes.change_queries import changes_between
        from mirror_pump.ops.changes.points import parse_points

        return changes_between(parse_points(self.changes))

    def query(self) -> Query:
        """How to read, without a statement. Raises UsageError."""
        from mirror_pump.ops.reads.query import Query
        from mirror_pump.ops.reads.table_reads import ReadMode
        from mirror_pump.ops.reads.time_travel import parse_point

        return Query(
            "",
            ReadMode(self.mode.value),
            None if self.at is None else parse_point(self.at),
            None if self.min_lsn is None else lsn_argument(self.min_lsn, "--min-lsn"),
            self.max_wait,
        )


_RULES = (
    OptionRule[SqlOptions](
        lambda given: given.at is not None and (given.mode is not QueryMode.SEAM or given.min_lsn is not None),
        "--at reads the lake's past",
        "leave out --mode and --min-lsn",
    ),
    OptionRule[SqlOptions](
        lambda given: (
            given.changes is not None
            and (given.at is not None or given.mode is not QueryMode.SEAM or given.min_lsn is not None)
        ),
        "--changes reads the change feeds",
        "leave out --at, --mode and --min-lsn",
    ),
    OptionRule[SqlOptions](
        lambda given: given.file is not None and given.statement is not None,
        "queries are given twice, as an argument and by --file",
        "leave out one of them",
    ),
)


def add(app: typer.Typer) -> None:
    command(app, "sql", (*SLOT, *STORAGE))(sql)


def sql(settings: Settings, options: SqlOptions) -> int:
    """Query mirrored tables by their own names, as of a single point in time, which is pinned during the query.

    If a statement combines tables with and without heap retention, they are read as of two points in time, and a
    message on stderr says so. SHOW TABLES lists the tables. DuckDB runs inside this process, and reads only the
    tables that the query names. Several queries run one after the other until one fails, each as of its own point
    in time.
    """
    require(options, _RULES)
    written_as = _format(options.output_format, options.output)

    from mirror_pump.ops.duckdb_connection import require_duckdb
    from mirror_pump.ops.setup.stored_settings import complete

    require_duckdb()
    how, opens = options.query(), options.opens()
    if options.statement is None and options.file is None and sys.stdin.isatty() and sys.stdout.isatty():
        if options.output is not None:
            raise UsageError("--output needs a query, but none is given", "give one")
        from mirror_pump.cli.terminal.shell import run_shell

        run_shell(complete(settings), how, written_as.value, opens)
        return 0
    try:
        _run_all(settings, how, opens, _statements(options.statement, options.file), written_as, options.output)
    except KeyboardInterrupt:
        remark("mirror-pump: interrupted")
        return _INTERRUPTED
    return 0


def _format(requested: OutputFormat | None, output: Path | None) -> OutputFormat:
    """The requested format, else that of the file's suffix. Raises UsageError if the two differ."""
    suffix = "" if output is None else output.suffix.lower().removeprefix(".")
    named = OutputFormat(suffix) if suffix in set(OutputFormat) - {OutputFormat.TABLE} else None
    if requested is not None and named is not None and requested is not named:
        raise UsageError(f"--format {requested.value} contradicts --output {output}", "leave out --format")
    chosen = requested or named or OutputFormat.TABLE
    if chosen is OutputFormat.PARQUET and output is None:
        raise UsageError("Parquet cannot be written to a terminal", "give --output FILE")
    return chosen


def _statements(text: str | None, file: str | None) -> list[str]:
    """The queries of an argument, a file, or stdin. Raises UsageError if there are none."""
    from mirror_pump.ops.reads.statements import split

    source = file or (_STDIN if text is None else text)
    try:
        if source == _STDIN:
            text = sys.stdin.read()
        elif file is not None:
            text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"cannot read queries from {source}: {reason}", "name another file") from error
    complete, rest = split(text or "")
    statements = [*complete, rest] if rest else complete
    if not statements:
        raise UsageError("no query is given", "give one as an argument, by --file or on stdin")
    return statements


def _run_all(
    settings: Settings,
    how: Query,
    opens: Opens,
    statements: list[str],
    written_as: OutputFormat,
    output: Path | None,
) -> None:
    from mirror_pump.ops.reads.query_results import run_query
    from mirror_pump.ops.setup.stored_settings import complete

    if output is not None and len(statements) > 1:
        raise UsageError(
            f"--output takes one result, but {len(statements)} queries are given", "give one query, or use stdout"
        )
    settings = complete(settings)
    for statement in statements:
        query = replace(how, statement=statement)
        run_query(
            settings, query, written_as.value, output or pass_on, lambda text: remark(f"mirror-pump: {text}"), opens
        )
