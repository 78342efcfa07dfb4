"""The two sides of a comparison: the heap in a snapshot of the database, and pinned tables of the lake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from mirror_pump.errors import SourceError
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.source.catalog.consistent_snapshot import TIE_PINS
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.rows import fetch_rows
from sql import queries

_SQL = queries("verify")


@contextmanager
def snapshot_reader(dsn: str, snapshot: str) -> Iterator[PgConnection]:
    """A connection with a transaction that sees the exported database snapshot."""
    with connect(dsn, autocommit=True, application_name="mirror-pump-verify") as connection:
        with source_errors("importing a database snapshot"):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
        yield connection


@contextmanager
def pinned(
    connection: PgConnection, tables: Mapping[TableId, MirroredTable]
) -> Iterator[tuple[Lsn, dict[TableId, str], dict[TableId, int]]]:
    """The frontier, and by table the metadata file to read at that frontier, and the cut-line. Pins are held until
    exit.

    Leaves out tables that are no longer live, or were registered or copied again since `tables` were read. Raises
    SourceError if the tables have different frontiers.
    """
    with source_errors("reading the frontier"):
        pins = fetch_rows(connection, _PinnedTable, _SQL["pin"], {"table_ids": list(tables)})
        connection.execute(TIE_PINS, {"pins": [pin.pin_id for pin in pins]})
    try:
        same = [pin for pin in pins if pin.live and pin.start_lsn == tables[pin.table_id].start_lsn]
        # A table that is being copied again has a former frontier, and is not in `same`.
        frontiers = {pin.frontier for pin in same} or {Lsn(0)}
        frontier = frontiers.pop()
        if frontiers or frontier is None:
            raise SourceError("live tables of one mirror have different frontiers", "Run verify again.")
        locations = {pin.table_id: pin.location for pin in same}
        yield frontier, locations, {pin.table_id: pin.cut for pin in same}
    finally:
        with source_errors("releasing the pins"):
            connection.execute(_SQL["release"], {"pins": [pin.pin_id for pin in pins]})


@dataclass(frozen=True)
class _PinnedTable:
    """A row of the query `pin`."""

    pin_id: int
    table_id: TableId
    frontier: Lsn | None
    """None until the initial copy is complete."""
    location: str
    """The metadata file that has the table at the frontier."""
    cut: int
    live: bool
    start_lsn: Lsn
