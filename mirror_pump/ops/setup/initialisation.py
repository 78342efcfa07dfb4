"""Prepares a database for the mirror: checks, schema, warehouse, publication, slot. It can be repeated at any point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from psycopg.types.json import Jsonb

from mirror_pump.config import Settings
from mirror_pump.errors import SourceError, UsageError
from mirror_pump.lake.storage import StorageOptions, delete, join, write_bytes
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.ops.setup.stored_settings import REMEMBERED_STORAGE
from mirror_pump.ops.setup.undo import Undo
from mirror_pump.source.catalog.catalog_schema import installed_version, migrate
from mirror_pump.source.catalog.profiles import read_profiles
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.relations.change_notes import install_triggers, watch_partitions
from mirror_pump.source.rows import fetch_rows
from mirror_pump.source.server import check_server
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
from mirror_pump.storage_profiles import DEFAULT_PROFILE, StorageProfile, overlapping
from sql import queries

_SQL = queries("init")

PROBE = ".mirror-pump-init"
"""A file that is written to the warehouse and removed, so that an unwritable warehouse fails here and not during the
first batch."""

Say = Callable[[str], None]

_TABLES = "SELECT count(*) FROM modak.mirror_tables"


@dataclass(frozen=True)
class Initialised:
    """The mirror that a database has after `initialise`."""

    slot: str
    publication: str
    warehouse: str
    position: Lsn
    """The frontier: the start of the slot, or the position applied since."""


@dataclass(frozen=True)
class _RecordedSlot:
    """A row of modak.mirror_slots."""

    slot: str
    publication: str
    identity: SystemIdentity
    applied: Lsn


def initialise(settings: Settings, say: Say) -> Initialised:
    """Create whatever is missing. Call `say` with one line for each thing that was made, found or needs a warning.

    Raises SourceError if the server or an existing slot is unsuitable, LakeError if the warehouse cannot be written,
    and UsageError if the settings contradict those of the existing mirror. A first init that fails or is interrupted
    removes what it made.
    """
    with (
        connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-init") as connection,
        source_errors("initialising the mirror"),
        Undo(settings, say) as undo,
    ):
        undo.enter(connection)
        first = installed_version(connection) is None
        if first:
            settings.require_warehouse()
        else:
            # The catalog records the slot of the mirror. Without --slot, init uses that slot, whatever its name.
            settings = _recorded_names(settings, _recorded(connection))
        facts = check_server(connection, slot_exists=read_slot(connection, settings.slot) is not None)
        for warning in facts.warnings:
            say(f"warning: {warning}")
        made = _first(connection, settings, say, undo) if first else _again(connection, settings, say, undo)
        undo.keep()
    return made


def _first(connection: PgConnection, settings: Settings, say: Say, undo: Undo) -> Initialised:
    """Initialise a database that has no mirror yet.

    A slot cannot be created in a transaction that has written. So publication and slot come first, in this order,
    because a slot decodes only by publications that existed before it. All else is one transaction.
    """
    _probe(settings, settings.require_warehouse(), undo)
    if not publication_exists(connection, settings.publication):
        undo.making_publication(settings.publication)
    created = create_publication(connection, settings.publication)
    say(f"publication {settings.publication}: {'created' if created else 'there already'}")
    slot = _slot_made(connection, settings, say, undo)
    with connection.transaction():
        migration = migrate(connection)
        say(f"schema modak: created ({', '.join(migration.applied)})")
        warehouse = _store_profile(connection, settings, say, undo)
        if not created and publishes_generated(connection):
            _send_generated(connection, settings, say)
        _triggers(connection, say)
        _store_slot(connection, settings, slot)
    return Initialised(settings.slot, settings.publication, warehouse, slot)


def _again(connection: PgConnection, settings: Settings, say: Say, undo: Undo) -> Initialised:
    migration = migrate(connection)
    if migration.applied:
        say(f"schema modak: migrated ({', '.join(migration.applied)})")
    elif migration.functions:
        say(f"schema modak: functions replaced ({', '.join(migration.functions)})")
    else:
        say(f"schema modak: up to date (version {migration.after})")
    warehouse = _store_profile(connection, settings, say, undo)
    tables = make_publication(connection, settings.publication)
    made = "there already" if tables is None else "created"
    # The stream lacks the changes that were made while the publication was missing.
    again = f" again, with {tables} tables, which are copied again" if tables else ""
    say(f"publication {settings.publication}: {made}{again}")
    if tables is None and publishes_generated(connection):
        _send_generated(connection, settings, say)
    _triggers(connection, say)
    if busy := watch_partitions(connection):
        say(f"warning: {busy} partitions were locked by others; the pump watches them for TRUNCATE later")
    position = _slot(connection, settings, say, undo)
    return Initialised(settings.slot, settings.publication, warehouse, position)


def _triggers(connection: PgConnection, say: Say) -> None:
    if install_triggers(connection):
        say("event triggers: schema changes are followed where they happen")
    else:
        say(
            "warning: this role may not create event triggers (a superuser may). The pump finds schema changes within"
            " seconds instead, and copies a table again if it cannot follow its change"
        )


def _recorded(connection: PgConnection) -> tuple[_RecordedSlot, ...]:
    if connection.execute("SELECT to_regclass('modak.mirror_slots') IS NULL").fetchone() == (True,):
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

    def recorded(self) -> _RecordedSlot:
        identity = SystemIdentity(self.system_identifier, self.timeline, self.database_name)
        return _RecordedSlot(self.slot_name, self.publication_name, identity, self.applied_lsn)


def _recorded_names(settings: Settings, recorded: tuple[_RecordedSlot, ...]) -> Settings:
    """Return the settings with the mirror's slot and publication. Raises UsageError if other names were requested."""
    if not recorded:
        return settings
    mirror = recorded[0]
    requested = {name: getattr(settings, name) for name in ("slot", "publication") if name in settings.model_fields_set}
    for name, value in requested.items():
        present = mirror.slot if name == "slot" else mirror.publication
        if value != present:
            raise UsageError(
                f"this database is mirrored with {name} {present}, not {value}",
                f"leave --{name} out: a database has one slot and one publication for all its mirrored tables",
            )
    return settings.model_copy(update={"slot": mirror.slot, "publication": mirror.publication})


def _store_profile(connection: PgConnection, settings: Settings, say: Say, undo: Undo) -> str:
    """Store the warehouse and the storage options that are not secret. Return the warehouse.

    Raises UsageError if tables are mirrored into another warehouse, and SourceError without a profile `default`.
    """
    with connection.transaction():
        row = connection.execute(_SQL["profile"]).fetchone()
        if row is None:
            raise SourceError(
                "modak.storage_profiles has no profile named default",
                "add it: INSERT INTO modak.storage_profiles (profile_name, warehouse) VALUES ('default', '')",
            )
        warehouse, config = row
        stored = str(warehouse)
        wanted = settings.warehouse or stored
        if not wanted:
            settings.require_warehouse()
        other = overlapping(StorageProfile(DEFAULT_PROFILE, wanted), read_profiles(connection))
        if other is not None:
            raise UsageError(
                f"{wanted} and the warehouse of storage profile {other.name}, {other.warehouse}, are one within the"
                " other",
                "give another --warehouse",
            )
        if stored and wanted != stored and _count(connection, _TABLES):
            raise UsageError(
                f"the mirrored tables' files are in {stored}, not in {wanted}",
                "leave --warehouse out; to move the lake, unregister the tables, init with the new one, register again",
            )
        options = {
            key: getattr(settings, field)
            for key, field in REMEMBERED_STORAGE.items()
            if getattr(settings, field) is not None
        }
        if wanted == stored and config.items() >= options.items():
            say(f"warehouse: {stored}")
            return stored
        _probe(settings, wanted, undo)
        connection.execute(_SQL["store_profile"], (wanted, Jsonb({**config, **options})))
    say(f"warehouse: {wanted} stored" + (f" (was {stored})" if stored not in ("", wanted) else ""))
    return wanted


def _send_generated(connection: PgConnection, settings: Settings, say: Say) -> None:
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


def _slot(connection: PgConnection, settings: Settings, say: Say, undo: Undo) -> Lsn:
    """Create the slot and its catalog row, or check them. Return the applied position."""
    recorded = next((mirror for mirror in _recorded(connection) if mirror.slot == settings.slot), None)
    exists = read_slot(connection, settings.slot) is not None
    if recorded is not None and (exists or _count(connection, _TABLES)):
        # An idle pump acknowledges positions ahead of the frontier, so checking the position is left to the pump.
        check_slot(connection, settings.slot, applied_lsn=None, identity=recorded.identity)
        say(f"slot {settings.slot}: there already, applied up to {format_lsn(recorded.applied)}")
        return recorded.applied
    again = " again: the old one is gone, and no table depended on it" if recorded is not None else ""
    position = _slot_made(connection, settings, say, undo, again)
    _store_slot(connection, settings, position)
    return position


def _slot_made(connection: PgConnection, settings: Settings, say: Say, undo: Undo, again: str = "") -> Lsn:
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


def _store_slot(connection: PgConnection, settings: Settings, position: Lsn) -> None:
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
        ),
    )


def _probe(settings: Settings, warehouse: str, undo: Undo) -> None:
    """Write a file to the warehouse and delete it. Raises LakeError if that fails."""
    storage = StorageOptions(settings.storage_properties)
    location = join(warehouse, PROBE)
    undo.making_directory(warehouse)
    write_bytes(location, b"", storage)
    delete(location, storage)


def _count(connection: PgConnection, query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])
