"""The two sides of a comparison: the heap in a snapshot of the database, and pinned tables of the lake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from mirror_pump.errors import SourceError, TableError
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, MirroredTable, TableId, TableState
from mirror_pump.ops.verify.heap_copy import ChangedMeanwhile
from mirror_pump.source.catalog.pins import PinnedSet, PinRelation
from mirror_pump.source.catalog.published_state import PublishedState, published_states
from mirror_pump.source.catalog.tables import ranges_of
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.retention.partitions import read_partitions, require_passed

_SECONDS = 6 * 3600.0
"""How long the pins last at most."""


@contextmanager
def snapshot_reader(dsn: str, snapshot: str) -> Iterator[PgConnection]:
    """A connection with a transaction that sees the exported database snapshot."""
    with connect(dsn, autocommit=True, application_name="mirror-pump-verify") as connection:
        with source_errors("importing a database snapshot"):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
        yield connection


def no_pins(connection: PgConnection) -> PinnedSet:
    """For the pins of a comparison, which end with the connection at the latest."""
    return PinnedSet(lambda: nullcontext(connection), PinRelation.ROWS_OF_TABLES, _SECONDS, tied=True)


@contextmanager
def pinned(
    connection: PgConnection, tables: Mapping[TableId, MirroredTable]
) -> Iterator[tuple[Lsn, dict[TableId, str], dict[TableId, MirroredTable]]]:
    """The frontier, and by table the metadata file to read at that frontier, and the table with its cut-line and its
    kept ranges there. Pins are held until exit.

    Leaves out tables that are no longer live, or were registered or copied again since `tables` were read. Raises
    SourceError if the tables have different frontiers.
    """
    pins = no_pins(connection)
    try:
        states = {state.table_id: state for state in pins.take_published(table_ids=tables)}
        same = [
            state
            for table_id, state in states.items()
            if state.state == TableState.LIVE
            and state.metadata_location is not None
            and state.start_lsn == tables[table_id].start_lsn
        ]
        # A table that is being copied again has a former frontier, and is not in `same`.
        frontiers = {state.frontier for state in same} or {Lsn(0)}
        frontier = frontiers.pop()
        if frontiers or frontier is None:
            raise SourceError("live tables of one mirror have different frontiers", "Run verify again.")
        # The published snapshot of a table with heap retention has the rows below the cut-line alone.
        locations = {state.table_id: state.pointer if state.has_cutline else state.published_location for state in same}
        yield frontier, locations, {state.table_id: _as_of(state, tables[state.table_id]) for state in same}
    finally:
        pins.drop()


def require_published(connection: PgConnection, table: MirroredTable, storage: StorageOptions) -> None:
    """Raises TableError if the catalog's cut-line and published snapshot are not those of the lake: a reader across the
    cut-line would miss rows, or find them twice. Raises ChangedMeanwhile if it was registered or copied again,
    FileMissing, FileDamaged, LakeError and SourceError."""
    with source_errors(f"looking what is published of {table.name}"):
        states = published_states(connection, table_ids=[table.table_id])
    for state in states:
        if state.start_lsn != table.start_lsn:
            raise ChangedMeanwhile("it was registered, or is copied, again")
        require_passed(table, read_partitions(connection, table.table_id), state.cut)
        if state.is_readable:
            tier = _as_of(state, table).tier
            archived = str(state.cut) if state.has_cutline and tier is not None and tier.moved else None
            snapshot = None
            if state.published_location.startswith(f"{state.location}/"):
                snapshot = read_metadata(state.published_location, storage).current_snapshot
            cut = None if snapshot is None or archived is None else snapshot.summary.archive_cut_line
            if snapshot is None or (snapshot.snapshot_id, cut) != (state.snapshot_id, archived):
                raise TableError(
                    f"{table.name}: modak.cutline has cut-line {state.cut} and snapshot {state.snapshot_id}, and"
                    f" {state.published_location or 'no metadata'}, which has"
                    f" {'another table' if snapshot is None else f'{cut} and {snapshot.snapshot_id}'}",
                    "Restore this row of modak.cutline from a backup, and let no partition be dropped until then",
                )


def require_columns(table: MirroredTable, location: str, storage: StorageOptions) -> None:
    """Raises TableError if the catalog has other field IDs for columns than the lake: commits would exchange values.
    Raises FileMissing, FileDamaged and LakeError."""
    metadata = read_metadata(location, storage)
    document = metadata.schema_document(metadata.current_schema_id)
    names = {int(field["id"]): field["name"] for field in document["fields"]}
    wrong = [column.name for column in table.columns if names.get(column.field_id) != column.name]
    if wrong:
        raise TableError(
            f"{table.name}: modak.mirror_tables has other field IDs than the lake for {', '.join(wrong)}",
            "Restore its row of modak.mirror_tables from a backup before the table changes; or unregister the table and"
            " register it again",
        )


def _as_of(state: PublishedState, table: MirroredTable) -> MirroredTable:
    tier = None if table.tier is None else replace(table.tier, cut=state.cut)
    return replace(table, tier=tier, kept_ranges=ranges_of(state.kept_ranges))
