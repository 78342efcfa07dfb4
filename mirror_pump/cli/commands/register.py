"""`mirror-pump register` and `unregister`: add tables to the mirror and remove them from it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from mirror_pump.cli.arguments.completion import mirrored_tables, other_tables
from mirror_pump.cli.arguments.options import SLOT, STORAGE, command
from mirror_pump.cli.terminal.output import bytes_text, count_text, remark, report_error, say, write_json
from mirror_pump.cli.terminal.progress import copy_progress
from mirror_pump.config import Settings
from mirror_pump.errors import ConnectionLost, Interrupted, MirrorPumpError, TableError, UsageError

if TYPE_CHECKING:
    from mirror_pump.ops.register.preview import TablePreview


class RegisterMode(StrEnum):
    """How a table's rows come into the lake."""

    MIRRORED = "mirrored"
    TIERED = "tiered"


Tables = Annotated[
    list[str],
    typer.Argument(
        metavar="TABLE",
        help="Table names as Postgres reads them: t, schema.t, 'schema.\"My Table\"'",
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
            typer.Option(metavar="NAME=TYPE", help="Use another lake type for a column: string, decimal(38,9), ..."),
        ] = None,
        exclude_column: Annotated[
            list[str] | None,
            typer.Option(metavar="NAME", help="Leave out this column, which must not be part of the key"),
        ] = None,
        mode: Annotated[
            RegisterMode,
            typer.Option(
                help="mirrored: copy all rows and follow their changes; tiered: copy partitions when they leave",
                show_default=True,
            ),
        ] = RegisterMode.MIRRORED,
        tier_key: Annotated[
            str | None,
            typer.Option(
                metavar="COLUMN",
                help=r"With --mode tiered: the column by which the table is partitioned \[that column]",
            ),
        ] = None,
        lag: Annotated[
            str | None,
            typer.Option(
                metavar="DISTANCE",
                help=r"With --mode tiered: how far behind the newest key partitions leave the heap \[0]",
            ),
        ] = None,
        keep_heap: Annotated[
            bool,
            typer.Option(
                "--keep-heap", help="With --mode tiered: partitions stay in the heap, and are in the lake as well"
            ),
        ] = False,
        lake_retention: Annotated[
            str | None,
            typer.Option(
                metavar="DISTANCE",
                help=r"With --mode tiered: rows this far behind the cut-line expire from the lake \[they stay]",
            ),
        ] = None,
        heap_retention: Annotated[
            str | None,
            typer.Option(
                metavar="DISTANCE",
                help="Drop partitions from the heap this far behind the newest key: 1000000, '90 days', ...",
            ),
        ] = None,
        premake: Annotated[
            int,
            typer.Option(
                min=0,
                max=1000,
                metavar="PARTITIONS",
                help="With --heap-retention or --mode tiered: keep this many future partitions ready",
            ),
        ] = 0,
        width: Annotated[
            str | None,
            typer.Option(
                metavar="WIDTH",
                help=r"With --premake: width of a partition, such as 1d or 1mon \[that of the newest partitions]",
            ),
        ] = None,
        drop_grace: Annotated[
            str | None,
            typer.Option(
                metavar="DURATION",
                help=r"How long partitions stay in the heap after proof that the lake holds them \[1 hour]",
            ),
        ] = None,
        detach: Annotated[
            bool,
            typer.Option(
                "--detach",
                help="Detach partitions that leave the heap, which stay as tables, instead of dropping them",
            ),
        ] = False,
        lake_partition: Annotated[
            str | None,
            typer.Option(
                metavar="UNIT|WIDTH",
                help="Partition the lake table by the tier key: hour, day, month, year, of an integer a width such as"
                " 1000000, or `width`: as the heap is",
            ),
        ] = None,
        profile: Annotated[
            str | None,
            typer.Option(metavar="NAME", help=r"Storage profile of the tables \[that of `profile set-default`]"),
        ] = None,
        dry_run: Annotated[
            bool,
            typer.Option("--dry-run", help="Only print what would be registered, and what would leave the heap"),
        ] = False,
        yes: Annotated[
            bool, typer.Option("--yes", "-y", help="Do not ask for confirmation before partitions leave the heap")
        ] = False,
    ) -> int:
        """Add tables to the mirror and copy their rows while writes continue.

        A table needs a primary key or a replica identity index. If register is killed, run it again: it resumes, and
        does not repeat finished chunks. If a table is refused, the others still proceed; exit code 1 reports it.

        With --heap-retention, old partitions of a range-partitioned table are dropped from the heap once the lake
        provably holds them. With --mode tiered the same happens without replication: partitions are copied when they
        leave. docs/retention.md and docs/tiered.md explain how their rows are then read and corrected. The command
        first shows which partitions leave and when, and asks for confirmation.
        """
        from mirror_pump.model import TableMode
        from mirror_pump.ops.register.preview import preview
        from mirror_pump.ops.register.registration import register as put_under_mirror
        from mirror_pump.ops.setup.stored_settings import complete
        from mirror_pump.source.relations.column_choices import parse_choices
        from mirror_pump.source.retention.retention_plan import RetentionWish

        choices = parse_choices(column or (), exclude_column or ())
        _check_modes(mode, heap_retention, tier_key, lag, lake_retention, keep_heap=keep_heap)
        tiered = mode is RegisterMode.TIERED
        if not tiered and heap_retention is None and (premake or width is not None or drop_grace is not None or detach):
            raise UsageError("--premake, --width, --drop-grace and --detach require --heap-retention or --mode tiered")
        if keep_heap and (drop_grace is not None or detach):
            raise UsageError(
                "--drop-grace and --detach are for partitions that leave the heap, which --keep-heap keeps"
            )
        if lake_partition is not None and not tiered and heap_retention is None:
            raise UsageError(
                "--lake-partition requires --heap-retention or --mode tiered: a plain mirrored table has no tier key to"
                " partition by",
                "register it without --lake-partition; engines skip its files by the bounds of their columns",
            )
        distance = (lag or "0") if tiered else heap_retention
        retention = None
        if distance is not None:
            retention = RetentionWish(
                distance,
                premake,
                width,
                drop_grace,
                detach,
                lake_partition,
                TableMode(mode.value),
                tier_key,
                keep_heap,
                lake_retention,
            )
        settings = complete(settings)
        if dry_run:
            return _show(preview(settings, tables, choices, retention))
        if retention is not None and not keep_heap and not yes:
            previews = preview(settings, tables, choices, retention)
            if any(table.retention is not None for table in previews):
                _show(previews)
                _confirm()
        with copy_progress() as show:
            outcomes = put_under_mirror(
                settings, tables, not no_wait, show, choices=choices, retention=retention, profile=profile
            )
        for outcome in outcomes:
            if outcome.error is not None:
                happened = "copy failed" if outcome.registered else "not registered"
                report_error(outcome.error, happened, outcome.table)
            elif tiered:
                say(f"{outcome.table}: live; its partitions are copied into the lake when they are due")
            elif no_wait:
                say(f"{outcome.table}: registered")
            else:
                say(f"{outcome.table}: live" + (f", {count_text(outcome.rows)} rows copied" if outcome.rows else ""))
            if outcome.generated_left_out:
                left_out = ", ".join(outcome.generated_left_out)
                remark(
                    f"{outcome.table}: generated columns left out: {left_out}"
                    " (PostgreSQL publishes stored ones since version 18, virtual ones never)",
                    "warning",
                )
        return 1 if any(outcome.error is not None for outcome in outcomes) else 0

    @command(app, "unregister", (*SLOT, *STORAGE))
    def unregister(
        settings: Settings,
        tables: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="TABLE",
                help="Names as Postgres reads them",
                autocompletion=mirrored_tables,
                show_default=False,
            ),
        ] = None,
        drop_lake: Annotated[
            bool, typer.Option("--drop-lake", help="Also drop the Iceberg table and delete its files")
        ] = False,
        keep_lake: Annotated[
            bool,
            typer.Option(
                "--keep-lake", help="Keep the Iceberg table, which has the only copy of rows dropped from the heap"
            ),
        ] = False,
        restore_heap: Annotated[
            bool,
            typer.Option("--restore-heap", help="First bring rows that only the lake has back into partitions"),
        ] = False,
        abort: Annotated[
            bool,
            typer.Option(
                "--abort", help="With --restore-heap: remove what an unfinished one has copied, and stay registered"
            ),
        ] = False,
        yes: Annotated[
            bool,
            typer.Option(
                "--yes",
                "-y",
                help="With --drop-lake: lose rows that only the lake has; with --restore-heap: columns that were left"
                " out get their defaults",
            ),
        ] = False,
        former: Annotated[
            bool, typer.Option("--former", help="Only delete the files of registrations of that name that have ended")
        ] = False,
        show: Annotated[
            bool, typer.Option("--list", help="Only show where registrations that have ended left files")
        ] = False,
        as_json: Annotated[
            bool, typer.Option("--json", help="With --list: JSON, as docs/cli-json.md describes it")
        ] = False,
    ) -> int:
        """Remove tables from the mirror. Their lake tables stay as of their last frontier unless --drop-lake is given.

        A table whose partitions were dropped from the heap requires --restore-heap, which brings their rows back and
        can be interrupted and run again, or --keep-lake, or --drop-lake with --yes. Files that stay are listed by
        --list until --former deletes them, or --drop-lake if no table of that name is registered. If a table is
        refused, the others still proceed; exit code 1 reports it.
        """
        from mirror_pump.ops.register.unregistration import abort_restore, unregister_former
        from mirror_pump.ops.register.unregistration import unregister as take_out
        from mirror_pump.ops.setup.stored_settings import complete

        if sum((drop_lake, keep_lake, former, show)) > 1:
            raise UsageError("--drop-lake, --keep-lake, --former and --list exclude each other")
        if as_json and not show:
            raise UsageError("--json is for --list")
        if restore_heap and (former or show):
            raise UsageError("--restore-heap is for tables that are registered: --former and --list exclude it")
        if abort and (not restore_heap or drop_lake or keep_lake):
            raise UsageError("--abort is for --restore-heap, without --drop-lake and --keep-lake")
        if bool(tables) == show:
            raise UsageError("--list takes no TABLE" if show else "name a TABLE, or give --list")
        settings = complete(settings)
        if show:
            return _list_former(settings, as_json=as_json)

        def end(name: str) -> str:
            if former:
                return unregister_former(settings, name)
            if abort:
                return abort_restore(settings, name)
            return take_out(
                settings,
                name,
                drop_lake,
                keep_lake,
                restore_heap=restore_heap,
                yes=yes,
                report=lambda _step, text: remark(f"{name}: {text}"),
            )

        assert tables is not None
        if len(tables) == 1:
            say(end(tables[0]))
            return 0
        refused = False
        for table in dict.fromkeys(tables):
            try:
                say(end(table))
            except (ConnectionLost, Interrupted):
                # These concern all tables, not just this one.
                raise
            except MirrorPumpError as error:
                report_error(error, "not unregistered", table)
                refused = True
        return 1 if refused else 0


def _check_modes(
    mode: RegisterMode,
    heap_retention: str | None,
    tier_key: str | None,
    lag: str | None,
    lake_retention: str | None,
    *,
    keep_heap: bool,
) -> None:
    """Raises UsageError for options of one mode with the other, and for two that exclude each other."""
    if mode is RegisterMode.TIERED and heap_retention is not None:
        raise UsageError("--heap-retention is for mirrored tables", "of a tiered table the distance is --lag")
    of_tiered = (tier_key, lag, lake_retention)
    if mode is RegisterMode.MIRRORED and (keep_heap or any(option is not None for option in of_tiered)):
        raise UsageError("--tier-key, --lag, --lake-retention and --keep-heap require --mode tiered")
    if keep_heap and lake_retention is not None:
        raise UsageError("--keep-heap keeps all rows, and --lake-retention lets old ones expire: choose one")


def _list_former(settings: Settings, *, as_json: bool) -> int:
    from mirror_pump.ops.register.unregistration import list_former

    found = list_former(settings)
    if as_json:
        write_json([registration.to_json() for registration in found])
        return 0
    for registration in found:
        former = registration.former
        ended = f"{former.ended_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        say(
            f"{former.table}: {count_text(registration.files)} files, {bytes_text(registration.size_bytes)},"
            f" ended {ended}"
        )
        say(f"  {former.location}")
    if not found:
        remark("no registration that has ended left files")
    return 0


def _show(previews: Sequence[TablePreview]) -> int:
    """Prints the previews. Returns the exit code: 1 if a table would be refused."""
    for table in previews:
        for line in table.lines():
            say(line)
        if table.error is not None:
            report_error(table.error, "would not be registered", table.table)
    return 1 if any(table.error is not None for table in previews) else 0


def _confirm() -> None:
    """Asks for confirmation. Raises TableError if refused, UsageError without a terminal to ask on."""
    if not sys.stdin.isatty():
        raise UsageError(
            "partitions are about to leave the heap, and there is no terminal to ask for confirmation",
            "check with --dry-run, then give --yes",
        )
    if not typer.confirm("Register?", default=False, err=True):
        raise TableError("nothing was registered")
