"""A heap is divided so that the workers of a copy end together, and every block is in one chunk."""

from __future__ import annotations

import itertools

import pytest

from mirror_pump.source.heap.block_reader import HeapLeaf, balanced_bytes, chunks_of

_MIB = 1 << 20
_BLOCK = 8192


def leaf(megabytes: int, number: int = 1) -> HeapLeaf:
    return HeapLeaf(number, "public", f"t{number}", number, number, megabytes * _MIB // _BLOCK, _BLOCK)


def sizes(leaves: list[HeapLeaf], target: int, workers: int) -> list[int]:
    """Blocks of each chunk."""
    chunks = chunks_of(leaves, balanced_bytes(leaves, target, workers))
    by_leaf = {heap.relation_id: heap.blocks for heap in leaves}
    return [(chunk.hi_block or by_leaf[chunk.relation_id]) - chunk.lo_block for chunk in chunks]


@pytest.mark.parametrize(
    ("megabytes", "workers"), [(40, 1), (40, 2), (96, 2), (96, 3), (200, 2), (200, 8), (330, 3), (590, 8), (999, 2)]
)
def test_each_worker_has_as_many_chunks_of_the_same_size(megabytes: int, workers: int) -> None:
    found = sizes([leaf(megabytes)], 64 * _MIB, workers)
    assert sum(found) == leaf(megabytes).blocks
    assert max(found) <= 64 * _MIB // _BLOCK
    assert max(found) - min(found) <= len(found)
    assert len(found) % workers == 0


def test_small_tables_are_not_divided() -> None:
    assert len(sizes([leaf(20)], 64 * _MIB, 8)) == 1


def test_a_small_target_counts() -> None:
    assert sizes([leaf(1)], 4 * _BLOCK, 2) == [4] * 32


def test_large_tables_have_chunks_of_the_target_size() -> None:
    assert set(sizes([leaf(8 * 2 * 64 + 65)], 64 * _MIB, 2)[:-1]) == {64 * _MIB // _BLOCK}


def test_all_leaves_count() -> None:
    leaves = [leaf(50, number) for number in range(1, 5)]
    found = chunks_of(leaves, balanced_bytes(leaves, 64 * _MIB, 2))
    assert [len(list(chunks)) for _, chunks in itertools.groupby(found, key=lambda chunk: chunk.relation_id)] == [1] * 4
