"""Python's garbage collector, switched off for a while."""

from __future__ import annotations

import gc
from collections.abc import Iterator
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
