"""`mirror-pump register` and `unregister`: put tables under the mirror, and take them out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mirror_pump.cli.arguments.completion import mirrored_tables, other_tables
from mirror_pump.cli.arguments.options import SLOT, STORAGE, command
from mirror_pump.cli.terminal.output import count_text, remark, report_error, say
from mirror_pump.cli.terminal.progress import copy_progress
from mirror_pump.config import Settings
from mirror_pump.errors import ConnectionLost, Interrupted, MirrorPumpError, TableError, UsageError

if TYPE_CHECKING:
    from mirror_pump.ops.register.preview import TablePreview

Tables = Annotated[
    list[str],
    typer.Argument(
        metavar="TABLE",
        help="Names as Postgres reads them: t, schema.t, 'schema.\"My Table\"'",
        autocompletion=other_tables,
    ),
]


def add(app: typer.Typer) -> None:
    @command(app, "register", (*SLOT, "copy_workers", "copy_chunk_bytes", "lock_timeout", "master", *STORAGE))
    def register(
        settings: Settings,
        tables: Tables,
        no_wait: Annotated[
            bool, typer.Option("--no-wait", help="Return once the tables are registered; a running pump copies them")
        ] = False,
        column: Annotated[
            list[str] | None,
            typer.Option(metavar="NAME=TYPE", help="Another lake type for a column: string, decimal(38,9), ..."),
        ] = None,
        exclude_column: Annotated[
            list[str] | None, typer.Option(metavar="NAME", help="A column to leave out; not one of the key")
        ] = None,
        heap_retention: Annotated[
            str | None,
            typer.Option(
                metavar="DISTANCE", help="Shed partitions this far behind the newest key: 1000000, '90 days', ..."
            ),
        ] = None,
        premake: Annotated[
            int,
            typer.Option(
                min=0, max=1000, metavar="PARTITIONS", help="With --heap-retention: keep so many partitions ready"
            ),
        ] = 0,
        width: Annotated[
            str | None,
            typer.Option(metavar="WIDTH", help=r"Width of each, such as 1d or 1mon \[that of the newest partitions]"),
        ] = None,
        drop_grace: Annotated[
            str | None,
            typer.Option(
                metavar="DURATION", help=r"How long a partition stays that the lake was found to hold \[1 hour]"
            ),
        ] = None,
        detach: Annotated[
            bool, typer.Option("--detach", help="Detach partitions instead of dropping them: they stay as tables")
        ] = False,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Only say what would be registered, and what would leave the heap")
        ] = False,
        yes: Annotated[
            bool, typer.Option("--yes", "-y", help="Do not ask before partitions are to leave the heap")
        ] = False,
    ) -> int:
        """Put tables under the mirror and copy their rows while writes go on.

        A table needs a primary key or a replica identity index. A register that was killed resumes with the next
        one, and no finished chunk is read twice. One table's refusal does not stop the others; exit 1 reports it.

        With --heap-retention a range-partitioned table's old partitions are dropped once the lake provably holds them;
        docs/retention.md says how their rows are read and corrected then. What leaves, and when, is said first, and has
        to be confirmed.
        """
        from mirror_pump.ops.register.preview import preview
        from mirror_pump.ops.register.registration import register as put_under_mirror
        from mirror_pump.ops.setup.stored_settings import complete
        from mirror_pump.source.relations.column_choices import parse_choices
        from mirror_pump.source.retention.retention_plan import RetentionWish

        choices = parse_choices(column or (), exclude_column or ())
        if heap_retention is None and (premake or width is not None or drop_grace is not None or detach):
            raise UsageError("--premake, --width, --drop-grace and --detach go with --heap-retention")
        retention = (
            None if heap_retention is None else RetentionWish(heap_retention, premake, width, drop_grace, detach)
        )
        settings = complete(settings)
        if dry_run:
            return _show(preview(settings, tables, choices, retention))
        if retention is not None and not yes:
            previews = preview(settings, tables, choices, retention)
            if any(table.retention is not None for table in previews):
                _show(previews)
                _confirm()
        with copy_progress() as show:
            outcomes = put_under_mirror(settings, tables, not no_wait, show, choices=choices, retention=retention)
        for outcome in outcomes:
            if outcome.error is not None:
                happened = "copy failed" if outcome.registered else "not registered"
                report_error(outcome.error, happened, outcome.table)
            elif no_wait:
                say(f"{outcome.table}: registered")
            else:
                say(f"{outcome.table}: live" + (f", {count_text(outcome.rows)} rows copied" if outcome.rows else ""))
            if outcome.generated_left_out:
                left_out = ", ".join(outcome.generated_left_out)
                remark(
                    f"{outcome.table}: generated columns left out: {left_out}"
                    " (PostgreSQL publishes stored ones from 18 on, virtual ones never)",
                    "warning",
                )
        return 1 if any(outcome.error is not None for outcome in outcomes) else 0

    @command(app, "unregister", (*SLOT, *STORAGE))
    def unregister(
        settings: Settings,
        tables: Annotated[
            list[str],
            typer.Argument(metavar="TABLE", help="Names as Postgres reads them", autocompletion=mirrored_tables),
        ],
        drop_lake: Annotated[
            bool, typer.Option("--drop-lake", help="Also drop the Iceberg table and delete its files")
        ] = False,
        keep_lake: Annotated[
            bool, typer.Option("--keep-lake", help="Leave it, although it has the only copy of rows that the heap shed")
        ] = False,
    ) -> int:
        """Take tables out of the mirror. Their lake tables stay as of their last F unless --drop-lake is given.

        For a table that has shed partitions one of --drop-lake and --keep-lake has to be given. One table's refusal
        does not stop the others; exit 1 reports it.
        """
        from mirror_pump.ops.register.unregistration import unregister as take_out
        from mirror_pump.ops.setup.stored_settings import complete

        if drop_lake and keep_lake:
            raise UsageError("--drop-lake and --keep-lake exclude each other")
        settings = complete(settings)
        if len(tables) == 1:
            say(take_out(settings, tables[0], drop_lake, keep_lake))
            return 0
        refused = False
        for table in dict.fromkeys(tables):
            try:
                say(take_out(settings, table, drop_lake, keep_lake))
            except (ConnectionLost, Interrupted):
                # Of no single table.
                raise
            except MirrorPumpError as error:
                report_error(error, "not unregistered", table)
                refused = True
        return 1 if refused else 0


def _show(previews: Sequence[TablePreview]) -> int:
    """The exit code: 1 if a table would be refused."""
    for table in previews:
        for line in table.lines():
            say(line)
        if table.error is not None:
            report_error(table.error, "would not be registered", table.table)
    return 1 if any(table.error is not None for table in previews) else 0


def _confirm() -> None:
    """Returns once somebody has agreed. UsageError where nobody can be asked."""
    if not sys.stdin.isatty():
        raise UsageError(
            "partitions are about to leave the heap, and there is no terminal to ask on", "look at it, and give --yes"
        )
    if not typer.confirm("Register?", default=False, err=True):
        raise TableError("nothing was registered")
