"""Reads the live rows of data files that have a tier key in a range: past their position deletes, and with the keys of
the equality deletes that apply to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.engine.lake_reads.index_keys import KeysTask, read_keys
from mirror_pump.engine.lake_reads.row_batches import read_batches
from mirror_pump.engine.rewrite.file_merge import cast_to
from mirror_pump.lake.format.columns import places_by_id, plain
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.position_deletes import read_position_deletes
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
    """Data files of the lake. Only rows with a tier value in [lo, hi) count."""

    files: tuple[LakeFile, ...]
    positions: tuple[str, ...]
    """Position-delete files that may refer to rows of the data files."""
    schema: LakeSchema
    tier_id: int
    """Field ID of the tier key."""
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
    """The rows' tier values."""
    deleted: PackedKeys | None
    """Keys of equality deletes. Rows that have one of them are not live."""


def live_rows(chosen: TierRange, packing: KeyPacking) -> Iterator[LiveRows]:
    """The rows, file by file and in order. Raises LakeError."""
    hidden = read_position_deletes(chosen.positions, {file.path for file in chosen.files}, chosen.storage)
    deleted: dict[tuple[str, ...], PackedKeys] = {}
    nothing = np.zeros(0, np.int64)
    for file in chosen.files:
        if file.deletes and file.deletes not in deleted:
            parts = read_keys(KeysTask(file.deletes, (), chosen.schema, packing, chosen.storage))
            deleted[file.deletes] = PackedKeys.concatenated([part.keys for part in parts], packing.words)
        deleted_positions = hidden.get(file.path, nothing)
        for start, columns, rows in _batches(file.path, chosen):
            live = np.ones(rows, np.bool_)
            first, end = np.searchsorted(deleted_positions, [start, start + rows])
            live[deleted_positions[first:end] - start] = False
            tiers = as_numbers(plain(columns[chosen.tier_id]))
            live &= (tiers >= chosen.lo) & (tiers < chosen.hi)
            if not live.any():
                continue
            if not live.all():
                columns = {field_id: column.filter(pa.array(live)) for field_id, column in columns.items()}
            yield LiveRows(columns, int(live.sum()), tiers[live], deleted.get(file.deletes))


def _batches(path: str, chosen: TierRange) -> Iterator[tuple[int, dict[int, pa.Array], int]]:
    """The file's rows in batches: number of the first row, columns by field ID in the table's types, number of rows."""
    start = 0
    with open_parquet(path, chosen.storage) as parquet:
        places = places_by_id(parquet)
        for batch in read_batches(parquet, _BATCH_ROWS):
            columns = {
                field.field_id: cast_to(batch.column(places[field.field_id]), field.arrow.type)
                for field in chosen.schema.fields
                if field.field_id in places
            }
            yield start, columns, batch.num_rows
            start += batch.num_rows


class KeySet:
    """A set of packed keys."""

    def __init__(self, keys: PackedKeys) -> None:
        self._first = np.unique(keys.first)
        self._pairs = None if keys.second is None else set(zip(keys.first.tolist(), keys.second.tolist(), strict=True))

    def among(self, keys: PackedKeys) -> npt.NDArray[np.bool_]:
        """A mask of the keys that are in the set."""
        _, found = found_among(self._first, keys.first)
        if self._pairs is not None and keys.second is not None:
            for place in np.flatnonzero(found):
                found[place] = (int(keys.first[place]), int(keys.second[place])) in self._pairs
        return found
