"""The initial default of a column, as an Arrow scalar: the value that rows have which were written before it was added.

Iceberg supports initial defaults only from format version 3 on, and the mirror's tables have version 2. So the mirror's
catalog holds the value (Column.initial), for files that lack the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from decoders.columns import ColumnType
from decoders.text import parse_text
from mirror_pump.model import Column


def initial_scalar(column: Column) -> pa.Scalar:
    """The column's initial default in its Arrow type, NULL if it has none. Raises ValueError for an invalid text."""
    if column.initial is None:
        return pa.scalar(None, column.type.arrow)
    return parse_text(pa.array([column.initial], pa.string()), column.type).values[0]


def initial_values(columns: Iterable[Column]) -> Mapping[int, pa.Array]:
    """Initial defaults by field ID, of the columns that have one. Each is an array of one value, because a scalar of a
    year before 1 cannot be pickled."""
    return {
        column.field_id: parse_text(pa.array([column.initial], pa.string()), column.type).values
        for column in columns
        if column.initial is not None
    }


def holds_text(column_type: ColumnType, text: str) -> bool:
    """Whether the type can hold the value that Postgres printed as `text`; a decimal cannot hold NaN, for example."""
    try:
        parsed = parse_text(pa.array([text], pa.string()), column_type)
    except ValueError:
        return False
    return bool(parsed.values[0].is_valid)
