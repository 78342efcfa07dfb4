"""`mirror-pump moment`: moments that stay."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirror_pump.cli.arguments.completion import kept_moments
from mirror_pump.cli.arguments.options import SLOT, STORAGE, AsJson, command
from mirror_pump.cli.terminal.confirmation import confirm
from mirror_pump.cli.terminal.output import bytes_text, count_text, one_line, remark, say, write_json
from mirror_pump.errors import TableError, UsageError
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from mirror_pump.ops.moments.cost import MomentCost

_NAME_HELP = "Name of the moment: a letter, then letters, digits, - and _"
_NewName = Annotated[str, typer.Argument(metavar="NAME", help=_NAME_HELP)]
_Key = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="File of the secret key by which the receipt is signed (HMAC-SHA256)"),
]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the moment", autocompletion=kept_moments)]


def add(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        help="Keep all mirrored tables as of one frontier, for as long as you like: a closing, an audit, a training"
        " set.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.add_typer(group, name="moment")
    command(group, "keep", (*SLOT, *STORAGE))(keep)
    command(group, "list", (*SLOT, *STORAGE))(list_)
    command(group, "check", (*SLOT, *STORAGE))(check)
    command(group, "drop", (*SLOT, *STORAGE))(drop)


def keep(
    settings: Settings,
    name: _NewName,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="LSN|TIME",
            help=r"Keep a past, published frontier that the histories still have \[the present one]",
        ),
    ] = None,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="What it is for")] = None,
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Leave out tables that cannot be shown at that frontier, instead of failing"),
    ] = False,
    receipt: Annotated[
        Path | None,
        typer.Option("--receipt", metavar="FILE", help="Write a digest of each table's rows to this file"),
    ] = None,
    key: _Key = None,
) -> int:
    """Keep all mirrored tables as of one frontier until the moment is dropped.

    Attach mirror@NAME in any engine by the REST catalog, or read it by `mirror-pump sql --at NAME`. Neither expiry,
    compaction, retention nor a copy takes anything away from it.
    """
    from mirror_pump.model import format_lsn
    from mirror_pump.ops.moments.keeping import MomentOptions
    from mirror_pump.ops.moments.keeping import keep as keep_moment
    from mirror_pump.ops.reads.time_travel import parse_when
    from mirror_pump.ops.setup.stored_settings import complete

    when = None if at is None else parse_when(at)
    if key is not None and receipt is None:
        raise UsageError("--key signs a receipt, and none is written", "give --receipt FILE too")
    signing_key = _signing_key(key, checks=False)
    settings = complete(settings)
    outcome = keep_moment(settings, MomentOptions(name, when, note, partial))
    for table, reason in outcome.left_out.items():
        remark(f"{table}: left out: {reason}", "warning")
    say(f"moment {name}: {count_text(len(outcome.tables))} tables kept at frontier {format_lsn(outcome.frontier)}")
    if receipt is not None:
        _write_receipt(settings, name, receipt, signing_key)
    return 0


def _signing_key(path: Path | None, *, checks: bool) -> bytes | None:
    if path is None:
        return None
    from mirror_pump.ops.moments.receipts import read_key

    return read_key(path, checks=checks)


def _write_receipt(settings: Settings, name: str, path: Path, key: bytes | None) -> None:
    """Writes the receipt of a moment that is kept. Raises TableError if the file cannot be written, LakeError."""
    from mirror_pump.ops.moments.dropping import one_moment
    from mirror_pump.ops.moments.moment_reader import MomentReader
    from mirror_pump.ops.moments.receipts import receipt_of
    from mirror_pump.source.connect import connect

    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-moment") as connection:
        moment = one_moment(connection, settings.slot, name)
    digests = []
    with MomentReader.open(settings, moment) as reader:
        for table in moment.tables:
            rows = reader.rows(table)
            digests.append((table, reader.digest(table, rows, reader.bounds(table, rows, None))))
    document = receipt_of(moment, digests, key)
    try:
        path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise TableError(
            f"the moment {name} is kept, but its receipt cannot be written to {path}: {error.strerror}",
            f"write it again: mirror-pump moment check {name} --write-receipt FILE",
        ) from error
    say(f"receipt: {path}{'' if key is None else ', signed'}")


def check(
    settings: Settings,
    name: _Name,
    receipt: Annotated[
        Path | None, typer.Option("--receipt", metavar="FILE", help="The receipt that was written when it was kept")
    ] = None,
    key: _Key = None,
    write_receipt: Annotated[
        Path | None,
        typer.Option("--write-receipt", metavar="FILE", help="Write a receipt of what the lake has now, instead"),
    ] = None,
) -> int:
    """Compare a moment's rows in the lake with its receipt, and with the heap where the table has not changed since.

    Exit code 1 if the lake's rows differ from the receipt's, or cannot be read.
    """
    from mirror_pump.ops.moments.checking import CheckResult
    from mirror_pump.ops.moments.checking import check as check_moment
    from mirror_pump.ops.moments.receipts import read_receipt
    from mirror_pump.ops.setup.stored_settings import complete

    settings = complete(settings)
    signing_key = _signing_key(key, checks=receipt is not None)
    if write_receipt is not None:
        if receipt is not None:
            raise UsageError("--receipt and --write-receipt exclude each other", "give one of them")
        _write_receipt(settings, name, write_receipt, signing_key)
        return 0
    if key is not None and receipt is None:
        raise UsageError("--key is for a receipt, and none is given", "give --receipt FILE too")
    checks = check_moment(settings, name, None if receipt is None else read_receipt(receipt, signing_key))
    for table in checks:
        results = [f"{count_text(table.rows)} rows"]
        if receipt is not None:
            results.append(f"receipt {table.receipt.value}")
        if table.heap is not CheckResult.NOT_COMPARED:
            results.append(f"heap {table.heap.value}")
        say(one_line(f"{table.table}: {', '.join(results)}"))
        for note in table.notes:
            say(f"    {one_line(note)}")
    return 0 if all(table.is_sound for table in checks) else 1


def list_(settings: Settings, as_json: AsJson = False) -> None:
    """Show the moments that are kept, and what they cost: the size of the files that only the moment keeps."""
    from mirror_pump.ops.moments.cost import moment_costs
    from mirror_pump.ops.setup.stored_settings import complete

    costs = moment_costs(complete(settings))
    if as_json:
        write_json([cost.to_json() for cost in costs])
        return
    for cost in costs:
        for line in _lines(cost):
            say(line)
    if not costs:
        say("no moment is kept: mirror-pump moment keep NAME")


def _lines(cost: MomentCost) -> list[str]:
    from mirror_pump.model import format_lsn

    moment = cost.moment
    cost_text = f"{bytes_text(cost.size_bytes)}, of which only it keeps {bytes_text(cost.own_bytes)}"
    at = f"frontier {format_lsn(moment.frontier)}, kept {moment.kept_at:%Y-%m-%d %H:%M:%S} UTC by {moment.kept_by}"
    lines = [f"{moment.name}: {at}, {count_text(len(moment.tables))} tables, {cost_text}"]
    if moment.note:
        lines.append(f"    {one_line(moment.note)}")
    for table in cost.tables:
        if table.error is not None:
            lines.append(f"    {table.table.table}: {one_line(table.error)}")
        elif table.table.pointer is None:
            lines.append(f"    {table.table.table}: not registered any more; its files stay for this moment")
    return lines


def drop(
    settings: Settings,
    name: _Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")] = False,
) -> int:
    """Give a moment up. Its files go with the next maintenance, but not for --lease-timeout seconds."""
    from mirror_pump.ops.moments.dropping import drop as drop_moment
    from mirror_pump.ops.setup.stored_settings import complete

    settings = complete(settings)
    if not yes:
        confirm(
            f"Drop the moment {name}, which cannot be had again?",
            about_to=f"the moment {name} is about to be dropped",
            remedy="give --yes",
            refused="nothing was dropped",
        )
    moment = drop_moment(settings, name)
    say(f"moment {name}: dropped")
    for table in moment.tables:
        if table.pointer is None:
            say(
                f"{table.table}: not registered any more; `mirror-pump unregister --list` shows its files, and"
                f" `mirror-pump unregister --former {shlex.quote(str(table.table))}` removes them"
            )
    return 0
