"""`mirror-pump resync`: copies tables again in the background, with a new slot if the old one is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mirror_pump.cli.arguments.completion import tables_argument
from mirror_pump.cli.arguments.options import COPIES, AsJson, command
from mirror_pump.cli.terminal.output import bytes_text, count_text, remark, report_error, say, write_json
from mirror_pump.cli.terminal.progress import copy_progress, verify_progress
from mirror_pump.errors import UsageError
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from mirror_pump.ops.resync.resync import Resync, TableResync
    from mirror_pump.ops.verify.requested_repairs import Repair, TableRepair


def add(app: typer.Typer) -> None:
    @command(
        app,
        "resync",
        COPIES,
    )
    def resync(
        settings: Settings,
        tables: Annotated[
            list[str] | None, tables_argument("Table names as Postgres reads them", show_default=False)
        ] = None,
        every: Annotated[bool, typer.Option("--all", help="All mirrored tables; needed if the slot is lost")] = False,
        no_wait: Annotated[
            bool, typer.Option("--no-wait", help="Return once the tables are marked; a running pump copies them")
        ] = False,
        where_different: Annotated[
            bool, typer.Option("--where-different", help="Compare, and replace only the rows that differ")
        ] = False,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be done")] = False,
        as_json: AsJson = False,
    ) -> int:
        """Copy tables again in the background; with --all after the slot was lost, invalidated or moved too.

        Makes a new slot if the old one cannot be used any more. Readers keep the present content of the tables until
        one publish shows the new content of all of them, at one frontier. Choices of columns, heap retention and
        policies stay, and so do rows that only the lake has. A server that was promoted or restored so that the pump
        refuses it is a matter of reconcile.

        With --where-different, heap and lake are compared by digests, and only rows of the lake that differ are
        replaced; a table that differs too much is copied. --dry-run compares as verify does, and says what differs. A
        table without a key is refused, unless the slot is lost: then it is copied.

        If resync is interrupted, run it again: it goes on. Exit code 1 if a table cannot be copied; the others are.
        """
        if bool(tables) == every:
            raise UsageError("--all takes no TABLE" if every else "name a TABLE, or give --all")
        from mirror_pump.ops.resync.resync import plan_resync
        from mirror_pump.ops.setup.stored_settings import complete

        settings = complete(settings)
        if dry_run:
            plan = plan_resync(settings, tables or (), where_different=where_different)
            if where_different and plan.lost is None:
                return _compare(settings, plan, as_json=as_json)
            return _show(plan, "would be ", "compared" if where_different else "copied again", as_json=as_json)
        if where_different and not no_wait:
            return _repair(settings, tables or (), as_json=as_json)
        return _copy(settings, tables or (), wait=not no_wait, where_different=where_different, as_json=as_json)


def _compare(settings: Settings, plan: Resync, *, as_json: bool) -> int:
    """Says what a repair would replace. Returns the exit code."""
    from mirror_pump.ops.verify.requested_repairs import what_differs

    with verify_progress() as show_table:
        compared = what_differs(settings, plan, show_table)
    return _show_repair(compared, as_json=as_json)


def _repair(settings: Settings, tables: Sequence[str], *, as_json: bool) -> int:
    """Has rows replaced that differ. Returns the exit code."""
    from mirror_pump.ops.verify.requested_repairs import repair_where_different

    with copy_progress() as show:
        repaired = repair_where_different(settings, tables, say=remark if as_json else say, on_progress=show)
    return _show_repair(repaired, as_json=as_json)


def _copy(settings: Settings, tables: Sequence[str], *, wait: bool, where_different: bool, as_json: bool) -> int:
    """Has the tables copied again. Returns the exit code."""
    from mirror_pump.ops.resync.resync import resync

    with copy_progress() as show:
        result = resync(
            settings,
            tables,
            wait=wait,
            say=remark if as_json else say,
            on_progress=show,
            where_different=where_different,
        )
    done = "compared" if where_different else "copied again"
    return _show(result, "" if wait else "is ", done, as_json=as_json)


def _show(result: Resync, verb: str, done: str, *, as_json: bool) -> int:
    """Prints the result or the plan. `done`: what happens to tables. Returns the exit code."""
    if as_json:
        write_json(result.to_json())
        return int(result.failed)
    if verb == "would be ":
        slot = "usable, stays" if result.lost is None else f"would be made anew. {result.lost}"
        say(f"slot {result.slot}: {slot}")
    for table in result.tables:
        if table.error is not None:
            report_error(table.error, f"cannot be {done}", table.table)
        else:
            say(f"{table.table}: {table.note or _text(table, verb, done)}")
    if not result.tables:
        remark("no table is mirrored: mirror-pump register TABLE")
    return int(result.failed)


def _show_repair(repair: Repair, *, as_json: bool) -> int:
    """Prints what was repaired, or would be. Returns the exit code."""
    if as_json:
        write_json(repair.to_json())
        return int(repair.failed)
    for planned, table in zip(repair.resync.tables, repair.tables, strict=True):
        if table.error is not None:
            report_error(table.error, "was not repaired", table.table)
        elif planned.action.value == "leave":
            say(f"{table.table}: {planned.note}")
        else:
            say(f"{table.table}: {_repair_text(table)}")
    if not repair.tables:
        remark("no table is mirrored: mirror-pump register TABLE")
    return int(repair.failed)


def _repair_text(table: TableRepair) -> str:
    if table.copied:
        return f"copied again, since it could not be compared or too much differed ({count_text(table.heap_rows)} rows)"
    rows = f"heap {count_text(table.heap_rows)} rows, lake {count_text(table.lake_rows)} rows"
    if not table.different_rows:
        return f"equal ({rows})"
    kinds = f"{table.missing:,} missing, {table.extra:,} extra, {table.different:,} different"
    counted = table.missing + table.extra + table.different
    if counted < table.different_rows:
        kinds = f"{count_text(table.different_rows)} rows differ, the first {counted:,} of them: {kinds}"
    return f"{kinds}, repaired ({rows} before)" if table.repaired else f"{kinds} ({rows})"


def _text(table: TableResync, verb: str, done: str) -> str:
    if not verb:
        rows = f"{count_text(table.rows)} rows {done.removesuffix(' again')}"
        return table.state.value + (f", {rows}" if table.rows else "")
    if table.action.value == "continue":
        return f"is being copied already ({table.state.value}), which goes on"
    text = f"{verb}{done}"
    if verb == "would be ":
        text += f": about {bytes_text(table.size_bytes)}, {count_text(table.rows)} rows"
    return text if table.kept_below is None else f"{text}; rows below the cut-line {table.kept_below} stay as they are"
