"""Slots and walsenders that are free, the limits of the WAL that a slot may keep, the mirror's own slot, and whether
commits wait for its walsender."""

from __future__ import annotations

from collections.abc import Iterator

from mirror_pump.errors import SourceError
from mirror_pump.ops.doctor.check import DoctorCheck, Finding, Site, failed, failure, ok, warning
from mirror_pump.ops.doctor.server import server_findings
from mirror_pump.ops.status.slot_state import slot_error
from mirror_pump.source.catalog.catalog_slot import how_to_stream
from mirror_pump.source.connect import PgConnection, replication_connect
from mirror_pump.source.server import ServerSettings, ServerSubject, how_to_set, read_server
from mirror_pump.source.stream.slot import read_slot
from mirror_pump.source.stream.synchronous import synchronous_commits
from mirror_pump.source.stream.wal_room import read_wal_room

_SUBJECTS = frozenset({ServerSubject.SLOTS, ServerSubject.SENDERS, ServerSubject.WAL_LIMIT})
_SHORTEST_IDLE = 3600
"""Seconds of idle_replication_slot_timeout below which an ordinary outage loses the slot."""


def _run(site: Site) -> Iterator[Finding]:
    if site.streams is False:
        with site.connection() as connection:
            remedy = how_to_stream(connection)
        yield ok(f"the mirror has no stream: only tiered tables can be registered. To mirror others: {remedy}")
        return
    mirror = site.mirror
    slot = (mirror or site.settings).slot
    with site.connection() as connection:
        server = read_server(connection)
        exists = read_slot(connection, slot) is not None
        findings = server_findings(site, connection, server, _SUBJECTS, slot_exists=exists)
        # The slot of a mirror is held against its catalog; without one there is nothing to compare.
        lost = None if mirror is None else slot_error(connection, slot)
        room = _room(connection, slot, site.settings.wal_guard_bytes) if exists else None
        commits = synchronous_commits(connection)
    yield ok(
        f"{server.slots - server.used_slots} of {server.slots} slots and {server.senders - server.used_senders} of"
        f" {server.senders} walsenders are free; slot {slot} {'exists' if exists else 'does not exist yet'}"
    )
    yield from findings
    if commits is not None:
        yield warning(commits.message, commits.remedy)
    yield from room_findings(server)
    if mirror is not None or server.decodes:
        yield from _streams(site)
    if lost is not None:
        yield failure(lost)
    elif room is not None:
        yield room


def room_findings(server: ServerSettings) -> Iterator[Finding]:
    """What the server has too little of for a stream, now or while no pump runs."""
    if 0 < server.idle_timeout < _SHORTEST_IDLE:
        yield warning(
            f"idle_replication_slot_timeout is {server.idle_timeout} s: a pump that is away for longer loses its slot",
            how_to_set(server, "idle_replication_slot_timeout", "0"),
        )
    if 0 < server.senders <= server.used_senders:
        yield failed(
            f"all {server.senders} walsenders of the server are in use",
            how_to_set(server, "max_wal_senders", str(server.senders + 5)),
        )


def _streams(site: Site) -> Iterator[Finding]:
    """Open a connection that could stream changes: pg_hba.conf, a pooler or a lack of walsenders may prevent it."""
    if site.is_reader:
        return
    try:
        replication_connect(site.settings.require_dsn(), application_name="mirror-pump-doctor").finish()
    except SourceError as error:
        yield failed(f"no connection that streams changes: {error}", error.remedy)


def _room(connection: PgConnection, slot: str, limit: int) -> Finding | None:
    """The finding about a slot with little room; None if it has enough."""
    try:
        wal = read_wal_room(connection, slot)
    except SourceError:
        return None
    room = None if wal is None else wal.room(limit)
    if wal is None or room is None or wal.retained_bytes is None or room > wal.retained_bytes:
        return None
    return warning(
        f"slot {slot} keeps {wal.retained_bytes} bytes of WAL, and may keep {room} more before it is lost",
        "see `mirror-pump status`; start a pump, or raise max_slot_wal_keep_size",
    )


REPLICATION = DoctorCheck("replication", _run, needs=("database",))
