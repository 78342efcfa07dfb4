"""`mirror-pump ingest`: brings the rows of files into a table, old ones straight into the lake."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirror_pump.cli.arguments.completion import mirrored_tables
from mirror_pump.cli.arguments.options import SLOT, STORAGE, AsJson, chosen, command
from mirror_pump.cli.terminal.output import count_text, remark, say, seconds_text, write_json
from mirror_pump.cli.terminal.progress import file_progress
from mirror_pump.errors import UsageError
from mirror_pump.runtime.cores import available_cores
from mirror_pump.runtime.memory import without_collector
from mirror_pump.settings.config import Settings

_ARROW_MEMORY = ("MIMALLOC_PURGE_DELAY", "-1")
"""Arrow's allocator keeps memory that is free for a moment, and does not return it to the system only to get it again.
It reads this when Arrow is loaded."""

if TYPE_CHECKING:
    from mirror_pump.ops.ingest.ingest_request import IngestOutcome


@dataclass(frozen=True)
class IngestOptions:
    """The options of `ingest` about rows, as typed."""

    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Name as Postgres reads it", autocompletion=mirrored_tables)
    ]
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Files, patterns such as 'old/*.csv.gz', s3:// URIs; - is stdin"),
    ]
    format: Annotated[
        str | None, typer.Option("--format", metavar="FORMAT", help=r"parquet, csv or jsonl \[by the file's name]")
    ] = None
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...", help="CSV: the names of the columns in order. Others: take only these columns"
        ),
    ] = None
    delimiter: Annotated[str, typer.Option(metavar="CHARACTER", help="CSV: what separates fields")] = ","
    null: Annotated[str, typer.Option(metavar="MARK", help="CSV: the unquoted text that stands for NULL")] = ""
    no_header: Annotated[
        bool, typer.Option("--no-header", help="CSV: the first line is a row; --columns names the columns")
    ] = False
    on_error: Annotated[
        str, typer.Option(metavar="ACTION", help="What a row does that the table cannot hold: abort, or skip")
    ] = "abort"
    rejects: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --on-error skip: where such rows go, as JSON lines")
    ] = None
    on_conflict: Annotated[
        str, typer.Option(metavar="ACTION", help="What happens to rows of which the key exists: replace, or refuse")
    ] = "replace"
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and check all rows, say where they would go, and store nothing")
    ] = False
    as_json: AsJson = False


def add(app: typer.Typer) -> None:
    @command(app, "ingest", (*SLOT, *STORAGE))
    def ingest(settings: Settings, options: IngestOptions) -> None:
        """Bring the rows of files into a table: Parquet, CSV or JSON lines, also compressed.

        Rows below the cut-line of a table with heap retention go straight to the lake, as data files, and all others
        to the heap by COPY. All of them become visible at one moment. docs/ingest.md says how values are read, and
        what happens to rows whose key exists.
        """
        os.environ.setdefault(*_ARROW_MEMORY)
        with without_collector(stays=True):
            from mirror_pump.ops.ingest.ingest_request import IngestRequest, OnConflict, OnError
            from mirror_pump.ops.ingest.ingestion import ingest as bring_in
            from mirror_pump.ops.row_files.csv_rows import CsvForm
            from mirror_pump.ops.row_files.file_format import FileFormat
            from mirror_pump.ops.setup.stored_settings import complete

        if len(options.delimiter.encode()) != 1:
            raise UsageError(f"--delimiter {options.delimiter!r} is not one character", "give a character, such as ';'")
        request = IngestRequest(
            table=options.table,
            files=tuple(options.files),
            format=None if options.format is None else chosen("--format", options.format, FileFormat),
            columns=tuple(name.strip() for name in options.columns.split(",")) if options.columns else (),
            csv=CsvForm(options.delimiter, options.null, header=not options.no_header),
            on_error=chosen("--on-error", options.on_error, OnError),
            rejects=options.rejects,
            on_conflict=chosen("--on-conflict", options.on_conflict, OnConflict),
            dry_run=options.dry_run,
            workers=available_cores(),
        )
        settings = complete(settings)
        with file_progress("ingest") as show:
            outcome = bring_in(settings, request, show)
        if options.as_json:
            write_json({**outcome.to_json(), "dry_run": options.dry_run})
        else:
            _say(outcome, dry_run=options.dry_run)


def _say(outcome: IngestOutcome, *, dry_run: bool) -> None:
    rows, lake, heap = (count_text(count) for count in (outcome.rows, outcome.lake_rows, outcome.heap_rows))
    if dry_run:
        say(f"{outcome.table}: {rows} rows would be ingested: {lake} into the lake, {heap} into the heap")
    else:
        say(
            f"{outcome.table}: {rows} rows ingested: {lake} into the lake, {heap} into the heap,"
            f" in {seconds_text(outcome.seconds)}"
        )
    if outcome.replaced:
        say(f"  {count_text(outcome.replaced)} rows of the lake were replaced")
    if outcome.rejected:
        remark(f"{count_text(outcome.rejected)} rows were left out", "warning")
