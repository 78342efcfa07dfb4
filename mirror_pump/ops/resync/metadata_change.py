"""Changes of a mirrored table's lake metadata, together with the catalog: its rows, files and snapshots stay. A pump
may run, or none.

The new metadata file is written before the slot's lock is taken. So publishes wait for one short transaction, and a
publish that was staged on the metadata before does not land: the pump stages it again
(mirror_pump.pipeline.landing.landing).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from mirror_pump.errors import CommitConflict, TableError
from mirror_pump.lake.commit.catalog import load_pointer
from mirror_pump.lake.document.metadata_files import read_metadata, write_metadata
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, TableName
from mirror_pump.ops.table_locks import limit_lock, with_lock_retries
from mirror_pump.pipeline.landing.landing import Landing
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.table_landing import ChangeMetadata
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.layout import move_head
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class MetadataChange(Generic[_Result]):
    """What is done to a table in one transaction."""

    result: _Result
    metadata: ChangeMetadata | None = None
    """Makes the lake table's next metadata. None: it stays as it is."""
    record: Callable[[], None] = lambda: None
    """The catalog's part, under the slot's lock. May refuse the change by a TableError."""


def change_metadata(
    connection: PgConnection,
    settings: Settings,
    candidate: MirroredTable,
    storage: StorageOptions,
    plan: Callable[[MirroredTable], MetadataChange[_Result]],
) -> _Result:
    """Makes the change that `plan` chooses for the table as it is now, and returns its result.

    Raises TableError, having done nothing, if the table was unregistered meanwhile, or other engines commit to its lake
    table all the time.
    """
    results: list[_Result] = []

    def attempt() -> None:
        with WrittenFiles(storage) as files:
            results.append(_MetadataLanding(connection, settings, candidate, files, plan).land().result)

    try:
        with_lock_retries(settings, candidate.name, attempt)
    except CommitConflict as conflict:
        raise TableError(
            f"other engines commit to the lake table of {candidate.name} all the time: nothing was changed", "try again"
        ) from conflict
    return results[-1]


class _MetadataLanding(Landing[tuple[MirroredTable, str | None], MetadataChange[_Result]]):
    """One change of one table. It is staged on the table, and on the metadata file that the catalog names."""

    tries = 10

    def __init__(
        self,
        connection: PgConnection,
        settings: Settings,
        candidate: MirroredTable,
        files: WrittenFiles,
        plan: Callable[[MirroredTable], MetadataChange[_Result]],
    ) -> None:
        super().__init__(connection, settings.slot, files, f"altering {candidate.name}")
        self._settings = settings
        self._candidate = candidate
        self._plan = plan
        self._written: tuple[TableMetadata, str] | None = None
        """The next metadata, and where it is. None: it stays as it is."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with super().transaction():
            limit_lock(self.connection, self._settings)
            yield

    def look(self) -> tuple[MirroredTable, str | None]:
        table = load_table(self.connection, self._candidate.table_id)
        if table is None or table.location != self._candidate.location:
            raise TableError(
                f"{self._candidate.name} was unregistered meanwhile", "`mirror-pump status` lists the tables"
            )
        return table, load_pointer(self.connection, table.name.schema, table.lake_table)

    def stage(self, base: tuple[MirroredTable, str | None]) -> MetadataChange[_Result]:
        (table, pointer), self._written = base, None
        change = self._plan(table)
        if change.metadata is not None:
            if pointer is None:
                raise TableError(
                    f"the lake table of {table.name} is not in the Iceberg catalog any more: another engine dropped or"
                    " renamed it",
                    "unregister the table and register it: it is copied again",
                )
            storage = self.files.storage
            metadata = change.metadata(read_metadata(pointer, storage), pointer, time.time_ns() // 1_000_000)
            self._written = metadata, write_metadata(metadata, pointer, storage)
            self.files.add(self._written[1])
        return change

    def swap(self, lock: SlotLock, base: tuple[MirroredTable, str | None], state: MetadataChange[_Result]) -> None:
        table, pointer = base
        if self._written is not None and pointer is not None:
            metadata, location = self._written
            lock.move(TableName(table.name.schema, table.lake_table), pointer, location)
            move_head(self.connection, table.table_id, pointer, location, metadata.format_version)
        state.record()
