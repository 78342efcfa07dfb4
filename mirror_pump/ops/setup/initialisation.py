"""Prepares a database for the mirror: checks, schema, warehouse, publication, slot. It can be repeated at any point.

Tiered tables need neither publication nor slot. A mirror has both, and with them a stream, or none of the two: it
begins without where the server has no wal_level = logical, or on request, and a later call adds them. None takes them
away: mirrored tables would silently lack what is committed from then on.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.types.json import Jsonb

from mirror_pump.config import Settings
from mirror_pump.errors import SourceError, UsageError
from mirror_pump.lake.storage import StorageOptions, delete, join, write_bytes
from mirror_pump.model import Lsn
from mirror_pump.ops.setup.stored_settings import REMEMBERED_STORAGE
from mirror_pump.ops.setup.stream_setup import (
    RecordedSlot,
    Say,
    add_stream,
    has_tables,
    keep_stream,
    publication_made,
    recorded_slot,
    recorded_slots,
    send_generated_columns,
    slot_made,
    store_slot,
)
from mirror_pump.ops.setup.undo import Undo
from mirror_pump.source.catalog.catalog_schema import installed_version, migrate
from mirror_pump.source.catalog.catalog_slot import INIT_AGAIN
from mirror_pump.source.catalog.profiles import read_profiles
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.relations.change_notes import install_triggers, watch_partitions
from mirror_pump.source.server import ServerSubject, check_server, read_server, stream_problems
from mirror_pump.source.stream.slot import publishes_generated, read_slot, wal_end
from mirror_pump.storage_profiles import DEFAULT_PROFILE, StorageProfile, overlapping
from sql import queries

_SQL = queries("init")

PROBE = ".mirror-pump-init"
"""A file that is written to the warehouse and removed, so that an unwritable warehouse fails here and not during the
first batch."""


@dataclass(frozen=True)
class Initialised:
    """The mirror that a database has after `initialise`."""

    slot: str
    publication: str
    warehouse: str
    position: Lsn
    """The frontier: the start of the slot, or the position applied since."""
    streams: bool = True
    """Whether tables can be mirrored. Otherwise there is no slot and no publication, for tiered tables only."""


def initialise(settings: Settings, say: Say, *, tiered_only: bool = False) -> Initialised:
    """Create whatever is missing. Call `say` with one line for each thing that was made, found or needs a warning.

    With `tiered_only`, or on a server without wal_level = logical, a mirror begins, or stays, without a stream. A
    mirror that has none gets one where the server can stream.

    Raises SourceError if the server or an existing slot is unsuitable, LakeError if the warehouse cannot be written,
    and UsageError if the settings contradict those of the existing mirror, such as `tiered_only` if it has a stream. A
    first init that fails or is interrupted removes what it made.
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
        recorded = recorded_slots(connection)
        # The catalog records the slot of the mirror. Without --slot, init uses that slot, whatever its name.
        settings = _recorded_names(settings, recorded)
        streams = _chosen_stream(connection, recorded, say, tiered_only=tiered_only)
        slot_exists = read_slot(connection, settings.slot) is not None
        facts = check_server(connection, slot_exists=slot_exists, streams=streams)
        for warning in facts.warnings:
            say(f"warning: {warning}")
        make = _first if first else _again
        made = make(connection, settings, say, undo, streams=streams)
        undo.keep()
    return made


def _chosen_stream(
    connection: PgConnection, recorded: tuple[RecordedSlot, ...], say: Say, *, tiered_only: bool
) -> bool:
    """Whether the mirror has a stream from now on. Say why not, and how to get one.

    A server with wal_level = logical that cannot stream for another reason ends a first init: that is a mistake more
    often than a choice. A mirror that works without a stream goes on without, since an upgrade must not fail.
    """
    if recorded and recorded[0].streams:
        if tiered_only:
            raise UsageError(
                f"this mirror has a stream (slot {recorded[0].slot}), and init never takes one away: its mirrored"
                " tables would lack all later changes",
                "leave --tiered-only out. To do without a stream, unregister all tables, remove the mirror by"
                " sql/uninstall.sql, and init again",
            )
        return True
    problems = stream_problems(connection, read_server(connection))
    logical = all(problem.subject is not ServerSubject.WAL_LEVEL for problem in problems)
    if not tiered_only and logical and (not problems or not recorded):
        return True
    say("no stream: only tiered tables can be registered (mirror-pump register TABLE --mode tiered)")
    if tiered_only or not problems:
        say(f"to mirror other tables: {INIT_AGAIN}")
        return False
    for problem in problems:
        say(f"to mirror other tables, mend: {problem.message}; {problem.remedy}")
    say("then run `mirror-pump init` again, which keeps all tables")
    return False


def _first(connection: PgConnection, settings: Settings, say: Say, undo: Undo, *, streams: bool) -> Initialised:
    """Initialise a database that has no mirror yet.

    A slot cannot be created in a transaction that has written. So publication and slot come first, in this order,
    because a slot decodes only by publications that existed before it. All else is one transaction.
    """
    _probe(settings, settings.require_warehouse(), undo)
    created = streams and publication_made(connection, settings, say, undo)
    position = slot_made(connection, settings, say, undo) if streams else wal_end(connection)
    with connection.transaction():
        migration = migrate(connection)
        say(f"schema modak: created ({', '.join(migration.applied)})")
        warehouse = _store_profile(connection, settings, say, undo)
        if streams and not created and publishes_generated(connection):
            send_generated_columns(connection, settings, say)
        _triggers(connection, say)
        store_slot(connection, settings, position, streams=streams)
    return Initialised(settings.slot, settings.publication, warehouse, position, streams)


def _again(connection: PgConnection, settings: Settings, say: Say, undo: Undo, *, streams: bool) -> Initialised:
    migration = migrate(connection)
    if migration.applied:
        say(f"schema modak: migrated ({', '.join(migration.applied)})")
    elif migration.functions:
        say(f"schema modak: functions replaced ({', '.join(migration.functions)})")
    else:
        say(f"schema modak: up to date (version {migration.after})")
    warehouse = _store_profile(connection, settings, say, undo)
    _triggers(connection, say)
    if busy := watch_partitions(connection):
        say(f"warning: {busy} partitions were locked by others; the pump watches them for TRUNCATE later")
    recorded = recorded_slot(connection, settings.slot)
    if not streams:
        position = _kept_without_stream(connection, settings, recorded)
    elif recorded is not None and not recorded.streams:
        position = add_stream(connection, settings, say, undo)
    else:
        position = keep_stream(connection, settings, say, undo)
    return Initialised(settings.slot, settings.publication, warehouse, position, streams)


def _kept_without_stream(connection: PgConnection, settings: Settings, recorded: RecordedSlot | None) -> Lsn:
    """Return the frontier."""
    if recorded is not None:
        return recorded.applied
    # The row is missing after an init that was killed.
    position = wal_end(connection)
    store_slot(connection, settings, position, streams=False)
    return position


def _triggers(connection: PgConnection, say: Say) -> None:
    if install_triggers(connection):
        say("event triggers: schema changes are followed where they happen")
    else:
        say(
            "warning: this role may not create event triggers (a superuser may). The pump finds schema changes within"
            " seconds instead, and copies a table again if it cannot follow its change"
        )


def _recorded_names(settings: Settings, recorded: tuple[RecordedSlot, ...]) -> Settings:
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
        if stored and wanted != stored and has_tables(connection):
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


def _probe(settings: Settings, warehouse: str, undo: Undo) -> None:
    """Write a file to the warehouse and delete it. Raises LakeError if that fails."""
    storage = StorageOptions(settings.storage_properties)
    location = join(warehouse, PROBE)
    undo.making_directory(warehouse)
    write_bytes(location, b"", storage)
    delete(location, storage)
