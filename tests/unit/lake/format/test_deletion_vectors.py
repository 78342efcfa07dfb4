"""Deletion vectors: as sets of numbers, as other libraries read them, and damaged ones."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap64

from mirror_pump.errors import FileDamaged
from mirror_pump.lake.commit.readable_files import is_damaged
from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.deletion_vectors import (
    DeletionVector,
    FileVector,
    VectorPlace,
    encoded_deletion_vectors,
    read_deletion_vectors,
)
from mirror_pump.lake.format.puffin import BlobPlace, decoded_puffin
from mirror_pump.lake.storage import StorageOptions, write_bytes
from tests.support.local_files import path_of
from tests.support.position_delete_files import write_position_deletes

STORAGE = StorageOptions(fsync=False)
_SPARSE = st.sets(st.integers(0, 2**63 - 1), max_size=20)
_NEAR = st.sets(st.integers(0, 300_000), max_size=50)
_RUNS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 140_000), st.integers(1, 70_000)), max_size=3).map(
    lambda runs: {key << 32 | number for key, begin, size in runs for number in range(begin, begin + size)}
)
_DENSE = st.tuples(st.integers(0, 2**30), st.integers(2, 5)).map(
    lambda drawn: set(range(drawn[0], drawn[0] + 100_000, drawn[1]))
)
_SETS = st.one_of(_SPARSE, _NEAR, _RUNS, _DENSE)


def _low(numbers: set[int]) -> set[int]:
    """pyiceberg 0.12 fails over a key that has no bitmap."""
    return {number for number in numbers if number < 2**32}


def vector(numbers: set[int]) -> DeletionVector:
    return DeletionVector.of(np.array(list(numbers), np.int64))


@settings(deadline=None, max_examples=60)
@given(_SETS, _SETS)
def test_a_vector_is_a_set(left: set[int], right: set[int]) -> None:
    both = vector(left).union(vector(right))
    assert both.positions.tolist() == sorted(left | right)
    assert len(both) == len(left | right)
    assert DeletionVector.from_blob(both.to_blob()) == both == vector(left | right)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.one_of(_NEAR, _RUNS, _DENSE).map(_low).filter(bool), min_size=1, max_size=3))
def test_pyiceberg_reads_the_same(sets: list[set[int]]) -> None:
    vectors = {f"file:///data/{number}.parquet": FileVector(vector(numbers)) for number, numbers in enumerate(sets)}
    entries, (_, content) = encoded_deletion_vectors(vectors, "file:///t")
    for read, numbers, entry in zip(deletion_vectors_from_puffin_file(PuffinFile(content)), sets, entries, strict=True):
        assert read.referenced_data_file == entry.referenced_data_file
        assert read.to_vector().to_pylist() == sorted(numbers)


def test_a_blob_is_as_the_specification_has_it() -> None:
    blob = vector({1, 5, 2**33}).to_blob()
    assert int.from_bytes(blob[:4], "big") == len(blob) - 8
    assert blob[4:8] == b"\xd1\xd3\x39\x64"
    assert int.from_bytes(blob[8:16], "little") == 2, "two bitmaps of 32 bits"
    assert int.from_bytes(blob[16:20], "little") == 0, "the key of the first"
    assert int.from_bytes(blob[-4:], "big") == zlib.crc32(blob[4:-4])
    # A bitmap without runs, as writers that do not look for runs store it.
    content = b"\xd1\xd3\x39\x64" + BitMap64(range(100_000)).serialize()
    plain = len(content).to_bytes(4, "big") + content + zlib.crc32(content).to_bytes(4, "big")
    assert DeletionVector.from_blob(plain) == vector(set(range(100_000)))
    assert len(vector(set(range(100_000))).to_blob()) < 100, "runs take next to nothing"


def test_a_file_has_several_vectors_and_tells_where_they_are(warehouse: str) -> None:
    sets = {"file:///a.parquet": {3, 9}, "file:///b.parquet": set(range(70_000))}
    vectors = {path: FileVector(vector(numbers), (7,), 2) for path, numbers in sets.items()}
    entries, (puffin, content) = encoded_deletion_vectors(vectors, f"{warehouse}/t")
    write_bytes(puffin, content, STORAGE)
    assert path_of(puffin).stat().st_size == entries[0].size_bytes == entries[1].size_bytes
    for entry, (path, numbers), blob in zip(entries, sets.items(), decoded_puffin(content), strict=True):
        assert (entry.content, entry.path, entry.referenced_data_file) == (FileContent.POSITION_DELETES, puffin, path)
        assert (entry.record_count, entry.partition, entry.spec_id) == (len(numbers), (7,), 2)
        assert entry.blob is not None
        assert content[entry.blob.offset :][: entry.blob.size] == blob.content
        assert blob.properties == {"referenced-data-file": path, "cardinality": str(len(numbers))}
        assert (blob.kind, entry.content_bytes) == ("deletion-vector-v1", len(blob.content))
    places = [VectorPlace(puffin, entry.blob, entry.record_count) for entry in reversed(entries) if entry.blob]
    assert [set(read.positions.tolist()) for read in read_deletion_vectors(places, STORAGE)] == [*sets.values()][::-1]


def test_rows_of_files_of_both_kinds(warehouse: str) -> None:
    """Of a file of vectors those that newer ones have replaced count, too: they have the same rows."""
    first, second, other = "file:///a.parquet", "file:///b.parquet", "file:///c.parquet"
    puffins = []
    for vectors in ({first: {1, 2}, other: {8}}, {first: {1, 2, 5}, second: {70_000}}):
        _, (puffin, content) = encoded_deletion_vectors(
            {path: FileVector(vector(numbers)) for path, numbers in vectors.items()}, f"{warehouse}/t"
        )
        write_bytes(puffin, content, STORAGE)
        puffins.append(puffin)
    positions = write_position_deletes({first: np.array([0, 5]), second: np.array([3])}, f"{warehouse}/t", STORAGE).path

    def rows(*files: str) -> dict[str, list[int]]:
        return {path: found.tolist() for path, found in HiddenRows.read(files, {first, second}, STORAGE).items()}

    assert rows(*puffins, puffins[0]) == {first: [1, 2, 5], second: [70_000]}
    assert rows(*puffins, positions) == {first: [0, 1, 2, 5], second: [3, 70_000]}
    assert rows(positions) == {first: [0, 5], second: [3]}
    write_bytes(puffins[0], b"PFA1", STORAGE)
    with pytest.raises(FileDamaged, match=r"-deletes\.puffin is damaged"):
        rows(*puffins)


def test_damage_names_the_file(warehouse: str) -> None:
    drawn = random.Random(3)
    entries, (puffin, content) = encoded_deletion_vectors(
        {"file:///a.parquet": FileVector(vector({1, 5, 70_000, 2**33} | set(range(900, 5_000, 2))))}, f"{warehouse}/t"
    )
    place = entries[0].blob
    assert place is not None
    for _ in range(200):
        damaged = bytearray(content)
        damaged[drawn.randrange(place.offset, place.offset + place.size)] ^= 1 << drawn.randrange(8)
        write_bytes(puffin, bytes(damaged), STORAGE)
        with pytest.raises(FileDamaged, match=r"-deletes\.puffin is damaged"):
            read_deletion_vectors([VectorPlace(puffin, place, entries[0].record_count)], STORAGE)
        assert is_damaged(puffin, STORAGE)
    write_bytes(puffin, content, STORAGE)
    assert not is_damaged(puffin, STORAGE)
    for stored in (
        VectorPlace(puffin, place, entries[0].record_count + 1),
        VectorPlace(puffin, BlobPlace(place.offset, place.size - 1), entries[0].record_count),
        VectorPlace(puffin, BlobPlace(len(content) - 3, place.size), entries[0].record_count),
    ):
        with pytest.raises(FileDamaged, match="is damaged"):
            read_deletion_vectors([stored], STORAGE)
    for cut in (content[:-1], content[1:], content[: len(content) // 2], b"", b"PFA1"):
        with pytest.raises(ValueError, match="marks"):
            decoded_puffin(cut)


def test_what_is_no_set_of_rows_is_refused() -> None:
    assert DeletionVector.of(np.array([-1])).end > 2**63, "what uses it compares that with the file's rows"
    with pytest.raises(ValueError, match="none is empty"):
        encoded_deletion_vectors({"file:///a.parquet": FileVector(vector(set()))}, "file:///t")
    with pytest.raises(ValueError, match="at least one"):
        encoded_deletion_vectors({}, "file:///t")
    content = b"\xd1\xd3\x39\x64" + BitMap64([2**63]).serialize()
    blob = len(content).to_bytes(4, "big") + content + zlib.crc32(content).to_bytes(4, "big")
    with pytest.raises(ValueError, match="63 bits"):
        DeletionVector.from_blob(blob)
