"""Writes of many files that nothing refers to yet, made durable in one go: a disk flushes many files about as fast as
one, and a remote store takes many requests at once.

Invariant: when the block of `gathered_writes` has ended without error, all of its files are whole and durable, as
without it. Within the block they can be read, and files that are discarded are gone. A crash before its end may leave
names of files that are empty or cut off; nothing refers to them, and sweeps remove them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from mirror_pump.errors import LakeError
from mirror_pump.lake.storage.local_files import begin_flush, flush_paths
from mirror_pump.lake.storage.options import Content, StorageOptions
from mirror_pump.lake.storage.remote_files import write_object

_REQUESTS = 16
"""Requests to a remote store at once."""
_WAITING_BYTES = 64 << 20
"""Content that may wait for its request. Writers wait for the oldest beyond that."""
_LARGE = 64 << 10
"""Bytes of a local file that the disk gets at once: a disk takes longer for it than for a name."""


class GatheredWrites:
    """The files of one block. Only its thread may use it."""

    def __init__(self, missing: set[str] | None) -> None:
        self._missing = missing
        self._unflushed: dict[str, str] = {}
        self._flushes: dict[str, Future[list[Exception]]] = {}
        """Of those of them whose content is on its way to the disk."""
        self._requests: OrderedDict[str, tuple[Future[None], int]] = OrderedDict()
        self._waiting_bytes = 0
        self._pool: ThreadPoolExecutor | None = None

    def named(self, location: str, path: str, size: int) -> None:
        """Adds a local file of so many bytes that is whole, has its name, and is not flushed."""
        self._unflushed[location] = path
        if size >= _LARGE:
            self._flushes[location] = begin_flush(location, path)

    def request(self, location: str, content: Content, storage: StorageOptions) -> None:
        """Begins to write a remote file. Raises LakeError of an earlier one."""
        self._pool = self._pool or ThreadPoolExecutor(_REQUESTS, thread_name_prefix="gathered")
        self._requests[location] = self._pool.submit(write_object, (location, content), storage), len(content)
        self._waiting_bytes += len(content)
        while self._waiting_bytes > _WAITING_BYTES:
            self.settle(next(iter(self._requests)))

    def settle(self, location: str) -> None:
        """Waits until a file of this block is there. Raises LakeError if it cannot be written."""
        request = self._requests.pop(location, None)
        if request is not None:
            self._waiting_bytes -= request[1]
            request[0].result()

    def forget(self, location: str) -> None:
        """To be called before a file is removed."""
        self._unflushed.pop(location, None)
        flush = self._flushes.pop(location, None)
        if flush is not None:
            flush.result()
        with suppress(LakeError):
            self.settle(location)

    def finish(self) -> None:
        """Makes everything durable. Raises LakeError, once nothing is under way any more."""
        flushed, flushes = dict(self._unflushed), dict(self._flushes)
        self._unflushed.clear()
        self._flushes.clear()
        requests = [future for future, _ in self._requests.values()]
        self._requests.clear()
        try:
            flush_paths(flushed, self._missing, flushes)
        finally:
            wait(requests)
        for request in requests:
            request.result()

    def close(self) -> None:
        """Waits for what is under way."""
        wait(self._flushes.values())
        if self._pool is not None:
            self._pool.shutdown()


_CURRENT: ContextVar[GatheredWrites | None] = ContextVar("gathered writes", default=None)


@contextmanager
def gathered_writes(missing: set[str] | None = None) -> Iterator[None]:
    """Has `write_all` and `open_output` in the block, in this thread, write files that are made durable together at its
    end. Raises LakeError then. With `missing`, local files that are gone by then, with their directory for instance,
    are no error: their locations are added there. After an error in the block, what it has written may be removed by
    `discard`, as always. A block within another one, without `missing`, leaves all to that one's end."""
    if missing is None and _CURRENT.get() is not None:
        yield
        return
    writes = GatheredWrites(missing)
    token = _CURRENT.set(writes)
    try:
        yield
        writes.finish()
    finally:
        writes.close()
        _CURRENT.reset(token)


def present_writes() -> GatheredWrites | None:
    """The files of this thread's block, if it is in one."""
    return _CURRENT.get()


def settle(locations: Sequence[str]) -> None:
    """Waits until files of this thread's block are there, before they are read. Raises LakeError."""
    writes = _CURRENT.get()
    if writes is not None:
        for location in locations:
            writes.settle(location)
