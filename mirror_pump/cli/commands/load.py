"""`mirror-pump load`: writes a file to a table, once for each label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from mirror_pump.cli.arguments.completion import mirrored_tables
from mirror_pump.cli.arguments.options import STORAGE, AsJson, chosen, command
from mirror_pump.cli.terminal.output import count_text, say, write_json
from mirror_pump.cli.terminal.progress import file_progress
from mirror_pump.errors import UsageError
from mirror_pump.settings.config import Settings

_LOGGED_BYTES = 64 << 20
"""Loads of larger files are logged while they run, where there is no terminal."""


@dataclass(frozen=True)
class LoadOptions:
    """The options of `load` about rows, as typed."""

    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", help="A registered table, its name as Postgres reads it", autocompletion=mirrored_tables
        ),
    ]
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="Files with the rows, patterns such as 'new/*.csv', s3:// URIs; - is stdin"
        ),
    ]
    label: Annotated[
        str, typer.Option("--label", metavar="LABEL", help="Names this load of this table, such as etl-2026-11-21")
    ]
    mode: Annotated[str, typer.Option("--mode", metavar="upsert|insert|delete", help="What to do with the rows")] = (
        "upsert"
    )
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="csv|jsonl|parquet", help=r"The file's format \[by the file's name]"),
    ] = None
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="NAMES",
            help="Names of the columns of a CSV file without a header; of other files those to load; with commas",
        ),
    ] = None
    max_filtered: Annotated[
        int, typer.Option("--max-filtered", metavar="COUNT", min=0, help="Most rows that may be left out")
    ] = 0
    as_json: AsJson = False


def add(app: typer.Typer) -> None:
    @command(app, "load", STORAGE)
    def load(settings: Settings, options: LoadOptions) -> None:
        """Load files into a registered table: all of them, once for each label.

        The rows and the label are committed in one transaction. The same load again, after whatever error or kill,
        changes nothing and prints the recorded result. Another load with the label is refused.

        Rows below the cut-line become corrections of the lake, and others rows of the heap. docs/loads.md describes
        modes, formats, and rows that are left out.
        """
        from mirror_pump.engine.lake_storage import lake_storage
        from mirror_pump.ops.load.load_job import LoadRequest
        from mirror_pump.ops.load.load_job import load as load_rows
        from mirror_pump.ops.row_files.file_format import FileFormat
        from mirror_pump.ops.row_files.input_files import find_files, open_stored
        from mirror_pump.source.loads.load_writes import LoadMode

        file_format = None if options.form is None else chosen("--format", options.form, FileFormat, "give one of")
        mode = chosen("--mode", options.mode, LoadMode, "give one of")
        # The catalog is asked for storage profiles only if a file is remote: a load of local ones need not read it.
        storage = lake_storage(settings)
        input_files = find_files(options.files, file_format, storage)
        if len({file.format for file in input_files}) > 1:
            raise UsageError("the files are of several formats", "load those of each format under a label of its own")
        names = None if options.columns is None else tuple(name.strip() for name in options.columns.split(","))
        request = LoadRequest(options.table, options.label, input_files[0].format, mode, names, options.max_filtered)
        total = sum(file.size for file in input_files) if all(file.size for file in input_files) else 0
        opened = [(file, partial(open_stored, file, storage)) for file in input_files]
        with file_progress("load", logs=total > _LOGGED_BYTES) as show:
            result = load_rows(settings.require_dsn(), request, opened, total_bytes=total, observe=show)
        if options.as_json:
            write_json(result.to_json())
            return
        outcome = result.outcome
        if result.replayed:
            say(f"{result.table}: label {request.label} was committed at {outcome['loaded_at']}; nothing was changed")
        for row in outcome["filtered"]:
            say(f"{result.table}: row {row['row']} was left out: {row['reason']}")
        say(f"{result.table}: {_summary(outcome, deleted=request.mode is LoadMode.DELETE)}, label {request.label}")


def _summary(outcome: Mapping[str, int], *, deleted: bool) -> str:
    parts = [f"{count_text(outcome['rows_loaded'])} rows {'deleted' if deleted else 'loaded'}"]
    for key, text in (
        ("rows_below_cutline", "{} of them below the cut-line"),
        ("rows_superseded", "{} replaced by later rows of the load"),
        ("rows_not_found", "{} not found"),
        ("rows_filtered", "{} left out"),
    ):
        if outcome[key]:
            parts.append(text.format(count_text(outcome[key])))
    return ", ".join(parts)
