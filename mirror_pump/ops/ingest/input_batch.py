"""A batch of input rows, as parsed from a file and before its values are those of the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.ops.ingest.ingest_request import RowPlace
from mirror_pump.ops.row_files.input_files import InputFile


@dataclass(frozen=True)
class InputBatch:
    """Some rows of one file, by columns."""

    file: InputFile
    columns: Mapping[str, pa.Array]
    """Of any Arrow type: texts as PostgreSQL reads them, or typed values. NULL is NULL."""
    lines: npt.NDArray[np.int64]
    """Line, or number in the Parquet file, of each row; from 1."""
    unit: str = "line"
    refused: tuple[tuple[RowPlace, str, str], ...] = ()
    """Rows that could not even be parsed: place, reason, and their text."""
    stored_bytes: int = field(default=0, compare=False)
    """Bytes of the file, as stored, that were read for this batch."""

    @property
    def rows(self) -> int:
        return len(self.lines)

    def place(self, row: int) -> RowPlace:
        """Where the row with this index is in the input."""
        return RowPlace(self.file.number, int(self.lines[row]), self.file.name, self.unit)

    def take(self, rows: npt.NDArray[np.int64]) -> InputBatch:
        """The rows with these indexes."""
        places = pa.array(rows)
        columns = {name: column.take(places) for name, column in self.columns.items()}
        return replace(self, columns=columns, lines=self.lines[rows], refused=(), stored_bytes=0)
