"""Prepares a database for the mirror: checks, schema, warehouse, publication, slot. Safe to repeat, at any point."""

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
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.relations.change_notes import install_triggers, watch_partitions
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

PROBE = ".mirror-pump-init"
"""Written to the warehouse and removed: an unwritable one should fail here, not in the first batch."""

Say = Callable[[str], None]

_SLOTS = """
SELECT slot_name, publication_name, system_identifier, timeline, database_name, applied_lsn
  FROM modak.mirror_slots WHERE database_name = current_database() ORDER BY slot_name
"""
_TABLES = "SELECT count(*) FROM modak.mirror_tables"
_PROFILE = "SELECT warehouse, coalesce(lake_config, '{}') FROM modak.storage_profiles WHERE is_default FOR UPDATE"
_STORE_PROFILE = """
UPDATE modak.storage_profiles SET warehouse = %s, lake_format = 'iceberg', lake_config = %s WHERE is_default
"""
_STORE_SLOT = """
INSERT INTO modak.mirror_slots
       (slot_name, publication_name, system_identifier, timeline, database_name, applied_lsn, applied_at)
VALUES (%s, %s, %s, %s, %s, %s, now())
ON CONFLICT (slot_name) DO UPDATE
   SET applied_lsn = excluded.applied_lsn, applied_at = excluded.applied_at, applied_commit_time = NULL,
       system_identifier = excluded.system_identifier, timeline = excluded.timeline
"""

_COMPUTED = """
SELECT quote_ident(t.schema_name) || '.' || quote_ident(t.table_name),
       m.retention IS NOT NULL OR modak.moved_cut(m.table_id) IS NOT NULL,
       array_agg(a.attname::text ORDER BY a.attnum)
  FROM modak.mirror_tables m JOIN modak.tables t USING (table_id) JOIN pg_attribute a ON a.attrelid = m.table_id::oid
 WHERE t.publication_name = %s AND m.state <> 'failed' AND a.attgenerated = 's' AND NOT a.attisdropped
 GROUP BY m.table_id, t.schema_name, t.table_name ORDER BY 1
"""


@dataclass(frozen=True)
class Initialised:
    """The mirror that a database now has."""

    slot: str
    publication: str
    warehouse: str
    position: Lsn
    """F: where the slot begins, or what has been applied since."""


@dataclass(frozen=True)
class _Recorded:
    """A row of modak.mirror_slots."""

    slot: str
    publication: str
    identity: SystemIdentity
    applied: Lsn


def initialise(settings: Settings, say: Say) -> Initialised:
    """Makes whatever is missing and tells `say`, a line for each thing done, found or worth a warning.

    Raises SourceError when the server or an existing slot does not serve, LakeError when the warehouse cannot be
    written, UsageError when the settings contradict what the database already mirrors with. A first init that fails,
    or is interrupted, takes back what it made.
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
            # Which slot is ours is recorded: without --slot it is that one, whatever its name.
            settings = _recorded_names(settings, _recorded(connection))
        facts = check_server(connection, slot_exists=read_slot(connection, settings.slot) is not None)
        for warning in facts.warnings:
            say(f"warning: {warning}")
        made = _first(connection, settings, say, undo) if first else _again(connection, settings, say, undo)
        undo.keep()
    return made


def _first(connection: PgConnection, settings: Settings, say: Say, undo: Undo) -> Initialised:
    """The slot does not fit into a transaction, and a transaction that has written cannot wait for one. So publication
    and slot come first, in this order, since a slot decodes by publications that were there before it. All else is one
    transaction."""
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
    else:
        say(f"schema modak: up to date (version {migration.after})")
    warehouse = _store_profile(connection, settings, say, undo)
    tables = make_publication(connection, settings.publication)
    made = "there already" if tables is None else "created"
    # The stream lacks what became of them without it.
    again = f" anew, with {tables} tables, which are copied again" if tables else ""
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
            "warning: this role may not create event triggers (a superuser may): schema changes are found within"
            " seconds instead, and tables copied again where they cannot be followed"
        )


def _recorded(connection: PgConnection) -> tuple[_Recorded, ...]:
    if connection.execute("SELECT to_regclass('modak.mirror_slots') IS NULL").fetchone() == (True,):
        return ()
    return tuple(
        _Recorded(slot, publication, SystemIdentity(system, timeline, database), Lsn(applied))
        for slot, publication, system, timeline, database, applied in connection.execute(_SLOTS).fetchall()
    )


def _recorded_names(settings: Settings, recorded: tuple[_Recorded, ...]) -> Settings:
    """The settings with the names that the mirror has; UsageError if others were asked for explicitly."""
    if not recorded:
        return settings
    mirror = recorded[0]
    asked = {name: getattr(settings, name) for name in ("slot", "publication") if name in settings.model_fields_set}
    for name, value in asked.items():
        present = mirror.slot if name == "slot" else mirror.publication
        if value != present:
            raise UsageError(
                f"this database is mirrored with {name} {present}, not {value}",
                f"leave --{name} out: a database has one slot and one publication for all its mirrored tables",
            )
    return settings.model_copy(update={"slot": mirror.slot, "publication": mirror.publication})


def _store_profile(connection: PgConnection, settings: Settings, say: Say, undo: Undo) -> str:
    """Records the warehouse and the storage options that are no secrets; returns the warehouse."""
    with connection.transaction():
        row = connection.execute(_PROFILE).fetchone()
        if row is None:
            raise SourceError(
                "modak.storage_profiles has no default profile", "mark one: UPDATE ... SET is_default = true"
            )
        stored, config = str(row[0]), dict(row[1])
        wanted = settings.warehouse or stored
        if not wanted:
            settings.require_warehouse()
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
        connection.execute(_STORE_PROFILE, (wanted, Jsonb({**config, **options})))
    say(f"warehouse: {wanted} stored" + (f" (was {stored})" if stored not in ("", wanted) else ""))
    return wanted


def _send_generated(connection: PgConnection, settings: Settings, say: Say) -> None:
    """Has stored generated columns published that were not. To the pump, tables that have some get new columns with
    values in rows that exist: it copies them again. Rows that the heap has shed cannot be."""
    publication = settings.publication
    with connection.transaction():
        if sends_generated(connection, publication):
            return
        concerned = connection.execute(_COMPUTED, (publication,)).fetchall()
        shedding = [name for name, sheds, _ in concerned if sheds]
        if shedding:
            say(
                f"warning: stored generated columns stay left out: {', '.join(shedding)} would need them in old rows,"
                " which the heap sheds; unregister it, run init again, then register it"
            )
            return
        altered = altered_tables(connection, settings.slot)
        send_generated(connection, publication)
        # Ours: nothing is missing of tables without such columns, and the others are told of by their shape.
        again = set(altered_tables(connection, settings.slot)) - set(altered)
        record_published(connection, settings.slot, sorted(again))
    say(f"publication {publication}: stored generated columns are published from now on")
    for name, _, columns in concerned:
        say(f"{name}: the pump copies it again, with {', '.join(columns)}")


def _slot(connection: PgConnection, settings: Settings, say: Say, undo: Undo) -> Lsn:
    """Creates the slot and its catalog row, or checks them; returns the applied position."""
    recorded = next((one for one in _recorded(connection) if one.slot == settings.slot), None)
    exists = read_slot(connection, settings.slot) is not None
    if recorded is not None and (exists or _count(connection, _TABLES)):
        # What an idle pump acknowledged lies ahead of F, so the position is the pump's to judge.
        check_slot(connection, settings.slot, applied_lsn=None, identity=recorded.identity)
        say(f"slot {settings.slot}: there already, applied up to {format_lsn(recorded.applied)}")
        return recorded.applied
    again = " anew: the old one is gone, and no table depended on it" if recorded is not None else ""
    position = _slot_made(connection, settings, say, undo, again)
    _store_slot(connection, settings, position)
    return position


def _slot_made(connection: PgConnection, settings: Settings, say: Say, undo: Undo, again: str = "") -> Lsn:
    """Creates the slot, or adopts one without a row: an init that was killed left it, and nothing was consumed from it
    yet. Returns its position."""
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
        _STORE_SLOT,
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
    """Writes to the warehouse and cleans up; LakeError if that does not work."""
    storage = StorageOptions(settings.storage_properties)
    location = join(warehouse, PROBE)
    undo.making_directory(warehouse)
    write_bytes(location, b"", storage)
    delete(location, storage)


def _count(connection: PgConnection, query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])
