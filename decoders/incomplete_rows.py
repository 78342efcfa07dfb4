"""Rows of which the stream left values out, and texts of values that a column's type cannot hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

RawTexts: TypeAlias = Mapping[str, pa.ChunkedArray]
"""Raw text by column name, for columns that have any: the texts (string) of values that the column's type cannot hold,
NULL in all other rows. The cells of these values are NULL in the column itself."""


@dataclass(frozen=True)
class IncompleteRows:
    """Surviving rows with unchanged TOAST values that are not in the segment. All tables have the same row order."""

    rows: pa.Table
    """Like TableChanges.rows, with NULL in missing cells."""
    raw: RawTexts
    """Like TableChanges.raw."""
    missing: pa.Table
    """bool columns of the same names: True for a missing cell."""
    lookup_keys: pa.Table
    """Key columns: the key of each row before this segment. The last image under this key has the missing values."""

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        raw = sum(texts.nbytes for texts in self.raw.values())
        return int(self.rows.nbytes + raw + self.missing.nbytes + self.lookup_keys.nbytes)
