"""The result of a comparison of two Iceberg tables, the same for every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from mirror_pump.json_documents import JsonDocument
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.contents.kept_ranges import KeptRanges
from mirror_pump.lake.format.schema import LakeField
from mirror_pump.model import MirroredTable
from mirror_pump.settings.limits import InternalLimits

SHOWN_ROWS = InternalLimits().verify_shown_rows
"""Default number of differing rows that a report shows. It counts all."""
_SHOWN_CHARACTERS = 200
"""Number of characters that a report shows of each value."""


@dataclass(frozen=True)
class ComparedRows:
    """Which rows of two tables are compared."""

    line: CutLine | None = None
    """Only those at or above the cut-line. None: on both sides of it."""
    kept_ranges: KeptRanges | None = None
    """Where a row that the lake alone has is none of those that are compared."""

    @classmethod
    def of(cls, table: MirroredTable) -> Self:
        """Those of a mirrored table: rows of partitions that its owner took away stay in the lake."""
        return cls(CutLine.of(table), KeptRanges.of(table))


ALL_ROWS = ComparedRows()


@dataclass(frozen=True)
class Comparison(JsonDocument):
    """How many rows two tables have and how many of these differ, with examples."""

    heap_rows: int
    """Rows of the heap; `lake_rows` are those of the lake, without what it keeps of partitions that were taken away."""
    lake_rows: int
    different_rows: int
    """Rows that are on one side only, or not the same on both."""
    differences: tuple[dict[str, Any], ...]
    """The first rows that differ: the `key`; the `kind`, `missing` (in the heap only), `extra` (in the lake only) or
    `different`; and the `columns` that differ, as `{"heap": ..., "lake": ...}`, empty for other kinds."""


def is_floating(field: LakeField) -> bool:
    """Whether engines treat -0 and 0 in the column, or in its elements, as equal. Such columns are compared as text."""
    return (field.type.element or field.type).is_floating


def is_temporal(field: LakeField) -> bool:
    """Whether Python cannot represent all values: its years end at 1 and 9999, those of Postgres do not."""
    return (field.type.element or field.type).is_temporal


def difference(row: Mapping[str, Any], keys: Sequence[str], values: Sequence[str]) -> dict[str, Any]:
    """Describe one differing row for the report (`Comparison.differences`).

    `row` has the columns of both sides as h_NAME and l_NAME. hn and ln number the row among those of its key, and are
    None if that side lacks the row.
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
