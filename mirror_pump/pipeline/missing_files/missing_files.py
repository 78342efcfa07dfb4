"""Decides what a missing lake file means: the table has to fail, or the storage as a whole is unavailable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from mirror_pump.errors import FileDamaged, FileMissing, TableError, repair_of
from mirror_pump.lake.commit.presence import (
    StoredTable,
    head_files,
    missed_once,
    require_all,
    require_known,
    require_warehouse,
    vanished,
)
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions, local_path, missing_files
from mirror_pump.model import MirroredTable, TableId, TableState
from mirror_pump.pipeline.missing_files.damaged_files import damage_failure
from mirror_pump.pipeline.operations.table_changes import Failure
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.retention.partitions import lake_locations
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("publish")

_MANIFESTS_INTERVAL = 60.0
"""Seconds between two checks of a table's manifests in an object store. Each of dozens of manifests takes a request."""


def stored_tables(connection: PgConnection) -> list[StoredTable]:
    """All mirrored tables with the locations of their files, from the catalog."""
    return fetch_rows(connection, StoredTable, _SQL["stored"])


def some_stored_tables(connection: PgConnection) -> list[StoredTable]:
    """As `stored_tables`, a few of them."""
    return fetch_rows(connection, StoredTable, _SQL["some_stored"])


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
        by_table: dict[TableId, list[str]] = {}
        now = time.monotonic()
        for table_id, table in tables.items():
            remote = local_path(table.metadata_location) is None
            due = not remote or now - self._manifests_seen.get(table_id, -_MANIFESTS_INTERVAL) >= _MANIFESTS_INTERVAL
            by_table[table_id] = head_files(table, manifests=due)
            if remote and due:
                self._manifests_seen[table_id] = now
        missing = missing_files((location for files in by_table.values() for location in files), self._storage)
        errors = {}
        for table_id, files in by_table.items():
            first = next((location for location in files if location in missing), None)
            if first is not None:
                self._manifests_seen.pop(table_id, None)
                errors[table_id] = FileMissing(f"{first} is missing", "", first)
        return errors

    def failure(self, table: MirroredTable, error: FileMissing) -> Failure:
        """The failure of the table because of a missing file, or because of what is damaged where that is looked for.
        Raises LakeError like `error_of`."""
        try:
            return Failure.of(table, self.error_of(table, error))
        except FileDamaged as damaged:
            return damage_failure(table, damaged)

    def confirmed(self, table: MirroredTable, suspect: str) -> Failure | None:
        """Like `failure`, for a file that was missed in some state of the table. None if the current state does not
        need it. Metadata that is damaged fails the table, too: nothing else tells whether it needs the file."""
        stored = self._stored()
        stored_table = _of(table, stored)
        if stored_table is None or stored_table.failed:
            return None
        try:
            missing = self._missing_of(stored_table, suspect)
        except FileDamaged as error:
            return damage_failure(table, error)
        return None if missing is None else Failure.of(table, self._lacking(table, stored_table, missing, stored))

    def error_of(self, table: MirroredTable, error: FileMissing) -> TableError:
        """The error of a table with a missing file. Raises LakeError if the file is back or no longer needed, or if the
        whole storage may be missing."""
        stored = self._stored()
        stored_table = _of(table, stored)
        if stored_table is None:
            # The table was unregistered in the meantime, maybe with its files. This registration cannot fail any more.
            return TableError(*vanished(str(table.name), error))
        missing = self._missing_of(stored_table, error.location)
        if missing is None:
            raise missed_once(error.location)
        return self._lacking(table, stored_table, missing, stored)

    def _missing_of(self, stored_table: StoredTable, suspect: str) -> FileMissing | None:
        """Check again for the missing file. It may be back, for example on a disk that was mounted again."""
        try:
            require_known(stored_table, suspect, self._storage)
        except FileMissing as error:
            return error
        return None

    def _lacking(
        self, table: MirroredTable, stored_table: StoredTable, missing: FileMissing, stored: Sequence[StoredTable]
    ) -> TableError:
        require_warehouse(missing.location, stored_table, stored, self._storage)
        return TableError(*vanished(str(table.name), missing, only_copy=_has_only_copy(table)))


def _has_only_copy(table: MirroredTable) -> bool:
    return table.tier is not None and table.tier.moved


def _of(table: MirroredTable, stored: Sequence[StoredTable]) -> StoredTable | None:
    """The stored table, unless it belongs to another registration."""
    return next(
        (
            candidate
            for candidate in stored
            if candidate.table_id == table.table_id and candidate.location == table.location
        ),
        None,
    )


def refuse_missing(connection: PgConnection, table: MirroredTable, storage: StorageOptions) -> None:
    """Raise TableError if a file that readers of the table need is missing, LakeError if the whole warehouse is."""
    with source_errors(f"looking for the files of {table.name}"):
        locations = lake_locations(connection, table.table_id)
    try:
        for location in locations:
            require_all(location, storage)
    except FileMissing as error:
        lacking = MissingFiles(storage, partial(stored_tables, connection)).error_of(table, error)
        if table.state is TableState.LIVE:
            lacking.remedy = repair_of(table.name.shell, error.location, only_copy=_has_only_copy(table))
        raise lacking from error


def explain_failed_read(dsn: str, table_ids: Iterable[TableId], storage: StorageOptions) -> None:
    """Explain a failed read by the table whose files are missing, instead of the one file that an engine missed: raise
    the error of `refuse_missing` for the first table that lacks a file. Return if no table lacks one."""
    with connect(dsn, autocommit=True, application_name="mirror-pump-read") as connection:
        for table_id in table_ids:
            table = load_table(connection, table_id)
            if table is not None:
                refuse_missing(connection, table, storage)
