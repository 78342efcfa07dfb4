"""`mirror-pump pause` and `resume`: a table leaves the stream for a while, and comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mirror_pump.cli.arguments.completion import tables_argument
from mirror_pump.cli.arguments.options import COPIES, SLOT, command
from mirror_pump.cli.terminal.output import count_text, each_table, report_error, say
from mirror_pump.cli.terminal.progress import copy_progress
from mirror_pump.errors import TableError
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from mirror_pump.model import TableId
    from mirror_pump.ops.table_progress import TableProgress


def add(app: typer.Typer) -> None:
    command(app, "pause", (*SLOT, "lock_timeout"))(pause)
    command(app, "resume", COPIES)(resume)


_Tables = Annotated[list[str], tables_argument("Table names as Postgres reads them")]


def pause(settings: Settings, tables: _Tables) -> int:
    """Stop mirroring tables for a while. Readers keep them as of their frontiers.

    A paused table leaves the publication: it holds no WAL and no memory, whatever is written to it and however long.
    resume brings it up to date. If a table is refused, the others are still paused; exit code 1 reports it.
    """
    from mirror_pump.ops.resync.pausing import pause as pause_table
    from mirror_pump.ops.setup.stored_settings import complete
    from mirror_pump.source.catalog.pauses import paused_text

    settings = complete(settings)

    def one(name: str) -> None:
        paused = pause_table(settings, name)
        say(f"{paused.table}: {paused_text(paused.since)}{' already' if paused.already else ''}")

    return each_table(tables, one, "not paused")


def resume(
    settings: Settings,
    tables: _Tables,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return once the tables are published; a running pump does the rest")
    ] = False,
) -> int:
    """Mirror paused tables again. Rows that differ are replaced in the background; readers keep what they have.

    A table without a key, or that differs too much, is copied instead, and so is one whose key or types have changed.

    Those that were registered with --snapshot-only are paused again once they are copied.

    Choices of columns, heap retention and policies stay, and so do rows that only the lake has. If a table is refused,
    the others are still resumed; exit code 1 reports it.
    """
    from mirror_pump.ops.resync.pausing import follow
    from mirror_pump.ops.resync.pausing import resume as resume_table
    from mirror_pump.ops.resync.snapshots import rest
    from mirror_pump.ops.setup.stored_settings import complete

    settings = complete(settings)
    copied: list[TableId] = []
    snapshots = False

    def one(name: str) -> None:
        resumed = resume_table(settings, name)
        nonlocal snapshots
        snapshots = snapshots or resumed.snapshot_only
        if not resumed.was_paused:
            say(f"{resumed.table}: is not paused")
        else:
            copied.append(resumed.table_id)
            if no_wait:
                say(f"{resumed.table}: is compared")

    refused = each_table(tables, one, "not resumed")
    if copied and not no_wait:
        with copy_progress() as show:
            outcomes = follow(settings, copied, show)
        if snapshots:
            rest(settings)
        live = [_copied(table) for table in outcomes]
        refused = refused or int(not all(live))
    return refused


def _copied(table: TableProgress) -> bool:
    """Report what has become of a copy. Returns whether the table is live."""
    if table.detail:
        report_error(TableError(table.detail, "`mirror-pump status` shows it until it is mended"), "", table.table)
        return False
    say(f"{table.table}: {table.step}, {count_text(table.rows)} rows read")
    return True
