"""Catalogs that are no REST catalogs, as followers: AWS Glue as moto has it, and a Hive metastore."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import requests
from moto.server import ThreadedMotoServer
from pyiceberg.catalog.glue import GlueCatalog

from mirror_pump.ops.duckdb_connection import open_duckdb
from tests.support.hive_metastore import HiveMetastore, hive_metastore

_KEYS = {"access-key-id": "key", "secret-access-key": "the-secret"}


class Metastore(Protocol):
    """A server that tests share."""

    @property
    def arguments(self) -> Sequence[str]:
        """What `follow add` needs."""

    def pyiceberg(self) -> Any:
        """pyiceberg's own client of it."""

    def alter(self, table: str, parameters: Mapping[str, str]) -> None:
        """Changes parameters of public.`table`, as any program can."""

    def clear(self) -> None:
        """Drops what other tests have left."""


@dataclass(frozen=True)
class MotoGlue:
    """Glue by its protocol."""

    endpoint: str

    @property
    def arguments(self) -> Sequence[str]:
        """With credentials by reference."""
        options = (f"glue.endpoint={self.endpoint}", "glue.region=eu-west-1")
        return "--glue", "--credentials", "glue", *(text for option in options for text in ("--option", option))

    def pyiceberg(self) -> GlueCatalog:
        """pyiceberg's own client of it."""
        keys = {f"glue.{name}": value for name, value in _KEYS.items()}
        return GlueCatalog("test", **{"glue.endpoint": self.endpoint, "glue.region": "eu-west-1", **keys})

    def alter(self, table: str, parameters: Mapping[str, str]) -> None:
        """Changes parameters of public.`table`, as any program can."""
        client = self.pyiceberg().glue
        stored = client.get_table(DatabaseName="public", Name=table)["Table"]
        altered = {key: stored[key] for key in ("Name", "TableType", "StorageDescriptor")}
        altered["Parameters"] = {**stored["Parameters"], **parameters}
        client.update_table(DatabaseName="public", TableInput=altered)

    def clear(self) -> None:
        """Drops what other tests have left."""
        requests.post(f"{self.endpoint}/moto-api/reset", timeout=60).raise_for_status()


@dataclass(frozen=True)
class Hive:
    """A Hive metastore."""

    server: HiveMetastore

    @property
    def arguments(self) -> Sequence[str]:
        """Of a metastore of Hive 2, whose types are fewer."""
        return "--hive", self.server.uri, "--option", "hive.hive2-compatible=true"

    def pyiceberg(self) -> Any:
        """pyiceberg's own client of it."""
        return self.server.pyiceberg()

    def alter(self, table: str, parameters: Mapping[str, str]) -> None:
        """Changes parameters of public.`table`, as any program can."""
        with self.pyiceberg()._client as client:
            stored = client.get_table("public", table)
            stored.parameters |= parameters
            client.alter_table("public", table, stored)

    def clear(self) -> None:
        """Drops what other tests have left."""
        with self.pyiceberg()._client as client:
            for database in set(client.get_all_databases()) - {"default"}:
                client.drop_database(database, deleteData=False, cascade=True)


@contextmanager
def moto_glue() -> Iterator[MotoGlue]:
    """A Glue within the block, whose credentials the environment has."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ["MODAK_CREDENTIALS_GLUE"] = (
        f"access_key={_KEYS['access-key-id']}\nsecret_key={_KEYS['secret-access-key']}"
    )
    try:
        yield MotoGlue(f"http://{host}:{port}")
    finally:
        # Another server of this process may have ended before.
        os.environ.pop("MODAK_CREDENTIALS_GLUE", None)
        server.stop()


@contextmanager
def hive(directory: Path) -> Iterator[Hive]:
    """A Hive metastore within the block."""
    with hive_metastore(directory) as server:
        yield Hive(server)


def rows_there(catalog: Any, table: str, namespace: str = "public") -> list[tuple[Any, ...]]:
    """The rows of a table, by the metadata file that its catalog names."""
    location = catalog.load_table((namespace, table)).metadata_location
    rows: list[tuple[Any, ...]] = open_duckdb().execute(f"SELECT * FROM iceberg_scan('{location}')").fetchall()
    return rows
