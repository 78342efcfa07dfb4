"""What the catalog records of the replication slot, from which a stream goes on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from mirror_pump.errors import SourceError
from mirror_pump.model import Lsn
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_row
from mirror_pump.source.stream.slot import SystemIdentity
from sql import queries

_SQL = queries("slot")


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


@dataclass(frozen=True)
class _CatalogSlotRow:
    """A row of the query `recorded`."""

    publication_name: str
    system_identifier: str
    timeline: int
    database_name: str
    applied_lsn: Lsn
    applied_at: datetime | None


def catalog_slot(connection: PgConnection, slot: str) -> CatalogSlot:
    """What is recorded of the slot. Raises SourceError if the catalog does not know it."""
    with source_errors("reading the mirror's slot"):
        row = fetch_row(connection, _CatalogSlotRow, _SQL["recorded"], {"slot": slot})
    if row is None:
        raise SourceError(f"slot {slot} is not in the catalog", "run `mirror-pump init` first")
    identity = SystemIdentity(row.system_identifier, row.timeline, row.database_name)
    return CatalogSlot(row.publication_name, identity, row.applied_lsn, row.applied_at)
