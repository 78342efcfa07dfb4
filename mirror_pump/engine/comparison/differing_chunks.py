"""Tasks of a copy that replaces only rows that differ: they digest a chunk of the heap, and copy those of its rows that
the lake does not have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror_pump.engine.comparison.partition_digests import Comparing, Digest, DigestedRows, Digester
from mirror_pump.engine.comparison.row_hashes import Words, buckets_of, mixed, row_hashes
from mirror_pump.engine.ingest.chunk_copy import ChunkResult, ChunkTask, attempted, chunk_rows, write_chunk
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.raw_text_columns import raw_text_id
from mirror_pump.lake.format.sorted_numbers import found_among
from mirror_pump.lake.key_index.packed_keys import PackedKeys, codes_of


@dataclass(frozen=True)
class ChunkDigestTask:
    """A chunk of the heap to digest."""

    chunk: ChunkTask
    comparing: Comparing


@dataclass(frozen=True)
class ChunkDigest:
    """The digest of a chunk's rows."""

    result: ChunkResult
    """The rows that were read, or why they could not be."""
    digest: Digest | None
    """None if the chunk could not be read."""


def digest_chunk(task: ChunkDigestTask) -> ChunkDigest:
    """Digests the rows of a chunk at or above the cut-line."""
    digests: list[Digest] = []

    def attempt(raw_text: frozenset[str]) -> ChunkResult:
        digester = Digester(task.comparing)
        ids = _field_ids(task.chunk, raw_text)
        rows = bytes_read = 0
        for batch in chunk_rows(task.chunk, raw_text):
            digester.add(dict(zip(ids, batch.columns, strict=True)), batch.num_rows)
            rows += batch.num_rows
            bytes_read += batch.nbytes
        digests.append(digester.digest())
        return ChunkResult(rows, bytes_read=bytes_read)

    result = attempted(task.chunk, attempt)
    return ChunkDigest(result, digests[-1] if digests else None)


@dataclass(frozen=True)
class LakeRowHashes:
    """The lake's rows of the buckets that are not the same in the heap, by their hashes. Picklable.

    Rows whose key the lake has more than once are left out: they are replaced whatever the heap has.
    """

    is_unequal: npt.NDArray[np.bool_]
    """By bucket, whether its rows are looked at."""
    hashes: tuple[Words, Words]
    """In the order of the first word."""
    places: npt.NDArray[np.int64]
    """Which of the digested rows has the hash."""
    keys: npt.NDArray[np.int64]
    """The keys of these rows and of those that were left out, as `_key_numbers`, in order."""

    @classmethod
    def of(cls, rows: DigestedRows | None, unequal: frozenset[int], bits: int) -> LakeRowHashes:
        is_unequal = np.zeros(1 << bits, np.bool_)
        is_unequal[list(unequal)] = True
        if rows is None:
            nothing = np.zeros(0, np.int64)
            return cls(is_unequal, (nothing.view(np.uint64), nothing.view(np.uint64)), nothing, nothing)
        codes, count = codes_of(rows.keys)
        single = np.flatnonzero(np.bincount(codes, minlength=count)[codes] == 1)
        ordered = single[np.argsort(rows.hashes[0][single])]
        hashes = rows.hashes[0][ordered], rows.hashes[1][ordered]
        return cls(is_unequal, hashes, ordered, np.unique(_key_numbers(rows.keys)))

    def places_of(self, hashes: tuple[Words, Words]) -> npt.NDArray[np.int64]:
        """For each hash, the place of the row that has it; -1 if none has."""
        first, second = self.hashes
        if not len(first):
            return np.full(len(hashes[0]), -1, np.int64)
        index = np.minimum(np.searchsorted(first, hashes[0]), len(first) - 1)
        # Of rows whose first words are equal by chance only one is taken. The others are replaced by themselves.
        equal = (first[index] == hashes[0]) & (second[index] == hashes[1])
        return np.where(equal, self.places[index], -1)

    def count_of(self, keys: PackedKeys) -> int:
        """How many of the keys these rows have."""
        return int(found_among(self.keys, _key_numbers(keys))[1].sum())


def _key_numbers(keys: PackedKeys) -> npt.NDArray[np.int64]:
    """A number for each key. Keys that have the same one by chance are as rare as reports can bear."""
    numbers = mixed(keys.first.view(np.uint64))
    return (numbers if keys.second is None else mixed(numbers ^ keys.second.view(np.uint64))).view(np.int64)


@dataclass(frozen=True)
class DifferingChunkTask:
    """A chunk of the heap of which to copy the rows that the lake does not have."""

    chunk: ChunkTask
    comparing: Comparing
    lake: LakeRowHashes


@dataclass(frozen=True)
class DifferingChunk:
    """The rows of a chunk that the lake does not have."""

    result: ChunkResult
    """Their files, or why the chunk could not be read."""
    places: npt.NDArray[np.int64]
    """Which of the lake's rows the chunk has as well."""
    different: int
    """Rows of the files whose key the lake has."""

    @property
    def written(self) -> tuple[WrittenFile, ...]:
        return self.result.files


def copy_differing_rows(task: DifferingChunkTask) -> DifferingChunk:
    """Writes the rows of a chunk that are in unequal buckets and not in the lake. The files become part of the lake
    only when a publish commits them."""
    places: list[npt.NDArray[np.int64]] = []
    different: list[int] = []

    def attempt(raw_text: frozenset[str]) -> ChunkResult:
        places.clear()
        different.clear()
        ids = _field_ids(task.chunk, raw_text)
        by_name = {column.name: column.field_id for column in task.comparing.columns}
        key_ids = [by_name[name] for name in task.comparing.key]

        def chosen(batch: pa.RecordBatch) -> pa.RecordBatch:
            columns = dict(zip(ids, batch.columns, strict=True))
            keys = task.comparing.packing.pack([columns[field_id] for field_id in key_ids])
            unequal = np.flatnonzero(task.lake.is_unequal[buckets_of(keys.first, task.comparing.bucket_bits)])
            candidates = {field_id: column.take(pa.array(unequal)) for field_id, column in columns.items()}
            matches = task.lake.places_of(row_hashes(candidates, len(unequal), task.comparing.secret))
            places.append(matches[matches >= 0])
            copied = unequal[matches < 0]
            different.append(task.lake.count_of(keys.take(copied)))
            return batch.take(pa.array(copied))

        return write_chunk(task.chunk, raw_text, chosen)

    result = attempted(task.chunk, attempt)
    return DifferingChunk(result, np.concatenate([np.zeros(0, np.int64), *places]), sum(different))


def _field_ids(task: ChunkTask, raw_text: frozenset[str]) -> list[int]:
    """The field IDs of the columns of `chunk_rows`."""
    ids = [column.field_id for column in task.table.columns]
    return ids + [raw_text_id(column.field_id) for column in task.table.columns if column.name in raw_text]
