"""The catalog of a mirror's own database, for tables that are not mirrored: the rows that the pump's publish moves.

The compare-and-swap is an UPDATE with the old location in its condition: PostgreSQL locks the row, and evaluates the
condition again once it has the lock. If the connection is lost during COMMIT, the server knows the transaction's
outcome by its ID.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import class_row

from mirror_pump.database.errors import TRANSIENT_REMEDY, is_connection_loss, is_transient
from mirror_pump.database.opening import ConnectFailed
from mirror_pump.database.poolers import NotPassedOn, refusing_pooler
from mirror_pump.database.search_path import PINNED_PATH
from mirror_pump.database.session_settings import SettingForced, open_session
from mirror_pump.errors import ConnectionLost, LakeError, OutcomeUnknown, TransientRefusal, one_line_of
from mirror_pump.lake.commit.catalog import (
    CATALOG,
    delete_namespace,
    delete_pointer,
    ensure_namespace,
    insert_pointer,
    load_pointer,
    swap_pointer,
)
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.runtime.authentication import authenticated
from mirror_pump.runtime.backoff import Backoff
from mirror_pump.tables.catalogs.lake_catalog import (
    DirectoryClaim,
    MetadataPointer,
    PointerChange,
    PumpsTable,
    TableIdentifier,
    TableMoved,
    require_empty,
    require_namespace,
    staged_metadata,
)
from mirror_pump.tables.catalogs.table_directories import TableRow, claims_of, new_directory, require_apart
from sql import queries

_SQL = queries("pointers")
_PINNED_SETTINGS = (
    # It does not wait for standbys: the mirror's own stream may count as one, and stands still while no pump runs.
    "synchronous_commit=local",
    "statement_timeout=0",
    "lock_timeout=0",
    "idle_in_transaction_session_timeout=0",
    "idle_session_timeout=0",
    "default_transaction_read_only=off",
    "default_transaction_isolation=read\\ committed",
    "standard_conforming_strings=on",
    "exit_on_error=off",
)
_LOOKS = Backoff(first=0.1, longest=2.0, jitter=0.5)
_LOOK_SECONDS = 60.0
"""Seconds to find out about a commit whose answer was lost: the server may be restarting."""


@dataclass(frozen=True)
class _PointerRow:
    """A row of the query `list`."""

    namespace: str
    name: str
    metadata_location: str


class PostgresCatalog:
    """Iceberg's JDBC catalog in schema modak, which `mirror-pump init` makes. Threads may share it; a process that was
    forked opens its own connection."""

    has_transactions = True

    def __init__(self, dsn: str, warehouse: str, storage: StorageOptions | None = None, *, name: str = CATALOG) -> None:
        """`warehouse`: URI of the directory of the tables. `name`: the catalog's name within its tables."""
        self.storage = storage or StorageOptions()
        self._dsn = dsn
        self.warehouse = warehouse
        self._name = name
        self._lock = threading.RLock()
        self._opened: tuple[int, psycopg.Connection[Any]] | None = None

    def close(self) -> None:
        """Close the connection. Another call opens it again."""
        with self._lock:
            if self._opened is not None and self._opened[0] == os.getpid():
                self._opened[1].close()
            self._opened = None

    def load(self, table: TableIdentifier) -> MetadataPointer | None:
        with self._connection() as connection:
            location = load_pointer(connection, table.namespace, table.name, self._name)
        return None if location is None else MetadataPointer(location)

    def namespaces(self) -> Sequence[str]:
        with self._connection() as connection:
            rows = connection.execute(_SQL["namespaces"], (self._name,)).fetchall()
        return sorted({namespace for (namespace,) in rows} | {table.namespace for table in self.pointers()})

    def create_namespace(self, namespace: str, properties: Mapping[str, str] | None = None) -> bool:
        require_namespace(namespace)
        there = namespace in self.namespaces()
        with self._connection() as connection, connection.transaction():
            created = ensure_namespace(connection, namespace, self._name) and not there
            if created:
                self._set_properties(connection, namespace, properties or {})
        return created

    def namespace_properties(self, namespace: str) -> Mapping[str, str]:
        with self._connection() as connection:
            return dict(connection.execute(_SQL["namespace_properties"], (self._name, namespace)).fetchall())

    def change_properties(self, namespace: str, removals: Collection[str], updates: Mapping[str, str]) -> None:
        with self._connection() as connection, connection.transaction():
            ensure_namespace(connection, namespace, self._name)
            connection.execute(_SQL["remove_properties"], (self._name, namespace, list(removals)))
            self._set_properties(connection, namespace, updates)

    def _set_properties(
        self, connection: psycopg.Connection[Any], namespace: str, properties: Mapping[str, str]
    ) -> None:
        # In one order, so that two clients do not wait for each other.
        for key, value in sorted(properties.items()):
            connection.execute(_SQL["set_property"], (self._name, namespace, key, value))

    def drop_namespace(self, namespace: str) -> bool:
        require_empty(namespace, self.pointers(), self.namespaces())
        with self._connection() as connection:
            return delete_namespace(connection, namespace, self._name)

    def tables(self, namespace: str) -> Sequence[TableIdentifier]:
        return sorted(table for table in self.pointers() if table.namespace == namespace)

    def pointers(self) -> Mapping[TableIdentifier, MetadataPointer]:
        with self._connection() as connection, connection.cursor(row_factory=class_row(_PointerRow)) as cursor:
            rows = cursor.execute(_SQL["list"], (self._name,)).fetchall()
        return {TableIdentifier(row.namespace, row.name): MetadataPointer(row.metadata_location) for row in rows}

    def commit(self, changes: Sequence[PointerChange]) -> Sequence[MetadataPointer | None]:
        with staged_metadata(changes, self.storage) as pointers, self._connection() as connection:
            transaction = ""
            try:
                transaction = self._swapped(connection, changes, pointers)
                connection.execute("COMMIT")
            except BaseException as error:
                with suppress(psycopg.Error):
                    connection.execute("ROLLBACK")
                if not transaction or not isinstance(error, psycopg.Error) or not self._committed(transaction, error):
                    raise
        return pointers

    def _swapped(
        self,
        connection: psycopg.Connection[Any],
        changes: Sequence[PointerChange],
        pointers: Sequence[MetadataPointer | None],
    ) -> str:
        """Begins a transaction and moves the pointers in it. Returns its ID."""
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        if claims := claims_of(changes):
            connection.execute(_SQL["limit_waits"])
            # Before any row's, so that two commits do not wait for each other.
            connection.execute(_SQL["lock_additions"])
        names = [str(change.table) for change in changes]
        mirrored = connection.execute(_SQL["mirrored"], {"names": names}).fetchall() if self._name == CATALOG else []
        if mirrored:
            raise PumpsTable(
                f"{', '.join(name for (name,) in mirrored)} is the mirror's, so only the pump changes it",
                "choose another name, or change the table in PostgreSQL",
            )
        moved = [
            change.table
            # In one order, so that two commits do not wait for each other.
            for change, pointer in sorted(zip(changes, pointers, strict=True), key=lambda pair: pair[0].table)
            if not self._swap(connection, change, pointer)
        ]
        if moved:
            raise TableMoved(moved)
        if claims:
            self._require_apart(connection, claims)
        row = connection.execute(_SQL["transaction_id"]).fetchone()
        assert row is not None
        return str(row[0])

    def require_apart(self, claims: Sequence[DirectoryClaim]) -> None:
        with self._connection() as connection:
            self._require_apart(connection, claims)

    def _require_apart(self, connection: psycopg.Connection[Any], claims: Sequence[DirectoryClaim]) -> None:
        # Tables of the database's other catalogs too, the mirror's among them.
        with connection.cursor(row_factory=class_row(TableRow)) as cursor:
            require_apart(self._name, claims, cursor.execute(_SQL["all_tables"]).fetchall())

    def _swap(
        self, connection: psycopg.Connection[Any], change: PointerChange, pointer: MetadataPointer | None
    ) -> bool:
        """Moves one pointer. False if it is not at its base."""
        namespace, name = change.table.namespace, change.table.name
        if change.base is None:
            if pointer is None:
                return load_pointer(connection, namespace, name, self._name) is None
            ensure_namespace(connection, namespace, self._name)
            try:
                insert_pointer(connection, namespace, name, pointer.metadata_location, self._name)
            except errors.UniqueViolation:
                raise TableMoved([change.table]) from None
            return True
        old = change.base.metadata_location
        if pointer is None:
            # Deletes the row that the swap has just locked, with this very location.
            moved = swap_pointer(connection, namespace, name, old, old, self._name)
            return moved and delete_pointer(connection, namespace, name, self._name)
        return swap_pointer(connection, namespace, name, old, pointer.metadata_location, self._name)

    def _committed(self, transaction: str, error: psycopg.Error) -> bool:
        """Whether a transaction whose answer was lost committed. Waits for the end of the old session. Raises
        OutcomeUnknown if the server does not answer for too long."""
        deadline = time.monotonic() + _LOOK_SECONDS
        looks = 0
        while time.monotonic() < deadline:
            status = ""
            with suppress(psycopg.Error, ConnectionLost), self._connection() as connection:
                row = connection.execute(_SQL["transaction_status"], (transaction,)).fetchone()
                status = "" if row is None or row[0] is None else str(row[0])
            if status in ("committed", "aborted"):
                return status == "committed"
            looks += 1
            time.sleep(_LOOKS.shortened(_LOOKS.pause(looks)))
        raise OutcomeUnknown(
            f"the connection was lost during COMMIT of transaction {transaction}: {one_line_of(error)}",
            "load the table again when the server answers, and see whether the commit is there",
        ) from error

    def table_location(self, table: TableIdentifier) -> str:
        return new_directory(self.warehouse, table, self.namespace_properties(table.namespace))

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        """This process's connection, for one thread at a time. Raises ConnectionLost, TransientRefusal for what another
        attempt may cure, and LakeError for other errors of the server's."""
        with self._lock:
            try:
                if self._opened is None or self._opened[0] != os.getpid() or self._opened[1].closed:
                    opened = authenticated(self._dsn, _session)
                    self._opened = os.getpid(), opened
                yield self._opened[1]
            except psycopg.Error as error:
                if is_connection_loss(error):
                    raise ConnectionLost(
                        f"the catalog's server does not answer: {one_line_of(error)}", "try again when it is there"
                    ) from error
                refused = f"the catalog's server refuses: {one_line_of(error)}"
                if is_transient(error):
                    raise TransientRefusal(refused, TRANSIENT_REMEDY) from error
                raise LakeError(refused, _remedy(error)) from error


def _session(dsn: str) -> psycopg.Connection[Any]:
    """Whatever the role's settings are, an answered commit survives a crash of the server, nothing limits a
    transaction's time, and the catalog's triggers work."""
    given = conninfo_to_dict(dsn)
    pinned = " ".join(f"-c {setting}" for setting in _PINNED_SETTINGS)
    options = f"{given.get('options') or ''} {pinned} -c search_path={PINNED_PATH}".strip()
    return open_session(make_conninfo(dsn, options=options), autocommit=True)


def _remedy(error: psycopg.Error) -> str:
    if isinstance(error, (SettingForced, NotPassedOn)):
        return error.remedy
    if isinstance(error, ConnectFailed):
        pooler = refusing_pooler(error, ())
        return pooler.remedy if pooler is not None else "check user, password, database and pg_hba.conf"
    if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
        # No server has been asked.
        return "mend the connection string"
    return "mirror-pump init makes schema modak"
