"""A catalog in a SQLite file, for the processes of one machine. pyiceberg's SqlCatalog opens the same file.

The compare-and-swap is an UPDATE with the old location in its condition. BEGIN IMMEDIATE takes the only write lock that
there is before the row is read, so no other process can come in between.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from importlib import resources
from pathlib import Path

from mirror_pump.errors import LakeError, OutcomeUnknown
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.tables.catalogs.lake_catalog import (
    DirectoryClaim,
    MetadataPointer,
    PointerChange,
    TableIdentifier,
    TableMoved,
    require_empty,
    require_namespace,
    staged_metadata,
)
from mirror_pump.tables.catalogs.table_directories import TableRow, claims_of, new_directory, require_apart

_WAIT = 30.0
"""Seconds to wait for other writers. Each holds the lock for one small transaction."""

_SCHEMA = resources.files("sql").joinpath("sqlite_catalog.sql")
_ADD_NAMESPACE = "INSERT OR IGNORE INTO iceberg_namespace_properties VALUES (?, ?, 'exists', 'true')"
_SET_PROPERTY = "INSERT OR REPLACE INTO iceberg_namespace_properties VALUES (?, ?, ?, ?)"
_REMOVE_PROPERTY = (
    "DELETE FROM iceberg_namespace_properties WHERE catalog_name = ? AND namespace = ? AND property_key = ?"
)
_DROP_NAMESPACE = "DELETE FROM iceberg_namespace_properties WHERE catalog_name = ? AND namespace = ?"
_ROW = [column.name for column in fields(TableRow)]
_KEYS = "catalog_name, table_namespace, table_name"
_KEY = "catalog_name = ? AND table_namespace = ? AND table_name = ?"


class SqliteCatalog:
    """Iceberg's JDBC catalog in a SQLite file, which is made if necessary. Threads may share it; a process that was
    forked opens its own connection."""

    has_transactions = True

    def __init__(
        self, file: Path, warehouse: str, storage: StorageOptions | None = None, *, name: str = "lake"
    ) -> None:
        """`warehouse`: URI of the directory of the tables. `name`: the catalog's name within the file."""
        self.storage = storage or StorageOptions()
        self._file = file
        self.warehouse = warehouse
        self._name = name
        self._lock = threading.RLock()
        self._opened: tuple[int, sqlite3.Connection] | None = None
        with self._connection() as connection:
            # A reader never waits for a writer. Cannot be changed while others use the file, and stays once it is set.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA.read_text(encoding="utf-8"))

    def close(self) -> None:
        """Close the connection. Another call opens it again."""
        with self._lock:
            if self._opened is not None and self._opened[0] == os.getpid():
                self._opened[1].close()
            self._opened = None

    def load(self, table: TableIdentifier) -> MetadataPointer | None:
        with self._connection() as connection:
            location = self._location(connection, table)
        return None if location is None else MetadataPointer(location)

    def namespaces(self) -> Sequence[str]:
        with self._connection() as connection:
            rows = connection.execute(
                "SELECT DISTINCT namespace FROM iceberg_namespace_properties WHERE catalog_name = ?", (self._name,)
            ).fetchall()
        return sorted({namespace for (namespace,) in rows} | {table.namespace for table in self.pointers()})

    def create_namespace(self, namespace: str, properties: Mapping[str, str] | None = None) -> bool:
        require_namespace(namespace)
        with self._writing() as connection:
            there = namespace in self.namespaces()
            connection.execute(_ADD_NAMESPACE, (self._name, namespace))
            if not there:
                self._set_properties(connection, namespace, properties or {})
        return not there

    def namespace_properties(self, namespace: str) -> Mapping[str, str]:
        statement = "SELECT * FROM iceberg_namespace_properties WHERE catalog_name = ? AND namespace = ?"
        with self._connection() as connection:
            rows = _by_name(connection).execute(statement, (self._name, namespace)).fetchall()
        properties = {row["property_key"]: row["property_value"] for row in rows}
        return {key: value for key, value in properties.items() if key != "exists"}

    def change_properties(self, namespace: str, removals: Collection[str], updates: Mapping[str, str]) -> None:
        with self._writing() as connection:
            connection.execute(_ADD_NAMESPACE, (self._name, namespace))
            connection.executemany(_REMOVE_PROPERTY, [(self._name, namespace, key) for key in removals])
            self._set_properties(connection, namespace, updates)

    def _set_properties(self, connection: sqlite3.Connection, namespace: str, properties: Mapping[str, str]) -> None:
        rows = [(self._name, namespace, key, value) for key, value in properties.items()]
        connection.executemany(_SET_PROPERTY, rows)

    def drop_namespace(self, namespace: str) -> bool:
        with self._writing() as connection:
            require_empty(namespace, self.pointers(), self.namespaces())
            return connection.execute(_DROP_NAMESPACE, (self._name, namespace)).rowcount > 0

    def tables(self, namespace: str) -> Sequence[TableIdentifier]:
        return sorted(table for table in self.pointers() if table.namespace == namespace)

    def pointers(self) -> Mapping[TableIdentifier, MetadataPointer]:
        with self._connection() as connection:
            rows = (
                _by_name(connection)
                .execute("SELECT * FROM iceberg_tables WHERE catalog_name = ?", (self._name,))
                .fetchall()
            )
        return {
            TableIdentifier(row["table_namespace"], row["table_name"]): MetadataPointer(row["metadata_location"])
            for row in rows
            if row["metadata_location"] is not None
        }

    def commit(self, changes: Sequence[PointerChange]) -> Sequence[MetadataPointer | None]:
        with staged_metadata(changes, self.storage) as pointers, self._connection() as connection, _begun(connection):
            try:
                with _ended(connection):
                    self._swap_all(connection, changes, pointers)
            except sqlite3.Error as error:
                if not self._landed(connection, changes, pointers, error):
                    raise
        return pointers

    def _swap_all(
        self,
        connection: sqlite3.Connection,
        changes: Sequence[PointerChange],
        pointers: Sequence[MetadataPointer | None],
    ) -> None:
        pairs = zip(changes, pointers, strict=True)
        moved = [change.table for change, pointer in pairs if not self._swap(connection, change, pointer)]
        if moved:
            raise TableMoved(moved)
        if claims := claims_of(changes):
            self._require_apart(connection, claims)

    def require_apart(self, claims: Sequence[DirectoryClaim]) -> None:
        with self._connection() as connection:
            self._require_apart(connection, claims)

    def _require_apart(self, connection: sqlite3.Connection, claims: Sequence[DirectoryClaim]) -> None:
        rows = _by_name(connection).execute("SELECT * FROM iceberg_tables").fetchall()
        named = [{column: row[column] for column in _ROW} for row in rows if row["metadata_location"] is not None]
        require_apart(self._name, claims, [TableRow(**row) for row in named])

    def _landed(
        self,
        connection: sqlite3.Connection,
        changes: Sequence[PointerChange],
        pointers: Sequence[MetadataPointer | None],
        error: sqlite3.Error,
    ) -> bool:
        """Whether a commit that failed is there nevertheless. Raises OutcomeUnknown if the file cannot be read."""
        try:
            locations = [self._location(connection, change.table) for change in changes]
        except sqlite3.Error:
            raise OutcomeUnknown(
                f"{self._file} failed during a commit, and cannot be read: {error}",
                "see whether the commit is there when the file can be read again",
            ) from error
        return locations == [None if pointer is None else pointer.metadata_location for pointer in pointers]

    def _location(self, connection: sqlite3.Connection, table: TableIdentifier) -> str | None:
        row = connection.execute(
            f"SELECT metadata_location FROM iceberg_tables WHERE {_KEY}", (self._name, table.namespace, table.name)
        ).fetchone()
        return None if row is None else row[0]

    def _swap(self, connection: sqlite3.Connection, change: PointerChange, pointer: MetadataPointer | None) -> bool:
        """Moves one pointer. False if it is not at its base."""
        key = (self._name, change.table.namespace, change.table.name)
        if change.base is None:
            if pointer is None or self._location(connection, change.table) is not None:
                return pointer is None
            connection.execute(_ADD_NAMESPACE, key[:2])
            connection.execute(
                f"INSERT INTO iceberg_tables ({_KEYS}, metadata_location) VALUES (?, ?, ?, ?)",
                (*key, pointer.metadata_location),
            )
            return True
        old = change.base.metadata_location
        if pointer is None:
            statement = f"DELETE FROM iceberg_tables WHERE {_KEY} AND metadata_location = ?"
            return connection.execute(statement, (*key, old)).rowcount == 1
        statement = (
            "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ?"
            f" WHERE {_KEY} AND metadata_location = ?"
        )
        return connection.execute(statement, (pointer.metadata_location, old, *key, old)).rowcount == 1

    def table_location(self, table: TableIdentifier) -> str:
        return new_directory(self.warehouse, table, self.namespace_properties(table.namespace))

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction of which repeating does no harm, so an error says that it may have happened."""
        with self._connection() as connection, _begun(connection), _ended(connection):
            yield connection

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """This process's connection, for one thread at a time. Raises LakeError for an error of SQLite's."""
        with self._lock:
            try:
                if self._opened is None or self._opened[0] != os.getpid():
                    # SQLite gives the files beside it the same permissions.
                    os.close(os.open(self._file, os.O_RDWR | os.O_CREAT, self.storage.file_mode))
                    # A connection must not be carried over a fork (SQLite, "How To Corrupt").
                    connection = sqlite3.connect(
                        self._file, timeout=_WAIT, isolation_level=None, check_same_thread=False
                    )
                    # Each commit reaches the disk. WAL's default would lose the last ones in a power failure.
                    connection.execute(f"PRAGMA synchronous = {'FULL' if self.storage.fsync else 'NORMAL'}")
                    self._opened = os.getpid(), connection
                yield self._opened[1]
            except (sqlite3.Error, OSError) as error:
                raise LakeError(
                    f"the catalog {self._file}: {error}", "check the file, its directory and their permissions"
                ) from error


def _by_name(connection: sqlite3.Connection) -> sqlite3.Cursor:
    """A cursor whose rows have names."""
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    return cursor


@contextmanager
def _begun(connection: sqlite3.Connection) -> Iterator[None]:
    """Begins a transaction, which locks out all other writers. None stays, whatever interrupts the caller."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
    finally:
        if connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")


@contextmanager
def _ended(connection: sqlite3.Connection) -> Iterator[None]:
    """Ends a transaction that has begun: by COMMIT, or by ROLLBACK after an error, that of COMMIT included."""
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
