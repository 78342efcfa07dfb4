"""The table of tables in `mirror-pump status`, for a terminal of any width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from mirror_pump.cli.terminal.output import bytes_text, count_text, seconds_text
from mirror_pump.model import TableState, format_lsn
from mirror_pump.ops.status.status_report import TableStatus

_STYLES = {TableState.LIVE: "green", TableState.COPYING: "yellow", TableState.FAILED: "red"}
_GAP = "  "
"""Between two columns."""
_NAME_HEADING = "table"
_WANTED = 2
"""Optional columns that all tables should have, rather than that the longest names stand beside their figures."""
_READABLE_NAME = 20
"""Columns of the terminal: where names have less room than that, figures give way to them."""


@dataclass(frozen=True)
class _Column:
    heading: str
    cell: Callable[[TableStatus], str]
    right: bool = True
    """Aligned to the right, as figures are."""
    style: Callable[[TableStatus], str] = lambda _: ""

    def width(self, tables: Sequence[TableStatus]) -> int:
        """In a terminal's columns, with the space before it."""
        return len(_GAP) + max(cell_len(self.heading), *(cell_len(self.cell(table)) for table in tables))


class TableGrid:
    """One row a table, with as many columns as there is room for: the name, state and lag always, internals last.

    A name that is too long for its column stands on a line of its own, whole, so that it can be copied.
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
            name = table.table
            if cell_len(name) > name_width:
                yield Text(name, overflow="fold")
                name = ""
            line = Text(name + " " * (name_width - cell_len(name)), no_wrap=True)
            for column, width in zip(columns, widths, strict=True):
                cell = column.cell(table)
                padding = " " * (width - len(_GAP) - cell_len(cell))
                line.append(_GAP)
                line.append(padding + cell if column.right else cell + padding, style=column.style(table))
            yield line
        hidden = [column.heading for column in _OPTIONAL if column not in columns]
        if hidden:
            yield Text(f"no room here for: {', '.join(hidden)}", style="dim")

    def _layout(self, width: int) -> tuple[int, list[_Column]]:
        """The width of the names' column, and the columns beside it."""
        columns = list(_ALWAYS)
        names = [cell_len(table.table) for table in self._tables]
        beside = sum(column.width(self._tables) for column in columns)
        room = width - beside - sum(column.width(self._tables) for column in _OPTIONAL[:_WANTED])
        if room < min(_READABLE_NAME, max(names)):
            room = width - beside
        name_width = max([len(_NAME_HEADING), *(name for name in names if name <= room)])
        left = width - beside - name_width
        for column in _OPTIONAL:
            left -= column.width(self._tables)
            if left < 0:
                break
            columns.append(column)
        return name_width, columns


def _state(table: TableStatus) -> str:
    if table.state is TableState.COPYING and table.chunks_total:
        return f"{table.state.value} {table.chunks_done}/{table.chunks_total}"
    return table.state.value


def _lag(table: TableStatus) -> str:
    """In seconds; of a table that has failed nobody knows these, but how much WAL it has missed."""
    return seconds_text(table.lag_seconds) if table.lag_seconds is not None else bytes_text(table.lag_bytes)


def _rows(table: TableStatus) -> str:
    if table.content is None:
        return "-"
    # Pending equality deletes hide rows that only a scan can count.
    return f"{'<= ' if table.content.equality_deletes else ''}{count_text(table.content.rows)}"


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


_ALWAYS = (
    _Column("state", _state, right=False, style=lambda table: _STYLES[table.state]),
    _Column("lag", _lag),
)
_OPTIONAL = (
    _Column("rows", _rows),
    _Column("size", lambda table: bytes_text(table.content.size_bytes if table.content else None)),
    _Column("pending deletes", _pending),
    _Column("behind", lambda table: bytes_text(table.lag_bytes)),
    _Column("files", lambda table: count_text(table.content.data_files if table.content else None)),
    _Column("delete files", lambda table: count_text(table.content.delete_files if table.content else None)),
    _Column("deletes", lambda table: table.deletes.mode),
    _Column("index", _index),
    _Column("F", lambda table: "-" if table.frontier is None else format_lsn(table.frontier)),
)
"""Left out from the end on, where there is no room for all."""
