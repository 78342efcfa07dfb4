"""The initial default of a column: the value that rows have which were written before it was added.

Iceberg supports initial defaults only from format version 3 on, and engines that read that version may pass over them
(docs/readers.md). So the mirror's catalog holds the value until files that lack the column are filled (Column.initial);
or the lake's schema names it, where the table's owner chose that (Column.default), and then those files stay.

Iceberg has no way to take back an initial default, nor to change it: a column keeps it as long as its field ID.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from decoders.columns import ColumnType, Kind
from decoders.text import parse_text
from mirror_pump.model import Column

Default: TypeAlias = str | int | float | bool | None
"""A value as JSON in Iceberg's schemas (Iceberg spec, appendix D). None: there is no default."""

_TO_JSON: Mapping[Kind, Callable[[Any], Default]] = {
    **dict.fromkeys((Kind.BOOLEAN, Kind.INT, Kind.LONG, Kind.STRING), lambda value: value),
    # JSON has no NaN and no infinities.
    **dict.fromkeys((Kind.FLOAT, Kind.DOUBLE), lambda value: value if math.isfinite(value) else None),
    Kind.DECIMAL: lambda value: format(value, "f"),
    Kind.BINARY: lambda value: value.hex(),
    Kind.UUID: lambda value: str(uuid.UUID(bytes=value)),
    Kind.DATE: date.isoformat,
    **dict.fromkeys((Kind.TIMESTAMP, Kind.TIMESTAMPTZ), lambda value: value.isoformat(timespec="microseconds")),
}
_FROM_JSON: Mapping[Kind, Callable[[Any], Any]] = {
    Kind.DECIMAL: Decimal,
    Kind.BINARY: bytes.fromhex,
    Kind.UUID: lambda text: uuid.UUID(text).bytes,
    Kind.DATE: date.fromisoformat,
    Kind.TIMESTAMP: datetime.fromisoformat,
    Kind.TIMESTAMPTZ: lambda text: datetime.fromisoformat(text).astimezone(UTC),
}


def default_of_text(text: str, column_type: ColumnType) -> Default:
    """The default for a value that Postgres printed as `text`. None if Iceberg has none that is exactly this value: of
    lists, of masked values, of a float that is no number, of times that Python's calendar does not have."""
    if column_type.kind not in _TO_JSON or column_type.mask is not None or not holds_text(column_type, text):
        return None
    scalar = parse_text(pa.array([text], pa.string()), column_type).values[0]
    try:
        value = scalar.as_py()
    except (ValueError, OverflowError):
        return None
    return _TO_JSON[column_type.kind](value)


def default_array(default: Default, column_type: ColumnType) -> pa.Array:
    """The value of a default, as an array of one."""
    value = _FROM_JSON.get(column_type.kind, lambda value: value)(default)
    return pa.array([value], column_type.arrow)


def initial_scalar(column: Column) -> pa.Scalar:
    """The column's initial default in its Arrow type, NULL if it has none. Raises ValueError for an invalid text."""
    if column.older_value is None:
        return pa.scalar(None, column.type.arrow)
    return parse_text(pa.array([column.older_value], pa.string()), column.type).values[0]


def initial_values(columns: Iterable[Column]) -> Mapping[int, pa.Array]:
    """Initial defaults by field ID, of the columns that have one. Each is an array of one value, because a scalar of a
    year before 1 cannot be pickled."""
    return {
        column.field_id: parse_text(pa.array([column.older_value], pa.string()), column.type).values
        for column in columns
        if column.older_value is not None
    }


def holds_text(column_type: ColumnType, text: str) -> bool:
    """Whether the type can hold the value that Postgres printed as `text`; a decimal cannot hold NaN, for example."""
    try:
        parsed = parse_text(pa.array([text], pa.string()), column_type)
    except ValueError:
        return False
    return bool(parsed.values[0].is_valid)
