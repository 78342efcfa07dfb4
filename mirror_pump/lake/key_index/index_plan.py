"""Works out what a commit means for a key index: which rows its deletes hide, and where its keys' rows are afterwards.

A commit is a sequence of segments. A segment first deletes keys, then adds rows. Each deleted key loses the row that it
had before the segment, whether in the table or in a file of an earlier segment. A key whose row comes without a delete
had no row before, so at most one row of a key remains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.lake.format.partitioning import PartitionTuple, partition_values
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.key_index import NOWHERE, KeyIndex, Places, files_of, place_of, positions_of
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys, codes_of, unique_last
from mirror_pump.model import LakePartitioning


@dataclass(frozen=True)
class SegmentKeys:
    """The keys of one segment of one table, from which its deletes are written by position or by key."""

    schema: LakeSchema
    """The table's schema in this segment."""
    deleted: pa.Table
    """Key columns of the keys whose earlier rows are deleted; each key once."""
    packed: PackedKeys
    """The deleted keys, packed."""
    packing: KeyPacking
    rows: tuple[PackedKeys, ...]
    """For each of the segment's data files, the keys of its rows in order."""
    may_be_absent: bool = False
    """True if nobody checked that the deleted keys have rows, as with corrections. The stream only deletes existing
    rows: one of its keys that an index does not know is still deleted, by key."""

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return int(self.deleted.nbytes) + self.packed.nbytes + sum(keys.nbytes for keys in self.rows)


@dataclass(frozen=True)
class KeyedSegment:
    """A segment's keys and the data files that hold their rows."""

    data: tuple[str, ...]
    """URIs, one for each of `keys.rows`."""
    keys: SegmentKeys


@dataclass
class FileNumbers:
    """Small numbers for data files, used as the upper half of a place."""

    _paths: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)

    def number(self, path: str) -> int:
        """The file's number; a new file gets a new one."""
        known = self._numbers.get(path)
        if known is not None:
            return known
        if self._free:
            number = self._free.pop()
            self._paths[number] = path
        else:
            number = len(self._paths)
            self._paths.append(path)
        self._numbers[path] = number
        return number

    def path(self, number: int) -> str:
        """URI of the file with this number."""
        return self._paths[number]

    def known(self) -> frozenset[str]:
        """URIs of all files that have numbers."""
        return frozenset(self._numbers)

    def mask(self, paths: Sequence[str]) -> npt.NDArray[np.bool_]:
        """A mask by file number: True for each of these files."""
        mask = np.zeros(len(self._paths), np.bool_)
        mask[[self._numbers[path] for path in paths if path in self._numbers]] = True
        return mask

    def forget(self, paths: Sequence[str]) -> None:
        """Frees the numbers of files that nothing refers to any more."""
        self._free.extend(self._numbers.pop(path) for path in paths if path in self._numbers)


@dataclass(frozen=True)
class IndexPlan:
    """One commit's deletes as positions, and its changes to the index."""

    positions: Mapping[str, Positions]
    """Rows to delete, by data file URI: sorted, each once."""
    partitions: Mapping[str, PartitionTuple]
    """Lake partitions of these data files; empty for an unpartitioned table."""
    unknown: tuple[npt.NDArray[np.int64], ...]
    """For each segment, indexes of its deleted keys that have no row in the index nor in an earlier segment."""
    keys: PackedKeys
    """Every key that the commit touches, each once."""
    places: Places
    """Place of each key's row after the commit; NOWHERE for none."""


def plan_commit(
    index: KeyIndex,
    numbers: FileNumbers,
    segments: Sequence[KeyedSegment],
    partitioning: LakePartitioning | None = None,
) -> IndexPlan:
    """Works out the commit. Leaves the index unchanged until `apply_plan`, but gives numbers to the new data files.

    `partitioning`: that of the lake table. A row that is deleted is in the partition of its key, and so is its file:
    the index need not know in which partition each file is.
    """
    words = index.words
    row_keys, row_places, row_segments = [], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for number, segment in enumerate(segments):
        for path, keys in zip(segment.data, segment.keys.rows, strict=True):
            row_keys.append(keys)
            row_places.append(place_of(numbers.number(path), np.arange(len(keys))))
            row_segments.append(np.full(len(keys), number, np.int64))
    deleted = PackedKeys.concatenated([segment.keys.packed for segment in segments], words)
    sizes = [len(segment.keys.packed) for segment in segments]
    deleted_in = np.repeat(np.arange(len(segments)), sizes)
    rows = PackedKeys.concatenated(row_keys, words)
    places, added_in = np.concatenate(row_places), np.concatenate(row_segments)

    before = index.find(deleted)
    codes, count = codes_of(PackedKeys.concatenated([rows, deleted], words))
    row_codes, deleted_codes = codes[: len(rows)], codes[len(rows) :]
    last_delete = np.full(count, -1, np.int64)
    np.maximum.at(last_delete, deleted_codes, deleted_in)
    first_row = np.full(count, len(segments), np.int64)
    np.minimum.at(first_row, row_codes, added_in)

    lost = added_in < last_delete[row_codes]
    hidden = np.concatenate([before[before >= 0], places[lost]])
    partitions: dict[str, PartitionTuple] = {}
    if partitioning is not None:
        values = _partition_values(segments, partitioning)
        by_code = np.zeros(count, np.int64)
        by_code[deleted_codes] = values
        of_hidden = np.concatenate([values[before >= 0], by_code[row_codes[lost]]])
        partitions = _partitions(hidden, of_hidden, numbers)
    hidden = np.unique(hidden)
    had_row = (before >= 0) | (first_row[deleted_codes] < deleted_in)
    unknown = tuple(np.flatnonzero(~had_row[begin:end]) for begin, end in pairwise(np.cumsum([0, *sizes])))

    touched = PackedKeys.concatenated([deleted, rows.take(~lost)], words)
    after = np.concatenate([np.full(len(deleted), NOWHERE, np.int64), places[~lost]])
    # A row that remains comes after every delete of its key.
    last = unique_last(touched)
    return IndexPlan(_by_file(hidden, numbers), partitions, unknown, touched.take(last), after[last])


def apply_plan(index: KeyIndex, plan: IndexPlan) -> None:
    """Applies a plan to the index after its commit has landed."""
    index.put(plan.keys, plan.places)


def _partition_values(segments: Sequence[KeyedSegment], partitioning: LakePartitioning) -> npt.NDArray[np.int64]:
    """The partition value of each deleted key, in the order of the segments."""
    parts = [np.zeros(0, np.int64)]
    for segment in segments:
        name = segment.keys.schema.name_of(partitioning.field_id)
        parts.append(partition_values(segment.keys.deleted.column(name), partitioning.transform))
    return np.concatenate(parts)


def _partitions(places: Places, values: npt.NDArray[np.int64], numbers: FileNumbers) -> dict[str, PartitionTuple]:
    """By URI, the partition of each file that has a place. `values`: the partition value of each place."""
    files, first = np.unique(files_of(places), return_index=True)
    return {numbers.path(int(number)): (int(value),) for number, value in zip(files, values[first], strict=True)}


def _by_file(places: Places, numbers: FileNumbers) -> dict[str, Positions]:
    """Sorted places as row numbers by file URI."""
    files = files_of(places)
    limits = np.flatnonzero(files[1:] != files[:-1]) + 1
    parts = np.split(places, limits) if len(places) else []
    return {numbers.path(int(files_of(part[:1])[0])): positions_of(part) for part in parts}
