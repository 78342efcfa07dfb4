"""The publication and the slot of a mirror, as `init` makes them: with the mirror, later, or again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mirror_pump.errors import SourceError
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.ops.setup.undo import Undo
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_slot import catalog_slot
from mirror_pump.source.catalog.pump_channel import COPY, notify_pump
from mirror_pump.source.catalog.server_change import SameServer, recognised, require_same_server
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.rows import fetch_rows
from mirror_pump.source.stream.publication import altered_tables, make_publication, record_published
from mirror_pump.source.stream.slot import (
    SystemIdentity,
    check_slot,
    create_publication,
    create_slot,
    publication_exists,
    publishes_generated,
    read_slot,
    send_generated,
    sends_generated,
    system_identity,
)
from sql import queries
from sql.mirror_names import SCHEMA

_SQL = queries("init")

Say = Callable[[str], None]


def has_tables(connection: PgConnection) -> bool:
    """Whether any table is registered."""
    ((exists,),) = connection.execute(f"SELECT EXISTS (SELECT FROM {SCHEMA}.mirror_tables)").fetchall()
    return bool(exists)


@dataclass(frozen=True)
class RecordedSlot:
    """A mirror of this database: a row of modak.mirror_slots."""

    slot: str
    publication: str
    identity: SystemIdentity
    applied: Lsn
    """The frontier."""
    streams: bool
    """False: it has neither the slot nor the publication."""


def recorded_slots(connection: PgConnection) -> tuple[RecordedSlot, ...]:
    """The mirrors of this database; none before the first `init`."""
    if connection.execute(f"SELECT to_regclass('{SCHEMA}.mirror_slots') IS NULL").fetchone() == (True,):
        return ()
    return tuple(row.recorded() for row in fetch_rows(connection, _StoredSlotRow, _SQL["slots"]))


@dataclass(frozen=True)
class _StoredSlotRow:
    """A row of the query `slots`."""

    slot_name: str
    publication_name: str
    system_identifier: str
    timeline: int
    database_name: str
    applied_lsn: Lsn
    streams: bool

    def recorded(self) -> RecordedSlot:
        identity = SystemIdentity(self.system_identifier, self.timeline, self.database_name)
        return RecordedSlot(self.slot_name, self.publication_name, identity, self.applied_lsn, self.streams)


def recorded_slot(connection: PgConnection, slot: str) -> RecordedSlot | None:
    """The mirror with this slot; None if the catalog does not know it."""
    return next((mirror for mirror in recorded_slots(connection) if mirror.slot == slot), None)


def store_slot(connection: PgConnection, settings: Settings, position: Lsn, *, streams: bool) -> None:
    """Record the mirror, with `position` as its frontier."""
    identity = system_identity(connection)
    connection.execute(
        _SQL["store_slot"],
        (
            settings.slot,
            settings.publication,
            identity.system_identifier,
            identity.timeline,
            identity.database,
            position,
            streams,
        ),
    )


def publication_made(connection: PgConnection, settings: Settings, say: Say, undo: Undo) -> bool:
    """Create the publication without tables. Return False if it is there already."""
    if not publication_exists(connection, settings.publication):
        undo.making_publication(settings.publication)
    created = create_publication(connection, settings.publication)
    say(f"publication {settings.publication}: {'created' if created else 'there already'}")
    return created


def add_stream(connection: PgConnection, settings: Settings, say: Say, undo: Undo) -> Lsn:
    """Give a mirror that had none its stream. Return the frontier.

    No table of it is mirrored: what depends on changes is registered afterwards. So it does not matter how far a
    running pump has moved the frontier meanwhile. That pump is told, and begins anew; if it does not hear it, its next
    publish fails (mirror_pump/pipeline/publish/publisher.py).
    """
    publication_made(connection, settings, say, undo)
    position = slot_made(connection, settings, say, undo)
    ((applied,),) = connection.execute(
        _SQL["begin_streaming"], {"slot": settings.slot, "position": position}
    ).fetchall()
    undo.keep()
    notify_pump(connection, COPY)
    say(
        "the mirror has a stream from now on: other tables can be mirrored, and all tables of the mirror stay as they"
        " are"
    )
    return Lsn(applied)


def keep_stream(connection: PgConnection, settings: Settings, say: Say, undo: Undo) -> Lsn:
    """Check the publication and the slot, or make what is missing. Return the frontier."""
    tables = make_publication(connection, settings.publication)
    made = "there already" if tables is None else "created"
    # The stream lacks the changes that were made while the publication was missing.
    again = f" again, with {tables} tables, which are copied again" if tables else ""
    say(f"publication {settings.publication}: {made}{again}")
    if tables is None and publishes_generated(connection) and _is_accepted(connection, settings.slot):
        send_generated_columns(connection, settings, say)
    return _kept_slot(connection, settings, say, undo)


def _is_accepted(connection: PgConnection, slot: str) -> bool:
    """Whether the mirror was published on this server. Until then the publication must stay as it was brought."""
    if recorded_slot(connection, slot) is None:
        return True
    return isinstance(recognised(connection, slot, catalog_slot(connection, slot)), SameServer)


def send_generated_columns(connection: PgConnection, settings: Settings, say: Say) -> None:
    """Publish stored generated columns that were not published before.

    To the pump, the tables concerned get new columns with values in existing rows, so it copies these tables again. It
    cannot copy rows that the heap has shed. If one of the tables sheds rows, the columns stay out, with a warning.
    """
    publication = settings.publication
    with connection.transaction():
        if sends_generated(connection, publication):
            return
        concerned = fetch_rows(connection, _ComputedColumns, _SQL["computed"], (publication,))
        shedding = [table.name for table in concerned if table.sheds]
        if shedding:
            say(
                f"warning: stored generated columns are still not mirrored: {', '.join(shedding)} would need them in"
                " old rows, which have left the heap; unregister it, run init again, then register it"
            )
            return
        altered = altered_tables(connection, settings.slot)
        send_generated(connection, publication)
        # This change is our own. The stream lacks nothing of tables without such columns, and the pump recognises the
        # others by their new columns.
        again = set(altered_tables(connection, settings.slot)) - set(altered)
        record_published(connection, settings.slot, sorted(again))
    say(f"publication {publication}: stored generated columns are published from now on")
    for table in concerned:
        say(f"{table.name}: the pump copies it again, with {', '.join(table.columns)}")


@dataclass(frozen=True)
class _ComputedColumns:
    """A row of the query `computed`: the stored generated columns of a table."""

    name: str
    """The table's name, quoted for SQL."""
    sheds: bool
    """Whether rows of the table leave the heap, or have left it."""
    columns: list[str]


def _kept_slot(connection: PgConnection, settings: Settings, say: Say, undo: Undo) -> Lsn:
    """Create the slot and its catalog row, or check them. Return the applied position."""
    recorded = recorded_slot(connection, settings.slot)
    exists = read_slot(connection, settings.slot) is not None
    if recorded is not None and (exists or has_tables(connection)):
        # An idle pump acknowledges positions ahead of the frontier, so checking the position is left to the pump.
        require_same_server(connection, settings.slot, catalog_slot(connection, settings.slot))
        check_slot(connection, settings.slot, applied_lsn=None)
        say(f"slot {settings.slot}: there already, applied up to {format_lsn(recorded.applied)}")
        return recorded.applied
    again = " again: the old one is gone, and no table depended on it" if recorded is not None else ""
    position = slot_made(connection, settings, say, undo, again)
    store_slot(connection, settings, position, streams=True)
    return position


def slot_made(connection: PgConnection, settings: Settings, say: Say, undo: Undo, again: str = "") -> Lsn:
    """Create the slot, or adopt an existing slot without a catalog row. Return its position.

    Such a slot was left by an init that was killed, and nothing has been consumed from it. Raises SourceError if the
    slot has no consistent point.
    """
    if read_slot(connection, settings.slot) is None:
        say(f"slot {settings.slot}: creating; this waits for the transactions that are open now")
        undo.making_slot(settings.slot)
    slot, created = create_slot(connection, settings.slot)
    if slot.confirmed_flush_lsn is None:
        raise SourceError(f"slot {settings.slot} has no consistent point", "drop it and run `mirror-pump init` again")
    position = slot.confirmed_flush_lsn
    say(f"slot {settings.slot}: {'created' if created else 'adopted'} at {format_lsn(position)}{again}")
    return position
