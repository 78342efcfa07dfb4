"""Iceberg's own REST catalog, the fixture of its tests, as a server that tests start and stop."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog

from mirror_pump.engine.spark_runtime.java import find_java_home
from mirror_pump.ops.duckdb_connection import open_duckdb
from mirror_pump.testing.mirror import await_true
from tests.support.maven_jars import SPARK_JARS, directory_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_JARS = directory_of("iceberg-rest")
_SERVER = "org.apache.iceberg.rest.RESTCatalogServer"


def free_port() -> int:
    """A port of this machine that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class IcebergRest:
    """A REST catalog in a process of its own, which keeps its tables' names in a file: it can be away for a while."""

    directory: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CATALOG_")},
            "CATALOG_URI": f"jdbc:sqlite:{self.directory}/catalog.db",
            "CATALOG_WAREHOUSE": (self.directory / "warehouse").as_uri(),
            "CATALOG_REST_PORT": str(self.port),
        }
        command = [
            *(str(find_java_home() / "bin" / "java"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-cp", f"{_JARS}/*:{SPARK_JARS}/*", _SERVER),
        ]
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        await_true(self._answers, 60, "the REST catalog answers")

    def stop(self) -> None:
        """Ends it. Its tables' names stay."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)
            self.process = None

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.directory / "server.log").read_text()[-2000:]
        with suppress(requests.ConnectionError):
            return requests.get(f"{self.uri}/v1/config", timeout=10).status_code == 200
        return False

    def pyiceberg(self) -> RestCatalog:
        """pyiceberg as a client of it."""
        return RestCatalog("follower", uri=self.uri)

    def duckdb(self) -> DuckDBPyConnection:
        """DuckDB with the catalog attached as `other`."""
        connection = open_duckdb("httpfs")
        connection.execute(
            f"ATTACH 'warehouse' AS other (TYPE iceberg, ENDPOINT '{self.uri}', AUTHORIZATION_TYPE 'none',"
            " ACCESS_DELEGATION_MODE 'none')"
        )
        return connection


@contextmanager
def iceberg_rest(directory: Path) -> Iterator[IcebergRest]:
    """A server within the block. Without its jars the test is skipped."""
    if not _JARS.exists():
        pytest.skip("no REST catalog of Iceberg's: `make test` brings it")
    server = IcebergRest(directory)
    try:
        server.start()
        yield server
    finally:
        server.stop()
