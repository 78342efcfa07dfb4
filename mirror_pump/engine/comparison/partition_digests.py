"""Spark tasks that compare a heap table or partition with the lake: they digest whole rows of either side.

Rows whose keys are in the table's corrections are left out on both sides; the database compares those. Both sides
return the number of rows and the sum of their hashes for each bucket of keys. If these differ, a second pass returns
the rows of a few buckets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mirror_pump.engine.comparison.live_rows import KeySet, TierRange, live_rows
from mirror_pump.engine.comparison.row_hashes import BUCKET_BITS, HashSecret, Words, buckets_of, row_hashes
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.format.raw_text_columns import raw_text_id
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.model import Column
from mirror_pump.source.heap.block_reader import Chunk, RawTextNeeded, read_chunk

_BATCH_BYTES = 4 << 20
"""Bytes hashed at a time. Hashing takes 6 bytes of memory per byte of long texts, and 20 per byte of short ones."""


@dataclass(frozen=True)
class Comparing:
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
    bucket_bits: int = BUCKET_BITS
    """There are 2^bucket_bits buckets."""
    returns_key_columns: bool = False
    """Whether returned rows have their keys as columns, and not as readable text."""


@dataclass(frozen=True)
class HeapTask:
    """A range of a partition's blocks, read in an exported snapshot."""

    dsn: str = field(repr=False)
    chunk: Chunk
    snapshot: str
    comparing: Comparing
    where: str = ""
    """An SQL condition on the rows."""
    line: CutLine | None = None
    """Rows below it are left out."""


@dataclass(frozen=True)
class FilesTask:
    """Data files of the lake."""

    chosen: TierRange
    comparing: Comparing


@dataclass(frozen=True)
class Digest:
    """Digest of the rows of one side."""

    sums: Words
    """By bucket: number of rows, and the sums of both words of their hashes, modulo 2^64. If rows are returned, only
    theirs count."""
    rows: DigestedRows | None
    """Rows in the wanted buckets."""

    @classmethod
    def total(cls, parts: list[Digest], bucket_bits: int = BUCKET_BITS) -> Digest:
        """The digest of all parts together."""
        sums = np.zeros((1 << bucket_bits, 3), np.uint64)
        for part in parts:
            sums += part.sums
        digested = [part.rows for part in parts if part.rows is not None]
        return cls(sums, DigestedRows.together(digested) if digested else None)


@dataclass(frozen=True)
class DigestedRows:
    """Individual rows: packed keys, hashes, and keys as readable text or as columns."""

    keys: PackedKeys
    hashes: tuple[Words, Words]
    texts: tuple[str, ...]
    key_columns: tuple[pa.Array, ...] = ()

    @staticmethod
    def together(parts: list[DigestedRows]) -> DigestedRows:
        words = 1 if parts[0].keys.second is None else 2
        return DigestedRows(
            PackedKeys.concatenated([part.keys for part in parts], words),
            (np.concatenate([part.hashes[0] for part in parts]), np.concatenate([part.hashes[1] for part in parts])),
            tuple(text for part in parts for text in part.texts),
            tuple(map(pa.concat_arrays, zip(*(part.key_columns for part in parts), strict=True))),
        )


def digest_heap(task: HeapTask) -> Digest:
    """Digests a range of the heap. Raises FilenodeChanged if the heap was rewritten since the range was planned."""
    raw_text: frozenset[str] = frozenset()
    while True:
        try:
            return _digest_heap(task, raw_text)
        except RawTextNeeded as needed:
            # Each retry adds columns, so this ends.
            raw_text |= needed.columns


def _digest_heap(task: HeapTask, raw_text: frozenset[str]) -> Digest:
    columns = task.comparing.columns
    ids = [column.field_id for column in columns]
    ids += [raw_text_id(column.field_id) for column in columns if column.name in raw_text]
    digester = Digester(task.comparing)
    read = read_chunk(
        task.dsn, task.chunk, columns, snapshot=task.snapshot, raw_text_columns=raw_text, where=task.where
    )
    for batch in read:
        if task.line is not None:
            batch = batch.filter(pc.invert(task.line.below(batch.column(ids.index(task.line.field_id)))))
        digester.add(dict(zip(ids, batch.columns, strict=True)), batch.num_rows)
    return digester.digest()


def digest_files(task: FilesTask) -> Digest:
    """Digests the live rows of some data files. Raises LakeError."""
    digester = Digester(task.comparing)
    for file_rows in live_rows(task.chosen, task.comparing.packing):
        digester.add(file_rows.columns, file_rows.rows, file_rows.deleted)
    return digester.digest()


def digest_rows(columns: dict[int, pa.Array], rows: int, comparing: Comparing) -> Digest:
    """Digests rows that are in memory. `columns` are by field ID."""
    digester = Digester(comparing)
    digester.add(columns, rows)
    return digester.digest()


class Digester:
    """Sums up the rows of one task."""

    def __init__(self, comparing: Comparing) -> None:
        self._comparing = comparing
        self._sums = np.zeros((1 << comparing.bucket_bits, 3), np.uint64)
        self._rows: list[DigestedRows] = []
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
            self._sum(buckets[places], first[places], second[places])
            return
        # Few rows are returned, as a rule: only they are hashed.
        places = places[self._is_returned[buckets[places]]]
        if self._among is not None:
            places = places[self._among.among(keys.take(places))]
        taken = {field_id: column.take(pa.array(places)) for field_id, column in columns.items()}
        first, second = row_hashes(taken, len(places), self._comparing.secret)
        self._sum(buckets[places], first, second)
        self._return(keys.take(places), (first, second), tuple(taken[field_id] for field_id in self._key_ids))

    def _sum(self, buckets: npt.NDArray[np.int64], first: Words, second: Words) -> None:
        np.add.at(self._sums[:, 0], buckets, np.uint64(1))
        np.add.at(self._sums[:, 1], buckets, first)
        np.add.at(self._sums[:, 2], buckets, second)

    def _return(self, keys: PackedKeys, hashes: tuple[Words, Words], key_columns: tuple[pa.Array, ...]) -> None:
        if self._comparing.returns_key_columns:
            self._rows.append(DigestedRows(keys, hashes, (), key_columns))
        else:
            texts = zip(*(column.to_pylist() for column in key_columns), strict=True)
            self._rows.append(DigestedRows(keys, hashes, tuple(", ".join(map(str, row)) for row in texts)))

    def digest(self) -> Digest:
        if self._comparing.returned_buckets is None:
            return Digest(self._sums, None)
        return Digest(self._sums, DigestedRows.together(self._rows) if self._rows else None)
