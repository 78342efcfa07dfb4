"""`mirror-pump changes`: prints the changes of a table in order, for pipes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from mirror_pump.cli.arguments.completion import kept_moments, tables_argument
from mirror_pump.cli.arguments.options import SLOT, STORAGE, AsJson, OptionRule, command, require
from mirror_pump.cli.terminal.output import remark, say_lines
from mirror_pump.cli.terminal.stop_signals import StoppedBySignal, StopSignals
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from mirror_pump.ops.changes.followed_changes import ReachedFrontier, RowChange

_LATEST = "latest"


@dataclass(frozen=True)
class ChangesOptions:
    """The options of `changes`, as typed."""

    table: Annotated[str, tables_argument("The table, as PostgreSQL reads names")]
    since: Annotated[
        str,
        typer.Option(
            "--since",
            metavar="LSN|TIME|NAME",
            autocompletion=kept_moments,
            help="Print what changed after this frontier: a WAL position, a time, or a kept moment",
        ),
    ]
    until: Annotated[
        str,
        typer.Option(
            "--until",
            metavar="LSN|TIME|NAME",
            autocompletion=kept_moments,
            help="Stop after the changes up to and including this frontier",
        ),
    ] = _LATEST
    follow: Annotated[bool, typer.Option("--follow", help="Go on with each new frontier, until a signal")] = False
    as_json: AsJson = False


_RULES = (
    OptionRule[ChangesOptions](
        lambda given: given.follow and given.until != _LATEST,
        "--follow has no end, and --until is one",
        "give only one of them",
    ),
)


def add(app: typer.Typer) -> None:
    command(app, "changes", (*SLOT, *STORAGE))(changes)


def changes(settings: Settings, options: ChangesOptions) -> int:
    """Print the changes of a table that has a change feed, in the order of their commits, whole transactions only.

    After the changes up to each frontier comes a line with this frontier: a reader that has dealt with them remembers
    it, and goes on with `--since` that frontier, without a gap or a double. With `--json`, each line is an object.
    """
    require(options, _RULES)

    from mirror_pump.ops.changes.followed_changes import FollowedTable, followed_changes
    from mirror_pump.ops.changes.points import change_points
    from mirror_pump.ops.setup.stored_settings import complete

    followed = FollowedTable(options.table, change_points(options.since, options.until), options.follow)
    stopping = threading.Event()
    signals = StopSignals()
    signals.serve(lambda: True, stopping.set, "")
    try:
        with signals.handled():
            for items in followed_changes(
                complete(settings), followed, stopping.wait, lambda text: remark(f"mirror-pump: {text}", "warning")
            ):
                if not say_lines(_lines(items, as_json=options.as_json)) or stopping.is_set():
                    break
    except StoppedBySignal:
        pass
    return signals.exit_code


def _lines(items: Sequence[RowChange] | ReachedFrontier, *, as_json: bool) -> Iterator[str]:
    import orjson

    from mirror_pump.model import format_lsn
    from mirror_pump.ops.changes.followed_changes import ReachedFrontier

    if as_json:
        for item in [items] if isinstance(items, ReachedFrontier) else items:
            yield orjson.dumps(item.to_json()).decode()
    elif isinstance(items, ReachedFrontier):
        yield f"-- frontier {format_lsn(items.frontier)}"
    else:
        for change in items:
            values = "" if change.row is None else orjson.dumps(change.row).decode()
            old = "" if change.old is None else f" was {orjson.dumps(change.old).decode()}"
            yield f"{format_lsn(change.lsn)} {change.op} {values}{old}".rstrip()
