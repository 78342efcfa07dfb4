"""The HTTP port: an ASGI application made of parts, served by uvicorn in a thread of the pump."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute
from uvicorn.protocols.http.h11_impl import H11Protocol

from mirror_pump.errors import MirrorPumpError
from mirror_pump.monitoring.access import HEAD_BYTES, Access, Guard
from mirror_pump.service_thread import ServiceThread
from mirror_pump.telemetry import get_logger

CONNECTIONS = 64
"""Connections at the same time. Others get 503."""
_STOP_WITHIN = 3.0
"""Seconds that the server has to end with the pump."""


def application(routes: Sequence[BaseRoute], access: Access) -> Starlette:
    """The application of the port. A further service on the same port is a Mount with routes of its own."""
    app = Starlette(routes=routes, middleware=[Middleware(Guard, access=access)])
    # A path is known or not: a redirect would only repeat the Host header of the request.
    app.router.redirect_slashes = False
    return app


class _Protocol(H11Protocol):
    """uvicorn's protocol, which by itself waits for ever for a head that does not end."""

    def __init__(self, head_seconds: float, **named: Any) -> None:
        super().__init__(**named)
        self._head_seconds = head_seconds
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop_timer()
        elif self.conn.their_state is h11.IDLE:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class HttpServer:
    """Listens from its creation on. Enter it to serve, leave it to stop."""

    def __init__(self, host: str, port: int, app: Starlette, *, head_seconds: float = 10.0) -> None:
        """`head_seconds`: how long the head of a request may take to arrive. Raises MirrorPumpError if the address
        cannot be listened at."""
        self._socket = _listen(host, port)
        # Its warnings are of malformed requests, which anybody can send.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        config = uvicorn.Config(
            app,
            http=cast("type[_Protocol]", partial(_Protocol, head_seconds)),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=HEAD_BYTES,
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = ServiceThread("http", self._serve, interrupt=self._exit, stop_within=_STOP_WITHIN)

    @property
    def url(self) -> str:
        """Where it listens. The port that was chosen, if 0 was asked for."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        get_logger("listen").info("listening", url=self.url)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.stop()
        self._socket.close()

    def _serve(self) -> None:
        # Signals stay with the main thread: uvicorn takes them only there.
        self._server.run(sockets=[self._socket])

    def _exit(self) -> None:
        self._server.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(address[:2], family=family)
        # Connections inherit it. Otherwise the kernel keeps a body back until the client has acknowledged the head,
        # which takes 40 ms. asyncio sets it only on sockets that name TCP as their protocol.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise MirrorPumpError(
            f"cannot listen at {host}:{port}: {error.strerror or error}",
            "choose another address or port with --listen, or stop what listens there",
        ) from None
