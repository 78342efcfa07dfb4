"""A Trino of one node on this machine, and queries by its HTTP protocol."""

from __future__ import annotations

import base64
import datetime
import http.client
import json
import os
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mirror_pump.database.quoting import literal
from mirror_pump.testing.mirror import Row, await_true
from tests.support.trino_package import trino_home, trino_java

_CONFIG = """
coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
discovery.uri=http://127.0.0.1:{port}
query.max-memory=200MB
query.max-memory-per-node=200MB
memory.heap-headroom-per-node=200MB
catalog.management=dynamic
"""
_HEADERS = {
    "X-Trino-User": "test",
    "X-Trino-Time-Zone": "UTC",
    # Without it, times have milliseconds.
    "X-Trino-Client-Capabilities": "PARAMETRIC_DATETIME",
}
_JAVA = (
    *("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8", "-Duser.timezone=UTC"),
    *("-Djdk.attach.allowAttachSelf=true", "-XX:+EnableDynamicAgentLoading", "--enable-native-access=ALL-UNNAMED"),
    # What etc/node.properties has otherwise. It would take an address of the machine and listen at all of them.
    *("-Dnode.environment=test", "-Dnode.id=test", "-Dnode.internal-address=127.0.0.1", "-Dnode.bind-ip=127.0.0.1"),
)


class TrinoFailed(Exception):
    """A statement failed; the message is Trino's."""


@dataclass(frozen=True)
class TrinoServer:
    """A running server."""

    port: int

    def rows(self, statement: str) -> list[Row]:
        """What a statement returns, as Python's values, in the order in which it comes. Raises TrinoFailed."""
        answer = self._ask("POST", "/v1/statement", statement)
        columns: list[dict[str, Any]] = []
        found: list[Row] = []
        while True:
            if "error" in answer:
                raise TrinoFailed(answer["error"]["message"])
            columns = answer.get("columns", columns)
            kinds = [column["typeSignature"] for column in columns]
            found += [tuple(map(_value, kinds, row)) for row in answer.get("data", [])]
            if "nextUri" not in answer:
                return found
            answer = self._ask("GET", urlsplit(answer["nextUri"]).path)

    def attach(self, name: str, properties: str) -> None:
        """Makes a catalog of what a file `etc/catalog/<name>.properties` would have, without a new start."""
        named = dict(line.split("=", 1) for line in properties.splitlines() if "=" in line and line[0] != "#")
        connector = named.pop("connector.name")
        given = ", ".join(f'"{key}" = {literal(value)}' for key, value in named.items())
        self.rows(f"CREATE CATALOG {name} USING {connector} WITH ({given})")

    def ready(self) -> bool:
        """Whether it answers queries."""
        try:
            if self._ask("GET", "/v1/info")["starting"]:
                return False
            return self.rows("SELECT count(*) FROM system.runtime.nodes WHERE state = 'active'") == [(1,)]
        except (OSError, TrinoFailed):
            return False

    def _ask(self, method: str, path: str, body: str | None = None) -> Any:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            content = None if body is None else body.encode()
            connection.request(method, path, content, _HEADERS)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise ConnectionError(f"{method} {path}: {answer.status} {text[:500].decode(errors='replace')}")
            return json.loads(text)


@contextmanager
def trino_server(directory: Path, catalogs: Mapping[str, str], **environment: str) -> Iterator[TrinoServer]:
    """A server during the block. `catalogs`: the content of each etc/catalog/<name>.properties. Raises NoTrino."""
    home, java = trino_home(), trino_java()
    stored = directory / "etc" / "catalog"
    stored.mkdir(parents=True)
    for name, properties in catalogs.items():
        (stored / f"{name}.properties").write_text(properties)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = directory / "etc" / "config.properties"
    config.write_text(_CONFIG.format(port=port))
    log = directory / "trino.log"
    settings = (f"-Dnode.data-dir={directory / 'data'}", f"-Dplugin.dir={home / 'plugin'}", f"-Dconfig={config}")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [java, *_JAVA, *settings, "-cp", f"{home / 'lib'}/*", "io.trino.server.TrinoServer"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={**os.environ, **environment},
        )
    try:
        server = TrinoServer(port)
        await_true(lambda: process.poll() is not None or server.ready(), 240, f"Trino starts, see {log}")
        assert process.poll() is None, log.read_text()[-3000:]
        yield server
    finally:
        # It has nothing that an orderly end, which takes seconds, would save.
        process.kill()
        process.wait(60)


def _value(signature: Mapping[str, Any], value: Any) -> Any:
    """A value of the protocol's JSON as psycopg gives one."""
    if value is None:
        return None
    match signature["rawType"]:
        case "array":
            return [_value(signature["arguments"][0]["value"], element) for element in value]
        case "decimal":
            return Decimal(value)
        case "double":
            return float(value)
        case "real":
            # Java writes another number of digits than PostgreSQL: what counts is the float.
            return struct.unpack("f", struct.pack("f", float(value)))[0]
        case "varbinary":
            return base64.b64decode(value)
        case "date":
            return datetime.date.fromisoformat(value)
        case "timestamp":
            return datetime.datetime.fromisoformat(value)
        case "timestamp with time zone":
            moment, zone = value.rsplit(" ", 1)
            assert zone == "UTC"
            return datetime.datetime.fromisoformat(moment).replace(tzinfo=datetime.UTC)
        case _:
            return value
