"""Prepares a database for the mirror: checks, schema, warehouse, publication, slot. It can be repeated at any point.

Tiered tables need neither publication nor slot. A mirror has both, and with them a stream, or none of the two: it
begins without where the server's WAL level does not suffice, or on request, and a later call adds them. None takes
them away: mirrored tables would silently lack what is committed from then on.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from psycopg.types.json import Jsonb

from mirror_pump.errors import UsageError, about
from mirror_pump.lake.commit.catalog import ensure_namespace
from mirror_pump.lake.storage import delete, join, storage_of, write_bytes
from mirror_pump.model import Lsn, format_lsn
from mirror_pump.ops.setup.stored_settings import remembered_storage
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
from mirror_pump.ops.table_locks import locked_transaction
from mirror_pump.pipeline.landing.registration_end import end_lost_registration
from mirror_pump.settings.config import Settings
from mirror_pump.settings.storage_profiles import DEFAULT_PROFILE, StorageProfile, overlapping, refuse_unreadable
from mirror_pump.source.catalog.catalog_schema import installed_version, latest_version, migrate
from mirror_pump.source.catalog.catalog_slot import INIT_AGAIN, catalog_slot, set_format_version
from mirror_pump.source.catalog.lost_rows import (
    LostRow,
    lost_slot,
    make_secret,
    make_shape,
    read_lost_rows,
    record_seam_version,
    registered_namespaces,
)
from mirror_pump.source.catalog.other_mirrors import profiles_of_others, refuse_used_stream
from mirror_pump.source.catalog.profiles import read_profiles
from mirror_pump.source.catalog.pump_channel import RESYNC, notify_pump
from mirror_pump.source.catalog.resync import mark_tables, resync_candidates
from mirror_pump.source.catalog.server_change import recognised
from mirror_pump.source.catalog.slot_row import lock_slot
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.relations.change_notes import install_triggers, watch_partitions
from mirror_pump.source.server import ServerSubject, check_server, read_server, stream_problems
from mirror_pump.source.stream.slot import publishes_generated, read_slot, wal_end
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


def initialise(
    settings: Settings, say: Say, *, tiered_only: bool = False, format_version: int | None = None
) -> Initialised:
    """Create whatever is missing. Call `say` with one line for each thing that was made, found or needs a warning.

    With `tiered_only`, or on a server whose WAL level does not suffice, a mirror begins, or stays, without a stream. A
    mirror that has none gets one where the server can stream. `format_version` is Iceberg's of tables that are
    registered from then on; None: as before.

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
            refuse_unreadable(settings.require_warehouse())
        if (restored := restore_slot_row(connection, settings)) is not None:
            say(restored)
        recorded = recorded_slots(connection)
        # The catalog records the slot of the mirror. Without --slot, init uses that slot, whatever its name.
        settings = _recorded_names(settings, recorded)
        streams = _chosen_stream(connection, recorded, say, tiered_only=tiered_only)
        if not recorded:
            refuse_used_stream(connection, settings)
        slot_exists = read_slot(connection, settings.slot) is not None
        facts = check_server(connection, slot_exists=slot_exists, streams=streams)
        for warning in facts.warnings:
            say(f"warning: {warning}")
        make = _initialise_first if first else _initialise_again
        made = make(connection, settings, say, undo, streams=streams)
        if format_version is not None and set_format_version(connection, settings.slot, format_version):
            say(f"format version of new lake tables: {format_version}")
        undo.keep()
    return made


def _chosen_stream(
    connection: PgConnection, recorded: tuple[RecordedSlot, ...], say: Say, *, tiered_only: bool
) -> bool:
    """Whether the mirror has a stream from now on. Say why not, and how to get one.

    A server whose WAL level suffices, and that cannot stream for another reason, ends a first init: that is a mistake
    more often than a choice. A mirror that works without a stream goes on without, since an upgrade must not fail.
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


def _initialise_first(
    connection: PgConnection, settings: Settings, say: Say, undo: Undo, *, streams: bool
) -> Initialised:
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


def _initialise_again(
    connection: PgConnection, settings: Settings, say: Say, undo: Undo, *, streams: bool
) -> Initialised:
    migration = migrate(connection)
    if migration.applied:
        say(f"schema modak: migrated ({', '.join(migration.applied)})")
    elif migration.functions:
        say(f"schema modak: functions replaced ({', '.join(migration.functions)})")
    else:
        say(f"schema modak: up to date (version {migration.after})")
    recorded = recorded_slot(connection, settings.slot)
    # Before anything of the server is changed; a new slot of a mirror without tables may be made anywhere.
    if recorded is not None and (read_slot(connection, settings.slot) is not None or has_tables(connection)):
        recognised(connection, settings.slot, catalog_slot(connection, settings.slot))
    warehouse = _store_profile(connection, settings, say, undo)
    _triggers(connection, say)
    if busy := watch_partitions(connection):
        say(f"warning: {busy} partitions were locked by others; the pump watches them for TRUNCATE later")
    if not streams:
        position = _kept_without_stream(connection, settings, recorded)
    elif recorded is not None and not recorded.streams:
        position = add_stream(connection, settings, say, undo)
    else:
        position = keep_stream(connection, settings, say, undo)
    for line in mend_lost_rows(connection, settings):
        say(line)
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
        recorded_name = mirror.slot if name == "slot" else mirror.publication
        if value != recorded_name:
            raise UsageError(
                f"this database is mirrored with {name} {recorded_name}, not {value}",
                f"leave --{name} out; a further mirror of the database has a name: --mirror NAME"
                " (docs/operations.md#several-mirrors)",
            )
    return settings.model_copy(update={"slot": mirror.slot, "publication": mirror.publication})


def _store_profile(connection: PgConnection, settings: Settings, say: Say, undo: Undo) -> str:
    """Store the warehouse and the storage options that are not secret. Return the warehouse.

    Raises UsageError if tables are mirrored into another warehouse, and SourceError without a profile `default`.
    """
    with connection.transaction():
        row = connection.execute(_SQL["profile"]).fetchone()
        if row is None:
            say("modak.storage_profiles: had no profile named default; made again")
            connection.execute(_SQL["new_profile"])
        warehouse, config = row or ("", {})
        stored = str(warehouse)
        target = settings.warehouse or stored
        if not target:
            settings.require_warehouse()
        if target != stored:
            refuse_unreadable(target)
        others = (*read_profiles(connection), *(profiles_of_others(connection) if target != stored else ()))
        other = overlapping(StorageProfile(DEFAULT_PROFILE, target), others)
        if other is not None:
            raise UsageError(
                f"{target} and the warehouse of storage profile {other.name}, {other.warehouse}, are one within the"
                " other",
                "give another --warehouse",
            )
        if stored and target != stored and has_tables(connection):
            raise UsageError(
                f"the mirrored tables' files are in {stored}, not in {target}",
                "leave --warehouse out; to move the lake, unregister the tables, init with the new one, register again",
            )
        options = {
            key: getattr(settings, field)
            for key, field in remembered_storage(target).items()
            if getattr(settings, field) is not None
        }
        if target == stored and config.items() >= options.items():
            say(f"warehouse: {stored}")
            return stored
        _probe(settings, target, undo)
        connection.execute(_SQL["store_profile"], (target, Jsonb({**config, **options})))
    say(f"warehouse: {target} stored" + (f" (was {stored})" if stored not in ("", target) else ""))
    return target


def _probe(settings: Settings, warehouse: str, undo: Undo) -> None:
    """Write a file to the warehouse and delete it. Raises LakeError if that fails."""
    storage = storage_of(settings, warehouse)
    location = join(warehouse, PROBE)
    undo.making_directory(warehouse)
    write_bytes(location, b"", storage)
    delete(location, storage)


def mend_lost_rows(connection: PgConnection, settings: Settings) -> list[str]:
    """Mend what can be mended without a loss. Return a line for each thing that was done, or that is left to do."""
    lines = []
    for namespace in registered_namespaces(connection):
        ensure_namespace(connection, namespace)
    for row in read_lost_rows(connection):
        if row.is_secret:
            lines.append(_new_secret(connection, settings))
        elif row.table_id is None:
            record_seam_version(connection)
            lines.append(f"{row.relation}: was empty; recorded again")
        elif row.is_shape:
            make_shape(connection, row.table_id)
            lines.append(f"{row.table_name}: {row.relation} had no row of it; recorded again")
        elif not row.ends_registration or row.in_lake_alone:
            lines.append(f"warning: {about(str(row.table_name), f'{row.message}. Mend it: {row.remedy}')}")
        else:
            lines.append(_end_registration(connection, settings, row))
    return lines


def restore_slot_row(connection: PgConnection, settings: Settings) -> str | None:
    """Record the mirror's slot again if only that row is lost, with the frontier that readers have. Return what was
    done. None if nothing was: the row is there, or no table depends on it."""
    if installed_version(connection) != latest_version():
        return None
    lost = lost_slot(connection)
    if lost is None:
        return None
    settings = settings.model_copy(update={"slot": lost.slot_name, "publication": lost.publication_name})
    slot = read_slot(connection, lost.slot_name)
    frontier = lost.frontier or (slot.confirmed_flush_lsn if slot is not None else None) or Lsn(0)
    store_slot(connection, settings, frontier, streams=True)
    return (
        f"modak.mirror_slots: had no row of slot {lost.slot_name}; recorded again, applied up to {format_lsn(frontier)}"
    )


def _new_secret(connection: PgConnection, settings: Settings) -> str:
    """The notes of changes that were not read yet are worthless without the former secret, as after a lost slot."""
    with connection.transaction():
        lock_slot(connection, settings.slot)
        make_secret(connection)
        tables = [
            table.table_id
            for table in resync_candidates(connection, settings.slot)
            if not table.state.has_ended and table.left_to_the_lake is None
        ]
        marked = mark_tables(connection, settings.slot, tables, wal_end(connection), gap=False) if tables else []
        notify_pump(connection, RESYNC)
    again = f"; {len(marked)} tables are copied again, since changes of them may not have been noted" if marked else ""
    return f"modak.mirror_secret was made again{again}"


def _end_registration(connection: PgConnection, settings: Settings, row: LostRow) -> str:
    assert row.table_id is not None
    name, table_id = str(row.table_name), row.table_id
    doing = f"ending what is left of the registration of {name}"
    locked_transaction(
        connection, settings, name, doing, lambda: end_lost_registration(connection, settings.slot, table_id)
    )
    return (
        f"warning: {name} is not mirrored: {row.relation} has no row of it. What was left of its registration"
        f" has ended; its files stay. Copy it again: mirror-pump register {shlex.quote(name)}"
    )
