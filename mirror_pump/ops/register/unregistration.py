"""Unregisters tables, each in one transaction, whether or not a pump runs."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import MirrorPumpError, TableError, UsageError
from mirror_pump.model import MirroredTable, TableId, TableMode, TableName, format_lsn
from mirror_pump.ops.register.former_files import FormerFiles, list_former_files, remove_former_files
from mirror_pump.ops.restore.restoration import HeapRestoration, NotYet, Report
from mirror_pump.ops.table_locks import locked_transaction
from mirror_pump.pipeline.landing.registration_end import end_lost_registration, end_registration
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_slot import catalog_slot
from mirror_pump.source.catalog.followed import leave_alone
from mirror_pump.source.catalog.former_locations import EndedBy, FormerLocation, former_locations
from mirror_pump.source.catalog.kept_moments import drop_commands, moments_of_table
from mirror_pump.source.catalog.lost_rows import LostRow, read_lost_rows
from mirror_pump.source.catalog.pump_channel import notify_pump
from mirror_pump.source.catalog.tables import formerly_registered, load_table, name_parts, registered_as, was_dropped
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.relations.relations import describe, resolve_name
from mirror_pump.source.retention.restore_journal import read_journal
from mirror_pump.source.retention.retention_plan import leave_partitions, may_have_only_copy, only_in_lake, sheds
from mirror_pump.source.stream.leader import is_led
from mirror_pump.source.stream.slot import remove_from_publication, wal_end
from sql import queries

_TASKS_PATIENCE = 30.0
"""Seconds for which `unregister` waits for tasks of the pump before it removes a table's files."""
_POLL_INTERVAL = 0.05
"""Seconds between two looks at the frontier."""

_SHAPE_SQL = queries("shape")


def unregister(
    settings: Settings,
    name: str,
    drop_lake: bool,
    keep_lake: bool = False,
    *,
    restore_heap: bool = False,
    yes: bool = False,
    report: Report = lambda _step, _text: None,
    only: TableId | None = None,
) -> str:
    """Unregister a table; with `drop_lake`, remove its Iceberg table and files too. Return what was done, in words.

    A table that was dropped in Postgres is found under the name that it was registered with. If the lake has the only
    copy of some rows, the caller must pass `restore_heap`, which brings them back into the heap first, or `keep_lake`,
    or `drop_lake` together with `yes`; otherwise TableError is raised. Files that stay become a former location. If
    only former registrations had the name, `drop_lake` removes their files, on the same condition. Raises UsageError if
    both `drop_lake` and `keep_lake` are set, and TableError if the name means another table than `only`. `report` is
    called with the steps of a restore.
    """
    if drop_lake and keep_lake:
        raise UsageError("--drop-lake and --keep-lake exclude each other")
    with connect(settings.require_dsn(), autocommit=True) as connection:
        choice = _LakeChoice(drop_lake=drop_lake, keep_lake=keep_lake, yes=yes)
        try:
            table = registered_table(connection, name)
        except MirrorPumpError as error:
            return _unregister_nothing(connection, settings, name, choice, error)
        if only is not None and table.table_id != only:
            raise TableError(f"{name} means another table by now", "apply the file again")
        restored = ""
        if restore_heap and table.tier is not None:
            restored = _restore(connection, settings, table, drop_lake, yes, report)
        else:
            _refuse_unfinished_restore(connection, table)
            _require_choice(connection, table, choice)
            _unregister(connection, settings, table, choice)
        if not drop_lake:
            stays = "it is" if table.mode is TableMode.TIERED else "of its last frontier"
            return (
                f"{table.name} is no longer {table.mode}{restored}; its lake table stays as {stays} at"
                f" {table.location}{_before_registering_again(table)}"
            )
        every = former_locations(connection)
        locations_of_table = {table.location, None if table.feed is None else table.feed.location}
        locations = [location for location in every if location.location in locations_of_table]
        _await_tasks(connection, settings)
        remove_former_files(connection, settings.slot, locations, lake_storage(settings))
        left = sum(location.table == locations[0].table for location in every) - 1 if locations else 0
    removed = f"{table.name} is no longer {table.mode}{restored}; its lake table and its files were removed"
    return removed + (f" (not those of {left} former registrations: --former removes them)" if left else "")


def _unregister_nothing(
    connection: PgConnection, settings: Settings, name: str, choice: _LakeChoice, missing: MirrorPumpError
) -> str:
    """`unregister` of a name that no registration has. Raises `missing` if nothing is left of a former one either."""
    if (ended := _end_lost(connection, settings, name, keep_lake=choice.keep_lake)) is not None:
        return ended
    locations = former_named(connection, name)
    if not locations:
        raise missing
    if not choice.drop_lake:
        raise TableError(
            f"{locations[0].table} is not registered any more; files of it are still there",
            f"To remove these: mirror-pump unregister --former {shlex.quote(name)}",
        ) from missing
    return _remove_former(connection, settings, locations, yes=choice.yes)


def _end_lost(connection: PgConnection, settings: Settings, name: str, *, keep_lake: bool) -> str | None:
    """End a registration of which rows of the catalog are lost. Return what was done, None if there is none."""
    lost = next(
        (
            row
            for row in read_lost_rows(connection)
            if row.ends_registration and row.table_id is not None and _is_called(connection, row, name)
        ),
        None,
    )
    if lost is None:
        return None
    assert lost.table_id is not None
    if lost.in_lake_alone and not keep_lake:
        raise TableError(f"{lost.table_name}: {lost.message}", lost.remedy)
    table_id, doing = lost.table_id, f"unregistering {lost.table_name}"

    def end() -> None:
        remove_from_publication(connection, settings.publication, table_id)
        end_lost_registration(connection, settings.slot, table_id)

    locked_transaction(connection, settings, str(lost.table_name), doing, end)
    return (
        f"{lost.table_name} is no longer registered; {lost.relation} had no row of it. Its lake table and its files"
        " stay: `mirror-pump unregister --list` shows them"
    )


def _is_called(connection: PgConnection, lost: LostRow, name: str) -> bool:
    parts = name_parts(connection, name)
    lost_parts = name_parts(connection, str(lost.table_name))
    return bool(parts) and parts == lost_parts[-len(parts) :]


def _before_registering_again(table: MirroredTable) -> str:
    """What `register` will ask for, if the lake table that stays has old rows."""
    if table.tier is None or not table.tier.moved:
        return ""
    return (
        ". Before the table is registered again, rename that lake table, or have it removed:"
        f" mirror-pump unregister --former {shlex.quote(str(table.name))}"
    )


def abort_restore(settings: Settings, name: str) -> str:
    """Remove what an unfinished restore of the table's rows has copied, and let its retention go on. Return what was
    done, in words."""
    with connect(settings.require_dsn(), autocommit=True) as connection:
        table = registered_table(connection, name)
    with HeapRestoration(settings, table, lake_storage(settings), lambda _step, _text: None) as restoration:
        if not restoration.abort():
            return f"{table.name}: no restore has been begun"
    return f"{table.name}: the rows that were copied back are removed; the table stays as it is, and retention goes on"


@dataclass(frozen=True)
class _LakeChoice:
    """What is to become of the lake table."""

    drop_lake: bool
    keep_lake: bool = False
    yes: bool = False


def refuse_unregistration(connection: PgConnection, table: MirroredTable) -> None:
    """Raise TableError if `unregister` would not take the table out without another option."""
    _refuse_unfinished_restore(connection, table)
    _require_choice(connection, table, _LakeChoice(drop_lake=False))


def _refuse_unfinished_restore(connection: PgConnection, table: MirroredTable) -> None:
    with source_errors(f"looking for what {table.name} has in the lake alone"):
        if read_journal(connection, table.table_id) is not None:
            raise TableError(
                f"{table.name} is being brought back into the heap: partitions for it have been made",
                f"Finish that: `mirror-pump unregister {table.name.shell} --restore-heap`; or remove them: `mirror-pump"
                f" unregister {table.name.shell} --restore-heap --abort`.",
            )


def _require_choice(connection: PgConnection, table: MirroredTable, choice: _LakeChoice) -> None:
    """Raise TableError if rows would be lost that the user has not said to give up."""
    if choice.keep_lake or (choice.drop_lake and choice.yes):
        return
    command = f"mirror-pump unregister {table.name.shell}"
    if choice.drop_lake and may_have_only_copy(connection, table):
        raise TableError(
            f"{table.name} has rows that its heap does not hold any more: --drop-lake would destroy the only copy",
            f"Bring them back first: `{command} --restore-heap --drop-lake`. With `{command} --drop-lake --yes` they"
            " are lost.",
        )
    if choice.drop_lake or not sheds(connection, table):
        return
    raise TableError(
        f"{table.name} has rows that its heap does not hold any more: the lake has the only copy",
        f"Say what is to become of them: `{command} --restore-heap` brings them back into partitions; `{command}"
        f" --keep-lake` leaves them in the lake; `{command} --drop-lake --yes` gives them up. With the latter two,"
        " corrections that are not folded are lost.",
    )


def _refuse_kept_rows(connection: PgConnection, table: MirroredTable) -> None:
    """Raise TableError if the lake has rows that a restore does not bring back."""
    ranges = only_in_lake(connection, table)
    if ranges is not None:
        command = f"mirror-pump unregister {table.name.shell}"
        raise TableError(
            f"{table.name}: of partitions that were dropped or detached above the cut-line ({ranges}), the lake alone"
            " has the rows: --restore-heap does not bring them back, and --drop-lake would destroy them",
            f"`{command} --restore-heap` leaves them in the lake's files. To give them up as well, let `mirror-pump"
            f" unregister --former {table.name.shell} --yes` follow.",
        )


def _refuse_moments(connection: PgConnection, table: MirroredTable) -> None:
    """Raise TableError if moments need the table's files. The caller holds the slot's lock."""
    moments = moments_of_table(connection, table.table_id)
    if moments:
        raise TableError(
            f"moments that are kept need the files of {table.name}: {', '.join(moments)}",
            "Without --drop-lake the files stay, and the moments can be read on. To remove them, give these up first:"
            f" {drop_commands(moments)}",
        )


def _restore(
    connection: PgConnection, settings: Settings, table: MirroredTable, drop_lake: bool, yes: bool, report: Report
) -> str:
    """Bring the rows below the cut-line back, and unregister. Return what came back, in words."""
    if drop_lake:
        _refuse_kept_rows(connection, table)
    with source_errors(f"looking for what {table.name} has in the lake alone"):
        only_there = only_in_lake(connection, table)
    with HeapRestoration(
        settings, table, lake_storage(settings), report, drop_lake=drop_lake, without_excluded=yes
    ) as restoration:
        restoration.prepare()
        choice = _LakeChoice(drop_lake=drop_lake)
        while True:
            try:
                _unregister(connection, settings, table, choice, restoration)
                break
            except NotYet as obstacle:
                restoration.again(obstacle)
    if only_there is not None:
        alone = f"the lake alone has rows of partitions that were dropped or detached above the cut-line ({only_there})"
    else:
        alone = "its heap has all of its rows"
    if not restoration.partitions:
        return f", and {alone}"
    back = f"; {restoration.partitions} partitions with {restoration.rows} rows are back in its heap"
    return back if only_there is None else f"{back}, and {alone}"


def _unregister(
    connection: PgConnection,
    settings: Settings,
    table: MirroredTable,
    choice: _LakeChoice,
    restoration: HeapRestoration | None = None,
) -> None:
    """End the registration in one transaction. `restoration`: it brings all rows back in the same transaction."""

    def end() -> None:
        if restoration is not None:
            restoration.finish(connection)
        leave_alone(connection, table.table_id)
        remove_from_publication(connection, settings.publication, table.table_id)
        # Even if the table is not published: a trigger left behind would fail without the table's catalog row.
        leave_partitions(connection, table)
        connection.execute(_SHAPE_SQL["unwatch"], {"table_id": table.table_id})
        if restoration is not None:
            restoration.attach(connection)
        # Publishing and planning a copy take it too, so that neither loses the table halfway; so does keeping a moment.
        lock = SlotLock.take(connection, settings.slot)
        if choice.drop_lake:
            _refuse_moments(connection, table)
            if restoration is not None:
                _refuse_kept_rows(connection, table)
        current_table = load_table(connection, table.table_id)
        if current_table is None or current_table.location != table.location:
            raise TableError(f"{table.name} was unregistered by another command meanwhile")
        if restoration is None:
            # Under the slot's lock the cut-line stays where it is: it may have moved since the first look.
            _require_choice(connection, current_table, choice)
            only_copy = may_have_only_copy(connection, current_table)
        else:
            only_copy = only_in_lake(connection, current_table) is not None
        end_registration(lock, current_table, EndedBy.UNREGISTER, only_copy=only_copy, drop_lake=choice.drop_lake)

    locked_transaction(connection, settings, table.name, f"unregistering {table.name}", end)


def unregister_former(settings: Settings, name: str, *, yes: bool = False) -> str:
    """Remove the files of all former registrations of this name. A table that has the name now is left alone.

    Returns a text that says what was done. Raises TableError if there are no such files, if they are in use, and,
    without `yes`, if they may be the only copy of some rows.
    """
    with connect(settings.require_dsn(), autocommit=True) as connection:
        locations = former_named(connection, name)
        if not locations:
            raise TableError(
                f"no former registration of {name} has left files",
                "`mirror-pump unregister --list` shows those that have.",
            )
        return _remove_former(connection, settings, locations, yes=yes)


def list_former(settings: Settings) -> tuple[FormerFiles, ...]:
    """Return the locations of files of former registrations, with their number and size. Takes completed settings."""
    with connect(settings.require_dsn(), autocommit=True) as connection:
        return list_former_files(connection, lake_storage(settings))


def _await_tasks(connection: PgConnection, settings: Settings) -> None:
    """Wait until the frontier has passed the end of the table's registration, for at most _TASKS_PATIENCE.

    Tasks of the pump may still be writing files of the table. Once the frontier has passed that end, the pump has
    written all that it received before. Files that a busy pump writes after the wait has timed out stay.
    """
    if is_led(connection, settings.slot):
        target, deadline = wal_end(connection), time.monotonic() + _TASKS_PATIENCE
        notify_pump(connection, format_lsn(target))
        while (slot := catalog_slot(connection, settings.slot)).applied < target and slot.streams:
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_INTERVAL)


def _remove_former(
    connection: PgConnection, settings: Settings, locations: Sequence[FormerLocation], *, yes: bool
) -> str:
    only_copies = [location for location in locations if location.only_copy is not False]
    if only_copies and not yes:
        ended = f"{only_copies[-1].ended_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        raise TableError(
            f"{locations[0].table} was unregistered ({ended}) when the lake may have had rows that the heap did not"
            " hold any more: to remove its files would destroy the only copy",
            f"If they are not needed: mirror-pump unregister --former {shlex.quote(str(locations[0].table))} --yes."
            " `mirror-pump unregister --list` shows the files; any Iceberg engine reads them.",
        )
    remove_former_files(connection, settings.slot, locations, lake_storage(settings))
    registrations = "a former registration" if len(locations) == 1 else f"{len(locations)} former registrations"
    return f"{locations[0].table}: the files of {registrations} were removed"


def former_named(connection: PgConnection, text: str) -> list[FormerLocation]:
    """Return the former locations of the table that `text` names, in SQL or without quotes, with or without its schema.

    The name of a relation that there is means no table of another schema. Raises UsageError if several tables have had
    the name.
    """
    parts = name_parts(connection, text)
    every = former_locations(connection)
    with suppress(MirrorPumpError):
        relation, _ = resolve_name(connection, text)
        return [former_location for former_location in every if former_location.table == relation]
    as_sql = [
        former_location
        for former_location in every
        if parts in ([former_location.table.schema, former_location.table.name], [former_location.table.name])
    ]
    plain = [
        former_location
        for former_location in every
        if text in (f"{former_location.table.schema}.{former_location.table.name}", former_location.table.name)
    ]
    for matches in (as_sql, plain):
        names = sorted({str(former_location.table) for former_location in matches})
        if len(names) > 1:
            raise UsageError(f"{text} is the name of several former tables", f"name one: {', '.join(names)}")
        if matches:
            return matches
    return []


def registered_table(connection: PgConnection, name: str) -> MirroredTable:
    """Return the registration of the relation called `name`, or else of a dropped relation that had this name.

    Raises MirrorPumpError if there is none. A relation that was renamed has its new name alone, even if the catalog
    does not have it yet.
    """
    missing: MirrorPumpError = TableError(
        f"{name} is not registered", "`mirror-pump status` lists the tables that are."
    )
    try:
        table_name, table_id = resolve_name(connection, name)
    except MirrorPumpError as error:
        missing = error
        former_table = formerly_registered(connection, name)
    else:
        table = load_table(connection, table_id)
        if table is not None:
            return table
        former_table = registered_as(connection, table_name)
    if former_table is None:
        raise missing
    if not was_dropped(connection, former_table):
        named = present_name(connection, former_table)
        raise TableError(
            f"{name} is not registered: the table that was registered under this name is called {named} now",
            f"name it: {named.shell}",
        ) from missing
    return former_table


def present_name(connection: PgConnection, table: MirroredTable) -> TableName:
    """What PostgreSQL calls a registered table, which the stream may not have come to; of a dropped one, what it was
    registered as."""
    return table.name if was_dropped(connection, table) else describe(connection, table.table_id).name
