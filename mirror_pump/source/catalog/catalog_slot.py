"""What the catalog records of the mirror's server and of its replication slot, from which a stream goes on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from mirror_pump.errors import SourceError
from mirror_pump.model import Lsn
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_row
from mirror_pump.source.server import read_server, stream_problems
from mirror_pump.source.stream.slot import SystemIdentity
from sql import queries

_SQL = queries("slot")

INIT_AGAIN = "run `mirror-pump init` (without --tiered-only), which keeps all tables"
"""What gives a mirror its stream, on a server that lacks nothing for it."""


@dataclass(frozen=True)
class CatalogSlot:
    """Where the stream stands, and in which database."""

    publication: str
    identity: SystemIdentity
    """With the timeline on which the mirror was published so far."""
    applied: Lsn
    """The frontier."""
    applied_at: datetime | None
    """When the frontier last moved."""
    streams: bool
    """False for a mirror of tiered tables alone: it has neither a slot nor a publication, and names them only."""


@dataclass(frozen=True)
class _CatalogSlotRow:
    """A row of the query `recorded`."""

    publication_name: str
    system_identifier: str
    timeline: int
    database_name: str
    applied_lsn: Lsn
    applied_at: datetime | None
    streams: bool


def catalog_slot(connection: PgConnection, slot: str) -> CatalogSlot:
    """What is recorded of the slot. Raises SourceError if the catalog does not know it."""
    with source_errors("reading the mirror's slot"):
        row = fetch_row(connection, _CatalogSlotRow, _SQL["recorded"], {"slot": slot})
    if row is None:
        raise SourceError(f"slot {slot} is not in the catalog", "run `mirror-pump init` first")
    identity = SystemIdentity(row.system_identifier, row.timeline, row.database_name)
    return CatalogSlot(row.publication_name, identity, row.applied_lsn, row.applied_at, row.streams)


def default_format_version(connection: PgConnection, slot: str) -> int:
    """The Iceberg format version of tables that are registered without one. Raises SourceError if the catalog does not
    know the slot."""
    with source_errors("reading the mirror's slot"):
        row = connection.execute(_SQL["format_version"], {"slot": slot}).fetchone()
    if row is None:
        raise SourceError(f"slot {slot} is not in the catalog", "run `mirror-pump init` first")
    return int(row[0])


def set_format_version(connection: PgConnection, slot: str, version: int) -> bool:
    """Sets what `default_format_version` is. Returns whether it was another one."""
    return connection.execute(_SQL["set_format_version"], {"slot": slot, "version": version}).rowcount > 0


def require_stream(connection: PgConnection, slot: str, what: str) -> None:
    """Raise SourceError, with what to do, for a mirror without a stream. `what`: what takes one, for the message."""
    if not catalog_slot(connection, slot).streams:
        raise no_stream(connection, what)


def no_stream(connection: PgConnection, what: str) -> SourceError:
    """The error for a mirror without a stream, with what to do. `what`: as in `require_stream`."""
    return SourceError(f"{what}: this mirror has no stream, for tiered tables only", how_to_stream(connection))


def how_to_stream(connection: PgConnection) -> str:
    """What to do so that a mirror without a stream gets one."""
    obstacles = [problem.remedy for problem in stream_problems(connection, read_server(connection))]
    return "; ".join((*obstacles, "then run `mirror-pump init`, which keeps all tables" if obstacles else INIT_AGAIN))
