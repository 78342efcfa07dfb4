"""Files of object stores for DuckDB, as this program opens them: DuckDB's extensions know fewer ways to credentials."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fsspec import AbstractFileSystem

from mirror_pump.lake.profile_access import ReachableWarehouse, SentProfiles
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.lake.storage.remote_files import remote_file
from mirror_pump.storage_kinds import KINDS

if TYPE_CHECKING:
    import duckdb


def register_files(connection: duckdb.DuckDBPyConnection, warehouses: Sequence[ReachableWarehouse]) -> None:
    """Has the connection read these warehouses, which are in stores that DuckDB has no client of its own for here."""
    schemes = tuple(kind.scheme for kind in KINDS if kind.duckdb_secret({}) is None)
    with suppress(Exception):
        connection.unregister_filesystem(schemes[0])
    connection.register_filesystem(
        _FilesystemOfStores(schemes, StorageOptions(profiles=SentProfiles(tuple(warehouses))))
    )


class _FilesystemOfStores(AbstractFileSystem):  # type: ignore[misc]
    """What DuckDB uses of fsspec's interface, for reading."""

    cachable = False

    def __init__(self, schemes: tuple[str, ...], storage: StorageOptions) -> None:
        super().__init__()
        self.protocol = schemes
        self._storage = storage

    def open(self, path: str, *_: Any, **__: Any) -> Any:
        filesystem, key = remote_file(path, self._storage)
        return filesystem.open_input_file(key)

    def size(self, path: str) -> int:
        return int(self._info(path).size or 0)

    def exists(self, path: str, **_: Any) -> bool:
        return bool(self._info(path).is_file)

    def modified(self, path: str) -> datetime:
        modified: datetime = self._info(path).mtime
        return modified

    def glob(self, path: str, **_: Any) -> list[str]:
        return [path]

    def _info(self, path: str) -> Any:
        filesystem, key = remote_file(path, self._storage)
        return filesystem.get_file_info(key)
