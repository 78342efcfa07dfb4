"""Sets a table aside whose files are gone from the lake; raises while it is the storage that is gone."""

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
"""Seconds between two looks at the manifests of a table in an object store: each is a request, and there are dozens."""


def stored_tables(connection: PgConnection) -> list[StoredTable]:
    """All mirrored tables, as the catalog names their files."""
    return fetch_rows(connection, StoredTable, _SQL["stored"])


class MissingFiles:
    """Knows where all mirrored tables' files are. One thread at a time."""

    def __init__(self, storage: StorageOptions, stored: Callable[[], Sequence[StoredTable]]) -> None:
        self._storage = storage
        self._stored = stored
        self._manifests_seen: dict[TableId, float] = {}
        """When all manifests of a table were there, time.monotonic(), seconds: of those in object stores."""

    def in_heads(self, tables: Mapping[TableId, LakeTable]) -> dict[TableId, FileMissing]:
        """The tables on top of which no commit may be built, since a file of the present state is gone.

        On local disks the metadata file, the manifest lists and all manifests are looked for: microseconds. In object
        stores the manifests are looked for once a minute only; all looks of one call are made in parallel. Raises
        LakeError if the storage does not answer.
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
        """Why the table is set aside. Raises as `error_of`."""
        return Failure.of(table, self.error_of(table, error))

    def confirmed(self, table: MirroredTable, suspect: str) -> Failure | None:
        """As `failure`, for a file that somebody missed at some state of the table; None if the present one does not
        need it."""
        stored = self._stored()
        own = _of(table, stored)
        missing = None if own is None or own.failed else self._missing_of(own, suspect)
        return None if own is None or missing is None else Failure.of(table, self._lacking(table, own, missing, stored))

    def error_of(self, table: MirroredTable, error: FileMissing) -> TableError:
        """What a missing file means for the table. Raises LakeError if it is there again, not needed any more, or if
        the whole storage may be what is missing."""
        stored = self._stored()
        own = _of(table, stored)
        if own is None:
            # It was unregistered meanwhile, maybe with its files: this registration cannot fail any more.
            return TableError(*vanished(str(table.name), error))
        missing = self._missing_of(own, error.location)
        if missing is None:
            raise missed_once(error.location)
        return self._lacking(table, own, missing, stored)

    def _missing_of(self, own: StoredTable, suspect: str) -> FileMissing | None:
        """What was missed may have come back, as a disk that is mounted again: so it is looked for once more."""
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
    """The table's row, unless that is another registration's."""
    return next(
        (known for known in stored if known.table_id == table.table_id and known.location == table.location), None
    )
