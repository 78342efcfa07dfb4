"""Followers' catalogs whose answers are meant to harm the pump, or never end."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from thrift.transport.TTransport import TTransportException

from mirror_pump.errors import FollowerAway
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn
from mirror_pump.ops.follow.answer_limits import AnswerLimits
from mirror_pump.ops.follow.follower_catalog import FollowerCatalog
from mirror_pump.ops.follow.hive_catalog import FollowingHive
from mirror_pump.source.catalog.followers import Follower, FollowerKind

_EGG = "this"
"""A module that nothing imports but who is made to."""
_IMPORT = {"py-io-impl": f"{_EGG}.s"}
_LOGIN = {"auth": {"type": "custom", "impl": f"{_EGG}.s", "custom": {}}}
_ENDLESS = 600
"""Parts of an answer that takes 30 s, or pages of one."""
_PAUSE = 0.05


class HostileCatalog(ThreadingHTTPServer):
    """Answers what a test has it answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _HostileHandler)
        self.config: dict[str, object] = {}
        self.table: dict[str, object] = {}
        self.properties: dict[str, str] = {}
        self.namespaces = ""
        """How it answers when it is asked for namespaces."""
        self.paths: list[str] = []

    def follower(self) -> Follower:
        """One whose catalog this is."""
        now = datetime.now(UTC)
        return Follower(
            slot="slot",
            name="hostile",
            follower_id="00000000-0000-0000-0000-000000000000",
            kind=FollowerKind.REST,
            options={"uri": f"http://127.0.0.1:{self.server_port}", "oauth2-server-uri": "https://login.invalid"},
            credential_ref=None,
            namespace_pattern="{schema}",
            table_pattern="{table}",
            frontier=None,
            reached_at=None,
            examined_at=None,
            moves_together=None,
            error=None,
            behind_since=None,
            ends=False,
            published=Lsn(1),
            published_at=now,
            read_at=now,
            tables=0,
            refused=0,
            may_move=True,
        )


class _HostileHandler(BaseHTTPRequestHandler):
    server: HostileCatalog

    def do_GET(self) -> None:
        catalog, path = self.server, self.path.partition("?")[0]
        catalog.paths.append(path)
        if path == "/v1/config":
            self._answer({"defaults": {}, "overrides": {}, **catalog.config})
        elif not path.endswith("/namespaces"):
            location = "s3://nowhere/t/0.metadata.json"
            self._answer({"metadata-location": location, "metadata": _metadata(catalog.properties), **catalog.table})
        elif catalog.namespaces == "bomb":
            self._send(gzip.compress(b" " * (65 << 20) + b'{"namespaces":[]}'), {"Content-Encoding": "gzip"})
        elif catalog.namespaces == "drip":
            self._drip()
        elif catalog.namespaces == "header":
            self._drip(b"HTTP/1.1 200 OK\r\nX-Endless: ")
        elif catalog.namespaces == "pages":
            time.sleep(_PAUSE)
            self._answer({"namespaces": [], "next-page-token": "next" if len(catalog.paths) < _ENDLESS else None})
        else:
            self._answer({"namespaces": []})

    def _answer(self, document: object) -> None:
        self._send(json.dumps(document).encode(), {})

    def _send(self, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(200)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(content)

    def _drip(self, head: bytes = b"") -> None:
        with suppress(OSError):
            if head:
                self.wfile.write(head)
            else:
                self._send(b"", {"Content-Length": str(_ENDLESS)})
            for _ in range(_ENDLESS):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(_PAUSE)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the library has it
        """Says nothing."""


def _metadata(properties: Mapping[str, str]) -> dict[str, object]:
    return {
        "format-version": 2,
        "table-uuid": "11111111-1111-1111-1111-111111111111",
        "location": "s3://nowhere/t",
        "last-sequence-number": 0,
        "last-updated-ms": 1,
        "last-column-id": 1,
        "schemas": [
            {
                "type": "struct",
                "schema-id": 0,
                "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}],
            }
        ],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": dict(properties),
        "snapshots": [],
    }


@pytest.fixture
def hostile() -> Iterator[HostileCatalog]:
    with HostileCatalog() as catalog:
        thread = threading.Thread(target=catalog.serve_forever, args=(0.05,), name="hostile-catalog", daemon=True)
        thread.start()
        yield catalog
        catalog.shutdown()
        thread.join(60)


@pytest.mark.parametrize(
    ("config", "table", "properties"),
    [
        ({}, {}, _IMPORT),
        ({}, {"config": _IMPORT}, {}),
        ({"defaults": _IMPORT}, {}, {}),
        ({"overrides": _IMPORT}, {}, {}),
        ({"overrides": _LOGIN}, {}, {}),
    ],
    ids=["property", "table", "default", "override", "login"],
)
def test_no_answer_imports_a_module(
    hostile: HostileCatalog,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, object],
    table: dict[str, object],
    properties: dict[str, str],
) -> None:
    monkeypatch.delitem(sys.modules, _EGG, raising=False)
    hostile.config, hostile.table, hostile.properties = config, table, properties
    assert FollowerCatalog(hostile.follower(), StorageOptions()).load(("s", "t")) is not None
    assert _EGG not in sys.modules


def test_a_catalog_says_where_its_tables_are_and_not_where_credentials_go(hostile: HostileCatalog) -> None:
    answered = {"prefix": "shop", "oauth2-server-uri": "http://127.0.0.1:1", "rest.sigv4-enabled": "true"}
    hostile.config = {"overrides": answered}
    catalog = FollowerCatalog(hostile.follower(), StorageOptions())
    assert catalog.load(("s", "t")) is not None
    assert hostile.paths[-1] == "/v1/shop/namespaces/s/tables/t"
    assert catalog._catalog.properties == {**hostile.follower().options, "prefix": "shop"}


def test_an_answer_has_a_size(hostile: HostileCatalog) -> None:
    hostile.namespaces = "bomb"
    with pytest.raises(FollowerAway, match="it has more than 67108864 bytes"):
        FollowerCatalog(hostile.follower(), StorageOptions())


def test_a_list_has_a_length() -> None:
    """Of a Hive metastore, whose answer says it before."""
    name = b"get_all_databases"
    head = struct.pack(">Ii", 0x80010002, len(name)) + name + bytes(4)
    endless = head + struct.pack(">BhBi", 15, 0, 12, 2**31 - 1)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connected, _ = server.accept()
            with connected:
                connected.recv(4096)
                connected.sendall(endless)

        thread = threading.Thread(target=answer, name="hostile-metastore", daemon=True)
        thread.start()
        limits = AnswerLimits(60.0)
        catalog = FollowingHive("f", {"uri": f"thrift://127.0.0.1:{server.getsockname()[1]}"}, StorageOptions(), limits)
        with pytest.raises(TTransportException, match="Length exceeded"):
            catalog.list_namespaces()
        thread.join(60)


@pytest.mark.parametrize("answer", ["drip", "header", "pages"])
def test_an_answer_has_an_end(hostile: HostileCatalog, answer: str) -> None:
    hostile.namespaces = answer
    with pytest.raises(FollowerAway, match=r"not complete after 1 s|timed out"):
        FollowerCatalog(hostile.follower(), StorageOptions(), patience=1.0)
