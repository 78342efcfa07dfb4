"""The list of tables in `mirror-pump status`, for a terminal of any width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import strip_control_codes
from rich.segment import Segment
from rich.text import Text

from mirror_pump.cli.terminal.output import bytes_text, count_text, seconds_text
from mirror_pump.model import TableState, format_lsn
from mirror_pump.ops.status.status_report import TableStatus

_STYLES = {
    TableState.LIVE: "green",
    TableState.WAITING: "yellow",
    TableState.COPYING: "yellow",
    TableState.FILLING: "yellow",
    TableState.FAILED: "red",
    TableState.DROPPED: "dim",
}
_GAP = "  "
"""Separates two columns."""
_NAME_HEADING = "table"
_FIRST_SHOWN = 2
"""Number of optional columns that are preferred to having the longest names on the same line as their values."""
_READABLE_NAME = 20
"""Width in terminal columns. If names have less room than this, optional columns are dropped in their favour."""


@dataclass(frozen=True)
class _GridColumn:
    heading: str
    cell: Callable[[TableStatus], str]
    right: bool = True
    """Aligned to the right, like numbers."""
    style: Callable[[TableStatus], str] = lambda _: ""

    def width(self, tables: Sequence[TableStatus]) -> int:
        """Width in terminal columns, including the gap before it."""
        return len(_GAP) + max(cell_len(self.heading), *(cell_len(self.cell(table)) for table in tables))


class TableGrid:
    """One row per table, with as many columns as fit: always name, state and lag; internals come last.

    A name that is too long for its column is printed on its own line in full, so that it can be copied.
    """

    def __init__(self, tables: Sequence[TableStatus]) -> None:
        self._tables = tables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        name_width, columns = self._layout(options.max_width)
        widths = [column.width(self._tables) for column in columns]
        heading = Text(_NAME_HEADING.ljust(name_width), style="bold", no_wrap=True)
        for column, width in zip(columns, widths, strict=True):
            heading.append(
                column.heading.rjust(width) if column.right else _GAP + column.heading.ljust(width - len(_GAP))
            )
        yield heading
        for table in self._tables:
            name = strip_control_codes(table.table)
            if cell_len(name) > name_width:
                yield Text(name, overflow="fold")
                name = ""
            # Not as Text, which rich measures, wraps and divides: that takes longer than the values do.
            line = [Segment(name + " " * (name_width - cell_len(name)))]
            for column, width in zip(columns, widths, strict=True):
                cell = column.cell(table)
                padding = " " * (width - len(_GAP) - cell_len(cell))
                text = padding + cell if column.right else cell + padding
                line.append(Segment(_GAP + text, console.get_style(column.style(table))))
            yield from Segment.adjust_line_length(line, options.max_width, pad=False)
            yield Segment.line()
        hidden = [column.heading for column in _OPTIONAL if column not in columns]
        if hidden:
            yield Text(f"not enough room for: {', '.join(hidden)}", style="dim")

    def _layout(self, width: int) -> tuple[int, list[_GridColumn]]:
        """Width of the name column, and the other columns."""
        columns = list(_ALWAYS)
        names = [cell_len(table.table) for table in self._tables]
        other_width = sum(column.width(self._tables) for column in columns)
        room = width - other_width - sum(column.width(self._tables) for column in _OPTIONAL[:_FIRST_SHOWN])
        if room < min(_READABLE_NAME, max(names)):
            room = width - other_width
        name_width = max([len(_NAME_HEADING), *(name for name in names if name <= room)])
        remaining = width - other_width - name_width
        for column in _OPTIONAL:
            remaining -= column.width(self._tables)
            if remaining < 0:
                break
            columns.append(column)
        return name_width, columns


def _state(table: TableStatus) -> str:
    if table.state is TableState.COPYING and table.chunks_total:
        return f"{table.state.value} {table.chunks_done}/{table.chunks_total}"
    if table.paused_since is not None and table.state is TableState.WAITING:
        return "snapshot" if table.snapshot_only else "paused"
    return table.state.value


def _lag(table: TableStatus) -> str:
    """The lag in seconds. For a failed table this is unknown, so the WAL that it has missed, in bytes."""
    return seconds_text(table.lag_seconds) if table.lag_seconds is not None else bytes_text(table.lag_bytes)


def _rows(table: TableStatus) -> str:
    if table.content is None:
        return "-"
    # Pending equality deletes hide rows, which only a scan could count. Nor does another engine's rewrite tell which of
    # the position deletes hide nothing any more.
    sign = "" if table.content.rows_exact else "<= " if table.content.equality_deletes else "~ "
    return f"{sign}{count_text(table.content.rows)}"


def _pending(table: TableStatus) -> str:
    """Number of equality deletes that readers still have to apply, and the age of the oldest."""
    if table.content is None or not table.content.equality_deletes:
        return "-" if table.content is None else "0"
    return f"{count_text(table.content.equality_deletes)}, {seconds_text(table.equality_deletes_age)}"


def _index(table: TableStatus) -> str:
    """Size of the key index, which lets deletes be written by position at once, or its state until it is ready."""
    deletes = table.deletes
    if deletes.phase is None:
        return "-"
    return bytes_text(deletes.bytes + deletes.disk_bytes) if deletes.phase == "ready" else deletes.phase


_ALWAYS = (
    _GridColumn("state", _state, right=False, style=lambda table: _STYLES[table.state]),
    _GridColumn("lag", _lag),
)
_OPTIONAL = (
    _GridColumn("rows", _rows),
    _GridColumn("size", lambda table: bytes_text(table.content.size_bytes if table.content else None)),
    _GridColumn("pending deletes", _pending),
    _GridColumn("behind", lambda table: bytes_text(table.lag_bytes)),
    _GridColumn("files", lambda table: count_text(table.content.data_files if table.content else None)),
    _GridColumn("delete files", lambda table: count_text(table.content.delete_files if table.content else None)),
    _GridColumn("deletes", lambda table: table.deletes.mode),
    _GridColumn("index", _index),
    _GridColumn("frontier", lambda table: "-" if table.frontier is None else format_lsn(table.frontier)),
)
"""If there is no room for all, the last ones are left out."""
