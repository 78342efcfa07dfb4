"""What a commit means to a key index: which rows its deletes hide, by their places, and where its keys are afterwards.

A commit is a sequence of segments. A segment deletes keys, then brings rows: every key that it deletes loses the row
that it had before the segment, in the table or in an earlier segment's file. A key whose row comes without a delete had
none (design section 5), so at most one row of a key is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.key_index import NOWHERE, KeyIndex, Places, files_of, place_of, positions_of
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys, codes_of, unique_last


@dataclass(frozen=True)
class SegmentKeys:
    """The keys of one segment of one table, for whoever decides how its deletes are written."""

    schema: LakeSchema
    """The table's, as the segment found it."""
    deleted: pa.Table
    """Key columns of the keys whose earlier rows must go; each once."""
    packed: PackedKeys
    """The same, packed."""
    packing: KeyPacking
    rows: tuple[PackedKeys, ...]
    """For each of the segment's data files, the key of every row in order."""
    may_be_absent: bool = False
    """Nobody looked whether the deleted keys have a row, as with corrections. The stream deletes only what is there: a
    key of the stream's that an index does not know is deleted all the same, by key."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return int(self.deleted.nbytes) + self.packed.nbytes + sum(keys.nbytes for keys in self.rows)


@dataclass(frozen=True)
class KeyedSegment:
    """A segment's keys, and the data files that they are in."""

    data: tuple[str, ...]
    """URIs, one for each of `keys.rows`."""
    keys: SegmentKeys


@dataclass
class FileNumbers:
    """Small numbers for data files: half of a place."""

    _paths: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)

    def number(self, path: str) -> int:
        """The file's number; a new one for a new file."""
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
        """The URI of the file that has the number."""
        return self._paths[number]

    def known(self) -> frozenset[str]:
        """All files that have numbers."""
        return frozenset(self._numbers)

    def mask(self, paths: Sequence[str]) -> npt.NDArray[np.bool_]:
        """By number, whether a file is one of these."""
        mask = np.zeros(len(self._paths), np.bool_)
        mask[[self._numbers[path] for path in paths if path in self._numbers]] = True
        return mask

    def forget(self, paths: Sequence[str]) -> None:
        """Nothing refers to these files any more: their numbers go to others."""
        self._free.extend(self._numbers.pop(path) for path in paths if path in self._numbers)


@dataclass(frozen=True)
class IndexPlan:
    """One commit's deletes as positions, and its change of the index."""

    positions: Mapping[str, Positions]
    """By data file URI, the rows that go: sorted, each once."""
    unknown: tuple[npt.NDArray[np.int64], ...]
    """For each segment, which of its deleted keys had no row in the index, and none in an earlier segment."""
    keys: PackedKeys
    """Every key that the commit touches, once."""
    places: Places
    """Where its row is afterwards, NOWHERE if it has none."""


def plan_commit(index: KeyIndex, numbers: FileNumbers, segments: Sequence[KeyedSegment]) -> IndexPlan:
    """Works out the commit; the index stays as it is until `apply_plan`. Data files of the segments get numbers."""
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
    places, come_in = np.concatenate(row_places), np.concatenate(row_segments)

    before = index.find(deleted)
    codes, count = codes_of(PackedKeys.concatenated([rows, deleted], words))
    row_codes, deleted_codes = codes[: len(rows)], codes[len(rows) :]
    last_delete = np.full(count, -1, np.int64)
    np.maximum.at(last_delete, deleted_codes, deleted_in)
    first_row = np.full(count, len(segments), np.int64)
    np.minimum.at(first_row, row_codes, come_in)

    lost = come_in < last_delete[row_codes]
    hidden = np.unique(np.concatenate([before[before >= 0], places[lost]]))
    had_row = (before >= 0) | (first_row[deleted_codes] < deleted_in)
    unknown = tuple(np.flatnonzero(~had_row[begin:end]) for begin, end in pairwise(np.cumsum([0, *sizes])))

    touched = PackedKeys.concatenated([deleted, rows.take(~lost)], words)
    after = np.concatenate([np.full(len(deleted), NOWHERE, np.int64), places[~lost]])
    # A row that is left comes after every delete of its key.
    last = unique_last(touched)
    return IndexPlan(_by_file(hidden, numbers), unknown, touched.take(last), after[last])


def apply_plan(index: KeyIndex, plan: IndexPlan) -> None:
    """The commit has landed."""
    index.put(plan.keys, plan.places)


def _by_file(places: Places, numbers: FileNumbers) -> dict[str, Positions]:
    """Sorted places as row numbers of each file."""
    files = files_of(places)
    limits = np.flatnonzero(files[1:] != files[:-1]) + 1
    parts = np.split(places, limits) if len(places) else []
    return {numbers.path(int(files_of(part[:1])[0])): positions_of(part) for part in parts}
