"""Decides what a missing lake file means: the table has to fail, or the storage as a whole is unavailable."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from mirror_pump.errors import FileMissing, TableError
from mirror_pump.lake.commit.presence import (
    StoredTable,
    head_files,
    missed_once,
    require_known,
    require_warehouse,
    vanished,
)
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions, local_path, missing_files
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.pipeline.operations.table_changes import Failure
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("publish")

_MANIFESTS_INTERVAL = 60.0
"""Seconds between two checks of a table's manifests in an object store. Each of dozens of manifests takes a request."""


def stored_tables(connection: PgConnection) -> list[StoredTable]:
    """All mirrored tables with the locations of their files, from the catalog."""
    return fetch_rows(connection, StoredTable, _SQL["stored"])


class MissingFiles:
    """Finds out what missing files mean. Only one thread at a time may use it. `stored` returns all mirrored tables."""

    def __init__(self, storage: StorageOptions, stored: Callable[[], Sequence[StoredTable]]) -> None:
        self._storage = storage
        self._stored = stored
        self._manifests_seen: dict[TableId, float] = {}
        """For tables in object stores, when all manifests were last found: time.monotonic(), in seconds."""

    def in_heads(self, tables: Mapping[TableId, LakeTable]) -> dict[TableId, FileMissing]:
        """The tables that must not get a commit, because a file of their current state is missing.

        Checks the metadata file, the manifest lists and the manifests. On local disks this takes microseconds. In
        object stores the manifests are checked only once a minute, and all requests of one call are made in parallel.
        Raises LakeError if the storage does not answer.
        """
        wanted: dict[TableId, list[str]] = {}
        now = time.monotonic()
        for table_id, table in tables.items():
            remote = local_path(table.metadata_location) is None
            due = not remote or now - self._manifests_seen.get(table_id, -_MANIFESTS_INTERVAL) >= _MANIFESTS_INTERVAL
            wanted[table_id] = head_files(table, manifests=due)
            if remote and due:
                self._manifests_seen[table_id] = now
        missing = missing_files((location for files in wanted.values() for location in files), self._storage)
        found = {}
        for table_id, files in wanted.items():
            first = next((location for location in files if location in missing), None)
            if first is not None:
                self._manifests_seen.pop(table_id, None)
                found[table_id] = FileMissing(f"{first} is missing", "", first)
        return found

    def failure(self, table: MirroredTable, error: FileMissing) -> Failure:
        """The failure of the table because of a missing file. Raises LakeError like `error_of`."""
        return Failure.of(table, self.error_of(table, error))

    def confirmed(self, table: MirroredTable, suspect: str) -> Failure | None:
        """Like `failure`, for a file that was missed in some state of the table. None if the current state does not
        need it."""
        stored = self._stored()
        own = _of(table, stored)
        missing = None if own is None or own.failed else self._missing_of(own, suspect)
        return None if own is None or missing is None else Failure.of(table, self._lacking(table, own, missing, stored))

    def error_of(self, table: MirroredTable, error: FileMissing) -> TableError:
        """The error of a table with a missing file. Raises LakeError if the file is back or no longer needed, or if the
        whole storage may be missing."""
        stored = self._stored()
        own = _of(table, stored)
        if own is None:
            # The table was unregistered in the meantime, maybe with its files. This registration cannot fail any more.
            return TableError(*vanished(str(table.name), error))
        missing = self._missing_of(own, error.location)
        if missing is None:
            raise missed_once(error.location)
        return self._lacking(table, own, missing, stored)

    def _missing_of(self, own: StoredTable, suspect: str) -> FileMissing | None:
        """Check again for the missing file. It may be back, for example on a disk that was mounted again."""
        try:
            require_known(own, suspect, self._storage)
        except FileMissing as error:
            return error
        return None

    def _lacking(
        self, table: MirroredTable, own: StoredTable, missing: FileMissing, stored: Sequence[StoredTable]
    ) -> TableError:
        require_warehouse(missing.location, own, stored, self._storage)
        only_copy = table.tier is not None and table.tier.moved
        return TableError(*vanished(str(table.name), missing, only_copy=only_copy))


def _of(table: MirroredTable, stored: Sequence[StoredTable]) -> StoredTable | None:
    """The stored table, unless it belongs to another registration."""
    return next(
        (known for known in stored if known.table_id == table.table_id and known.location == table.location), None
    )
