"""The HTTP port: an ASGI application made of parts, served by uvicorn in a thread of the pump."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from functools import partial
from typing import Self, cast

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from mirror_pump.errors import MirrorPumpError
from mirror_pump.http.access import HEAD_BYTES, Access, Guard
from mirror_pump.http.connection_limits import LimitedProtocol, RequestLimit
from mirror_pump.runtime.service_thread import ServiceThread
from mirror_pump.runtime.telemetry import get_logger

_STOP_WITHIN = 3.0
"""Seconds that the server has to end with the pump."""


def application(routes: Sequence[BaseRoute], access: Access) -> Starlette:
    """The application of the port. A further service on the same port is a Mount with routes of its own."""
    app = Starlette(routes=routes, middleware=[Middleware(Guard, access=access), Middleware(RequestLimit)])
    # A path is known or not: a redirect would only repeat the Host header of the request.
    app.router.redirect_slashes = False
    return app


class HttpServer:
    """Listens from its creation on. Enter it to serve, leave it to stop."""

    def __init__(
        self, host: str, port: int, app: Starlette, *, head_seconds: float = 1.0, send_seconds: float = 20.0
    ) -> None:
        """`head_seconds`: how long the head of a request may take to arrive. `send_seconds`: how long a client may read
        nothing of its answer. Raises MirrorPumpError if the address cannot be listened at."""
        self._socket = _listen(host, port)
        log = logging.getLogger("uvicorn.error")
        # Its warnings are of malformed requests, which anybody can send.
        log.setLevel(logging.ERROR)
        log.addFilter(_is_error)
        config = uvicorn.Config(
            app,
            http=cast("type[LimitedProtocol]", partial(LimitedProtocol, head_seconds, send_seconds)),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=HEAD_BYTES,
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

    def __exit__(self, *_: object) -> None:
        self._thread.stop()
        self._socket.close()

    def _serve(self) -> None:
        # Signals stay with the main thread: uvicorn takes them only there.
        self._server.run(sockets=[self._socket])

    def _exit(self) -> None:
        self._server.should_exit = True


def _is_error(record: logging.LogRecord) -> bool:
    """Whether a message of uvicorn says more than that the server stopped while it answered a request."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, asyncio.CancelledError) and not record.getMessage().startswith("Cancel ")


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
