"""Rows of a load that are left out, with reasons, and the search for the row that a statement fails for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from mirror_pump.errors import TableError, one_line_of

_SHOWN = 100
"""Rows that an answer names. All are counted."""

ROW_ERRORS = (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.RaiseException)
"""What PostgreSQL says about a value or a row: a text that its type does not take, a constraint, a trigger's RAISE."""


@dataclass(frozen=True)
class FilteredRow:
    """A row that is not loaded."""

    row: int
    """Its number in the input, from 1; a header does not count."""
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"row": self.row, "reason": self.reason}


class TooManyFiltered(TableError):
    """More rows are filtered than the load may leave out. Nothing is loaded."""

    def __init__(self, message: str, remedy: str, filtered: tuple[FilteredRow, ...]) -> None:
        super().__init__(message, remedy)
        self.filtered = filtered


@dataclass
class RowFilter:
    """Counts the rows that are left out. Raises TooManyFiltered at the first one that is too many."""

    table: str
    most: int
    """Rows that may be left out."""
    count: int = 0
    shown: list[FilteredRow] = field(default_factory=list)

    def reject(self, row: int, reason: str) -> None:
        """Leave a row out."""
        self.count += 1
        if len(self.shown) < _SHOWN:
            self.shown.append(FilteredRow(row, reason))
        if self.count > self.most:
            raise TooManyFiltered(
                f"{self.table}: row {row}: {reason}"
                + (f" ({self.count} rows are filtered, at most {self.most} may be)" if self.most else ""),
                "nothing was loaded: correct the row and load again with the same label, or allow rows to be left out"
                " with --max-filtered",
                tuple(self.shown),
            )

    def copy(self) -> RowFilter:
        """For an attempt that may be repeated."""
        return RowFilter(self.table, self.most, self.count, list(self.shown))


def by_halves(first: int, end: int, write: Callable[[int, int], int], reject: Callable[[int, str], None]) -> int:
    """Write the rows from `first` to before `end`; those that PostgreSQL refuses are rejected one by one, in order.

    `write` writes a range of rows or none of it, and returns their number; so does this. A row that is refused costs
    two statements for each halving, the good rows at most twice their time.
    """
    try:
        return write(first, end)
    except ROW_ERRORS as error:
        if end - first == 1:
            reject(first, reason_of(error))
            return 0
    middle = (first + end) // 2
    return by_halves(first, middle, write, reject) + by_halves(middle, end, write, reject)


def reason_of(error: psycopg.Error) -> str:
    """What PostgreSQL says about the row, on one line."""
    text = one_line_of(error.diag.message_primary or error)
    # The place "line 3, column x" in whatever language: no field of the protocol has the column.
    column = re.search(r"^COPY .*?, \S+ \d+, \S+ (.+?)(?: ?: |$)", error.diag.context or "", re.MULTILINE)
    if column:
        return f"column {column[1]}: {text}"
    return text if error.diag.message_detail is None else f"{text}: {one_line_of(error.diag.message_detail)}"
