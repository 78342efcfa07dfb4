"""SQL conditions that choose rows by their keys, so that PostgreSQL finds them by the key's index."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from decoders.printing import print_values
from mirror_pump.database.quoting import identifier, literal
from mirror_pump.model import Column

_TYPES = frozenset({16, 17, 20, 21, 23, 25, 1042, 1043, 1082, 1083, 1114, 1184, 1700, 2950})
"""OIDs of the types of PostgreSQL whose values compare equal if their texts are the same."""


def key_condition(columns: Sequence[Column], values: Sequence[pa.Array]) -> str | None:
    """A condition that all rows with these keys meet, perhaps further ones. `values`: of each key column, as the lake
    has them. None if the lake does not have the values, or if their type is not PostgreSQL's."""
    if any(column.type_oid not in _TYPES or column.type.mask is not None for column in columns):
        return None
    names = ", ".join(identifier(column.name) for column in columns)
    arrays = [
        f"{_array(print_values(array, column.type))}::{column.type_sql}[]"
        for array, column in zip(values, columns, strict=True)
    ]
    if len(arrays) == 1:
        return f"{names} = ANY ({arrays[0]})"
    return f"({names}) IN (SELECT * FROM ROWS FROM (unnest({'), unnest('.join(arrays)})) AS given)"


def _array(texts: pa.Array) -> str:
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts.to_pylist())
    return literal("{" + ",".join(f'"{text}"' for text in quoted) + "}")
