"""How much of the HTTP port one client can take: what keeps it answering while others hold connections or requests.

A connection that has no request in progress costs next to nothing, and is closed when there are too many, the oldest
first. So a new one is always accepted, and what it asks for decides: probes are always answered, other requests if
there is room for them.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from typing import Any

import h11
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mirror_pump.http.access import PROBE_PATHS

REQUESTS = 64
"""Requests that are answered at the same time. Others get 503."""
ADDRESS_REQUESTS = 32
"""Those of one address."""
CONNECTIONS = 256
"""Open connections. Few enough for a process that may have a thousand files open."""
ADDRESS_CONNECTIONS = 64
"""Those of one address. More than its requests, so that one without a request can always be closed for a new one."""

_IPV6_NETWORK = 64
"""Bits of an IPv6 address that tell clients apart: a client can have all addresses of its network."""


def address_of(client: tuple[str, int] | None) -> str:
    """What counts as one address."""
    host = client[0].partition("%")[0] if client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4 or address.ipv4_mapped is not None:
        return host
    return str(ipaddress.ip_network((address, _IPV6_NETWORK), strict=False))


class RequestLimit:
    """ASGI middleware: refuses requests, but no probes, beyond REQUESTS and ADDRESS_REQUESTS."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._requests: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in PROBE_PATHS:
            await self._app(scope, receive, send)
            return
        address = address_of(scope["client"])
        if self._requests[address] >= ADDRESS_REQUESTS or self._requests.total() >= REQUESTS:
            refusal = PlainTextResponse(
                "too many requests at a time\n", 503, {"Connection": "close", "Retry-After": "1"}
            )
            await refusal(scope, receive, send)
            return
        self._requests[address] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._requests[address] -= 1
            # Without addresses that have none any more.
            self._requests = +self._requests


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol, which by itself waits for ever for a head that does not end, and for a client that does not
    read its answer."""

    def __init__(self, head_seconds: float, send_seconds: float, **named: Any) -> None:
        super().__init__(**named)
        self._head_seconds = head_seconds
        self._send_seconds = send_seconds
        self._head_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._opened_at = self.loop.time()
        self._address = ""
        self._dropped = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = address_of(self.client)
        self._await_head()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop_head_timer()
        elif self.conn.their_state is h11.IDLE:
            self._await_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._send_timer = self.loop.call_later(self._send_seconds, self._drop)

    def resume_writing(self) -> None:
        self._stop_send_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_send_timer()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_seconds, self._drop)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _drop(self) -> None:
        """Close the connection, without a wait for a client that does not read."""
        self._dropped = True
        self.transport.abort()

    def _make_room(self) -> None:
        """Close the oldest connection without a request, if there are too many of this address, or in all."""
        connections = [each for each in self.connections if isinstance(each, LimitedProtocol) and not each._dropped]
        counts = Counter(each._address for each in connections)
        if counts[self._address] > ADDRESS_CONNECTIONS:
            crowded = self._address
        elif len(connections) > CONNECTIONS:
            crowded = counts.most_common(1)[0][0]
        else:
            return
        idle = [each for each in connections if each._address == crowded and each is not self and each._is_idle()]
        if idle:
            min(idle, key=lambda each: each._opened_at)._drop()

    def _is_idle(self) -> bool:
        # uvicorn declares a cycle, and has none before the first request.
        cycle: Any = self.cycle
        return cycle is None or bool(cycle.response_complete)
