"""Works out what a commit means for a key index: which rows its deletes hide, and where its keys' rows are afterwards.

A commit is a sequence of segments. A segment first deletes keys, then adds rows. Each deleted key loses the row that it
had before the segment, whether in the table or in a file of an earlier segment. A key whose row comes without a delete
had no row before, so at most one row of a key remains.

No two keys concern each other. So a large commit is worked out a part of its keys at a time: what that takes beside the
result, some 150 bytes a key, does not grow with the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.lake.format.partitioning import UNPARTITIONED, PartitionTuple
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.format.sorted_numbers import sorted_distinct
from mirror_pump.lake.key_index.key_index import NOWHERE, KeyIndex, Places, files_of, place_of, positions_of
from mirror_pump.lake.key_index.packed_keys import MULTIPLIER, KeyPacking, PackedKeys, codes_of
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
    """True if it was not checked that the deleted keys have rows, as with corrections. Otherwise the stream only
    deletes existing rows: one of its keys that an index does not know is still deleted, by key."""

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return int(self.deleted.nbytes) + self.packed.nbytes + sum(keys.nbytes for keys in self.rows)


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A data file and its lake partition."""

    path: str
    partition: PartitionTuple = UNPARTITIONED


@dataclass(frozen=True)
class KeyedSegment:
    """A segment's keys and the data files that hold their rows."""

    data: tuple[PlacedFile, ...]
    """One for each of `keys.rows`."""
    keys: SegmentKeys


@dataclass
class FileNumbers:
    """Small numbers for data files, used as the upper half of a place, and the files' lake partitions."""

    _paths: list[str] = field(default_factory=list)
    _partitions: dict[str, PartitionTuple] = field(default_factory=dict)
    """Of files that are in one."""
    _numbers: dict[str, int] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)

    def number(self, path: str, partition: PartitionTuple = UNPARTITIONED) -> int:
        """The file's number; a new file gets a new one, and is in this lake partition."""
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
        if partition:
            self._partitions[path] = partition
        return number

    def path(self, number: int) -> str:
        """URI of the file with this number."""
        return self._paths[number]

    def partitions(self, paths: Iterable[str]) -> dict[str, PartitionTuple]:
        """The lake partitions of these files, by URI; leaves out those of an unpartitioned table."""
        return {path: self._partitions[path] for path in paths if path in self._partitions}

    def paths(self) -> frozenset[str]:
        """URIs of all files that have numbers."""
        return frozenset(self._numbers)

    def mask(self, paths: Sequence[str]) -> npt.NDArray[np.bool_]:
        """A mask by file number: True for each of these files."""
        mask = np.zeros(len(self._paths), np.bool_)
        mask[[self._numbers[path] for path in paths if path in self._numbers]] = True
        return mask

    def rename(self, path: str, new_path: str) -> None:
        """Gives a file's number to the copy that takes its place."""
        number = self._numbers.pop(path)
        self._paths[number] = new_path
        self._numbers[new_path] = number
        if path in self._partitions:
            self._partitions[new_path] = self._partitions.pop(path)

    def forget(self, paths: Sequence[str]) -> None:
        """Frees the numbers of files that nothing refers to any more."""
        self._free.extend(self._numbers.pop(path) for path in paths if path in self._numbers)
        for path in paths:
            self._partitions.pop(path, None)


TouchedKeys: TypeAlias = tuple[tuple[PackedKeys, Places], ...]
"""Every key that a commit touches, each once, with the place of its row after the commit; NOWHERE for none."""


@dataclass(frozen=True)
class IndexPlan:
    """One commit's deletes as positions, and its changes to the index."""

    hidden: Places
    """Rows to delete: sorted, each once."""
    unknown: tuple[npt.NDArray[np.int64], ...]
    """For each segment, indexes of its deleted keys that have no row in the index nor in an earlier segment."""
    touched: TouchedKeys
    changed: tuple[tuple[Places, Places], ...] = ()
    """If asked for: the rows of the commit whose keys had a row before it: their places, and those of the rows
    before."""

    def positions(self, numbers: FileNumbers) -> dict[str, Positions]:
        """The rows to delete by data file URI, sorted."""
        files = files_of(self.hidden)
        limits = np.flatnonzero(files[1:] != files[:-1]) + 1
        del files
        parts = np.split(self.hidden, limits) if len(self.hidden) else []
        return {numbers.path(int(files_of(part[:1])[0])): positions_of(part) for part in parts}


_RESULT_BYTES = 24
"""Of a part's result, for each key."""
PART_KEYS = 1 << 19
"""Keys of the parts of a commit, deleted ones and those of rows together."""


def plan_commit(
    index: KeyIndex,
    numbers: FileNumbers,
    segments: Sequence[KeyedSegment],
    *,
    part_keys: int = PART_KEYS,
    with_changed: bool = False,
) -> IndexPlan:
    """Works out the commit, about `part_keys` keys at a time. Leaves the index unchanged until `apply_plan`, but gives
    numbers to the new data files. `with_changed`: the plan is to have `changed`."""
    spill = Spill(part_keys * _RESULT_BYTES)
    planned = []
    for part in _parts(segments, part_keys):
        planned.append(spill.stored(_plan_part(index, numbers, part, with_changed), part_keys * _RESULT_BYTES))
        # All parts look at all segments, which may have been spilled.
        release_spilled()
    hidden = np.concatenate([part.hidden for part in planned])
    # A place is of one key, so it is in one part.
    hidden.sort()
    unknown = tuple(np.sort(np.concatenate(absent)) for absent in zip(*(part.unknown for part in planned), strict=True))
    changed = tuple(part.changed for part in planned if part.changed is not None)
    return IndexPlan(hidden, unknown, tuple(part.touched for part in planned), changed)


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
    unknown: tuple[npt.NDArray[np.int64], ...]
    touched: tuple[PackedKeys, Places]
    changed: tuple[Places, Places] | None


def _plan_part(
    index: KeyIndex, numbers: FileNumbers, segments: Sequence[_SegmentPart], with_changed: bool
) -> _PlannedPart:
    words = index.words
    row_keys, row_places, row_segments = [], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for number, part in enumerate(segments):
        for file, keys, chosen in zip(part.segment.data, part.segment.keys.rows, part.rows, strict=True):
            positions = np.arange(len(keys))[chosen]
            row_keys.append(keys.take(chosen))
            row_places.append(place_of(numbers.number(file.path, file.partition), positions))
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
    hidden = sorted_distinct(np.concatenate([before[before >= 0], places[lost]]))
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
    changed = None
    if with_changed:
        base_places = np.full(count, NOWHERE, np.int64)
        base_places[deleted_codes] = before
        remaining, base = places[~lost], base_places[row_codes[~lost]]
        changed = remaining[base >= 0], base[base >= 0]
    return _PlannedPart(hidden, unknown, (touched.take(last), after[last]), changed)


def _places_in(part: _SegmentPart, part_indexes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Indexes among the segment's deleted keys of those with these indexes among the part's."""
    return part_indexes if isinstance(part.deleted, slice) else part.deleted[part_indexes]


def apply_plan(index: KeyIndex, touched: TouchedKeys) -> None:
    """Applies a plan to the index after its commit has landed."""
    for keys, places in touched:
        index.put(keys, places)
    release_spilled()
