"""An S3 server that holds back its answer to a write: the object is there, and its writer does not know it yet. So with
removals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import psutil

from mirror_pump.testing.mirror import await_true
from tests.support.s3_server import S3Server


@dataclass(frozen=True)
class HeldWrite:
    """A write that waits for its answer."""

    key: str
    """Bucket and key."""
    pid: int
    """The process that waits."""


class HoldingS3Server(S3Server):
    """Holds one write at a time, once hold() was called."""

    def __init__(self) -> None:
        super().__init__()
        self.objects = _Objects(self._done)
        self._lock = threading.Lock()
        self._wanted: Callable[[str], bool] | None = None
        self._removals = False
        self._held: SimpleQueue[HeldWrite] = SimpleQueue()
        self._released = threading.Event()
        self._client = threading.local()

    def hold(self, wanted: Callable[[str], bool], *, removals: bool = False) -> None:
        """Holds the next write, or the next removal, of an object whose bucket and key are wanted."""
        with self._lock:
            self._released.clear()
            self._wanted = wanted
            self._removals = removals

    def await_held(self, seconds: float = 180) -> HeldWrite:
        """Returns once it holds a write."""
        await_true(lambda: not self._held.empty(), seconds, "a write is held")
        return self._held.get()

    def release(self) -> None:
        """Answers, if there is still somebody to answer to."""
        self._released.set()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._client.port = client_address[1]
        super().process_request_thread(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: clients are killed while they wait."""

    def _done(self, key: str, *, removed: bool) -> None:
        with self._lock:
            if self._wanted is None or removed is not self._removals or not self._wanted(key):
                return
            self._wanted = None
        self._held.put(HeldWrite(key, _process_at(self._client.port)))
        self._released.wait()


class _Objects(dict[str, bytes]):
    """Tells of each object as soon as it is there, or is gone."""

    def __init__(self, done: Callable[..., None]) -> None:
        super().__init__()
        self._done = done

    def __setitem__(self, key: str, content: bytes) -> None:
        super().__setitem__(key, content)
        self._done(key, removed=False)

    def pop(self, key: str, *default: Any) -> Any:
        content = super().pop(key, *default)
        self._done(key, removed=True)
        return content


def _process_at(port: int) -> int:
    """The process with a connection from this port to a server of this machine."""
    for connection in psutil.net_connections("tcp"):
        if connection.laddr and connection.laddr.port == port and connection.pid and connection.raddr:
            return int(connection.pid)
    raise LookupError(f"nobody is connected from port {port}")


@contextmanager
def holding_s3_server() -> Iterator[HoldingS3Server]:
    """The server, for the time of the block."""
    with HoldingS3Server().serving() as server:
        yield server
        server.release()
