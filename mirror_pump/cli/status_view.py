"""Draws a MirrorStatus for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mirror_pump.cli.output import bytes_text, count_text, one_line, seconds_text
from mirror_pump.errors import about
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
        return Group(head, _slot(status.slot), *_pumps(status), Text("no tables: mirror-pump register TABLE"))
    errors = [
        Text(about(table.table, one_line(table.error)), style="red")
        for table in status.tables
        if table.error is not None
    ]
    shed = [_retention(table) for table in status.tables if table.retention is not None]
    left_out = [
        Text(f"{table.table}: generated columns left out: {', '.join(table.generated_left_out)}")
        for table in status.tables
        if table.generated_left_out
    ]
    return Group(head, _slot(status.slot), *_pumps(status), _tables(status.tables), *shed, *left_out, *errors)


def _slot(slot: SlotState) -> Text:
    if not slot.exists:
        return Text(f"slot {slot.name}: MISSING", style="red")
    if slot.publication_error is not None:
        return Text(f"slot {slot.name}: {one_line(slot.publication_error)}", style="red")
    text = f"slot {slot.name}: {'active' if slot.active else 'inactive'}, retains {bytes_text(slot.retained_bytes)}"
    text += f" of WAL ({slot.wal_status})"
    held = slot.held_by
    if held is not None:
        who = f"{held.prepared!r}" if held.prepared is not None else f"of pid {held.pid} ({held.application})"
        text += f", from the beginning of a {held.kind} {who} on, open for {seconds_text(held.seconds)}"
    return Text(text, style="red" if slot.wal_status == "lost" else "")


def _pumps(status: MirrorStatus) -> list[Text]:
    standbys = [
        f"process {standby.pid} on {standby.host}" + (f" since {standby.since.isoformat()}" if standby.since else "")
        for standby in status.standbys
    ]
    return [_leader(status.leader), *([Text("standby: " + "; ".join(standbys))] if standbys else [])]


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
    for heading in ("lag", "behind", "rows", "files", "delete files", "deletes", "pending deletes", "index", "size"):
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
            table.deletes.mode,
            _pending(table),
            _index(table),
            bytes_text(content.size_bytes if content else None),
        )
    return grid


def _pending(table: TableStatus) -> str:
    """Equality deletes that readers still have to apply, and how long the oldest has been there."""
    if table.content is None or not table.content.equality_deletes:
        return "-" if table.content is None else "0"
    return f"{count_text(table.content.equality_deletes)}, {seconds_text(table.equality_deletes_age)}"


def _index(table: TableStatus) -> str:
    """The memory that lets deletes be written by position at once; or how far it is from that."""
    deletes = table.deletes
    if deletes.phase is None:
        return "-"
    return bytes_text(deletes.bytes) if deletes.phase == "ready" else deletes.phase


def _retention(table: TableStatus) -> Text:
    """Old partitions, corrections and pins of one table, on a line."""
    state = table.retention
    assert state is not None
    parts = [f"T = {state.cut}", f"S = {table.snapshot_id}"]
    if state.partitions:
        parts.append("partitions " + ", ".join(f"{count} {name}" for name, count in sorted(state.partitions.items())))
    parts.append(f"{count_text(state.delta_rows)} corrections")
    if state.delta_unfolded:
        parts[-1] += f", {count_text(state.delta_unfolded)} not folded for {seconds_text(state.delta_age)}"
    if state.pins:
        parts.append(f"{count_text(state.pins)} pins, the oldest {seconds_text(state.oldest_pin_age)} old")
    if state.expired_pins:
        parts.append(f"{count_text(state.expired_pins)} expired")
    if state.waits_for is not None:
        parts.append(f"the next partition waits: {one_line(state.waits_for)}")
    wrong = [f"RETENTION STOPPED: {one_line(state.stopped)}"] if state.stopped is not None else []
    if state.not_made is not None:
        wrong.append(one_line(state.not_made))
    return Text(f"{table.table}: {'; '.join(parts + wrong)}", style="red" if wrong else "")
