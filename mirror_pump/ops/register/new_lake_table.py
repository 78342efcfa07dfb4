"""The empty lake table of a new registration, and what must not be there before it."""

from __future__ import annotations

import re
import shlex
import time
import uuid
from dataclasses import replace

from mirror_pump.errors import FileDamaged, FileMissing, TableError, UsageError
from mirror_pump.lake.commit.catalog import ENGINE_PROPERTIES, load_pointer
from mirror_pump.lake.commit.presence import has_any, require_any
from mirror_pump.lake.commit.row_delta import LakeTable, StagedCommit
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.document.metadata_files import read_any_version
from mirror_pump.lake.document.snapshot_summary import Total
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions, join
from mirror_pump.model import LakePartitioning, Lsn, MirroredTable, SequenceNumber, TableMode, TableName
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.pipeline.missing_files.missing_files import some_stored_tables, stored_tables
from mirror_pump.settings.storage_profiles import StorageProfile
from mirror_pump.source.catalog.former_locations import is_former
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.relations.relations import RelationDescription
from mirror_pump.source.retention.retention_plan import RetentionPlan
from mirror_pump.table_life import TableEvent, state_after

TABLE_PROPERTIES = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    **ENGINE_PROPERTIES,
}
"""Iceberg table properties of a mirrored table, besides its format version."""


def warehouse_of(profile: StorageProfile) -> str:
    if not profile.warehouse:
        raise UsageError(
            f"storage profile {profile.name} has no warehouse",
            "run `mirror-pump init --warehouse URI`, or name another",
        )
    return profile.warehouse


def refuse_missing_warehouse(connection: PgConnection, warehouse: str, storage: StorageOptions) -> None:
    """Raise LakeError if the files of registered tables show that the warehouse is missing now.

    Without this check, the new table would be written to the disk below the missing mount.
    """
    with source_errors("reading where the tables' files are"):
        # One file is enough, and there may be thousands of tables: all are read only if none of a few has one.
        if has_any(warehouse, some_stored_tables(connection), storage):
            return
        tables = stored_tables(connection)
    require_any(warehouse, tables, storage)


def refuse_left_over(connection: PgConnection, name: TableName, storage: StorageOptions) -> None:
    """Raise TableError if a lake table has the name that is not mirrored and must stay: another engine's, or one left
    by `unregister` that holds rows from below a cut-line.

    A new registration would take its name and put those rows out of reach. Nothing tells whether the heap had shed
    them, or kept them or got them back. A lake table whose metadata is lost or damaged is set
    aside: nothing can be read by its name.
    """
    pointer = load_pointer(connection, name.schema, name.name)
    if pointer is None:
        return
    refuse_foreign_entry(connection, name, pointer)
    try:
        archive = read_any_version(pointer, storage).archive_snapshot
    except (FileMissing, FileDamaged):
        # It cannot be read by its name any more. Its files stay, as a former location.
        return
    if archive is not None and archive.summary.total(Total.RECORDS):
        raise TableError(
            f"the lake table {name} of a former registration holds old rows, which the heap may have shed",
            "If the heap has all rows (it was kept, or they were brought back), or no reader needs them, have the lake"
            f" table removed: mirror-pump unregister --former {shlex.quote(str(name))}. Otherwise rename it first, with"
            " an engine that has the catalog (mirror-pump connect).",
        )


def refuse_foreign_entry(connection: PgConnection, name: TableName, pointer: str) -> None:
    """Raise TableError if a table of the Iceberg catalog, whose metadata file is `pointer`, is of no former
    registration: then a new one must not take its place."""
    if not is_former(connection, pointer):
        raise TableError(
            f"the lake has a table {name} that no registration made",
            "rename it, or drop it, with an engine that has the catalog (mirror-pump connect)",
        )


def new_lake_table(
    warehouse: str,
    description: RelationDescription,
    plan: RetentionPlan | None,
    mode: TableMode,
    partitioning: LakePartitioning | None,
    format_version: int,
    files: WrittenFiles,
) -> tuple[MirroredTable, StagedCommit]:
    """Return the table's value and its empty lake table, which nothing refers to yet, and which `files` owns.

    The files go to a new location, so that a table that is registered again never shares a directory with its former
    registration.
    """
    name = description.name
    # Iceberg locations are not percent-encoded, and engines disagree on paths with characters other than these.
    schema, relation = (re.sub(r"[^A-Za-z0-9_-]", "_", part) for part in (name.schema, name.name))
    location = join(warehouse, schema, f"{relation}-{uuid.uuid4().hex[:12]}")
    table = MirroredTable(
        table_id=description.table_id,
        name=name,
        columns=description.columns,
        key=description.key,
        state=state_after(None, TableEvent.REGISTERED if mode is TableMode.MIRRORED else TableEvent.REGISTERED_TIERED),
        start_lsn=Lsn(0),
        data_sequence_number=SequenceNumber(0),
        generation=0,
        lake_table=name.name,
        location=location,
        live_after_lsn=None,
        excluded=description.excluded,
        tier=None if plan is None else plan.tier,
        mode=mode,
        partitioning=partitioning,
        format_version=format_version,
    )
    # This refuses a lake type chosen by the user that does not sort as the tier key does.
    CutLine.of(table, cut=0)
    files.add_table(location)
    staged = LakeTable.create(
        LakeSchema.of_table(table),
        location,
        files.storage,
        {"format-version": str(format_version), **TABLE_PROPERTIES},
        time.time_ns() // 1_000_000,
        has_retention=table.tier is not None,
        partitioning=table.partitioning,
        format_version=format_version,
    )
    return replace(table, data_sequence_number=staged.sequence_number), staged
