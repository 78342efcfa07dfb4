"""A proxy before an S3 server that answers in the ways in which storage fails. Requests pass unchanged, as signed."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import unquote

_HEAD_LIMIT = 1 << 20
_PIECES = 20
"""Pieces of a slow answer."""


class StorageFault(Enum):
    """What happens to a request."""

    SLOW_DOWN = "503 SlowDown, and nothing is done"
    REFUSED = "403, as to wrong credentials"
    RESET = "the connection is reset before the server sees the request"
    LOST_ANSWER = "the request is done, and the connection reset instead of an answer"
    CUT_OFF = "the connection ends in the middle of the answer's body"
    SHORT = "the answer is half of the body, and says that this is all"
    SLOW = "the answer comes in pieces, slowly"


@dataclass
class ArmedFault:
    """A fault that meets requests."""

    fault: StorageFault
    methods: frozenset[str]
    pattern: re.Pattern[str]
    left: int
    """Requests that it still meets; below 0: all."""
    met: list[str] = field(default_factory=list)
    """Method and path of those that it met."""


@dataclass(frozen=True)
class HttpMessage:
    """A request or an answer."""

    head: bytes
    body: bytes

    @property
    def first_line(self) -> list[str]:
        return self.head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)

    def header(self, name: str) -> str:
        found = re.search(rb"\r\n" + name.encode() + rb":[ \t]*([^\r\n]*)", self.head, re.IGNORECASE)
        return "" if found is None else found[1].decode("latin-1")


Translation = tuple[Callable[[HttpMessage], HttpMessage], Callable[[HttpMessage], HttpMessage]]


def _same(message: HttpMessage) -> HttpMessage:
    return message


class FaultyStorage:
    """The proxy. It runs in a thread of its own."""

    def __init__(self, port: int, translate: Translation | None = None) -> None:
        """`port` of the server, on this machine. `translate`: what becomes of requests and of answers on their way."""
        self._target = port
        self._to_server, self._to_client = translate or (_same, _same)
        self._armed: list[ArmedFault] = []
        self.expired: set[str] = set()
        """Access keys that are answered with ExpiredToken."""
        self.refused = 0
        """Requests with such keys."""
        self.keys: set[str] = set()
        """Access keys of all requests."""
        self.overwrite: Callable[[str, bytes], None] | None = None
        """If set, conditional PUTs of a bucket and key are done by this, as by a store that knows no conditions: a
        request that has lost its own would not have the right signature."""
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty-storage", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def arm(self, fault: StorageFault, *methods: str, path: str = "", times: int = -1) -> ArmedFault:
        """The next `times` requests (below 0: all) of these methods (by default any), whose path and query match the
        regular expression, meet the fault."""
        armed = ArmedFault(fault, frozenset(methods), re.compile(path), times)
        self._armed.append(armed)
        return armed

    def disarm(self) -> None:
        """No request meets a fault any more."""
        self._armed = []
        self.expired = set()

    def close(self) -> None:
        """Ends all connections."""

        async def end() -> None:
            self._server.close()
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            answers, upstream = await asyncio.open_connection("127.0.0.1", self._target, limit=_HEAD_LIMIT)
            while (request := await _read(reader, writer)) is not None:
                fault = self._fault_of(request)
                if not await self._answer(request, fault, writer, answers, upstream):
                    break
        for side in (writer, upstream):
            if side is not None:
                side.close()

    def _fault_of(self, request: HttpMessage) -> StorageFault | None:
        method, path, *_ = request.first_line
        for armed in self._armed:
            if armed.left and (not armed.methods or method in armed.methods) and armed.pattern.search(path):
                armed.left -= 1
                armed.met.append(f"{method} {path}")
                return armed.fault
        return None

    async def _answer(
        self,
        request: HttpMessage,
        fault: StorageFault | None,
        client: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> bool:
        """Answers one request. Returns whether the connection goes on."""
        key = re.search(r"Credential=([^/]+)/", request.header("Authorization"))
        if key is not None:
            self.keys.add(key[1])
            if key[1] in self.expired:
                self.refused += 1
                client.write(_error(request, "400 Bad Request", "ExpiredToken"))
                await client.drain()
                return True
        if fault is StorageFault.SLOW_DOWN:
            client.write(_error(request, "503 Slow Down", "SlowDown"))
            await client.drain()
            return True
        if fault is StorageFault.REFUSED:
            client.write(_error(request, "403 Forbidden", "AccessDenied"))
            await client.drain()
            return True
        if fault is StorageFault.RESET:
            _reset(client)
            return False
        if self.overwrite is not None and request.first_line[0] == "PUT" and request.header("If-None-Match"):
            path = unquote(request.first_line[1].partition("?")[0]).lstrip("/")
            await asyncio.to_thread(self.overwrite, path, request.body)
            client.write(b'HTTP/1.1 200 OK\r\nETag: "any"\r\nContent-Length: 0\r\n\r\n')
            await client.drain()
            return True
        request = self._to_server(request)
        upstream.write(request.head + request.body)
        await upstream.drain()
        answer = await _read(answers, None, head_only=request.first_line[0] == "HEAD")
        if answer is None:
            return False
        if fault is StorageFault.LOST_ANSWER:
            _reset(client)
            return False
        return await _pass_on(self._to_client(answer), fault, client)


async def _pass_on(answer: HttpMessage, fault: StorageFault | None, client: asyncio.StreamWriter) -> bool:
    head, body = answer.head, answer.body
    half = body[: len(body) // 2]
    if fault is StorageFault.SHORT:
        head, body = re.sub(rb"(?i)content-length: *\d+", b"Content-Length: %d" % len(half), head), half
    if fault is StorageFault.CUT_OFF:
        client.write(head + half)
        await client.drain()
        return False
    if fault is StorageFault.SLOW:
        client.write(head)
        size = max(1, len(body) // _PIECES)
        for start in range(0, len(body), size):
            client.write(body[start : start + size])
            await client.drain()
            await asyncio.sleep(0.05)
        return True
    client.write(head + body)
    await client.drain()
    return True


async def _read(
    reader: asyncio.StreamReader, client: asyncio.StreamWriter | None, *, head_only: bool = False
) -> HttpMessage | None:
    """One request or answer; None at the end of the connection. `client` gets the interim answer that it waits for."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    message = HttpMessage(head, b"")
    if client is not None and message.header("Expect"):
        client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # The server is not to send another one.
        head = re.sub(rb"\r\n(?i:expect):[^\r\n]*", b"", head)
    if client is None and message.first_line[1].startswith("1"):
        return await _read(reader, None, head_only=head_only)
    if head_only or (client is None and message.first_line[1] in ("204", "304")):
        return HttpMessage(head, b"")
    if "chunked" in message.header("Transfer-Encoding"):
        return HttpMessage(head, await _chunks(reader))
    return HttpMessage(head, await reader.readexactly(int(message.header("Content-Length") or 0)))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """A chunked body, as it is on the wire."""
    found = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        found += line
        size = int(line.partition(b";")[0], 16)
        if not size:
            break
        found += await reader.readexactly(size + 2)
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        found += line
    return found + b"\r\n"


def _error(request: HttpMessage, status: str, code: str) -> bytes:
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return head if request.first_line[0] == "HEAD" else head + body


def _reset(client: asyncio.StreamWriter) -> None:
    """Ends the connection with RST instead of FIN."""
    connection: socket.socket = client.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.transport.abort()


@contextmanager
def faulty_storage(port: int, translate: Translation | None = None) -> Iterator[FaultyStorage]:
    """The proxy, for the time of the block."""
    proxy = FaultyStorage(port, translate)
    try:
        yield proxy
    finally:
        proxy.close()
