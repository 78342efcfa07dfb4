"""How the process deals with memory: the garbage collector, off for a while, and what the C library gives back."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def without_collector(*, stays: bool = False) -> Iterator[None]:
    """Switches the collector off in the block, for imports: to look for garbage in modules takes a tenth of their time.

    `stays`: what is there at the block's end is never looked at again. A program says so of its own imports, a library
    must not. Does nothing if the collector is off already. For one thread of a process.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if stays:
            gc.freeze()
        gc.enable()


_COLLECTED_AFTER = 10_000


def collect_seldom() -> None:
    """From now on the collector looks for garbage after 10,000 more objects, and ten and a hundred times as many, not
    after 700. Measured, it takes a sixth of what a publish of 500 tables takes, and finds next to nothing: what is not
    needed any more goes without it, unless objects refer to each other."""
    gc.set_threshold(_COLLECTED_AFTER)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""malloc.h."""
_MAPPED_BYTES = 1 << 20
_KEPT_BYTES = 128 << 20
"""Twice a row group's. With 64 MiB, 50,000 pages of 256 MB of texts were got again, with this some hundreds."""
_NEVER_KEPT_BYTES = 32 << 20


def return_freed_memory() -> None:
    """From now on each block of a megabyte or more is a mapping of its own, which ends when it is freed.

    By default glibc raises that limit to 32 MiB as blocks are freed. Then segments, keys and rows of a large
    transaction leave holes behind that nothing else fits into: measured, 250 MB for an index of 5,000,000 keys that
    takes 80. The price is a fault for each new page, 0.3 ms for a segment of 4 MiB. Nothing changes where the C library
    has no mallopt().
    """
    _set_malloc({_M_MMAP_THRESHOLD: _MAPPED_BYTES})


def keep_freed_memory() -> None:
    """From now on the process keeps up to 128 MiB of freed memory at the end of its heap, in blocks below 32 MiB.

    For processes that do one task after the other, each with buffers of some megabytes: by default glibc returns these
    as they are freed, and gets them again for the next rows, with a fault for each page. Measured, that is a
    sixth of what a worker takes for a copy of 1 KB texts, and a tenth with half the limit. Nothing changes where the C
    library has no mallopt().
    """
    _set_malloc({_M_MMAP_THRESHOLD: _NEVER_KEPT_BYTES, _M_TRIM_THRESHOLD: _KEPT_BYTES})


def _set_malloc(parameters: Mapping[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, size in parameters.items():
            mallopt(parameter, size)
