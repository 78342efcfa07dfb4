"""A proxy in front of a REST catalog, which loses answers and hides what a catalog can do."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class RestDoor(ThreadingHTTPServer):
    """Forwards requests to a catalog that listens at a port of this machine."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _DoorHandler)
        self.target = port
        self.loses = ""
        """The next request whose line has this text is done, and its answer lost."""
        self.refuses = ""
        """Requests whose line has this text get this status."""
        self.status = 400
        self.hides = ""
        """The catalog does not say that it has an endpoint with this text."""
        self.requests: list[str] = []
        """The lines of all requests."""

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def open(self) -> Iterator[Self]:
        """Forwards within the block."""
        with self:
            thread = threading.Thread(target=self.serve_forever, name="rest-door", daemon=True)
            thread.start()
            yield self
            self.shutdown()
            thread.join(60)


class _DoorHandler(BaseHTTPRequestHandler):
    server: RestDoor
    protocol_version = "HTTP/1.1"

    def _forward(self) -> None:
        door, line = self.server, f"{self.command} {self.path}"
        door.requests.append(line)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if door.refuses and door.refuses in line:
            error = {"message": "no", "type": "BadRequestException", "code": door.status}
            self._answer(door.status, json.dumps({"error": error}).encode())
            return
        headers = {name: value for name, value in self.headers.items() if name != "Accept-Encoding"}
        with closing(http.client.HTTPConnection("127.0.0.1", door.target, timeout=60)) as connection:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        if door.loses and door.loses in line:
            door.loses = ""
            self.close_connection = True
            return
        if door.hides and self.path.startswith("/v1/config"):
            document = json.loads(content)
            document["endpoints"] = [each for each in document["endpoints"] if door.hides not in each]
            content = json.dumps(document).encode()
        self._answer(answer.status, content)

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_POST = do_DELETE = do_HEAD = _forward  # noqa: N815 - names of the library

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the library has it
        """Says nothing."""
