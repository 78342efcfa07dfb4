"""Changes of a mirrored lake table's metadata alone: its rows, files and snapshots stay. Whether or not a pump runs.

One transaction under the lock of the slot's row makes such a change, so no publish is under way. One that was staged on
the metadata before does not land, as the pointer has moved: the pump stages it again. A kill at any moment leaves the
table as it was or as it shall be, and the new metadata file of a transaction that did not land is an orphan.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from mirror_pump.errors import CommitConflict, TableError
from mirror_pump.lake.commit.catalog import load_pointer, swap_pointer
from mirror_pump.lake.document.metadata_files import next_location, read_metadata
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.storage import StorageOptions, discard, write_all
from mirror_pump.model import MirroredTable
from mirror_pump.ops.table_locks import limit_lock, with_lock_retries
from mirror_pump.runtime.interrupts import deferred_interrupt
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.layout import move_head
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, source_errors
from sql import queries

_PUBLISH_SQL = queries("publish")

_TRIES = 10
"""Commits of other engines to the lake table, one after the other, after which a change gives up."""

_Result = TypeVar("_Result")

MetadataStep = Callable[[TableMetadata, str, int], TableMetadata]
"""Makes the new document from the present one, its location, and the time in milliseconds since 1970 UTC."""


def change_metadata(
    connection: PgConnection,
    settings: Settings,
    candidate: MirroredTable,
    storage: StorageOptions,
    change: Callable[[MirroredTable, list[str]], _Result],
) -> _Result:
    """Calls `change` in a transaction that keeps publishes out, with the table as it is then, and a list for the URIs
    of the files that it writes. Returns its result.

    Raises TableError, having done nothing, if the table was unregistered meanwhile, or other engines commit to its lake
    table all the time.
    """
    for _ in range(_TRIES):
        try:
            # An interrupt waits until it is certain whether the COMMIT happened.
            with deferred_interrupt(connection.cancel):
                return _changed(connection, settings, candidate, storage, change)
        except CommitConflict:
            continue
    raise TableError(
        f"other engines commit to the lake table of {candidate.name} all the time: nothing was changed", "try again"
    )


def _changed(
    connection: PgConnection,
    settings: Settings,
    candidate: MirroredTable,
    storage: StorageOptions,
    change: Callable[[MirroredTable, list[str]], _Result],
) -> _Result:
    """The transaction. Raises CommitConflict, having done nothing, if another engine committed to the lake table."""
    results: list[_Result] = []
    written: list[str] = []

    def attempt() -> None:
        with source_errors(f"altering {candidate.name}"), connection.transaction():
            limit_lock(connection, settings)
            connection.execute(_PUBLISH_SQL["lock_slot"], {"slot": settings.slot})
            table = load_table(connection, candidate.table_id)
            if table is None or table.location != candidate.location:
                raise TableError(
                    f"{candidate.name} was unregistered meanwhile", "`mirror-pump status` lists the tables"
                )
            results.append(change(table, written))

    try:
        with_lock_retries(settings, candidate.name, attempt)
    except (TableError, CommitConflict):
        discard(written, storage)
        raise
    return results[-1]


def replace_metadata(
    connection: PgConnection, table: MirroredTable, storage: StorageOptions, step: MetadataStep, written: list[str]
) -> None:
    """Gives the lake table, as readers see it, another metadata document. Adds the file's URI to `written`. Within
    `change_metadata`. Raises CommitConflict if another engine committed meanwhile, and LakeError."""
    old = load_pointer(connection, table.name.schema, table.lake_table)
    if old is None:
        raise TableError(
            f"the lake table of {table.name} is not in the Iceberg catalog any more: another engine dropped or renamed"
            " it",
            "unregister the table and register it: it is copied again",
        )
    metadata = step(read_metadata(old, storage), old, time.time_ns() // 1_000_000)
    new = next_location(metadata, old)
    written.append(new)
    write_all([(new, metadata.to_json())], storage)
    if not swap_pointer(connection, table.name.schema, table.lake_table, old, new):
        raise CommitConflict(f"another engine committed to {table.name} in the lake")
    move_head(connection, table.table_id, old, new, metadata.format_version)
