"""`mirror-pump unregister`: removes tables from the mirror, and the files of registrations that have ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import Annotated

import typer

from mirror_pump.cli.arguments.completion import tables_argument
from mirror_pump.cli.arguments.options import SLOT, STORAGE, OptionRule, command, require
from mirror_pump.cli.terminal.output import bytes_text, count_text, each_table, remark, say, write_json
from mirror_pump.settings.config import Settings


@dataclass(frozen=True)
class UnregisterOptions:
    """The options of `unregister` about tables, as typed."""

    tables: Annotated[list[str] | None, tables_argument("Names as Postgres reads them", show_default=False)] = None
    drop_lake: Annotated[bool, typer.Option("--drop-lake", help="Also drop the Iceberg table and delete its files")] = (
        False
    )
    keep_lake: Annotated[
        bool,
        typer.Option(
            "--keep-lake", help="Keep the Iceberg table, which has the only copy of rows dropped from the heap"
        ),
    ] = False
    restore_heap: Annotated[
        bool,
        typer.Option("--restore-heap", help="First bring rows that only the lake has back into partitions"),
    ] = False
    abort: Annotated[
        bool,
        typer.Option(
            "--abort", help="With --restore-heap: remove what an unfinished one has copied, and stay registered"
        ),
    ] = False
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="With --drop-lake and --former: lose rows that only the lake has; with --restore-heap: columns"
            " that were left out get their defaults",
        ),
    ] = False
    former_registrations: Annotated[
        bool, typer.Option("--former", help="Only delete the files of registrations of that name that have ended")
    ] = False
    show: Annotated[bool, typer.Option("--list", help="Only show where registrations that have ended left files")] = (
        False
    )
    as_json: Annotated[bool, typer.Option("--json", help="With --list: JSON, as docs/cli-json.md describes it")] = False


_UNREGISTER_RULES = (
    OptionRule[UnregisterOptions](
        lambda given: sum((given.drop_lake, given.keep_lake, given.former_registrations, given.show)) > 1,
        "--drop-lake, --keep-lake, --former and --list exclude each other",
    ),
    OptionRule[UnregisterOptions](lambda given: given.as_json and not given.show, "--json is for --list"),
    OptionRule[UnregisterOptions](
        lambda given: given.restore_heap and (given.former_registrations or given.show),
        "--restore-heap is for tables that are registered: --former and --list exclude it",
    ),
    OptionRule[UnregisterOptions](
        lambda given: given.abort and (not given.restore_heap or given.drop_lake or given.keep_lake),
        "--abort is for --restore-heap, without --drop-lake and --keep-lake",
    ),
    OptionRule[UnregisterOptions](lambda given: bool(given.tables) and given.show, "--list takes no TABLE"),
    OptionRule[UnregisterOptions](lambda given: not given.tables and not given.show, "name a TABLE, or give --list"),
)


def add(app: typer.Typer) -> None:
    command(app, "unregister", (*SLOT, *STORAGE))(unregister)


def unregister(settings: Settings, options: UnregisterOptions) -> int:
    """Remove tables from the mirror. Their lake tables stay as of their last frontier unless --drop-lake is given.

    A table whose partitions were dropped from the heap requires --restore-heap, which brings their rows back and
    can be interrupted and run again, or --keep-lake, or --drop-lake with --yes. --restore-heap leaves in the lake
    what you dropped or detached yourself and the cut-line has not passed. Files that stay are listed by
    --list until --former deletes them, or --drop-lake if no table of that name is registered; both want --yes for
    the only copy of rows. If a table is refused, the others still proceed; exit code 1 reports it.
    """
    from mirror_pump.ops.setup.stored_settings import complete

    require(options, _UNREGISTER_RULES)
    settings = complete(settings)
    if options.show:
        return _list_former(settings, as_json=options.as_json)
    return each_table(
        options.tables or [], lambda table: say(_unregister_one(settings, table, options)), "not unregistered"
    )


def _unregister_one(settings: Settings, name: str, options: UnregisterOptions) -> str:
    """Returns what was done."""
    from mirror_pump.ops.register.unregistration import abort_restore, unregister_former
    from mirror_pump.ops.register.unregistration import unregister as take_out

    if options.former_registrations:
        return unregister_former(settings, name, yes=options.yes)
    if options.abort:
        return abort_restore(settings, name)
    return take_out(
        settings,
        name,
        options.drop_lake,
        options.keep_lake,
        restore_heap=options.restore_heap,
        yes=options.yes,
        report=lambda _step, text: remark(f"{name}: {text}"),
    )


def _list_former(settings: Settings, *, as_json: bool) -> int:
    from mirror_pump.ops.register.unregistration import list_former

    registrations = list_former(settings)
    if as_json:
        write_json([registration.to_json() for registration in registrations])
        return 0
    for registration in registrations:
        former_location = registration.former_location
        ended = f"{former_location.ended_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        say(
            f"{former_location.table}: {count_text(registration.files)} files, {bytes_text(registration.size_bytes)},"
            f" ended {ended}"
        )
        say(f"  {former_location.location}" + (", the only copy of some rows" if former_location.only_copy else ""))
    if not registrations:
        remark("no registration that has ended left files")
    return 0
