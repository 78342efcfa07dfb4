"""Tells by the bounds in manifests which data files cannot have one of some rows.

Only columns of whole numbers, dates and times count: their bounds are exact, whichever engine wrote them. A column of
which a file has no bounds says nothing, nor does NULL in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.lake.format.bounds import ordered
from mirror_pump.lake.format.columns import cast_to
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.key_index.packed_keys import as_numbers
from mirror_pump.lake.key_index.whole_rows import RemovedRows

_MOST_ROWS = 10_000
"""Of more rows only the lowest and highest value of each column are compared with a file's."""

ColumnNumbers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]


class BoundedFile(Protocol):
    """A data file with the bounds of its columns, by field ID (Iceberg single-value serialisation)."""

    @property
    def lower_bounds(self) -> Mapping[int, bytes]: ...

    @property
    def upper_bounds(self) -> Mapping[int, bytes]: ...


def compared_fields(schema: LakeSchema) -> tuple[LakeField, ...]:
    """The columns whose bounds count."""
    return tuple(field for field in schema.fields if field.type.is_ordinal)


class RowRanges:
    """The values of some rows."""

    def __init__(self, rows: RemovedRows) -> None:
        self._columns: list[tuple[LakeField, ColumnNumbers, Flags | None]] = []
        """Of each column that counts, its values, and where it has any."""
        self._is_exact = rows.rows.num_rows <= _MOST_ROWS
        self._rows = rows.rows.num_rows
        for field in compared_fields(rows.schema):
            column = rows.rows.column(field.name)
            whole = cast_to(
                column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column, field.arrow.type
            )
            if not whole.null_count:
                self._columns.append((field, as_numbers(whole), None))
            elif self._is_exact:
                valid = whole.is_valid().to_numpy(zero_copy_only=False)
                numbers = np.zeros(len(whole), np.int64)
                numbers[valid] = as_numbers(whole.drop_null())
                self._columns.append((field, numbers, valid))
        if not self._is_exact:
            self._columns = [
                (field, np.array([numbers.min(), numbers.max()]), None) for field, numbers, _ in self._columns
            ]

    def may_be_in(self, file: BoundedFile) -> bool:
        """Whether the file may have one of the rows."""
        possible = np.ones(self._rows if self._is_exact else 1, np.bool_)
        for field, numbers, valid in self._columns:
            low = ordered(field.type, file.lower_bounds.get(field.field_id))
            high = ordered(field.type, file.upper_bounds.get(field.field_id))
            if low is None or high is None:
                continue
            if not self._is_exact:
                possible &= bool(numbers[1] >= low and numbers[0] <= high)
            else:
                inside = (numbers >= low) & (numbers <= high)
                possible &= inside if valid is None else inside | ~valid
            if not possible.any():
                return False
        return True
