"""What a comparison of two Iceberg tables finds, whichever engine makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decoders.columns import Kind
from mirror_pump.lake.format.schema import LakeField
from mirror_pump.limits import InternalLimits

SHOWN_ROWS = InternalLimits().verify_shown_rows
"""Differing rows that a report names unless told otherwise; the count is of all."""
_SHOWN_CHARACTERS = 200
"""Of each value in a report."""

_FLOATING = frozenset({Kind.FLOAT, Kind.DOUBLE})
_TEMPORAL = frozenset({Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ})


@dataclass(frozen=True)
class Comparison:
    """What two tables have in common, and not."""

    heap_rows: int
    lake_rows: int
    different_rows: int
    differences: tuple[dict[str, Any], ...]
    """The first few: {"key": {...}, "kind": "missing" | "extra" | "different", "columns": {name: {heap, lake}}}."""


def is_floating(field: LakeField) -> bool:
    """Whether engines take different values of the column, or of its elements, for equal: -0 and 0. Their texts are
    compared."""
    return (field.type.element or field.type).kind in _FLOATING


def is_temporal(field: LakeField) -> bool:
    """Whether Python lacks values of the column: its calendar ends with the years 1 and 9999, Postgres's does not."""
    return (field.type.element or field.type).kind in _TEMPORAL


def difference(row: Mapping[str, Any], keys: Sequence[str], values: Sequence[str]) -> dict[str, Any]:
    """One differing row as a report shows it.

    `row`: the columns of both sides, as h_NAME and l_NAME, and hn and ln, the number of the row among those of its key,
    None where a side lacks it.
    """
    side = "h" if row["hn"] is not None else "l"
    key = {name: _shown(row[f"{side}_{name}"]) for name in keys}
    if row["hn"] is None or row["ln"] is None:
        return {"key": key, "kind": "missing" if row["ln"] is None else "extra", "columns": {}}
    columns = {
        name: {"heap": _shown(row[f"h_{name}"]), "lake": _shown(row[f"l_{name}"])}
        for name in values
        if row[f"h_{name}"] != row[f"l_{name}"]
    }
    return {"key": key, "kind": "different", "columns": columns}


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    text = value.hex() if isinstance(value, bytes | bytearray) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
