"""`mirror-pump where`: where a row still is, and when it goes."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated

import typer

from mirror_pump.cli.arguments.completion import tables_argument
from mirror_pump.cli.arguments.options import SLOT, STORAGE, AsJson, command
from mirror_pump.cli.terminal.output import count_text, remark, report_error, say, write_json
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from mirror_pump.ops.where.reaching_states import RowState


def add(app: typer.Typer) -> None:
    command(app, "where", (*SLOT, *STORAGE))(where)


def where(
    settings: Settings,
    table: Annotated[str, tables_argument("The table, as PostgreSQL reads names; it may be unregistered")],
    key: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY...", help="Values of the key's columns, in the order of the key", show_default=False
        ),
    ],
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="NAME", help="The column of a value, instead of the key's; for each of them"),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Say where a row still is, deleted or not, and when it goes by itself.

    Looks into PostgreSQL, and into each file of the lake that may have it: those of the present, of former snapshots,
    of branches and tags, of moments that are kept, of the change feed, of former registrations, and those that nothing
    refers to any more. It only reads. Exit code 0, wherever the row is; 1 if something could not be read.
    """
    from mirror_pump.ops.setup.stored_settings import complete
    from mirror_pump.ops.where.whereabouts import where as look

    whereabouts = look(complete(settings), table, key, columns or ())
    if as_json:
        write_json(whereabouts.to_json())
    else:
        row = ", ".join(f"{column} = {value}" for column, value in whereabouts.values.items())
        read, left_out = count_text(whereabouts.files_read), count_text(whereabouts.files_left_out)
        say(f"{whereabouts.table}, {row}: {'' if whereabouts.states else 'nowhere '}in {_lake(len(whereabouts.files))}")
        say(f"  {read} files were read, {left_out} cannot have it by their bounds")
        for state in whereabouts.states:
            say(f"  {_line(state)}")
        if not whereabouts.heap_read:
            remark(
                f"this role may not read all rows of {whereabouts.table} in PostgreSQL: nothing is said of it",
                "warning",
            )
    for unread in whereabouts.unread:
        report_error(unread.error, "it may have the row", unread.location)
    return 1 if whereabouts.unread else 0


def _lake(files: int) -> str:
    return "the lake" if not files else f"{count_text(files)} files of the lake"


def _line(state: RowState) -> str:
    name = "" if state.name is None else f" {state.name}"
    size = f"{count_text(state.rows)} rows" if state.files is None else f"{count_text(state.files)} files"
    until = "no time ends it" if state.ends_at is None else f"until {state.ends_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    hand = "" if state.command is None else f": {state.command}"
    return f"{state.kind}{name}: {size}, {until} ({state.ends_by}){hand}"
