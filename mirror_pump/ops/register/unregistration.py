"""Unregisters tables, each in one transaction, whether or not a pump runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import timedelta

from mirror_pump.config import Settings
from mirror_pump.errors import MirrorPumpError, TableError, UsageError
from mirror_pump.lake.commit.catalog import delete_pointer
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, TableMode
from mirror_pump.ops.register.former_files import FormerFiles, list_former_files, remove_former_files
from mirror_pump.ops.register.table_locks import limit_lock, with_lock_retries
from mirror_pump.pipeline.lake_storage import lake_storage
from mirror_pump.source.catalog.former_locations import (
    EndedBy,
    FormerLocation,
    former_locations,
    record_former_location,
)
from mirror_pump.source.catalog.registered_names import formerly_registered, name_parts, registered_as
from mirror_pump.source.catalog.tables import delete_table, load_table
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.retention.retention_plan import leave_partitions, sheds
from mirror_pump.source.stream.leader import is_led
from mirror_pump.source.stream.slot import remove_from_publication
from sql import queries

_TASKS_PATIENCE = timedelta(seconds=30)
"""How long `unregister` waits for tasks of the pump before it removes a table's files."""

_PUBLISH_SQL = queries("publish")
_SHAPE_SQL = queries("shape")
_TABLES_SQL = queries("tables")


def unregister(settings: Settings, name: str, drop_lake: bool, keep_lake: bool = False) -> str:
    """Unregister a table; with `drop_lake`, remove its Iceberg table and files too. Return what was done, in words.

    A table that was dropped in Postgres is found under the name that it was registered with. If the lake has the only
    copy of some rows, the caller must pass `drop_lake` or `keep_lake`; otherwise TableError is raised. Files that stay
    become a former location. If only former registrations had the name, `drop_lake` removes their files. Raises
    UsageError if both `drop_lake` and `keep_lake` are set.
    """
    if drop_lake and keep_lake:
        raise UsageError("--drop-lake and --keep-lake exclude each other")
    with connect(settings.require_dsn(), autocommit=True) as connection:
        try:
            table = registered_table(connection, name)
        except MirrorPumpError as error:
            former = _former_of(connection, name)
            if not former:
                raise
            if not drop_lake:
                raise TableError(
                    f"{former[0].table} is not registered any more; files of it are still there",
                    f"To remove these: mirror-pump unregister --former {shlex.quote(name)}",
                ) from error
            return _remove_former(connection, settings, former)
        if sheds(connection, table) and not (drop_lake or keep_lake):
            raise TableError(
                f"{table.name} has rows that its heap does not hold any more: the lake has the only copy",
                "Say what is to become of them: --keep-lake or --drop-lake. Corrections that are not folded are lost.",
            )

        def take_out() -> None:
            with source_errors(f"unregistering {table.name}"), connection.transaction():
                limit_lock(connection, settings)
                remove_from_publication(connection, settings.publication, table.table_id)
                # Even if the table is not published: a trigger left behind would fail without the table's catalog row.
                leave_partitions(connection, table)
                connection.execute(_SHAPE_SQL["unwatch"], {"table_id": table.table_id})
                # Publishing and planning a copy lock this row too, so that neither loses the table halfway.
                connection.execute(_PUBLISH_SQL["lock_slot"], {"slot": settings.slot})
                present = load_table(connection, table.table_id)
                if present is None or present.location != table.location:
                    raise TableError(f"{table.name} was unregistered by somebody else meanwhile")
                record_former_location(connection, table.table_id, EndedBy.UNREGISTER)
                delete_table(connection, table.table_id)
                if drop_lake:
                    # Use the name that the catalog has now: an earlier publish may have renamed the lake table.
                    delete_pointer(connection, present.name.schema, present.lake_table)

        with_lock_retries(settings, table.name, take_out)
        if not drop_lake:
            if table.mode is TableMode.TIERED:
                return f"{table.name} is no longer tiered; its lake table stays as it is at {table.location}"
            return (
                f"{table.name} is no longer mirrored; its lake table stays as of its last frontier at {table.location}"
            )
        every = former_locations(connection)
        own = [former for former in every if former.location == table.location]
        _await_tasks(connection, settings)
        remove_former_files(connection, settings.slot, own, _storage(settings))
        left = sum(former.table == own[0].table for former in every) - 1 if own else 0
    removed = f"{table.name} is no longer {table.mode}; its lake table and its files were removed"
    return removed + (f" (not those of {left} former registrations: --former removes them)" if left else "")


def unregister_former(settings: Settings, name: str) -> str:
    """Remove the files of all former registrations of this name. A table that has the name now is left alone.

    Returns a text that says what was done. Raises TableError if there are no such files, or if they are in use.
    """
    with connect(settings.require_dsn(), autocommit=True) as connection:
        former = _former_of(connection, name)
        if not former:
            raise TableError(
                f"no former registration of {name} has left files",
                "`mirror-pump unregister --list` shows those that have.",
            )
        return _remove_former(connection, settings, former)


def list_former(settings: Settings) -> tuple[FormerFiles, ...]:
    """Return the locations of files of former registrations, with their number and size. Takes completed settings."""
    with connect(settings.require_dsn(), autocommit=True) as connection:
        return list_former_files(connection, _storage(settings))


def _await_tasks(connection: PgConnection, settings: Settings) -> None:
    """Wait until the frontier has passed the end of the table's registration, for at most _TASKS_PATIENCE.

    Tasks of the pump may still be writing files of the table. Once the frontier has passed that end, the pump has
    written all that it received before. Files that a busy pump writes after the wait has timed out stay.
    """
    if is_led(connection, settings.slot):
        with source_errors("waiting for the pump"):
            connection.execute("SELECT modak.wait_for(NULL, %s)", (_TASKS_PATIENCE,))


def _remove_former(connection: PgConnection, settings: Settings, former: Sequence[FormerLocation]) -> str:
    remove_former_files(connection, settings.slot, former, _storage(settings))
    registrations = "a former registration" if len(former) == 1 else f"{len(former)} former registrations"
    return f"{former[0].table}: the files of {registrations} were removed"


def _storage(settings: Settings) -> StorageOptions:
    return lake_storage(settings)


def _former_of(connection: PgConnection, text: str) -> list[FormerLocation]:
    """Return the former locations of the table that `text` names, in SQL or without quotes, with or without its schema.

    Raises UsageError if several tables have had the name.
    """
    parts = name_parts(connection, text)
    every = former_locations(connection)
    as_sql = [former for former in every if parts in ([former.table.schema, former.table.name], [former.table.name])]
    plain = [former for former in every if text in (f"{former.table.schema}.{former.table.name}", former.table.name)]
    for found in (as_sql, plain):
        names = sorted({str(former.table) for former in found})
        if len(names) > 1:
            raise UsageError(f"{text} is the name of several former tables", f"name one: {', '.join(names)}")
        if found:
            return found
    return []


def registered_table(connection: PgConnection, name: str) -> MirroredTable:
    """Return the registration of the relation called `name`, or else of a dropped relation that had this name.

    Raises MirrorPumpError if there is none.
    """
    unknown: MirrorPumpError = TableError(
        f"{name} is not registered", "`mirror-pump status` lists the tables that are."
    )
    table = None
    try:
        table_name, table_id = resolve_name(connection, name)
    except MirrorPumpError as error:
        unknown = error
        table = formerly_registered(connection, name)
    else:
        table = load_table(connection, table_id) or registered_as(connection, table_name)
    if table is None:
        raise unknown
    return table
