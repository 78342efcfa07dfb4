"""Whether the mirror would survive a failover: its slot on the standbys, and no commit in the lake that they lack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg.conninfo import conninfo_to_dict

from mirror_pump.database.quoting import identifier, literal
from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Site, ok, warning
from mirror_pump.source.rows import fetch_rows
from mirror_pump.source.server import ServerSettings, how_to_set, names_of_list, read_server
from mirror_pump.source.stream.slot import SlotStatus, read_slot
from sql import queries

_SQL = queries("failover")

_WAITS = "synchronized_standby_slots"
_OLD = 170000
"""The first version that synchronises slots to standbys."""


@dataclass(frozen=True)
class _Physical:
    """A row of the query `physical`."""

    slot: str | None
    """The slot's name; of a standby without a slot its own name."""
    active: bool
    without_slot: bool


def _run(site: Site) -> Iterator[Finding]:
    mirror = site.require_mirror()
    if site.streams is False:
        yield ok(
            "without a stream the mirror follows a failover by itself: all that it has is in the database and the lake"
        )
        yield from _servers(site)
        return
    with site.connection() as connection:
        version = connection.info.server_version
        standbys = fetch_rows(connection, _Physical, _SQL["physical"])
        ((waits_for,),) = connection.execute(_SQL["waits_for"]).fetchall()
        slot = read_slot(connection, mirror.slot)
        server = read_server(connection)
    slots = [standby for standby in standbys if not standby.without_slot]
    if not standbys:
        yield ok("no standby streams from the server: there is nothing to fail over to")
        return
    if version < _OLD:
        yield warning(
            "before PostgreSQL 17 standbys have no copy of the slot: after a failover all tables are compared, and"
            " copied again where they differ",
            "upgrade the server, or run `mirror-pump reconcile` after each failover",
        )
        return
    yield ok(f"{len(slots)} physical slots; the stream waits for: {waits_for or 'none of them'}")
    yield from _slot(slot)
    yield from _awaited(server, slots, str(waits_for or ""))
    for standby in standbys:
        if standby.without_slot:
            yield warning(
                f"standby {standby.slot} streams without a slot: it cannot have a copy of the mirror's slot",
                "give it one: SELECT pg_create_physical_replication_slot('NAME'), and primary_slot_name = 'NAME' there",
            )
    yield from _servers(site)


def _slot(slot: SlotStatus | None) -> Iterator[Finding]:
    # A slot that does not exist is what the check `replication` is about.
    if slot is not None and not slot.failover:
        yield warning(
            f"slot {slot.name} is not synchronised to standbys: it is lost in a failover",
            f'psql "$MIRROR_PUMP_DSN&replication=database" -c "ALTER_REPLICATION_SLOT {identifier(slot.name)}'
            ' (FAILOVER true)", while no pump runs',
        )


def _awaited(server: ServerSettings, slots: Sequence[_Physical], setting: str) -> Iterator[Finding]:
    awaited = names_of_list(setting)
    names = [standby.slot for standby in slots if standby.slot is not None]
    if not awaited and names:
        slot_names = ", ".join(standby.slot for standby in slots if standby.active and standby.slot) or ", ".join(names)
        yield warning(
            "synchronized_standby_slots is empty: the lake gets commits before standbys do, and shows what a failover"
            " loses",
            how_to_set(server, _WAITS, literal(slot_names)),
        )
    active = {standby.slot for standby in slots if standby.active}
    for name in awaited:
        if name not in active:
            yield warning(
                f"synchronized_standby_slots names {name}, which"
                f" {'is not in use' if name in names else 'does not exist'}: the mirror gets no changes until that"
                " standby is back",
                f"start the standby, or take it out: {how_to_set(server, _WAITS, '...')}",
            )


def _servers(site: Site) -> Iterator[Finding]:
    given = conninfo_to_dict(site.settings.require_dsn())
    hosts = str(given.get("hostaddr") or given.get("host") or "")
    if "," not in hosts:
        yield warning(
            "the connection string names one server: the pump cannot follow a failover by itself",
            "name all of them: postgresql://USER@HOST1,HOST2/DATABASE?target_session_attrs=read-write; or let one name"
            " always lead to the primary",
        )
    elif given.get("target_session_attrs") not in ("read-write", "primary"):
        yield warning(
            "the connection string names several servers, and takes a standby too",
            "add target_session_attrs=read-write to it",
        )


FAILOVER = DoctorCheck("failover", _run, needs=("catalog",))
