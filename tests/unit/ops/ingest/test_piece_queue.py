"""Pieces of an input that run in threads: a slow one holds up no other, and results and errors come in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mirror_pump.ops.ingest.read.input_pieces import results_in_order

_PATIENCE = 60.0


def test_a_slow_piece_holds_up_no_other() -> None:
    last = threading.Event()

    def work(piece: int) -> bool:
        if piece == 0:
            return last.wait(_PATIENCE)
        if piece == 9:
            last.set()
        return True

    with ThreadPoolExecutor(2) as pool:
        assert list(results_in_order(pool, range(10), work, 4)) == [True] * 10


def test_few_pieces_are_read_ahead_of_the_threads() -> None:
    read: list[int] = []
    done: list[int] = []

    def work(piece: int) -> int:
        done.append(piece)
        return piece

    def pieces() -> Iterator[int]:
        for piece in range(50):
            # One more than may wait or run is read.
            assert len(read) - len(done) <= 3
            read.append(piece)
            yield piece

    with ThreadPoolExecutor(2) as pool:
        assert list(results_in_order(pool, pieces(), work, 3)) == list(range(50))


def test_of_several_errors_that_of_the_first_piece_is_raised() -> None:
    later = threading.Event()

    def work(piece: int) -> None:
        if piece == 1:
            assert later.wait(_PATIENCE)
        if piece == 2:
            later.set()
        if piece:
            raise ValueError(str(piece))

    with ThreadPoolExecutor(2) as pool, pytest.raises(ValueError, match="1"):
        list(results_in_order(pool, range(4), work, 4))
