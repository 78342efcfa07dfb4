"""Explains a failed read by the table whose files are missing, instead of the one file that an engine missed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from mirror_pump.errors import FileMissing
from mirror_pump.lake.commit.presence import require_all
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.pipeline.missing_files.missing_files import MissingFiles, stored_tables
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.retention.partitions import lake_locations


def refuse_missing(connection: PgConnection, table: MirroredTable, storage: StorageOptions) -> None:
    """Raise TableError if a file that readers of the table need is missing, LakeError if the whole warehouse is."""
    with source_errors(f"looking for the files of {table.name}"):
        locations = lake_locations(connection, table.table_id)
    try:
        for location in locations:
            require_all(location, storage)
    except FileMissing as error:
        raise MissingFiles(storage, partial(stored_tables, connection)).error_of(table, error) from error


def explain_failed_read(dsn: str, table_ids: Iterable[TableId], storage: StorageOptions) -> None:
    """Raise the error of `refuse_missing` for the first table that lacks a file. Return if no table lacks one."""
    with connect(dsn, autocommit=True, application_name="mirror-pump-read") as connection:
        for table_id in table_ids:
            table = load_table(connection, table_id)
            if table is not None:
                refuse_missing(connection, table, storage)
