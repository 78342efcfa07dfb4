"""Fails a table when the stream cannot be applied to it because a file of its lake table cannot be read."""

from __future__ import annotations

from mirror_pump.errors import FileDamaged, TableError
from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.operations.table_changes import Failure

_REMEDY = (
    "unregister the table and register it again, which copies it again; or restore the file from a backup first, if its"
    " former content has to be read until then"
)
_ONLY_COPY = (
    "the lake had the only copy of rows that left Postgres: restore the file from a backup, and the table can be read"
    " again as it was; to mirror what Postgres holds, unregister it with --keep-lake and register it"
)


def damage_failure(table: MirroredTable, error: FileDamaged) -> Failure:
    """The failure of a table whose changes need the damaged file. A job that is not part of the stream (a merge, a
    conversion, a key index, a proof) only reports the error, and the table continues."""
    only_copy = table.tier is not None and table.tier.moved
    return Failure.of(table, TableError(f"{table.name}: {error}", _ONLY_COPY if only_copy else _REMEDY))
