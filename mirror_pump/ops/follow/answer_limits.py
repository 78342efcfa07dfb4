"""What a catalog's answers may take within one call: seconds and bytes.

The timeouts of clients begin anew with each byte, and pyiceberg reads as many pages as there are. So every read of a
connection waits no longer than what is left of the call.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from typing import Any

LARGEST_ANSWER = 64 << 20
"""Bytes, as they arrive and, of those that are packed, once more as they are unpacked."""
READ_AT_ONCE = 64 << 10


class AnswerLimits:
    """What is left for the answers of one call. For one thread."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        """Seconds of a call."""
        self.begin()

    def begin(self) -> None:
        """A call begins."""
        self._end = time.monotonic() + self.patience
        self._left = LARGEST_ANSWER

    def extend(self, seconds: float) -> None:
        """So much is left now, at least."""
        self._end = max(self._end, time.monotonic() + seconds)

    def seconds(self) -> float:
        """What is left. Raises TimeoutError if nothing is."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"it is not complete after {self.patience:.0f} s")
        return left

    def take(self, size: int) -> None:
        """Counts bytes. Raises ConnectionError if they are too many."""
        self._left -= size
        if self._left < 0:
            raise ConnectionError(f"it has more than {LARGEST_ANSWER} bytes")

    def within(self, adapter: Any) -> Callable[..., Any]:
        """Sends a request by one of requests' adapters, and reads the whole answer."""
        if "get_connection_with_tls_context" not in vars(adapter):
            pool_for = adapter.get_connection_with_tls_context
            adapter.get_connection_with_tls_context = lambda *request, **options: self.watched(
                pool_for(*request, **options)
            )

        def send(request: Any, **options: Any) -> Any:
            response = adapter.send(request, **{**options, "timeout": self.seconds(), "stream": True})
            try:
                response._content = b"".join(self._parts(response.raw))
            except Exception as error:
                response.close()
                raise ConnectionError(f"the answer cannot be read: {error}") from error
            return response

        return send

    def _parts(self, raw: Any) -> Iterator[bytes]:
        packed = "Content-Encoding" in raw.headers
        while part := raw.read1(READ_AT_ONCE, decode_content=True):
            self.take(len(part) if packed else 0)
            yield part

    def watched(self, pool: Any) -> Any:
        """A pool of urllib3's, whose connections read within the limits from now on."""
        if "ConnectionCls" not in vars(pool):
            connection = pool.ConnectionCls
            response = {"response_class": staticmethod(self._response)}
            pool.ConnectionCls = type(connection.__name__, (connection,), response)
        return pool

    def _response(self, connected: socket.socket, *options: Any, **named: Any) -> HTTPResponse:
        response = HTTPResponse(connected, *options, **named)
        response.fp = io.BufferedReader(_LimitedReads(connected, response.fp.detach(), self))
        return response


class _LimitedReads(io.RawIOBase):
    """What arrives at a socket, within the limits."""

    def __init__(self, connected: socket.socket, reads: Any, limits: AnswerLimits) -> None:
        self._socket = connected
        self._reads = reads
        self._limits = limits

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._socket.settimeout(self._limits.seconds())
        size: int = self._reads.readinto(buffer)
        self._limits.take(size)
        return size

    def close(self) -> None:
        self._reads.close()
        super().close()
