"""Recognises a server that took the place of the one on which the mirror was published: by pg_upgrade, or by a switch
to a copy (docs/design/upgrade.md).

A slot, WAL positions and transaction numbers are those of one cluster. So nothing of another one is trusted unless the
facts prove it, and a server that cannot be the mirror's is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from mirror_pump.database.quoting import literal
from mirror_pump.errors import HistoryDiverged, SourceError
from mirror_pump.model import Lsn, TableName, format_lsn
from mirror_pump.source.catalog.catalog_slot import CatalogSlot
from mirror_pump.source.catalog.slot_row import lock_slot
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_row, fetch_rows
from mirror_pump.source.server import OUTPUT_PLUGIN
from mirror_pump.source.stream.slot import ANEW, SlotStatus, SystemIdentity, read_slot, system_identity
from sql import queries

_SQL = queries("server_change")

CONTINUE_HERE = (
    "if it took the place of the mirror's server, and that one is stopped or read-only for good,"
    " `mirror-pump reconcile` makes a slot here, compares all tables and repairs what differs; readers keep what they"
    " have meanwhile (docs/upgrade.md)"
)
"""What to do on another server that has the mirror's catalog, if the slot was not kept."""

_FIRST_SLOT = 288
"""Bytes from the begin of a WAL segment to the first slot of pg_upgrade, at most: the page's header, the checkpoint of
pg_resetwal, and records of running transactions. 216 to 280 in version 18. A slot that is made by hand on a new server
without any transaction is at 392, behind the commit of one row at 664."""
_EACH_SLOT = 64
"""Bytes of WAL that pg_upgrade writes for each slot, at most: a record of running transactions, 56 in version 18."""


@dataclass(frozen=True)
class SameServer:
    """The server is the one on which the mirror was published."""


@dataclass(frozen=True)
class UpgradedServer:
    """pg_upgrade made the server from that one, and took the slot along: nothing is lost."""

    identity: SystemIdentity
    position: Lsn
    """Where the slot stands. Nothing was committed between the frontier and there."""


@dataclass(frozen=True)
class SuccessorServer:
    """The server has the mirror's catalog and tables, and its slot does not continue from the frontier."""

    identity: SystemIdentity
    reason: str
    """What is missing, for people."""


@dataclass(frozen=True)
class ForeignServer:
    """The mirror cannot continue here, or not yet."""

    reason: str
    remedy: str


RecognisedServer: TypeAlias = SameServer | UpgradedServer | SuccessorServer


@dataclass(frozen=True)
class MovedTable:
    """A registered table whose name belongs to another relation than the catalog's. A row of the query `moved`."""

    schema_name: str
    table_name: str
    table_id: int
    relation_id: int


@dataclass(frozen=True)
class OutdatedSequence:
    """A sequence that would give numbers which rows have already. A row of the query `outdated`."""

    name: str
    """Quoted for SQL."""
    position: int
    needed: int


@dataclass(frozen=True)
class UnguardedPartition:
    """A partition below the cut-line whose changes become no corrections. A row of the query `unguarded`."""

    table_id: int
    relation_id: int
    partition_id: str
    """Or the relation's name, if the catalog does not know the partition."""
    is_shared: bool
    """Whether the catalog says that heap and lake hold it. Otherwise it was dropped on the other server, or attached
    here since the pump's last look."""


@dataclass(frozen=True)
class ServerComparison:
    """What a server has, and what the catalog says of the mirror's."""

    slot_name: str
    recorded: SystemIdentity
    identity: SystemIdentity
    streams: bool
    applied: Lsn
    """The frontier."""
    drained: Lsn | None
    """Where `run --drain` took the slot."""
    wal_end: Lsn
    segment_bytes: int
    logical_slots: int
    """Of all databases of the cluster."""
    version: int
    """server_version_num."""
    slot: SlotStatus | None
    subscriptions: tuple[str, ...] = ()
    """Enabled ones that write to modak.mirror_slots."""
    moved: tuple[MovedTable, ...] = ()
    sequences: tuple[OutdatedSequence, ...] = ()
    unguarded: tuple[UnguardedPartition, ...] = ()


@dataclass(frozen=True)
class _ServerRow:
    """The row of the query `server`."""

    drained: Lsn | None
    wal_end: Lsn
    segment_bytes: int
    logical_slots: int
    subscriptions: list[str]


def recognise(server: ServerComparison) -> RecognisedServer | ForeignServer:
    """What a server is to the mirror. Pure; the table of docs/design/upgrade.md, in its order."""
    if _names(server.identity) == _names(server.recorded):
        return SameServer()
    lost = _why_slot_is_lost(server)
    if lost is None:
        # The same cluster: a partition that its owner attached lately is for the pump to look at.
        server = replace(server, unguarded=tuple(lacking for lacking in server.unguarded if lacking.is_shared))
    foreign = _foreign(server)
    if foreign is not None:
        return foreign
    if lost is not None:
        return SuccessorServer(server.identity, lost)
    assert server.slot is not None
    assert server.slot.confirmed_flush_lsn is not None
    return UpgradedServer(server.identity, server.slot.confirmed_flush_lsn)


def _compare(connection: PgConnection, slot: str, recorded: CatalogSlot, identity: SystemIdentity) -> ServerComparison:
    """Reads what `recognise` asks for of another server. Raises SourceError."""
    with source_errors("comparing the server with the mirror's"):
        row = fetch_row(connection, _ServerRow, _SQL["server"], {"slot": slot})
        moved = fetch_rows(connection, MovedTable, _SQL["moved"], {"slot": slot})
        sequences = fetch_rows(connection, OutdatedSequence, _SQL["outdated"])
        unguarded = fetch_rows(connection, UnguardedPartition, _SQL["unguarded"], {"slot": slot})
    assert row is not None
    return ServerComparison(
        slot,
        recorded.identity,
        identity,
        recorded.streams,
        recorded.applied,
        row.drained,
        row.wal_end,
        row.segment_bytes,
        row.logical_slots,
        connection.info.server_version,
        read_slot(connection, slot),
        tuple(row.subscriptions),
        tuple(moved),
        tuple(sequences),
        tuple(unguarded),
    )


def recognised(connection: PgConnection, slot: str, recorded: CatalogSlot) -> RecognisedServer:
    """What the server is to the mirror. Of its own server only the identity is read. Raises SourceError if the mirror
    cannot continue on it."""
    identity = system_identity(connection)
    if _names(identity) == _names(recorded.identity):
        return SameServer()
    recognition = recognise(_compare(connection, slot, recorded, identity))
    if isinstance(recognition, ForeignServer):
        raise SourceError(recognition.reason, recognition.remedy)
    return recognition


def require_same_server(connection: PgConnection, slot: str, recorded: CatalogSlot) -> UpgradedServer | None:
    """None on the mirror's own server. Raises HistoryDiverged on a server that took its place without the slot, and
    SourceError if the mirror cannot continue on it."""
    server = recognised(connection, slot, recorded)
    if isinstance(server, SuccessorServer):
        raise HistoryDiverged(server.reason, CONTINUE_HERE)
    return server if isinstance(server, UpgradedServer) else None


def forget_drain(connection: PgConnection, slot: str) -> None:
    """Makes sure that no slot is taken for that of pg_upgrade from now on."""
    with source_errors("recording that the slot is made anew"):
        connection.execute(_SQL["forget_drain"], {"slot": slot})


def accept_server(
    connection: PgConnection, slot: str, server: UpgradedServer | SuccessorServer, accepted: float
) -> None:
    """Records that the mirror continues on this server, in one transaction: from the slot's position if pg_upgrade kept
    the slot. Takes over what the other server has changed without meaning, as far as that is older than the slot.
    `accepted`: CatalogPosition.accepted."""
    parameters = {
        "slot": slot,
        "system_identifier": server.identity.system_identifier,
        "timeline": server.identity.timeline,
        "drained": server.position if isinstance(server, UpgradedServer) else None,
        "accepted": accepted,
    }
    with source_errors("recording the server"), connection.transaction():
        lock_slot(connection, slot)
        for statement in ("take_over_published", "take_over_noted", "take_over_shapes", "wait_anew", "accept"):
            connection.execute(_SQL[statement], parameters)


def _names(identity: SystemIdentity) -> tuple[str, str]:
    return identity.system_identifier, identity.database


def _foreign(server: ServerComparison) -> ForeignServer | None:
    """Why the mirror cannot continue here. None if it can."""
    here = (
        f"slot {server.slot_name} was made in database {server.recorded.database} of cluster"
        f" {server.recorded.system_identifier}, but this is database {server.identity.database} of cluster"
        f" {server.identity.system_identifier}"
    )
    if server.identity.database != server.recorded.database:
        return ForeignServer(here, f"connect to the original. In a copied database: {ANEW}")
    if server.subscriptions:
        name = server.subscriptions[0]
        return ForeignServer(
            f"{here}, and subscription {name} writes to the mirror's catalog in it: the switch to this server is not"
            " complete",
            f"connect to the original. Once its writers are stopped, and the subscription has everything: ALTER"
            f" SUBSCRIPTION {name} DISABLE",
        )
    if server.moved:
        table = server.moved[0]
        return ForeignServer(
            f"{here}, and {TableName(table.schema_name, table.table_name)} has OID {table.relation_id} in it, not"
            f" {table.table_id} ({len(server.moved)} tables in all): all that the catalog has of a table is by its OID,"
            " which pg_dump does not keep",
            "connect to the original, or make the new server from a physical copy: by pg_upgrade, pg_createsubscriber"
            " or a service's blue/green deployment (docs/upgrade.md). If only these tables were made again, unregister"
            f" them. Otherwise {ANEW}",
        )
    if server.wal_end < server.applied:
        return _behind(here, server.wal_end, server.applied, server.segment_bytes)
    return _lacking(server, here)


def _lacking(server: ServerComparison, here: str) -> ForeignServer | None:
    """What logical replication has not brought."""
    if server.unguarded:
        return ForeignServer(
            f"{here}, and partition {server.unguarded[0].partition_id} lacks the triggers that the mirror made on the"
            " other server when the cut-line passed it: a pump ran there after this copy was made, and DDL is not"
            " replicated. Changes of its rows here become no corrections",
            _how_to_guard(server.unguarded),
        )
    if server.sequences:
        sequence = server.sequences[0]
        return ForeignServer(
            f"{here}, and sequence {sequence.name} stands at {sequence.position}, while rows have numbers up to"
            f" {sequence.needed}: sequences were not taken along",
            "set them, those of your tables too: "
            + "; ".join(f"SELECT setval('{entry.name}', {entry.needed})" for entry in server.sequences),
        )
    return None


def _how_to_guard(partitions: Sequence[UnguardedPartition]) -> str:
    anew = "go back to the other server, and make the copy anew with the pump stopped (docs/upgrade.md)"
    if not all(partition.is_shared for partition in partitions):
        return f"if its owner attached it here lately, detach it until the pump runs. Otherwise {anew}"
    triggers = "; ".join(
        f"SELECT modak.retain_triggers({lacking.table_id}, {lacking.relation_id}, {literal(lacking.partition_id)},"
        " 'cold')"
        for lacking in partitions
    )
    return f"if it was not written to here, as the owner of schema modak: {triggers}. Otherwise {anew}"


def require_ahead(connection: PgConnection, slot: str, frontier: Lsn) -> None:
    """Raises SourceError if the server's WAL does not reach beyond a frontier that readers of the lake have seen."""
    row = fetch_row(connection, _ServerRow, _SQL["server"], {"slot": slot})
    assert row is not None
    if row.wal_end < frontier:
        behind = _behind("this is another server than the mirror's", row.wal_end, frontier, row.segment_bytes)
        raise SourceError(behind.reason, behind.remedy)


def _behind(here: str, wal_end: Lsn, frontier: Lsn, segment_bytes: int) -> ForeignServer:
    # The first segment of which all positions are beyond the frontier, as pg_resetwal takes it.
    segment = frontier // segment_bytes + 2
    in_file = 0x1_0000_0000 // segment_bytes
    name = f"{1:08X}{segment // in_file:08X}{segment % in_file:08X}"
    return ForeignServer(
        f"{here}, whose WAL ends at {format_lsn(wal_end)}, before the frontier {format_lsn(frontier)}: positions would"
        " go back for readers, who could not tell old ones from new ones",
        "connect to the original. If this server takes its place, and before anything is written here: stop the"
        f" server, `pg_resetwal -l {name} -D DATADIR`, and start it. That ends all replication slots and standbys of"
        " this server, and needs a new base backup. On a service, repeat CHECKPOINT and SELECT pg_switch_wal() until"
        f" pg_current_wal_lsn() is beyond {format_lsn(frontier)}",
    )


def _why_slot_is_lost(server: ServerComparison) -> str | None:
    """Why the slot cannot be the mirror's that pg_upgrade took along. None if it is."""
    slot = server.slot
    here = f"this is cluster {server.identity.system_identifier}, with the mirror's catalog"
    if not server.streams:
        return f"{here}; the mirror was published on {server.recorded.system_identifier}"
    if slot is None:
        return f"{here} and without slot {server.slot_name}: it was not taken along"
    made_by_others = f"{here}, and slot {server.slot_name} in it is not the one that pg_upgrade takes along"
    position, restart = slot.confirmed_flush_lsn, slot.restart_lsn
    if slot.plugin != OUTPUT_PLUGIN or slot.database != server.identity.database or slot.invalidated:
        return f"{made_by_others}: it is of another kind, or was invalidated"
    if server.version < 170000 or not slot.failover:
        return f"{made_by_others}: `init` sets its failover property"
    assert restart is not None
    room = _FIRST_SLOT + _EACH_SLOT * (server.logical_slots - 1)
    # A slot that was read or moved since has its position elsewhere, and the changes up to there are in no stream.
    if position is None or restart % server.segment_bytes > room or not 0 <= position - restart <= _EACH_SLOT:
        return f"{made_by_others}, or was moved since: what was committed here before its position is in no stream"
    if server.drained is None or not server.applied <= server.drained < position:
        return f"{made_by_others}, or the mirror was not drained before (`mirror-pump run --drain`)"
    return None
