"""What the HTTP port answers and refuses, tested with sockets and a plain client."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

import psutil
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mirror_pump.errors import MirrorPumpError
from mirror_pump.http.access import Access
from mirror_pump.http.connection_limits import ADDRESS_CONNECTIONS, ADDRESS_REQUESTS, REQUESTS
from mirror_pump.http.server import HttpServer, application
from mirror_pump.monitoring.pump_state import PumpPhase
from mirror_pump.testing.mirror import await_true
from tests.support.monitored import Served, served, some_of_everything

_TOKEN = "correct-horse-battery-staple"
_PATHS = ("/", "/healthz", "/readyz", "/metrics", "/status.json", "/history.json")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with served(some_of_everything()) as running:
        yield _port(running)


@pytest.fixture(scope="module")
def guarded() -> Iterator[int]:
    with served(some_of_everything(), token=_TOKEN) as running:
        yield _port(running)


def _port(running: Served) -> int:
    return int(running.url.rpartition(":")[2])


def ask(
    port: int, path: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers by lower-case name, and body."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def send(port: int, head: bytes) -> bytes:
    """The server's answer to these bytes, up to the point where it closes the connection."""
    with closing(socket.create_connection(("127.0.0.1", port), timeout=60)) as connection:
        connection.sendall(head)
        received = b""
        while part := connection.recv(65536):
            received += part
        return received


@pytest.mark.parametrize("path", _PATHS)
def test_every_answer_forbids_caching_framing_and_foreign_content(port: int, path: str) -> None:
    status, headers, body = ask(port, path)
    assert status == 200
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers
    assert ask(port, path, "HEAD")[::2] == (200, b"")
    assert body


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "//", "/status.json/..", "/%2e%2e/etc/passwd", "/static/x"])
def test_unknown_paths_are_not_found(port: int, path: str) -> None:
    status, headers, _ = ask(port, path)
    assert status == 404
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused(port: int, method: str) -> None:
    status, headers, _ = ask(port, "/status.json", method)
    assert status == 405
    assert {method.strip() for method in headers["allow"].split(",")} == {"GET", "HEAD"}


def test_a_body_is_refused(port: int) -> None:
    assert ask(port, "/metrics", "GET", b"x")[0] == 413
    assert b" 413 " in send(port, b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nBad Header: x\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 20_000 + b"\r\n",
    ],
    ids=lambda head: head[:40].decode("latin-1"),
)
def test_malformed_and_oversized_heads_are_refused(port: int, head: bytes) -> None:
    try:
        answer = send(port, head)
    except ConnectionResetError:
        # The server closed the connection while the rest was still on its way.
        return
    assert answer.startswith(b"HTTP/1.1 4"), answer[:80]


def test_a_head_that_never_ends_is_cut_off() -> None:
    with served(some_of_everything(), head_seconds=0.2) as running:
        port = _port(running)
        assert send(port, b"") == b""
        assert send(port, b"GET / HTTP/1.1\r\nHost: local") == b""
        with closing(socket.create_connection(("127.0.0.1", port), timeout=60)) as connection:
            # The second request on a kept connection, before the server closes the connection as idle.
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            connection.sendall(b"GET /hea")
            began = time.monotonic()
            while connection.recv(65536):
                pass
            assert time.monotonic() - began < 4


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\nHost: local", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_probes_are_answered_whoever_holds_connections(port: int, start: bytes) -> None:
    """By connections that say nothing, that never end their request, or that are kept open after an answer."""
    count = 2 * ADDRESS_CONNECTIONS + 20
    with ExitStack() as stack:
        held = []
        for _ in range(count):
            connection = stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), timeout=60)))
            connection.sendall(start)
            held.append(connection)
            if len(held) % 50 == 0:
                assert ask(port, "/healthz")[0] == 200
        for path in ("/healthz", "/readyz", "/metrics"):
            assert ask(port, path)[0] == 200
        selector = stack.enter_context(selectors.DefaultSelector())
        for connection in held:
            selector.register(connection, selectors.EVENT_READ)
        # One address keeps only so many: the rest were closed, the oldest first.
        closed: set[int] = set()
        deadline = time.monotonic() + 20
        while len(closed) < count - ADDRESS_CONNECTIONS and time.monotonic() < deadline:
            closed |= {key.fd for key, _ in selector.select(1) if _is_closed(key.fileobj)}
        assert len(closed) >= count - ADDRESS_CONNECTIONS


def _is_closed(connection: Any) -> bool:
    try:
        return bool(connection.recv(65536) == b"")
    except ConnectionResetError:
        return True


def test_a_head_has_a_second(port: int) -> None:
    began = time.monotonic()
    assert send(port, b"GET / HTTP/1.1\r\nHost: local") == b""
    assert time.monotonic() - began < 5, "ten seconds would be far too long, and the machine may be busy"


class Gated:
    """An application whose answers wait until they are released, and one with a large answer."""

    def __init__(self) -> None:
        self.waiting = 0
        self.release: Callable[[], object] = lambda: None
        self._released = asyncio.Event()

    def routes(self) -> Sequence[BaseRoute]:
        return Route("/gate", self.wait), Route("/healthz", self.answer), Route("/large", self.large)

    async def wait(self, _: Request) -> Response:
        self.waiting += 1
        self.release = partial(asyncio.get_running_loop().call_soon_threadsafe, self._released.set)
        await self._released.wait()
        return Response(b"released")

    async def answer(self, _: Request) -> Response:
        return Response(b"well")

    async def large(self, _: Request) -> Response:
        return Response(b"x" * (64 << 20))


@contextmanager
def gated(**limits: float) -> Iterator[tuple[Gated, int]]:
    gate = Gated()
    app = application(gate.routes(), Access(None))
    with HttpServer("127.0.0.1", 0, app, **limits) as server:
        yield gate, int(server.url.rpartition(":")[2])


def test_requests_at_a_time_are_limited_for_each_address_and_in_all() -> None:
    """The program goes on to answer other addresses, and probes even if there is room for nobody."""
    with gated() as (gate, port), ExitStack() as stack:

        def begin(source: str) -> http.client.HTTPConnection:
            found = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(source, 0))
            stack.enter_context(closing(found)).request("GET", "/gate")
            return found

        def status_for(source: str, path: str) -> int:
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(source, 0))) as one:
                one.request("GET", path)
                return one.getresponse().status

        assert REQUESTS == 2 * ADDRESS_REQUESTS
        first = [begin("127.0.0.1") for _ in range(ADDRESS_REQUESTS)]
        await_true(lambda: gate.waiting == ADDRESS_REQUESTS, 20, "the requests have arrived")
        refused = begin("127.0.0.1").getresponse()
        assert (refused.status, refused.headers["retry-after"], refused.headers["connection"]) == (503, "1", "close")
        assert refused.headers["x-content-type-options"] == "nosniff"
        assert [status_for(source, "/healthz") for source in ("127.0.0.1", "127.0.0.2")] == [200, 200]
        second = [begin("127.0.0.2") for _ in range(ADDRESS_REQUESTS)]
        await_true(lambda: gate.waiting == REQUESTS, 20, "the requests have arrived")
        assert [status_for("127.0.0.3", path) for path in ("/gate", "/healthz")] == [503, 200]
        gate.release()
        assert [each.getresponse().status for each in (*first, *second)] == [200] * REQUESTS
        await_true(lambda: status_for("127.0.0.3", "/gate") == 200, 20, "places are free again")


def test_an_answer_that_is_not_read_is_cut_off() -> None:
    with gated(send_seconds=0.2) as (_, port):
        with closing(socket.create_connection(("127.0.0.1", port), timeout=60)) as connection:
            connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            ours = connection.getsockname()
            await_true(lambda: ours not in _peers(), 20, "the server gave it up")
        assert ask(port, "/healthz")[0] == 200


def _peers() -> set[tuple[str, int]]:
    """The other ends of this process's connections."""
    return {(each.raddr.ip, each.raddr.port) for each in psutil.Process().net_connections("tcp") if each.raddr}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "192.0.2.1", "127.0.0.1.evil.example", ""])
def test_without_a_token_only_loopback_names_are_answered(port: int, host: str) -> None:
    """A web page whose name resolves to this machine must not read the port."""
    for path in _PATHS:
        assert ask(port, path, Host=host)[0] == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9187", "[::1]:9187", "127.1.2.3"])
def test_loopback_names_are_answered(port: int, host: str) -> None:
    assert ask(port, "/healthz", Host=host)[0] == 200


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    "authorization", [f"Bearer {_TOKEN}", f"bearer {_TOKEN}", _basic("", _TOKEN), _basic("prometheus", _TOKEN)]
)
def test_the_token_opens_everything(guarded: int, authorization: str) -> None:
    for path in _PATHS:
        assert ask(guarded, path, Authorization=authorization, Host="pump-1.example")[0] == 200


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        f"Bearer {_TOKEN}x",
        f"Bearer {_TOKEN[:-1]}",
        f"Token {_TOKEN}",
        "Basic !",
        _basic(_TOKEN, "x"),
        "Bearer ü",
    ],
)
def test_without_the_token_only_probes_are_answered(guarded: int, authorization: str) -> None:
    headers = {"Authorization": authorization.encode().decode("latin-1")} if authorization else {}
    for path in (*_PATHS, "/nothing"):
        status, answer, body = ask(guarded, path, "GET", None, **headers)
        if path in ("/healthz", "/readyz"):
            assert status == 200
        else:
            assert status == 401
            assert answer["www-authenticate"].startswith("Basic ")
            assert b"shop" not in body


def test_probes_say_no_secret() -> None:
    with served(None, problem="cannot connect to secret-host", phase=PumpPhase.RETRYING) as running:
        port = _port(running)
        assert json.loads(ask(port, "/healthz")[2]) == {"status": "ok", "role": "leader"}
        status, _, body = ask(port, "/readyz")
        assert (status, json.loads(body)["ready"]) == (503, False)
        assert b"secret-host" not in body


def test_without_a_reading_the_status_is_unavailable() -> None:
    with served(None, problem="cannot connect to database shop") as running:
        status, _, body = ask(_port(running), "/status.json")
        assert (status, json.loads(body)) == (503, {"error": "cannot connect to database shop"})
        assert ask(_port(running), "/metrics")[0] == 200


def test_an_address_that_is_taken_is_an_error_that_says_so(port: int) -> None:
    with pytest.raises(MirrorPumpError, match=f"cannot listen at 127.0.0.1:{port}") as caught:
        HttpServer("127.0.0.1", port, application((), Access(None)))
    assert "--listen" in caught.value.remedy
