"""What rows have in a column that was added after they were written: its initial default, as an Arrow scalar.

Iceberg has initial defaults from format version 3 on only, and the mirror's tables are of version 2. So the value
stands in the mirror's catalog (Column.initial), for files that lack the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from decoders.columns import ColumnType
from decoders.text import parse_text
from mirror_pump.model import Column


def initial_scalar(column: Column) -> pa.Scalar:
    """The value, of the column's Arrow type; NULL where it has none. ValueError for a text that is none of the type."""
    if column.initial is None:
        return pa.scalar(None, column.type.arrow)
    return parse_text(pa.array([column.initial], pa.string()), column.type).values[0]


def initial_values(columns: Iterable[Column]) -> Mapping[int, pa.Array]:
    """Those of the columns that have one, by field ID, in arrays of one value: a scalar of a year before 1 cannot be
    pickled."""
    return {
        column.field_id: parse_text(pa.array([column.initial], pa.string()), column.type).values
        for column in columns
        if column.initial is not None
    }


def holds_text(column_type: ColumnType, text: str) -> bool:
    """Whether the type can hold what Postgres printed so: not NaN in a decimal, for example."""
    try:
        parsed = parse_text(pa.array([text], pa.string()), column_type)
    except ValueError:
        return False
    return bool(parsed.values[0].is_valid)
