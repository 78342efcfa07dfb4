"""Spark tasks that compare heap and lake: they digest whole rows of either side.

Rows whose keys are in the table's corrections are left out on both sides; the database compares those. Both sides
return the number of rows and the sum of their hashes for each bucket of keys. If these differ, a second pass returns
the rows of the buckets that do, unless a few keys can be computed from further sums
(mirror_pump.engine.comparison.key_sums).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.engine.comparison.key_sums import KeySums
from mirror_pump.engine.comparison.live_rows import KeySet, TierRange, live_rows
from mirror_pump.engine.comparison.row_hashes import BUCKET_BITS, HashSecret, Words, buckets_of, row_hashes
from mirror_pump.engine.ingest.chunk_copy import ChunkTask, chunk_rows, with_raw_text_columns
from mirror_pump.lake.format.raw_text_columns import raw_text_id
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.model import Column
from mirror_pump.source.heap.block_reader import HeapLocked

_BATCH_BYTES = 4 << 20
"""Bytes hashed at a time. Hashing takes 6 bytes of memory per byte of long texts, and 20 per byte of short ones."""

_SUMMED_TOGETHER = 1 << 17
"""Rows whose hashes wait to be added to the sums, one column of these after the other: a core's cache fetches it once
for so many rows. Of each batch alone, a task takes a tenth longer. 40 bytes of memory each."""


@dataclass(frozen=True)
class ComparisonParameters:
    """Parameters that both sides of a comparison share."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    packing: KeyPacking
    secret: HashSecret
    left_out: PackedKeys
    """Keys that are compared elsewhere."""
    returned_buckets: frozenset[int] | None = None
    """Buckets whose rows to return; None for sums only."""
    among: PackedKeys | None = None
    """Restricts the returned rows to these keys; None for no restriction."""
    hashed_from: int | None = None
    """Returns the hashes of all rows from this bucket on, in place of rows; None for none."""
    bucket_bits: int = BUCKET_BITS
    """There are 2^bucket_bits buckets."""
    sums_keys: bool = False
    """Whether to sum what few differing keys can be computed from."""

    def no_key_sums(self) -> KeySums | None:
        """These sums of no rows; None if they are not wanted."""
        if not self.sums_keys or self.returned_buckets is not None:
            return None
        return KeySums.empty(self.bucket_bits, self.packing.words)


@dataclass(frozen=True)
class HeapTask:
    """A range of the heap's blocks."""

    chunk: ChunkTask
    comparing: ComparisonParameters


@dataclass(frozen=True)
class FilesTask:
    """Data files of the lake."""

    chosen: TierRange
    comparing: ComparisonParameters


@dataclass(frozen=True)
class Digest:
    """Digest of the rows of one side."""

    sums: Words
    """By bucket: number of rows, and the sums of both words of their hashes, modulo 2^64. If rows are returned, only
    theirs count."""
    rows: DigestedRows | None
    """Rows in the wanted buckets."""
    key_sums: KeySums | None = None
    bytes_read: int = 0
    """Bytes of the values that were read from the heap, as Arrow holds them."""
    hashes: HashedRows | None = None

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.sums[:, 0].sum())


@dataclass(frozen=True)
class HashedRows:
    """Rows of which the hashes alone are needed, in the order of their first words."""

    buckets: npt.NDArray[np.uint16]
    words: tuple[Words, Words]

    @classmethod
    def together(cls, parts: list[HashedRows]) -> HashedRows:
        """All of them, in order."""
        buckets = np.concatenate([np.zeros(0, np.uint16), *(part.buckets for part in parts)])
        first, second = (
            np.concatenate([np.zeros(0, np.uint64), *(part.words[lane] for part in parts)]) for lane in (0, 1)
        )
        order = np.argsort(first)
        return cls(buckets[order], (first[order], second[order]))


class DigestTotal:
    """The digest of several parts, which need not be in memory at the same time."""

    def __init__(self, comparing: ComparisonParameters) -> None:
        self._sums = np.zeros((1 << comparing.bucket_bits, 3), np.uint64, "F")
        self._key_sums = comparing.no_key_sums()
        self._rows: list[DigestedRows] = []

    def add(self, part: Digest) -> None:
        self._sums += part.sums
        if part.rows is not None:
            self._rows.append(part.rows)
        if self._key_sums is not None and part.key_sums is not None:
            self._key_sums.include(part.key_sums)

    def digest(self) -> Digest:
        """The digest of the parts that were added."""
        return Digest(self._sums, DigestedRows.together(self._rows) if self._rows else None, self._key_sums)


@dataclass(frozen=True)
class DigestedRows:
    """Individual rows: packed keys, hashes, and the values of the key columns."""

    keys: PackedKeys
    hashes: tuple[Words, Words]
    key_columns: tuple[pa.Array, ...]

    @staticmethod
    def together(parts: list[DigestedRows]) -> DigestedRows:
        words = 1 if parts[0].keys.second is None else 2
        return DigestedRows(
            PackedKeys.concatenated([part.keys for part in parts], words),
            (np.concatenate([part.hashes[0] for part in parts]), np.concatenate([part.hashes[1] for part in parts])),
            tuple(map(pa.concat_arrays, zip(*(part.key_columns for part in parts), strict=True))),
        )


def digest_heap(task: HeapTask) -> Digest | None:
    """Digests a range of the heap, in the rows and columns that a copy would read. None if another session is altering
    it. Raises FilenodeChanged if the heap was rewritten since the range was planned, and TableError."""

    def attempt(raw_text: frozenset[str]) -> Digest:
        digester = Digester(task.comparing)
        ids = field_ids(task.comparing.columns, raw_text)
        bytes_read = 0
        for batch in chunk_rows(task.chunk, raw_text):
            digester.add(dict(zip(ids, batch.columns, strict=True)), batch.num_rows)
            bytes_read += batch.nbytes
        return replace(digester.digest(), bytes_read=bytes_read)

    try:
        return with_raw_text_columns(task.chunk, attempt)
    except HeapLocked:
        return None


def field_ids(columns: tuple[Column, ...], raw_text: frozenset[str]) -> list[int]:
    """The field IDs of the columns of `chunk_rows`."""
    ids = [column.field_id for column in columns]
    return ids + [raw_text_id(column.field_id) for column in columns if column.name in raw_text]


def digest_files(task: FilesTask) -> Digest:
    """Digests the live rows of some data files. Raises LakeError."""
    digester = Digester(task.comparing)
    for file_rows in live_rows(task.chosen, task.comparing.packing):
        digester.add(file_rows.columns, file_rows.rows, file_rows.deleted)
    return digester.digest()


class Digester:
    """Sums up the rows of one task."""

    def __init__(self, comparing: ComparisonParameters) -> None:
        self._comparing = comparing
        self._sums = np.zeros((1 << comparing.bucket_bits, 3), np.uint64, "F")
        """A column of them fits into a core's cache."""
        self._key_sums = comparing.no_key_sums()
        self._waiting: list[tuple[npt.NDArray[np.int64], Words, Words, PackedKeys]] = []
        """Buckets, hashes and keys of rows that are not in the sums yet."""
        self._waiting_rows = 0
        self._rows: list[DigestedRows] = []
        self._hashes: list[HashedRows] = []
        by_name = {column.name: column.field_id for column in comparing.columns}
        self._key_ids = [by_name[name] for name in comparing.key]
        self._left_out = KeySet(comparing.left_out)
        self._is_returned: npt.NDArray[np.bool_] | None = None
        if comparing.returned_buckets is not None:
            self._is_returned = np.zeros(1 << comparing.bucket_bits, np.bool_)
            self._is_returned[list(comparing.returned_buckets)] = True
        self._among = None if comparing.among is None else KeySet(comparing.among)
        self._deleted: tuple[PackedKeys, KeySet] | None = None
        """The last deleted keys. Batches of a file have the same."""

    def add(self, columns: dict[int, pa.Array], rows: int, deleted: PackedKeys | None = None) -> None:
        """Adds rows without those whose keys are `deleted`. `columns` are by field ID."""
        size = sum(column.nbytes for column in columns.values())
        if rows > 1 and size > _BATCH_BYTES:
            half = rows // 2
            for begin, count in ((0, half), (half, rows - half)):
                self.add({name: column.slice(begin, count) for name, column in columns.items()}, count, deleted)
            return
        keys = self._comparing.packing.pack([columns[field_id] for field_id in self._key_ids])
        excluded = self._left_out.among(keys)
        if deleted is not None and len(deleted):
            if self._deleted is None or self._deleted[0] is not deleted:
                self._deleted = deleted, KeySet(deleted)
            excluded |= self._deleted[1].among(keys)
        places = np.flatnonzero(~excluded)
        buckets = buckets_of(keys.first, self._comparing.bucket_bits)
        if self._is_returned is None:
            first, second = row_hashes(columns, rows, self._comparing.secret)
            if len(places) < rows:
                buckets, first, second, keys = buckets[places], first[places], second[places], keys.take(places)
            self._sum(buckets, first, second, keys)
            if self._comparing.hashed_from is not None:
                hashed = buckets >= self._comparing.hashed_from
                self._hashes.append(HashedRows(buckets[hashed].astype(np.uint16), (first[hashed], second[hashed])))
            return
        # Few rows are returned, as a rule: only they are hashed.
        places = places[self._is_returned[buckets[places]]]
        if self._among is not None:
            places = places[self._among.among(keys.take(places))]
        taken = {field_id: column.take(pa.array(places)) for field_id, column in columns.items()}
        keys = keys.take(places)
        first, second = row_hashes(taken, len(places), self._comparing.secret)
        self._sum(buckets[places], first, second, keys)
        key_columns = tuple(taken[field_id] for field_id in self._key_ids)
        self._rows.append(DigestedRows(keys, (first, second), key_columns))

    def _sum(self, buckets: npt.NDArray[np.int64], first: Words, second: Words, keys: PackedKeys) -> None:
        # A copy, since keys may be a view of a batch, whose other columns would wait with them.
        copied = PackedKeys.concatenated([keys], self._comparing.packing.words)
        self._waiting.append((buckets, first, second, copied))
        self._waiting_rows += len(buckets)
        if self._waiting_rows >= _SUMMED_TOGETHER:
            self._add_waiting()

    def _add_waiting(self) -> None:
        if not self._waiting:
            return
        buckets, first, second = (np.concatenate([part[place] for part in self._waiting]) for place in range(3))
        np.add.at(self._sums[:, 0], buckets, np.uint64(1))
        np.add.at(self._sums[:, 1], buckets, first)
        np.add.at(self._sums[:, 2], buckets, second)
        if self._key_sums is not None:
            keys = PackedKeys.concatenated([keys for *_, keys in self._waiting], self._comparing.packing.words)
            self._key_sums.add(buckets, first, keys)
        self._waiting.clear()
        self._waiting_rows = 0

    def digest(self) -> Digest:
        self._add_waiting()
        rows = DigestedRows.together(self._rows) if self._rows else None
        hashes = None if self._comparing.hashed_from is None else HashedRows.together(self._hashes)
        return Digest(self._sums, rows, self._key_sums, hashes=hashes)
