"""A transaction over the tables of a catalog: snapshot isolation, and all of its commits in one step at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from mirror_pump.errors import LakeError, MirrorPumpError, OutcomeUnknown
from mirror_pump.lake.document.next_metadata import without_log_entries
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions, discard
from mirror_pump.tables.catalogs.lake_catalog import (
    LakeCatalog,
    MetadataPointer,
    PointerChange,
    TableIdentifier,
    TableMoved,
    staged_metadata,
)


class Transaction:
    """A catalog as of one moment, with changes that no other program sees yet. Tables are opened and created in it as
    in any other catalog. For one thread."""

    has_transactions = False

    def __init__(self, catalog: LakeCatalog) -> None:
        """Begins: sees all tables as they are now. Raises LakeError if the catalog cannot do that."""
        if not catalog.has_transactions:
            raise LakeError(
                "the catalog has no transactions over several tables",
                "use one in SQLite or PostgreSQL, or make a warehouse by path_catalog(root, transactions=True)",
            )
        self._catalog = catalog
        self._before = catalog.pointers()
        self._changes: dict[TableIdentifier, PointerChange] = {}
        self._now: dict[TableIdentifier, MetadataPointer | None] = {}
        self._written: list[str] = []
        """Metadata files that only this transaction reads."""

    @property
    def storage(self) -> StorageOptions:
        return self._catalog.storage

    def load(self, table: TableIdentifier) -> MetadataPointer | None:
        return self._now.get(table, self._before.get(table))

    def namespaces(self) -> Sequence[str]:
        return sorted({table.namespace for table in self.pointers()})

    def tables(self, namespace: str) -> Sequence[TableIdentifier]:
        return sorted(table for table in self.pointers() if table.namespace == namespace)

    def pointers(self) -> Mapping[TableIdentifier, MetadataPointer]:
        all_pointers = {**self._before, **self._now}
        return {table: pointer for table, pointer in all_pointers.items() if pointer is not None}

    def commit(self, changes: Sequence[PointerChange]) -> Sequence[MetadataPointer | None]:
        """Notes the changes for the transaction's own end."""
        moved = [change.table for change in changes if self.load(change.table) != change.base]
        if moved:
            raise TableMoved(moved)
        with staged_metadata(changes, self.storage) as pointers:
            self._written += [
                pointer.metadata_location
                for pointer, change in zip(pointers, changes, strict=True)
                if pointer is not None and pointer != change.metadata
            ]
        for change, pointer in zip(changes, pointers, strict=True):
            former_change = self._changes.get(change.table)
            files = (*(() if former_change is None else former_change.files), *change.files)
            base = self._before.get(change.table)
            self._changes[change.table] = PointerChange(change.table, base, change.metadata, files)
            self._now[change.table] = pointer
        return pointers

    def table_location(self, table: TableIdentifier) -> str:
        return self._catalog.table_location(table)

    def end(self) -> None:
        """Makes all changes, or none: raises TableMoved if another writer changed one of these tables since the
        transaction began. Without changes it does nothing."""
        changes = [self._last(change) for change in self._changes.values() if change.base or change.metadata]
        try:
            if changes:
                self._catalog.commit(changes)
        except OutcomeUnknown:
            raise
        except MirrorPumpError:
            self.undo()
            raise
        discard(self._written, self.storage)

    def undo(self) -> None:
        """Removes what the transaction's commits wrote. Data files stay: they belong to the caller."""
        discard(self._written, self.storage)
        for change in self._changes.values():
            discard(change.files, self.storage)

    def _last(self, change: PointerChange) -> PointerChange:
        """The change, without traces of the states in between."""
        if not isinstance(change.metadata, TableMetadata):
            return change
        metadata = without_log_entries(change.metadata, frozenset(self._written))
        return PointerChange(change.table, change.base, metadata, change.files)


@contextmanager
def transaction(catalog: LakeCatalog) -> Iterator[Transaction]:
    """A transaction for the time of the block, at whose end it commits. After an error in the block nothing has
    changed. Raises TableMoved at the end if another writer changed one of the same tables meanwhile; readers and
    writers of other tables are not hindered."""
    begun = Transaction(catalog)
    try:
        yield begun
    except BaseException:
        begun.undo()
        raise
    begun.end()
