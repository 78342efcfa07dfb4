"""Reads the live rows of data files that have a tier key in a range: past their position deletes, and with the keys of
the equality deletes that apply to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.engine.lake_reads.index_keys import KeysTask, read_keys
from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.format.row_batches import stored_rows
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.format.sorted_numbers import found_among
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys, as_numbers
from mirror_pump.lake.storage import StorageOptions

_BATCH_ROWS = 16 * 1024


@dataclass(frozen=True)
class LakeFile:
    """URIs of a data file and of the equality-delete files that are newer."""

    path: str
    deletes: tuple[str, ...]


@dataclass(frozen=True)
class TierRange:
    """Data files of the lake. Only rows with a tier value in [lo, hi) count; all rows without a tier key. `hi` may be
    beyond the tier values."""

    files: tuple[LakeFile, ...]
    positions: tuple[str, ...]
    """Position-delete files that may refer to rows of the data files."""
    schema: LakeSchema
    tier_id: int | None
    """Field ID of the tier key; None: the table has none."""
    lo: int
    hi: int
    storage: StorageOptions


@dataclass(frozen=True)
class LiveRows:
    """Some rows of one file."""

    columns: dict[int, pa.Array]
    """By field ID, in the types of the schema. A column that the file lacks is missing."""
    rows: int
    tiers: npt.NDArray[np.int64]
    """The rows' tier values; empty without a tier key."""
    deleted: PackedKeys | None
    """Keys of equality deletes. Rows that have one of them are not live."""


def live_rows(chosen: TierRange, packing: KeyPacking) -> Iterator[LiveRows]:
    """The rows, file by file and in order. Raises LakeError."""
    hidden = HiddenRows.read(chosen.positions, {file.path for file in chosen.files}, chosen.storage)
    deleted: dict[tuple[str, ...], PackedKeys] = {}
    for file in chosen.files:
        if file.deletes and file.deletes not in deleted:
            parts = read_keys(KeysTask(file.deletes, (), chosen.schema, packing, chosen.storage))
            deleted[file.deletes] = PackedKeys.concatenated([part.keys for part in parts], packing.words)
        positions = hidden.get(file.path)
        for _, columns, live in stored_rows(file.path, chosen.schema, positions, chosen.storage, _BATCH_ROWS):
            tiers = np.zeros(0, np.int64)
            if chosen.tier_id is not None:
                tiers = as_numbers(columns[chosen.tier_id])
                live &= (tiers >= chosen.lo) & (tiers < chosen.hi)
            if not live.any():
                continue
            if not live.all():
                columns = {field_id: column.filter(pa.array(live)) for field_id, column in columns.items()}
            yield LiveRows(columns, int(live.sum()), tiers[live] if len(tiers) else tiers, deleted.get(file.deletes))


class KeySet:
    """A set of packed keys."""

    def __init__(self, keys: PackedKeys) -> None:
        self._first = np.unique(keys.first)
        self._pairs = None if keys.second is None else set(zip(keys.first.tolist(), keys.second.tolist(), strict=True))

    def among(self, keys: PackedKeys) -> npt.NDArray[np.bool_]:
        """A mask of the keys that are in the set."""
        _, matches = found_among(self._first, keys.first)
        if self._pairs is not None and keys.second is not None:
            for place in np.flatnonzero(matches):
                matches[place] = (int(keys.first[place]), int(keys.second[place])) in self._pairs
        return matches
