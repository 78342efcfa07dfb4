"""How the threads of a session end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from mirror_pump.pipeline.flow.events import Event, ThreadFailed


class ThreadStopped(Exception):
    """The pump is to end; what is under way is forgotten."""


@contextmanager
def reporting(inbox: SimpleQueue[Event]) -> Iterator[None]:
    """Around all that a thread does: whatever ends it reaches the loop, which raises it. Stopped only ends it."""
    try:
        yield
    except ThreadStopped:
        return
    except BaseException as error:  # noqa: BLE001 - a thread that is gone in silence would stop what waits for it
        inbox.put(ThreadFailed(error))
