"""Runs the pieces of an input in threads, some at a time, and gives their results in the input's order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def results_in_order(
    pool: Executor, pieces: Iterable[Piece], work: Callable[[Piece], Result], most: int
) -> Iterator[Result]:
    """The result of each piece. The first error ends it; of several, that of the first piece.

    `most` pieces wait or run at a time, and the next one is read. Whichever is done makes room, not the first one: it
    may take as long as many others.
    """
    running: deque[Future[Result]] = deque()
    room = threading.Semaphore(most)
    for piece in pieces:
        room.acquire()
        future = pool.submit(work, piece)
        future.add_done_callback(lambda _: room.release())
        running.append(future)
        while running and running[0].done():
            yield running.popleft().result()
    while running:
        yield running.popleft().result()
