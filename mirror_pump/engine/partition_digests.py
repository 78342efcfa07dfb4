"""What runs inside Spark tasks that compare a heap partition with the lake: digests of whole rows, of either side.

Rows whose keys are in the table's corrections are left out on both sides; those are compared in the database. Both
sides give, for each bucket of keys, how many rows it has and the sum of their hashes; where these differ, a second pass
gives the rows of a few buckets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mirror_pump.engine.file_merge import cast_to
from mirror_pump.engine.index_keys import KeysTask, read_keys
from mirror_pump.engine.row_batches import read_batches
from mirror_pump.engine.row_hashes import BUCKETS, HashSecret, Words, buckets_of, row_hashes
from mirror_pump.lake.format.columns import places_by_id, plain
from mirror_pump.lake.format.position_deletes import read_position_deletes
from mirror_pump.lake.format.raw_text_columns import raw_text_id
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys, as_numbers
from mirror_pump.lake.storage import StorageOptions, open_input
from mirror_pump.model import Column
from mirror_pump.source.heap.block_reader import Chunk, RawTextNeeded, read_chunk

_BATCH_ROWS = 16 * 1024
_BATCH_BYTES = 4 << 20
"""Hashing needs 6 bytes for each byte of long texts, and 20 of short ones."""


@dataclass(frozen=True)
class Comparing:
    """What both sides of one comparison go by."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    packing: KeyPacking
    secret: HashSecret
    left_out: PackedKeys
    """Keys that are compared elsewhere."""
    wanted: frozenset[int] | None = None
    """Buckets whose rows are to be given; None: only sums."""
    among: PackedKeys | None = None
    """Keys of which the rows that are given are to be; None: any."""


@dataclass(frozen=True)
class HeapTask:
    """A range of a partition's blocks, read in an exported snapshot."""

    dsn: str
    chunk: Chunk
    snapshot: str
    comparing: Comparing


@dataclass(frozen=True)
class LakeFile:
    """A data file, and the equality deletes that are younger."""

    path: str
    deletes: tuple[str, ...]


@dataclass(frozen=True)
class FilesTask:
    """Data files of the lake, of which the rows with a tier value from `lo` to below `hi` count."""

    files: tuple[LakeFile, ...]
    positions: tuple[str, ...]
    """Position-delete files that may name rows of them."""
    schema: LakeSchema
    tier_id: int
    """Field ID of the tier key."""
    lo: int
    hi: int
    storage: StorageOptions
    comparing: Comparing


@dataclass(frozen=True)
class Digest:
    """Rows of one side."""

    sums: Words
    """By bucket: rows, and the sums of both words of their hashes, modulo 2^64."""
    rows: DigestedRows | None
    """Those in the wanted buckets."""

    @classmethod
    def total(cls, parts: list[Digest]) -> Digest:
        """Of all parts together."""
        sums = np.zeros((BUCKETS, 3), np.uint64)
        for part in parts:
            sums += part.sums
        given = [part.rows for part in parts if part.rows is not None]
        return cls(sums, DigestedRows.together(given) if given else None)


@dataclass(frozen=True)
class DigestedRows:
    """Rows one by one: packed keys, hashes, and keys as people read them."""

    keys: PackedKeys
    hashes: tuple[Words, Words]
    texts: tuple[str, ...]

    @staticmethod
    def together(parts: list[DigestedRows]) -> DigestedRows:
        words = 1 if parts[0].keys.second is None else 2
        return DigestedRows(
            PackedKeys.concatenated([one.keys for one in parts], words),
            (np.concatenate([one.hashes[0] for one in parts]), np.concatenate([one.hashes[1] for one in parts])),
            tuple(text for one in parts for text in one.texts),
        )


def digest_heap(task: HeapTask) -> Digest:
    """Digests a range of the heap. Raises FilenodeChanged if it was rewritten since it was planned."""
    beside: frozenset[str] = frozenset()
    while True:
        try:
            return _digest_heap(task, beside)
        except RawTextNeeded as needed:
            # Ends when all columns are in it.
            beside |= needed.columns


def _digest_heap(task: HeapTask, beside: frozenset[str]) -> Digest:
    columns = task.comparing.columns
    ids = [column.field_id for column in columns]
    ids += [raw_text_id(column.field_id) for column in columns if column.name in beside]
    tally = _Tally(task.comparing)
    for batch in read_chunk(task.dsn, task.chunk, columns, snapshot=task.snapshot, beside=beside):
        tally.add(dict(zip(ids, batch.columns, strict=True)), batch.num_rows)
    return tally.digest()


def digest_files(task: FilesTask) -> Digest:
    """Digests the live rows of some data files. Raises LakeError."""
    tally = _Tally(task.comparing)
    hidden = read_position_deletes(task.positions, {one.path for one in task.files}, task.storage)
    deleted: dict[tuple[str, ...], PackedKeys] = {}
    nothing = np.zeros(0, np.int64)
    for file in task.files:
        if file.deletes and file.deletes not in deleted:
            keys = read_keys(KeysTask(file.deletes, (), task.schema, task.comparing.packing, task.storage))
            words = task.comparing.packing.words
            deleted[file.deletes] = PackedKeys.concatenated([one.keys for one in keys], words)
        gone = hidden.get(file.path, nothing)
        for start, columns, rows in _batches(file.path, task):
            live = np.ones(rows, np.bool_)
            first, end = np.searchsorted(gone, [start, start + rows])
            live[gone[first:end] - start] = False
            tiers = as_numbers(plain(columns[task.tier_id]))
            live &= (tiers >= task.lo) & (tiers < task.hi)
            if not live.any():
                continue
            if not live.all():
                columns = {field_id: column.filter(pa.array(live)) for field_id, column in columns.items()}
            tally.add(columns, int(live.sum()), deleted.get(file.deletes))
    return tally.digest()


def _batches(path: str, task: FilesTask) -> Iterator[tuple[int, dict[int, pa.Array], int]]:
    """The file's rows: number of the first, columns by field ID in the table's types, and how many."""
    start = 0
    with open_input(path, task.storage) as source:
        parquet = pq.ParquetFile(source)
        places = places_by_id(parquet)
        for batch in read_batches(parquet, _BATCH_ROWS):
            columns = {
                field.field_id: cast_to(batch.column(places[field.field_id]), field.arrow.type)
                for field in task.schema.fields
                if field.field_id in places
            }
            yield start, columns, batch.num_rows
            start += batch.num_rows


class _Tally:
    """Adds up the rows of one task."""

    def __init__(self, comparing: Comparing) -> None:
        self._comparing = comparing
        self._sums = np.zeros((BUCKETS, 3), np.uint64)
        self._rows: list[DigestedRows] = []
        by_name = {column.name: column.field_id for column in comparing.columns}
        self._key_ids = [by_name[name] for name in comparing.key]
        self._left_out = _Keys(comparing.left_out)
        self._among = None if comparing.among is None else _Keys(comparing.among)

    def add(self, columns: dict[int, pa.Array], rows: int, deleted: PackedKeys | None = None) -> None:
        """Rows of `columns`, by field ID; not those whose keys are `deleted`."""
        size = sum(column.nbytes for column in columns.values())
        if rows > 1 and size > _BATCH_BYTES:
            half = rows // 2
            for begin, count in ((0, half), (half, rows - half)):
                self.add({name: one.slice(begin, count) for name, one in columns.items()}, count, deleted)
            return
        keys = self._comparing.packing.pack([columns[one] for one in self._key_ids])
        out = self._left_out.among(keys)
        if deleted is not None and len(deleted):
            out |= _Keys(deleted).among(keys)
        first, second = row_hashes(columns, rows, self._comparing.secret)
        places = np.flatnonzero(~out)
        buckets = buckets_of(keys.first)
        np.add.at(self._sums[:, 0], buckets[places], np.uint64(1))
        np.add.at(self._sums[:, 1], buckets[places], first[places])
        np.add.at(self._sums[:, 2], buckets[places], second[places])
        if self._comparing.wanted is not None:
            places = places[np.isin(buckets[places], list(self._comparing.wanted))]
            if self._among is not None:
                places = places[self._among.among(keys.take(places))]
            texts = zip(*(columns[one].take(pa.array(places)).to_pylist() for one in self._key_ids), strict=True)
            self._rows.append(
                DigestedRows(
                    keys.take(places), (first[places], second[places]), tuple(", ".join(map(str, row)) for row in texts)
                )
            )

    def digest(self) -> Digest:
        if self._comparing.wanted is None:
            return Digest(self._sums, None)
        return Digest(self._sums, DigestedRows.together(self._rows) if self._rows else None)


class _Keys:
    """A set of packed keys."""

    def __init__(self, keys: PackedKeys) -> None:
        self._first = np.unique(keys.first)
        self._pairs = None if keys.second is None else set(zip(keys.first.tolist(), keys.second.tolist(), strict=True))

    def among(self, keys: PackedKeys) -> npt.NDArray[np.bool_]:
        """Which of the keys are in the set."""
        if not len(self._first):
            return np.zeros(len(keys), np.bool_)
        places = np.minimum(np.searchsorted(self._first, keys.first), len(self._first) - 1)
        found: npt.NDArray[np.bool_] = self._first[places] == keys.first
        if self._pairs is not None and keys.second is not None:
            for place in np.flatnonzero(found):
                found[place] = (int(keys.first[place]), int(keys.second[place])) in self._pairs
        return found
