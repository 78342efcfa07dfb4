"""A path catalog with transactions over several tables: a log of commits in the warehouse decides.

Commit N is `<root>/_transactions/<N, 20 digits>.json`, created if absent. It names for each of its tables the new
metadata file, and namespaces that are created or dropped. A commit that finds its number taken reads the entry that
took it. If that concerns none of its tables it takes the next number, else it conflicts. So every reader of the log up
to N sees all tables at one moment.

The tables' own `v<N>.metadata.json` are put after the entry, for readers that know Iceberg's HadoopCatalog only. If a
writer dies in between, the next one puts them.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import orjson

from mirror_pump.errors import FileMissing, LakeError, UsageError
from mirror_pump.lake.format.damaged_files import decoding
from mirror_pump.lake.storage import StorageOptions, exists, join, local_path, read_bytes, write_bytes
from mirror_pump.tables.catalogs.lake_catalog import (
    MetadataPointer,
    PointerChange,
    TableIdentifier,
    TableMoved,
    require_empty,
    require_namespace,
    staged_metadata,
)
from mirror_pump.tables.catalogs.path_catalog import (
    FIRST_ENTRY,
    LOG,
    PathCatalog,
    dropped_content,
    new_metadata,
    plain_content,
    table_directory,
    version_location,
    write_hint,
)
from mirror_pump.tables.put_if_absent import ProbedStore, put_if_absent

_FORMAT = 1
CHECKPOINT_EVERY = 100
"""Entries from one checkpoint to the next: a process that opens the warehouse reads at most this many."""
_HINT = "last-checkpoint.text"


@dataclass(frozen=True)
class LoggedTable:
    """A table as of an entry of the log."""

    version: int
    """Number of its commits, those of dropped tables of the same name included."""
    location: str | None
    """Its metadata file; None if it was dropped."""

    @property
    def pointer(self) -> MetadataPointer | None:
        return None if self.location is None else MetadataPointer(self.location, self.version)

    def to_json(self) -> dict[str, Any]:
        """In the form of the log."""
        return {"version": self.version, "metadata-location": self.location}


@dataclass(frozen=True)
class LogEntry:
    """What an entry changes, or all that a checkpoint knows."""

    tables: Mapping[TableIdentifier, LoggedTable]
    namespaces: Mapping[str, bool]
    """Whether they were created; False if they were dropped."""

    def to_json(self) -> dict[str, Any]:
        """In the form of the log."""
        tables = {str(table): logged.to_json() for table, logged in self.tables.items()}
        return {"format": _FORMAT, "tables": tables, "namespaces": dict(self.namespaces)}


class LoggedPathCatalog:
    """A catalog in a directory or a bucket, with transactions, for any number of processes. Threads may share it."""

    has_transactions = True

    def __init__(
        self,
        root: str,
        storage: StorageOptions | None = None,
        *,
        store: ProbedStore | None = None,
        checkpoint_every: int = CHECKPOINT_EVERY,
    ) -> None:
        """`root`: URI of a warehouse that `path_catalog` made. `store`: that of `root`, if the caller has it. Raises
        LakeError for a warehouse without a log."""
        self.storage = storage or StorageOptions()
        self._root = root.rstrip("/")
        self._log = join(self._root, LOG)
        self._checkpoint_every = checkpoint_every
        self._lock = threading.RLock()
        self._entry = 0
        """Number of the newest entry that was read."""
        self._tables: dict[TableIdentifier, LoggedTable] = {}
        self._created: set[str] = set()
        """Namespaces that were created, and not dropped since."""
        self._store = store or ProbedStore(self._root, self.storage)
        self._to_put: list[tuple[TableIdentifier, LoggedTable]] = []
        """What the entries since the last checkpoint name, and may not be under the tables' numbers yet."""
        if not exists(self._location(0), self.storage):
            raise LakeError(f"{self._root} has no transaction log", "make one by path_catalog(root, transactions=True)")
        self._begin()

    def load(self, table: TableIdentifier) -> MetadataPointer | None:
        return self.pointers().get(table)

    def namespaces(self) -> Sequence[str]:
        with self._lock:
            return sorted({table.namespace for table in self.pointers()} | self._created)

    def create_namespace(self, namespace: str) -> bool:
        require_namespace(namespace)
        self._store.require()
        with self._lock:
            while namespace not in self.namespaces():
                if self._put_entry(LogEntry({}, {namespace: True})):
                    self._follow_up()
                    return True
        return False

    def drop_namespace(self, namespace: str) -> bool:
        self._store.require()
        with self._lock:
            while True:
                namespaces = self.namespaces()
                require_empty(namespace, self.pointers(), namespaces)
                if namespace not in namespaces:
                    return False
                if self._put_entry(LogEntry({}, {namespace: False})):
                    self._follow_up()
                    return True

    def close(self) -> None:
        """There is no connection."""

    def tables(self, namespace: str) -> Sequence[TableIdentifier]:
        return sorted(table for table in self.pointers() if table.namespace == namespace)

    def pointers(self) -> Mapping[TableIdentifier, MetadataPointer]:
        with self._lock:
            self._catch_up()
            return {table: pointer for table, logged in self._tables.items() if (pointer := logged.pointer) is not None}

    def commit(self, changes: Sequence[PointerChange]) -> Sequence[MetadataPointer | None]:
        self._store.require()
        for change in changes:
            if change.metadata is not None:
                plain_content(new_metadata(change))
        with staged_metadata(changes, self.storage) as staged, self._lock:
            self._catch_up()
            self._put_versions()
            entry = self._append(changes, staged)
            pointers = [entry.tables[change.table].pointer for change in changes]
            self._follow_up()
        return pointers

    def table_location(self, table: TableIdentifier) -> str:
        return table_directory(self._root, table)

    def _append(self, changes: Sequence[PointerChange], staged: Sequence[MetadataPointer | None]) -> LogEntry:
        """Creates the next entry. Raises TableMoved if a table is not at its base. Each number that is taken was taken
        by a writer's commit, so all writers together get on."""
        while True:
            entry = LogEntry(self._checked_tables(changes, staged), {})
            if self._put_entry(entry):
                return entry
            self._catch_up()

    def _follow_up(self) -> None:
        """The commit is done. This is for readers of other kinds, and for those who open the warehouse later; the next
        writer does it otherwise."""
        with suppress(LakeError):
            self._put_versions()
            if self._entry % self._checkpoint_every == 0:
                self._checkpoint()

    def _put_entry(self, entry: LogEntry) -> bool:
        """Creates the next entry, and counts it in. False if its number is taken."""
        # So that a writer knows its own entry, even one that drops a table and so names no file.
        content = orjson.dumps({**entry.to_json(), "commit": uuid.uuid4().hex})
        if not put_if_absent(self._location(self._entry + 1), content, self.storage):
            return False
        self._apply(self._entry + 1, entry)
        return True

    def _checked_tables(
        self, changes: Sequence[PointerChange], staged: Sequence[MetadataPointer | None]
    ) -> dict[TableIdentifier, LoggedTable]:
        """The next entry. Raises TableMoved, and LakeError if another program bypassed the log."""
        moved = []
        entry = {}
        for change, pointer in zip(changes, staged, strict=True):
            logged_table = self._tables.get(change.table, LoggedTable(0, None))
            base = None if change.base is None else change.base.metadata_location
            if logged_table.location != base:
                moved.append(change.table)
            entry[change.table] = LoggedTable(
                logged_table.version + 1, None if pointer is None else pointer.metadata_location
            )
        if moved:
            raise TableMoved(moved)
        for table, logged in entry.items():
            bypassed = version_location(self._root, table, logged.version)
            # Between this look and the entry another writer of the log may put it: then the entry's number is taken.
            if exists(bypassed, self.storage) and not exists(self._location(self._entry + 1), self.storage):
                raise LakeError(
                    f"{bypassed} is there, but the transaction log does not know it: another program wrote it",
                    "other engines may only read this warehouse; move the file away and repeat its commit here",
                )
        return entry

    def _begin(self) -> None:
        """Starts from the newest checkpoint, if its hint tells the truth, else from the log's first entry."""
        with suppress(FileMissing, ValueError):
            number = int(read_bytes(join(self._log, _HINT), self.storage))
            state = self._read(self._checkpoint_location(number))
            self._apply(number, state)
            self._to_put = []

    def _catch_up(self) -> None:
        """Reads the entries that others have added."""
        with suppress(FileMissing):
            while True:
                self._apply(self._entry + 1, self._read(self._location(self._entry + 1)))

    def _apply(self, number: int, entry: LogEntry) -> None:
        self._entry = number
        self._tables |= entry.tables
        self._to_put += entry.tables.items()
        for namespace, created in entry.namespaces.items():
            (self._created.add if created else self._created.discard)(namespace)

    def _put_versions(self) -> None:
        """Puts metadata files under the tables' numbers, as far as no writer has."""
        while self._to_put:
            table, logged = self._to_put[0]
            location = version_location(self._root, table, logged.version)
            if not exists(location, self.storage):
                self._put_version(location, logged)
            if self._tables[table] == logged:
                write_hint(self._root, table, logged.version, self.storage)
            del self._to_put[0]

    def _put_version(self, location: str, logged: LoggedTable) -> None:
        old, new = local_path(logged.location or ""), local_path(location)
        if logged.location is None:
            put_if_absent(location, dropped_content(), self.storage)
        elif old is not None and new is not None:
            # The same file under a second name. It is not what decides, so it need not be durable.
            with suppress(FileExistsError, FileNotFoundError):
                os.link(old, new)
        else:
            with suppress(FileMissing):
                put_if_absent(location, read_bytes(logged.location, self.storage), self.storage)

    def _checkpoint(self) -> None:
        """Leaves the state as of this entry. What it names is under the tables' numbers by now."""
        state = LogEntry(self._tables, dict.fromkeys(self._created, True))
        content = orjson.dumps(state.to_json(), option=orjson.OPT_SORT_KEYS)
        put_if_absent(self._checkpoint_location(self._entry), content, self.storage)
        write_bytes(join(self._log, _HINT), b"%d" % self._entry, replace(self.storage, fsync=False))

    def _read(self, location: str) -> LogEntry:
        content = read_bytes(location, self.storage)
        with decoding(location, "an entry of a transaction log"):
            document = orjson.loads(content)
            if document["format"] != _FORMAT:
                raise LakeError(f"{location} has format {document['format']}", "use a newer version of mirror-pump")
            tables = {
                TableIdentifier.parse(name): LoggedTable(int(logged["version"]), logged["metadata-location"])
                for name, logged in document["tables"].items()
            }
            return LogEntry(tables, dict(document.get("namespaces", {})))

    def _location(self, number: int) -> str:
        return join(self._log, f"{number:020d}.json")

    def _checkpoint_location(self, number: int) -> str:
        return join(self._log, f"{number:020d}.checkpoint.json")


def path_catalog(
    root: str, storage: StorageOptions | None = None, *, transactions: bool = False
) -> PathCatalog | LoggedPathCatalog:
    """The catalog in a directory or a bucket, of the kind that it was made as.

    `transactions`: make one with a transaction log, if there is none. Raises UsageError if it has tables already.
    """
    storage = storage or StorageOptions()
    store = ProbedStore(root, storage)
    first = join(root.rstrip("/"), LOG, FIRST_ENTRY)
    if not exists(first, storage):
        if not transactions:
            return PathCatalog(root, storage)
        if PathCatalog(root, storage).pointers():
            raise UsageError(f"{root} has tables that no transaction log knows", "choose an empty directory")
        store.require()
        put_if_absent(first, orjson.dumps({"format": _FORMAT, "tables": {}}), storage)
    return LoggedPathCatalog(root, storage, store=store)
