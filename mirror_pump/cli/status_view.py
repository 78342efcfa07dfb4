"""Draws a MirrorStatus for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mirror_pump.cli.output import bytes_text, count_text, one_line, seconds_text
from mirror_pump.model import TableState, format_lsn
from mirror_pump.ops.status import Leader, MirrorStatus, SlotState, TableStatus

_STYLES = {TableState.LIVE: "green", TableState.COPYING: "yellow", TableState.FAILED: "red"}


def render(status: MirrorStatus) -> RenderableType:
    """The whole status: three lines about the mirror, a table of tables, errors below."""
    head = Text(f"mirror of {status.database} in {status.warehouse}\n", no_wrap=False)
    head.append(f"F = {format_lsn(status.frontier)}, {bytes_text(status.lag_bytes)} of WAL behind")
    if status.lag_seconds is not None:
        head.append(f", {seconds_text(status.lag_seconds)}")
    if not status.tables:
        return Group(head, _slot(status.slot), _leader(status.leader), Text("no tables: mirror-pump register TABLE"))
    errors = [
        Text(f"{table.table}: {one_line(table.error)}", style="red")
        for table in status.tables
        if table.error is not None
    ]
    return Group(head, _slot(status.slot), _leader(status.leader), _tables(status.tables), *errors)


def _slot(slot: SlotState) -> Text:
    if not slot.exists:
        return Text(f"slot {slot.name}: MISSING", style="red")
    text = f"slot {slot.name}: {'active' if slot.active else 'inactive'}, retains {bytes_text(slot.retained_bytes)}"
    return Text(f"{text} of WAL ({slot.wal_status})", style="red" if slot.wal_status == "lost" else "")


def _leader(leader: Leader | None) -> Text:
    if leader is None:
        return Text("leader: none; start one with mirror-pump run", style="yellow")
    who = f"process {leader.pid} on {leader.host} since {leader.since}"
    if leader.alive:
        return Text(f"leader: {who}")
    return Text(f"leader: none; {who} is gone without a word", style="yellow")


def _tables(tables: tuple[TableStatus, ...]) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("table", overflow="fold")
    for heading in ("state", "F"):
        grid.add_column(heading, no_wrap=True)
    for heading in ("lag", "behind", "rows", "files", "delete files", "size"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for table in tables:
        content = table.content
        state = table.state.value
        if table.state is TableState.COPYING and table.chunks_total:
            state += f" {table.chunks_done}/{table.chunks_total}"
        rows = "-" if content is None else count_text(content.rows)
        if content is not None and content.equality_deletes:
            # Pending equality deletes hide rows that only a scan can count.
            rows = f"<= {rows}"
        grid.add_row(
            Text(table.table),
            Text(state, style=_STYLES[table.state]),
            "-" if table.frontier is None else format_lsn(table.frontier),
            seconds_text(table.lag_seconds),
            bytes_text(table.lag_bytes),
            rows,
            count_text(content.data_files if content else None),
            count_text(content.delete_files if content else None),
            bytes_text(content.size_bytes if content else None),
        )
    return grid
