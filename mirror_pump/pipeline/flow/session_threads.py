"""The base of a session's threads, and how they end."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue

from mirror_pump.pipeline.flow.events import Event, ThreadFailed
from mirror_pump.service_thread import ServiceThread


class ThreadStopped(Exception):
    """The thread was asked to stop. It abandons its current work."""


def session_thread(
    name: str, run: Callable[[], None], inbox: SimpleQueue[Event], *, interrupt: Callable[[], None] | None = None
) -> ServiceThread:
    """Creates a thread of one session. An error that ends the thread reaches the loop as ThreadFailed, and the loop
    raises it."""

    def reported() -> None:
        try:
            run()
        except ThreadStopped:
            return
        except BaseException as error:  # noqa: BLE001 - a thread that is gone in silence would stop what waits for it
            inbox.put(ThreadFailed(error))

    return ServiceThread(name, reported, interrupt=interrupt)
