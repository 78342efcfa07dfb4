"""Loads by HTTP: answers, refusals, bodies that do not end, and what is read ahead of a load."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psutil
import pytest

from mirror_pump.http.access import Access
from mirror_pump.http.server import HttpServer, application
from mirror_pump.ops.load.load_endpoint import LoadEndpoint, _RequestBody
from mirror_pump.settings.config import Settings
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.testing.mirror import await_true
from tests.support.loads import LoadedTable, Loader

pytestmark = pytest.mark.further

TEXT = b"id,at,v\n1,50,x\n2,150,y\n3,250,z\n"
_TOKEN = "correct-horse-battery-staple"
_BEARER = {"Authorization": f"Bearer {_TOKEN}"}
_CSV = {"label": "a", "format": "csv"}


@contextmanager
def port_of(
    dsn: str, *, token: str | None = None, load_token: str | None = None, loads: bool = True, **options: Any
) -> Iterator[int]:
    """A port that takes loads. `options` are limits, and load_bytes."""
    sizes = {"load_bytes": options.pop("load_bytes")} if "load_bytes" in options else {}
    settings = Settings(dsn=dsn, loads=True, limits=InternalLimits(**options), **sizes)
    app = application(LoadEndpoint(settings).routes(), Access(token, loads, load_token))
    with HttpServer("127.0.0.1", 0, app) as server:
        yield int(server.url.rpartition(":")[2])


def put(
    port: int, body: Any, headers: dict[str, str], path: str = "/load/ev", method: str = "PUT", seconds: float = 30
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, JSON answer (or its text), and headers by lower-case name."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)) as connection:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        found = {name.lower(): value for name, value in answer.getheaders()}
        if found.get("content-type") == "application/json":
            return answer.status, json.loads(text), found
        return answer.status, {"text": text.decode()}, found


def test_a_load_is_answered_with_its_result_and_so_is_a_replay(table: LoadedTable) -> None:
    with port_of(table.database.dsn) as port:
        status, answer, _ = put(port, TEXT, {"label": "\u00e4".encode().decode("latin-1"), "Content-Type": "text/csv"})
        assert status == 200
        assert (answer["label"], answer["state"], answer["replayed"]) == ("\u00e4", "committed", False)
        assert (answer["rows_loaded"], answer["rows_filtered"], answer["rows_below_cutline"]) == (3, 0, 2)
        same = {"label": "\u00e4".encode().decode("latin-1")}
        # In parts of unknown number, and with the format in the query.
        assert put(port, iter([TEXT[:9], TEXT[9:]]), same, "/load/public.ev?format=csv")[:2] == (
            200,
            answer | {"replayed": True},
        )
        status, answer, _ = put(port, TEXT + b"4,260,w\n", same | {"format": "csv"})
        assert status == 409
        assert "another load was committed" in answer["error"]
        status, answer, _ = put(port, b"id,at\n1,50\n3,250\n", _CSV | {"mode": "delete"})
        assert (status, answer["rows_loaded"]) == (200, 2)
    assert table.heap() == [(2, 150, "y", 7)]


@pytest.mark.parametrize(
    ("headers", "path", "status", "text"),
    [
        ({"format": "csv"}, "/load/ev?label=a", 400, "`label` is missing"),
        ({"label": "a"}, "/load/ev", 400, "`format` is csv, jsonl or parquet"),
        (_CSV | {"mode": "replace"}, "/load/ev", 400, "upsert, insert or delete"),
        (_CSV | {"max-filtered": "x"}, "/load/ev", 400, "a number"),
        (_CSV, "/load/ev?max-filtered=%D9%A1", 400, "a number"),
        (_CSV, "/load/e%00v", 400, "NUL"),
        (_CSV, "/load/ev?columns=%00", 400, "NUL"),
        (_CSV | {"label": "a\tb"}, "/load/ev", 400, "control character"),
        (_CSV, "/load/nothing", 400, "there is no table nothing"),
        (_CSV, "/load/pg_class", 422, "is not registered"),
        (_CSV | {"Origin": "http://127.0.0.1"}, "/load/ev", 403, "a web page"),
        (_CSV | {"Sec-Fetch-Site": "same-origin"}, "/load/ev", 403, "a web page"),
        (_CSV | {"Host": "evil.example"}, "/load/ev", 421, "loopback"),
    ],
)
def test_requests_that_are_refused(
    table: LoadedTable, headers: dict[str, str], path: str, status: int, text: str
) -> None:
    with port_of(table.database.dsn) as port:
        found, answer, _ = put(port, TEXT, headers, path)
    assert (found, text in json.dumps(answer)) == (status, True), answer
    assert table.labels() == {}


def test_a_port_that_takes_no_loads_refuses_the_body(table: LoadedTable) -> None:
    with port_of(table.database.dsn, loads=False) as port:
        assert put(port, TEXT, _CSV)[0] == 413
    with port_of(table.database.dsn) as port:
        assert put(port, TEXT, _CSV, method="POST")[0] == 413
        assert put(port, None, {}, "/load/ev", "GET")[0] == 405
        assert (
            put(port, None, {"Origin": "http://x", "Access-Control-Request-Method": "PUT"}, method="OPTIONS")[0] == 405
        )
    assert table.labels() == {}


def test_a_token_is_needed_where_there_is_one(table: LoadedTable) -> None:
    reading = "the token for metrics"
    with port_of(table.database.dsn, token=reading, load_token=_TOKEN) as port:
        assert put(port, TEXT, _CSV)[0] == 401
        assert put(port, TEXT, _CSV | {"Authorization": "Bearer wrong"})[0] == 401
        # Each of the two is good for its own purpose only.
        assert put(port, TEXT, _CSV | {"Authorization": f"Bearer {reading}"})[0] == 401
        assert put(port, None, _BEARER, "/metrics", "GET")[0] == 401
        assert put(port, None, {"Authorization": f"Bearer {reading}"}, "/metrics", "GET")[0] == 404
        assert put(port, TEXT, _CSV | _BEARER | {"Origin": "http://127.0.0.1"})[0] == 403
        assert table.labels() == {}
        assert put(port, TEXT, _CSV | _BEARER)[0] == 200


def test_rights_and_filtered_rows_are_told(table: LoadedTable, loader: Loader) -> None:
    with port_of(loader.dsn) as port:
        status, answer, _ = put(port, TEXT, _CSV)
        assert (status, "permission denied" in answer["error"]) == (403, True)
    with port_of(table.database.dsn) as port:
        status, answer, _ = put(port, TEXT + b"x,1,y\n5\n", _CSV)
        assert status == 422
        assert [row["row"] for row in answer["filtered"]] == [4]
        status, answer, _ = put(port, TEXT + b"x,1,y\n5\n", _CSV | {"max-filtered": "2"})
        assert (status, answer["rows_filtered"], answer["rows_loaded"]) == (200, 2, 3)


def test_bodies_that_are_too_large_are_refused(table: LoadedTable) -> None:
    with port_of(table.database.dsn, load_bytes=1000) as port:
        large = b"id,at\n" + b"".join(b"%d,250\n" % n for n in range(1000))
        # At once if the length is told, and when it is seen if not.
        assert put(port, large, _CSV)[0] == 413
        assert put(port, iter([large[:600], large[600:]]), _CSV)[0] == 413
        assert put(port, TEXT, _CSV | {"label": "b"})[0] == 200
    assert table.labels()["b"] == "committed"
    assert table.labels().get("a") != "committed"


def test_rows_that_are_nested_too_deeply_are_filtered(table: LoadedTable) -> None:
    with port_of(table.database.dsn) as port:
        for levels in (300, 600, 100_000):
            for opening, closing_ in (("[", "]"), ('{"a":', "}")):
                row = '{"id": 1, "at": 150, "v": ' + opening * levels + "1" + closing_ * levels + "}\n"
                status, answer, _ = put(port, row.encode(), {"label": f"{levels}{opening}", "format": "jsonl"})
                assert (status, "too deep" in answer["filtered"][0]["reason"]) == (422, True), answer


def test_bodies_that_do_not_end_load_nothing(table: LoadedTable) -> None:
    def begin(port: int) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", port), timeout=30)
        client.sendall(
            b"PUT /load/ev HTTP/1.1\r\nHost: localhost\r\nlabel: a\r\nformat: csv\r\nContent-Length: 100\r\n\r\n" + TEXT
        )
        return client

    with port_of(table.database.dsn, load_pause=0.2, loads_at_once=1) as port:
        with begin(port) as client:
            assert client.recv(65536).startswith(b"HTTP/1.1 408")
        with begin(port) as client:
            client.shutdown(socket.SHUT_RDWR)
        # Both have ended, and no slot is lost.
        await_true(lambda: put(port, TEXT, {"label": "b", "format": "csv"})[0] == 200, 30, "a load is taken")
    with port_of(table.database.dsn, load_seconds=0.2) as port, begin(port) as client:
        assert client.recv(65536).startswith(b"HTTP/1.1 408")
    assert table.labels().get("a") != "committed"


@pytest.mark.parametrize("stops", [False, True])
def test_a_load_that_is_broken_off_is_no_error_of_the_server(
    table: LoadedTable, caplog: pytest.LogCaptureFixture, *, stops: bool
) -> None:
    """Not when the client goes away, and not when the server stops."""
    with closing(socket.socket()) as client, port_of(table.database.dsn, loads_at_once=1) as port:
        client.connect(("127.0.0.1", port))
        client.sendall(
            b"PUT /load/ev HTTP/1.1\r\nHost: localhost\r\nlabel: a\r\nformat: csv\r\nContent-Length: 100\r\n\r\n"
        )
        await_true(lambda: put(port, TEXT, _CSV | {"label": "b"})[0] == 429, 30, "the load has begun")
        if not stops:
            client.close()
            await_true(lambda: put(port, TEXT, _CSV | {"label": "b"})[0] == 200, 30, "the load has ended")
    assert table.labels().get("a") != "committed"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_further_loads_are_told_to_come_again(table: LoadedTable) -> None:
    with port_of(table.database.dsn, loads_at_once=1, load_lock_seconds=0.1) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(
                b"PUT /load/ev HTTP/1.1\r\nHost: localhost\r\nlabel: a\r\nformat: csv\r\nContent-Length: 100\r\n\r\n"
            )
            await_true(lambda: put(port, TEXT, _CSV | {"label": "b"})[0] == 429, 30, "one load too many")
            status, answer, headers = put(port, TEXT, _CSV | {"label": "b"})
            assert (status, answer["retry"], headers["retry-after"]) == (429, True, "5")
        await_true(lambda: put(port, TEXT, _CSV | {"label": "b"})[0] == 200, 30, "the first one is gone")
        with table.database.session(autocommit=False) as other:
            other.execute("SELECT modak.begin_load('ev', 'c', '{}')")
            status, answer, _ = put(port, TEXT, _CSV | {"label": "c"})
            assert (status, answer["retry"]) == (503, True)
            other.rollback()
            other.execute("LOCK TABLE ev IN ACCESS EXCLUSIVE MODE")
            assert put(port, TEXT, _CSV | {"label": "c"})[0] == 503
            other.rollback()


def test_a_database_that_is_away_is_told() -> None:
    with port_of("postgresql://127.0.0.1:1/nothing") as port:
        status, answer, headers = put(port, TEXT, _CSV)
    assert (status, answer["retry"], headers["retry-after"]) == (503, True, "5")


def test_the_server_reads_no_more_of_a_body_than_the_load_takes() -> None:
    async def fill() -> int:
        body = _RequestBody(asyncio.get_running_loop(), 1.0)
        taken = 0
        try:
            while taken < 100:
                async with asyncio.timeout(0.2):
                    await body.put(b"x" * 65536)
                taken += 1
        except TimeoutError:
            pass
        return taken

    assert asyncio.run(fill()) == 8


@pytest.mark.soak
def test_memory_does_not_grow_with_the_body(table: LoadedTable) -> None:
    """A body of 512 MiB, in rows of 16 KiB, after one of 32 MiB."""
    process, highest = psutil.Process(), [0]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            highest[0] = max(highest[0], process.memory_info().rss)

    def body(mebibytes: int) -> Iterator[bytes]:
        yield b"id,at,v\n"
        for number in range(mebibytes * 64):
            yield b"%d,250,%s\n" % (number % 100, b"x" * 16380)

    watcher = threading.Thread(target=watch)
    watcher.start()
    peaks = []
    try:
        with port_of(table.database.dsn) as port:
            for mebibytes in (32, 512):
                highest[0] = 0
                label = f"l{mebibytes}"
                status, answer, _ = put(port, body(mebibytes), {"label": label, "format": "csv"}, seconds=300)
                assert (status, answer["rows_read"]) == (200, mebibytes * 64)
                peaks.append(highest[0] / 2**20)
    finally:
        stop.set()
        watcher.join()
    assert peaks[1] < peaks[0] + 64, peaks
