"""Deletion vectors, which tell the deleted rows of one data file each (Iceberg spec, format version 3). Runs in tasks.

A data file has at most one vector in a snapshot. It has all of the file's deleted rows, so each commit that deletes
more of them replaces the vector by one with both, and readers pass over older position-delete files. A commit writes
its vectors into one Puffin file.

The bitmaps are pyroaring's, which pyiceberg needs too: its C code takes microseconds for a vector of some rows, and
refuses what is no bitmap instead of reading beyond it.
"""

from __future__ import annotations

import uuid
import zlib
from array import array
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyroaring import BitMap64

from mirror_pump.lake.format.damaged_files import decoding
from mirror_pump.lake.format.data_files import FileContent, WrittenFile, data_location
from mirror_pump.lake.format.partitioning import UNPARTITIONED, PartitionTuple
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.format.puffin import Blob, BlobPlace, decoded_puffin, encoded_puffin, read_blobs
from mirror_pump.lake.storage import StorageOptions, read_bytes

PUFFIN_SUFFIX = ".puffin"
"""Of names of files of vectors, of any engine."""
_KIND = "deletion-vector-v1"
_MAGIC = b"\xd1\xd3\x39\x64"
_POSITION_FIELD = 2147483645
"""ID of the metadata column _pos, which a vector is about."""
_REFERENCED = "referenced-data-file"
_CARDINALITY = "cardinality"


class DeletionVector:
    """A set of row numbers of a data file. Immutable."""

    __slots__ = ("_bitmap",)

    def __init__(self, bitmap: BitMap64) -> None:
        """Use `of` or `from_blob`."""
        self._bitmap = bitmap

    @classmethod
    def of(cls, positions: Positions) -> DeletionVector:
        """A vector of row numbers, in any order. A negative one counts as a number beyond 63 bits."""
        bitmap = BitMap64(array("Q", positions.astype(np.int64, copy=False).tobytes()))
        bitmap.run_optimize()
        return cls(bitmap)

    @classmethod
    def empty(cls) -> DeletionVector:
        """One of no rows."""
        return cls(BitMap64())

    @classmethod
    def from_blob(cls, blob: bytes) -> DeletionVector:
        """The vector of a blob of any engine. Raises ValueError for a damaged one."""
        end = 4 + int.from_bytes(blob[:4], "big")
        content = blob[4:end]
        if len(blob) != end + 4 or content[:4] != _MAGIC or len(content) == len(_MAGIC):
            raise ValueError("it is no deletion vector")
        if zlib.crc32(content) != int.from_bytes(blob[end:], "big"):
            raise ValueError("its checksum is another one")
        bitmap = BitMap64.deserialize(content[4:])
        if bitmap and bitmap.max() >> 63:
            raise ValueError("it has positions beyond 63 bits")
        return cls(bitmap)

    def to_blob(self) -> bytes:
        """Length, magic, 64-bit Roaring bitmap in the portable format, CRC-32 (Puffin spec, deletion-vector-v1)."""
        bitmap = self._bitmap.serialize()
        checksum = zlib.crc32(bitmap, zlib.crc32(_MAGIC))
        return b"".join((
            (len(_MAGIC) + len(bitmap)).to_bytes(4, "big"), _MAGIC, bitmap, checksum.to_bytes(4, "big"),
        ))  # fmt: skip

    @property
    def positions(self) -> Positions:
        """The row numbers, in order."""
        return np.frombuffer(self._bitmap.to_array(), np.int64)

    @property
    def end(self) -> int:
        """The number after the greatest row number; 0 of a vector of no rows."""
        return int(self._bitmap.max()) + 1 if self._bitmap else 0

    def union(self, other: DeletionVector) -> DeletionVector:
        """What either has."""
        bitmap = self._bitmap | other._bitmap
        bitmap.run_optimize()
        return DeletionVector(bitmap)

    def without(self, other: DeletionVector) -> DeletionVector:
        """What `other` has not."""
        return DeletionVector(self._bitmap - other._bitmap)

    def __len__(self) -> int:
        return len(self._bitmap)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeletionVector) and self._bitmap == other._bitmap

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class VectorPlace:
    """Where a deletion vector is stored, as its manifest entry says."""

    path: str
    """URI of the Puffin file."""
    place: BlobPlace
    records: int
    """Deleted rows."""


@dataclass(frozen=True, slots=True)
class FileVector:
    """The vector that a commit gives a data file, and where the file is: readers look for it there only."""

    vector: DeletionVector
    partition: PartitionTuple = UNPARTITIONED
    spec_id: int | None = None
    """None: the table's default spec."""


def encoded_deletion_vectors(
    vectors: Mapping[str, FileVector], location: str
) -> tuple[tuple[WrittenFile, ...], tuple[str, bytes]]:
    """The entries of a Puffin file in `location`/data with these vectors, by data file URI, and its URI and content.
    Nothing is written yet. Raises ValueError without vectors, and for an empty one: entries must not have them."""
    if not vectors or not all(len(file.vector) for file in vectors.values()):
        raise ValueError("a file of deletion vectors has at least one, and none is empty")
    blobs = [
        Blob(
            _KIND,
            (_POSITION_FIELD,),
            {_REFERENCED: path, _CARDINALITY: str(len(file.vector))},
            file.vector.to_blob(),
        )
        for path, file in vectors.items()
    ]
    content, places = encoded_puffin(blobs)
    puffin = data_location(location, f"{uuid.uuid4().hex}-deletes{PUFFIN_SUFFIX}")
    nothing: Mapping[int, Any] = {}
    entries = tuple(
        WrittenFile(
            FileContent.POSITION_DELETES,
            puffin,
            len(file.vector),
            len(content),
            nothing,
            nothing,
            nothing,
            nothing,
            nothing,
            nan_counts=nothing,
            referenced_data_file=path,
            partition=file.partition,
            spec_id=file.spec_id,
            blob=place,
        )
        for (path, file), place in zip(vectors.items(), places, strict=True)
    )
    return entries, (puffin, content)


def read_vectors_of_files(
    files: Sequence[str], data_files: Collection[str], storage: StorageOptions
) -> dict[str, DeletionVector]:
    """All vectors of `data_files` in these files, united by data file URI. Raises LakeError."""
    vectors: dict[str, DeletionVector] = {}
    for puffin in files:
        content = read_bytes(puffin, storage)
        with decoding(puffin, "a file of deletion vectors"):
            for blob in decoded_puffin(content):
                path = blob.properties.get(_REFERENCED, "")
                if blob.kind == _KIND and path in data_files:
                    vectors[path] = vectors.get(path, DeletionVector.empty()).union(
                        DeletionVector.from_blob(blob.content)
                    )
    return vectors


def require_vectors(path: str, storage: StorageOptions) -> None:
    """Reads all vectors of a file. Raises FileMissing, FileDamaged, and LakeError."""
    content = read_bytes(path, storage)
    with decoding(path, "a file of deletion vectors"):
        for blob in decoded_puffin(content):
            if blob.kind == _KIND and len(DeletionVector.from_blob(blob.content)) != int(blob.properties[_CARDINALITY]):
                raise ValueError("a vector has not as many rows as its footer says")


def read_deletion_vectors(stored: Sequence[VectorPlace], storage: StorageOptions) -> list[DeletionVector]:
    """The vectors, in their order; each Puffin file is opened once. Raises FileMissing, FileDamaged, and LakeError."""
    by_path: dict[str, list[int]] = defaultdict(list)
    for number, vector_place in enumerate(stored):
        by_path[vector_place.path].append(number)
    vectors: dict[int, DeletionVector] = {}
    for path, numbers in by_path.items():
        blobs = read_blobs(path, [stored[number].place for number in numbers], storage)
        for number, blob in zip(numbers, blobs, strict=True):
            with decoding(path, "a file of deletion vectors"):
                vectors[number] = vector = DeletionVector.from_blob(blob)
                if len(vector) != stored[number].records:
                    raise ValueError(f"a vector has {len(vector)} rows, its entry {stored[number].records}")
    return [vectors[number] for number in range(len(stored))]
