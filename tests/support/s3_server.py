"""As much of S3 as a mirror needs, over a dictionary: whole objects, multipart uploads, ranges, listings, deletes."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase, BytesIO
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape


class S3Server(ThreadingHTTPServer):
    """Listens on a free port of this machine. Checks no signatures, but keeps the access keys of the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        """By bucket/key."""
        self.parts: dict[str, dict[int, bytes]] = {}
        self._refusals = 0
        self.keys: set[str] = set()
        """Access keys of the requests."""
        self.forbidden = False
        """Answers every request with 403."""
        self.conditions = True
        """Whether it honours If-None-Match; older stores ignore it."""
        self.knows_conditions = True
        """Whether it does not answer NotImplemented to If-None-Match."""
        self.lost_answers = ""
        """The next conditional PUT of a key that this regular expression matches is done, and its answer lost."""
        self.refused_after_loss = 0
        """How many requests are answered with 403 after a lost answer, as while credentials are renewed."""
        self.request_seconds = 0.0
        """How long it waits before it does what a request asks for."""
        self.unlisted = ""
        """Keys that this regular expression matches are missing in listings, as right after a PUT to older stores."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def storage_settings(self) -> dict[str, str]:
        """Settings of a mirror whose lake is here."""
        return {
            "storage_endpoint": self.endpoint,
            "storage_region": "eu-central-1",
            "storage_access_key": "pump",
            "storage_secret_key": "pump's secret",
        }

    def begin_refusals(self) -> None:
        """An answer was lost."""
        self._refusals, self.refused_after_loss = self.refused_after_loss, 0

    def take_refusal(self) -> bool:
        """Whether the next request is refused."""
        refused = self._refusals > 0
        self._refusals -= int(refused)
        return refused

    @contextmanager
    def serving(self) -> Iterator[Self]:
        """Serves in a thread, within the block."""
        with self:
            thread = threading.Thread(target=self.serve_forever, name="s3", daemon=True)
            thread.start()
            yield self
            self.shutdown()
            thread.join(60)


def s3_server() -> AbstractContextManager[S3Server]:
    """The server, within a block."""
    return S3Server().serving()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """An answer's head and body are sent one after the other: otherwise the body waits 40 ms for the head's receipt."""
    server: S3Server

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        time.sleep(self.server.request_seconds)
        if not (self.server.forbidden or self.server.take_refusal()):
            return True
        self._body()
        self._answer(403, _error("AccessDenied"))
        # Whatever `forbidden` is by now: a second answer to this request would be taken for one to the next.
        return False

    def do_GET(self) -> None:
        path, query = self._target()
        if "list-type" in query or "/" not in path:
            return self._list(path, query)
        content = self.server.objects.get(path)
        if content is None:
            return self._answer(404, _error("NoSuchKey"))
        found = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if found is None:
            return self._answer(200, content, {"ETag": _etag(content)})
        first, last = int(found[1]), min(int(found[2] or len(content) - 1), len(content) - 1)
        span = f"bytes {first}-{last}/{len(content)}"
        return self._answer(206, content[first : last + 1], {"ETag": _etag(content), "Content-Range": span})

    do_HEAD = do_GET  # noqa: N815 - the name that the base class looks for

    def do_PUT(self) -> None:
        path, query = self._target()
        content = self._body()
        if self.headers.get("If-None-Match") and not self.server.knows_conditions:
            return self._answer(400, _error("NotImplemented"))
        if "uploadId" in query:
            self.server.parts[query["uploadId"]][int(query["partNumber"])] = content
        elif "/" in path and self.headers.get("If-None-Match") == "*" and self.server.conditions:
            # setdefault is atomic: one of several requests creates the object.
            if self.server.objects.setdefault(path, content) is not content:
                return self._answer(412, _error("PreconditionFailed"))
            if self.server.lost_answers and re.search(self.server.lost_answers, path):
                self.server.lost_answers = ""
                self.server.begin_refusals()
                self.close_connection = True
                return None
        elif "/" in path:
            self.server.objects[path] = content
        return self._answer(200, b"", {"ETag": _etag(content)})

    def do_POST(self) -> None:
        path, query = self._target()
        content = self._body()
        if "delete" in query:
            for key in re.findall("<Key>(.*?)</Key>", content.decode()):
                self.server.objects.pop(f"{path}/{unescape(key)}", None)
            return self._answer(200, _xml("DeleteResult", ""))
        if "uploads" in query:
            name = f"u{len(self.server.parts)}"
            self.server.parts[name] = {}
            return self._answer(200, _xml("InitiateMultipartUploadResult", f"<UploadId>{name}</UploadId>"))
        if "uploadId" in query:
            parts = self.server.parts[query["uploadId"]]
            self.server.objects[path] = b"".join(parts[number] for number in sorted(parts))
            return self._answer(200, _xml("CompleteMultipartUploadResult", f"<Key>{escape(path)}</Key>"))
        return self._answer(400, _error("NotImplemented"))

    def do_DELETE(self) -> None:
        self.server.objects.pop(self._target()[0], None)
        self._answer(204, b"")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class gives it
        """Logs nothing."""

    def _target(self) -> tuple[str, dict[str, str]]:
        found = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization", ""))
        if found is not None:
            self.server.keys.add(found[1])
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
        # An object's name may end with a slash: clients create such objects, empty, for directories.
        path = unquote(url.path).lstrip("/")
        return path.rstrip("/") if path.count("/") <= 1 else path, query

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            content = _unchunked(self.rfile)
        else:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        # The client's own chunks with their checksums, inside HTTP's.
        aws = "aws-chunked" in self.headers.get("Content-Encoding", "")
        return _unchunked(BytesIO(content)) if aws else content

    def _list(self, path: str, query: dict[str, str]) -> None:
        bucket = path.partition("/")[0]
        prefix = query.get("prefix", "")
        found, common = [], set()
        for name in sorted(self.server.objects):
            key = name.removeprefix(f"{bucket}/")
            if self.server.unlisted and re.search(self.server.unlisted, key):
                continue
            if name.startswith(f"{bucket}/") and key.startswith(prefix):
                delimiter = query.get("delimiter")
                below, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                if cut:
                    common.add(f"{prefix}{below}{cut}")
                else:
                    found.append((key, len(self.server.objects[name])))
        listed = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, size in found
        )
        listed += "".join(
            f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>" for prefix in sorted(common)
        )
        self._answer(200, _xml("ListBucketResult", f"<IsTruncated>false</IsTruncated>{listed}"))

    def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), "Accept-Ranges": "bytes", **(headers or {})}.items():
            self.send_header(name, value)
        if status in (200, 206):
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _unchunked(stream: BufferedIOBase) -> bytes:
    """The chunks of a stream up to the empty line after the last one."""
    whole = b""
    while size := int(stream.readline().partition(b";")[0], 16):
        whole += stream.read(size)
        stream.readline()
    while stream.readline().strip():
        pass
    return whole


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _xml(name: str, content: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><{name}>{content}</{name}>'.encode()


def _error(code: str) -> bytes:
    return _xml("Error", f"<Code>{code}</Code><Message>{code}</Message>")
