"""Rows of files as they are parsed, before their values are those of a table, and what is wrong with others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.errors import TableError
from mirror_pump.ops.row_files.input_files import InputFile


@dataclass(frozen=True, order=True)
class RowPlace:
    """Where a row of the input is."""

    number: int
    """Number of the input file, for the order of rows of several files."""
    line: int
    """Line of a text file, or row of a Parquet file, from 1."""
    file: str
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.line}"


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """The column without chunks: itself if it has one, else a copy."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


class InputError(TableError):
    """The input cannot be read, or not any further."""


class RowRefused(InputError):
    """A row that the table cannot hold, or that is none."""

    def __init__(self, place: RowPlace, reason: str, remedy: str = "") -> None:
        super().__init__(f"{place}: {reason}", remedy)
        self.place = place
        self.reason = reason


@dataclass(frozen=True)
class RefusedRow:
    """A row that is not among the others, for this reason."""

    place: RowPlace
    reason: str
    values: Mapping[str, str | None] | str
    """The row's texts by column, or its line if that could not be parsed."""


@dataclass(frozen=True)
class RowBatch:
    """Some rows of one file, by columns."""

    file: InputFile
    columns: Mapping[str, pa.Array]
    """Of any Arrow type: texts as PostgreSQL reads them, or typed values. NULL is NULL."""
    lines: npt.NDArray[np.int64]
    """Line, or number in the Parquet file, of each row; from 1, ascending."""
    unit: str = "line"
    refused: tuple[RefusedRow, ...] = ()
    """Rows that could not even be parsed."""
    stored_bytes: int = field(default=0, compare=False)
    """Bytes of the file, as stored, that were read for this batch."""

    @property
    def rows(self) -> int:
        return len(self.lines)

    def place(self, row: int) -> RowPlace:
        """Where the row with this index is in the input."""
        return RowPlace(self.file.number, int(self.lines[row]), self.file.name, self.unit)

    def take(self, rows: npt.NDArray[np.int64]) -> RowBatch:
        """The rows with these indexes."""
        places = pa.array(rows)
        columns = {name: column.take(places) for name, column in self.columns.items()}
        return replace(self, columns=columns, lines=self.lines[rows], refused=(), stored_bytes=0)

    def numbers(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The number of each row among all that the batch was made of, and of each refused one; from 0."""
        refused = np.array([row.place.line for row in self.refused], np.int64)
        rows = np.arange(self.rows) + np.searchsorted(refused, self.lines)
        return rows, np.arange(len(refused)) + np.searchsorted(self.lines, refused)
