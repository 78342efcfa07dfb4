"""Works out what a commit means for a key index: which rows its deletes hide, and where its keys' rows are afterwards.

A commit is a sequence of segments. A segment first deletes keys, then adds rows. Each deleted key loses the row that it
had before the segment, whether in the table or in a file of an earlier segment. A key whose row comes without a delete
had no row before, so at most one row of a key remains.

No two keys concern each other. So a large commit is worked out a part of its keys at a time: what that takes beside the
result, some 150 bytes a key, does not grow with the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.lake.format.partitioning import PartitionTuple, partition_values
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.format.sorted_numbers import sorted_distinct
from mirror_pump.lake.key_index.key_index import NOWHERE, KeyIndex, Places, files_of, place_of, positions_of
from mirror_pump.lake.key_index.packed_keys import MULTIPLIER, KeyPacking, PackedKeys, codes_of
from mirror_pump.model import LakePartitioning
from mirror_pump.runtime.spill import Spill, release_spilled


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
    """True if it was not checked that the deleted keys have rows, as with corrections, or the lake need not have them.
    Otherwise the stream only deletes existing rows: one of its keys that an index does not know is still deleted, by
    key."""

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
        assigned = self._numbers.get(path)
        if assigned is not None:
            return assigned
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

    def paths(self) -> frozenset[str]:
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
    touched: tuple[tuple[PackedKeys, Places], ...]
    """Every key that the commit touches, each once, with the place of its row after the commit; NOWHERE for none."""


_RESULT_BYTES = 24
"""Of a part's result, for each key."""
PART_KEYS = 1 << 19
"""Keys of the parts of a commit, deleted ones and those of rows together."""


def plan_commit(
    index: KeyIndex,
    numbers: FileNumbers,
    segments: Sequence[KeyedSegment],
    partitioning: LakePartitioning | None = None,
    *,
    part_keys: int = PART_KEYS,
) -> IndexPlan:
    """Works out the commit, about `part_keys` keys at a time. Leaves the index unchanged until `apply_plan`, but gives
    numbers to the new data files.

    `partitioning`: that of the lake table. A row that is deleted is in the partition of its key, and so is its file:
    the index need not know in which partition each file is.
    """
    spill = Spill(part_keys * _RESULT_BYTES)
    planned = []
    for part in _parts(segments, part_keys):
        planned.append(spill.stored(_plan_part(index, numbers, part, partitioning), part_keys * _RESULT_BYTES))
        # All parts look at all segments, which may have been spilled.
        release_spilled()
    hidden = np.concatenate([part.hidden for part in planned])
    # A place is of one key, so it is in one part.
    hidden.sort()
    unknown = tuple(np.sort(np.concatenate(absent)) for absent in zip(*(part.unknown for part in planned), strict=True))
    partitions = {path: value for part in planned for path, value in part.partitions.items()}
    return IndexPlan(_by_file(hidden, numbers), partitions, unknown, tuple(part.touched for part in planned))


@dataclass(frozen=True)
class _SegmentPart:
    """The keys of a segment that belong to one part of the commit."""

    segment: KeyedSegment
    deleted: npt.NDArray[np.int64] | slice
    """Indexes of its deleted keys."""
    rows: tuple[npt.NDArray[np.int64] | slice, ...]
    """For each of its data files, positions of its rows."""


def _parts(segments: Sequence[KeyedSegment], part_keys: int) -> Iterator[list[_SegmentPart]]:
    """The segments, divided by keys into parts of about `part_keys`."""
    count = sum(len(segment.keys.packed) + sum(map(len, segment.keys.rows)) for segment in segments)
    parts = -(-count // part_keys)
    if parts <= 1:
        everything = slice(None)
        yield [_SegmentPart(part, everything, (everything,) * len(part.keys.rows)) for part in segments]
        return
    divided = [_DividedSegment.of(segment, parts) for segment in segments]
    for number in range(parts):
        yield [division.part(number) for division in divided]


_PartNumbers: TypeAlias = npt.NDArray[np.uint16]
"""For each key, the number of its part."""


@dataclass(frozen=True)
class _DividedSegment:
    """A segment whose keys are divided."""

    segment: KeyedSegment
    deleted: _PartNumbers
    rows: tuple[_PartNumbers, ...]

    @classmethod
    def of(cls, segment: KeyedSegment, parts: int) -> Self:
        def numbered(keys: PackedKeys) -> _PartNumbers:
            spread = (keys.first.view(np.uint64) * MULTIPLIER) >> np.uint64(32)
            return (spread % np.uint64(parts)).astype(np.uint16)

        return cls(segment, numbered(segment.keys.packed), tuple(map(numbered, segment.keys.rows)))

    def part(self, number: int) -> _SegmentPart:
        rows = tuple(np.flatnonzero(numbers == number) for numbers in self.rows)
        return _SegmentPart(self.segment, np.flatnonzero(self.deleted == number), rows)


@dataclass(frozen=True)
class _PlannedPart:
    """What one part of the keys adds to the IndexPlan."""

    hidden: Places
    """Rows to delete, each once."""
    partitions: Mapping[str, PartitionTuple]
    unknown: tuple[npt.NDArray[np.int64], ...]
    touched: tuple[PackedKeys, Places]


def _plan_part(
    index: KeyIndex, numbers: FileNumbers, segments: Sequence[_SegmentPart], partitioning: LakePartitioning | None
) -> _PlannedPart:
    words = index.words
    row_keys, row_places, row_segments = [], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for number, part in enumerate(segments):
        for path, keys, chosen in zip(part.segment.data, part.segment.keys.rows, part.rows, strict=True):
            positions = np.arange(len(keys))[chosen]
            row_keys.append(keys.take(chosen))
            row_places.append(place_of(numbers.number(path), positions))
            row_segments.append(np.full(len(positions), number, np.int64))
    deleted_parts = [part.segment.keys.packed.take(part.deleted) for part in segments]
    deleted = PackedKeys.concatenated(deleted_parts, words)
    sizes = [len(keys) for keys in deleted_parts]
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
    hidden = sorted_distinct(hidden)
    had_row = (before >= 0) | (first_row[deleted_codes] < deleted_in)
    unknown = tuple(
        _places_in(part, np.flatnonzero(~had_row[begin:end]))
        for part, (begin, end) in zip(segments, pairwise(np.cumsum([0, *sizes])), strict=True)
    )

    touched = PackedKeys.concatenated([deleted, rows.take(~lost)], words)
    after = np.concatenate([np.full(len(deleted), NOWHERE, np.int64), places[~lost]])
    # A row that remains comes after every delete of its key. Each key is touched: a lost row's has a delete.
    last = np.zeros(count, np.int64)
    np.maximum.at(last, np.concatenate([deleted_codes, row_codes[~lost]]), np.arange(len(touched)))
    return _PlannedPart(hidden, partitions, unknown, (touched.take(last), after[last]))


def _places_in(part: _SegmentPart, part_indexes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Indexes among the segment's deleted keys of those with these indexes among the part's."""
    return part_indexes if isinstance(part.deleted, slice) else part.deleted[part_indexes]


def apply_plan(index: KeyIndex, plan: IndexPlan) -> None:
    """Applies a plan to the index after its commit has landed."""
    for keys, places in plan.touched:
        index.put(keys, places)
    release_spilled()


def _partition_values(segments: Sequence[_SegmentPart], partitioning: LakePartitioning) -> npt.NDArray[np.int64]:
    """The partition value of each deleted key, in the order of the segments."""
    parts = [np.zeros(0, np.int64)]
    for part in segments:
        keys = part.segment.keys
        column = keys.deleted.column(keys.schema.name_of(partitioning.field_id))
        parts.append(partition_values(column, partitioning.transform)[part.deleted])
    return np.concatenate(parts)


def _partitions(places: Places, values: npt.NDArray[np.int64], numbers: FileNumbers) -> dict[str, PartitionTuple]:
    """By URI, the partition of each file that has a place. `values`: the partition value of each place."""
    files, first = np.unique(files_of(places), return_index=True)
    return {numbers.path(int(number)): (int(value),) for number, value in zip(files, values[first], strict=True)}


def _by_file(places: Places, numbers: FileNumbers) -> dict[str, Positions]:
    """Sorted places as row numbers by file URI."""
    files = files_of(places)
    limits = np.flatnonzero(files[1:] != files[:-1]) + 1
    del files
    parts = np.split(places, limits) if len(places) else []
    return {numbers.path(int(files_of(part[:1])[0])): positions_of(part) for part in parts}
