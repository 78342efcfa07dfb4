"""Registers tables, each in one transaction, whether or not a pump runs.

The registration transaction holds a lock that keeps writers out while it records the start LSN. Writers release their
locks only after their changes are visible. So every snapshot taken later sees all that committed before the start LSN,
and every change after the start LSN is in the slot. Lock requests have a time limit, and locks are released between
tries, because others queue behind a waiting lock request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from psycopg import errors as pg_errors

from mirror_pump.errors import Interrupted, MirrorPumpError, TableError
from mirror_pump.lake.commit.catalog import load_pointer
from mirror_pump.lake.commit.row_delta import StagedCommit
from mirror_pump.lake.commit.table_head import TableHead
from mirror_pump.model import Column, FeedMode, MirroredTable, TableId, TableMode, TableName, TableState
from mirror_pump.ops.register.checked_tables import (
    CheckedTable,
    NameTaken,
    RegistrationTarget,
    check_table,
    name_holders,
    refuse_to_retire,
    require_unregistered,
)
from mirror_pump.ops.register.copies import copies_progress, follow_copies
from mirror_pump.ops.register.feed_registration import (
    StagedFeed,
    enter_feed,
    refuse_name_of_feed,
    require_old_rows,
    stage_feed,
)
from mirror_pump.ops.register.new_lake_table import new_lake_table, refuse_foreign_entry, warehouse_of
from mirror_pump.ops.register.table_wish import PLAIN, TableOptions, refuse_otherwise
from mirror_pump.ops.table_locks import locked_transaction
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.pipeline.flow.steps import Observer, Step, unobserved
from mirror_pump.pipeline.landing.registration_end import end_registration
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.pipeline.operations.lake_names import settle_names
from mirror_pump.pipeline.publish.publish_transaction import lake_props
from mirror_pump.runtime.table_work import REPORT, work_for
from mirror_pump.settings.config import Settings
from mirror_pump.settings.storage_profiles import StorageProfile
from mirror_pump.source.catalog.followed import forget_refusal
from mirror_pump.source.catalog.former_locations import EndedBy, note_newest_metadata
from mirror_pump.source.catalog.other_mirrors import refuse_second_retention
from mirror_pump.source.catalog.profiles import require_unchanged
from mirror_pump.source.catalog.pump_channel import COPY, RETAIN, notify_pump
from mirror_pump.source.catalog.tables import generated_left_out, insert_table, load_table, refresh_statistics
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.source.relations.column_choices import chosen, numbers_as_text, variant_columns
from mirror_pump.source.relations.relations import RelationDescription, describe, resolve_name
from mirror_pump.source.retention.retention_plan import enter_default, enter_partitions
from mirror_pump.source.stream.slot import (
    add_to_publication,
    check_publication,
    publish_whole,
    published_part,
    remove_from_publication,
    wal_end,
)
from sql import queries

_SHAPE_SQL = queries("shape")

_FIRST_STATISTICS = 32
"""Number of tables registered in one call after which statistics are refreshed, and with each doubling."""

_RACES = 10
"""How often a registration is tried while others register the table, or give its name to another."""


@dataclass(frozen=True)
class RegisterOutcome:
    """The result of registering one table."""

    table: str
    registered: bool
    error: MirrorPumpError | None
    rows: int
    generated_left_out: tuple[str, ...] = ()
    """Generated columns of the table that are not mirrored."""
    was_live: bool = False
    """Whether the table was registered, and live, before: nothing was copied."""
    was_registered: bool = False
    """Whether it was registered before, or by another command meanwhile."""
    numbers_as_text: tuple[Column, ...] = ()
    """Columns of numbers that are text in the lake, though no option chose that; empty for a table that was live."""
    whole_rows: bool = False
    """Whether its rows are found by all their values, as it has no key."""
    variants: tuple[str, ...] = ()
    """Columns that are variants in the lake; empty for a table that was live."""


@dataclass(frozen=True)
class _StagedRegistration:
    """A table whose empty lake table is staged, to be entered into the catalog."""

    table: MirroredTable
    commit: StagedCommit
    checked: CheckedTable
    profile: StorageProfile
    feed: StagedFeed | None


def register(
    settings: Settings,
    names: Sequence[str],
    wait: bool,
    on_progress: Callable[[Sequence[TableProgress]], None],
    observer: Observer = unobserved,
    wish: TableOptions = PLAIN,
    on_refused: Callable[[RegisterOutcome], None] = lambda _: None,
) -> tuple[RegisterOutcome, ...]:
    """Register tables and, with `wait`, return once they are live. If one table is refused, `on_refused` is called
    before anything is copied, and the others go on.

    A running pump copies the tables; if none runs, a pump within this process does. Registering a table again while it
    is being copied resumes its copy. The wish is for each of the tables. Those whose changes are not followed are
    paused once they are live, by a running pump or the caller (`ops/resync/snapshots.py`). Ctrl-C, where it raises
    KeyboardInterrupt in this process, raises Interrupted, which says which tables are registered and which are not.
    """
    outcomes: list[RegisterOutcome] = []
    registered: dict[TableId, str] = {}
    described: dict[str, RegisterOutcome] = {}
    copied: list[TableId] = []
    with connect(settings.require_dsn(), autocommit=True) as connection:
        lake = RegistrationTarget(connection, settings, wish.profile)
        try:
            for name in names:
                try:
                    with work_for(name, remedy=REPORT):
                        table, is_new = _register_one(connection, settings, lake, name, wish, registered)
                except MirrorPumpError as error:
                    outcomes.append(RegisterOutcome(name, registered=False, error=error, rows=0))
                    on_refused(outcomes[-1])
                else:
                    described[str(table.name)] = outcome = _described(connection, table, is_new=is_new)
                    if not outcome.was_live:
                        copied.append(table.table_id)
                    observer(Step.REGISTERED, table=name)
                    _refresh_statistics(connection, len(registered))
            if registered:
                notify_pump(connection, COPY)
                notify_pump(connection, RETAIN)
            if copied and wait:
                follow_copies(connection, settings, copied, on_progress, observer)
        except KeyboardInterrupt:
            refused = {outcome.table for outcome in outcomes}
            raise _interrupted(names, refused, list(registered.values())) from None
        return (*outcomes, *_registered_outcomes(connection, list(registered), described))


def _refresh_statistics(connection: PgConnection, registered: int) -> None:
    """Have the server plan for what the catalog holds by now: a session goes on with plans that it has made for a few
    rows, until statistics are new, and each of hundreds of registrations would read all that came before it."""
    if registered >= _FIRST_STATISTICS and registered.bit_count() == 1:
        refresh_statistics(connection)


def _described(connection: PgConnection, table: MirroredTable, *, is_new: bool) -> RegisterOutcome:
    """What is said of a table that is registered. `is_new`: by this command."""
    name = str(table.name)
    if not is_new and (table.state is TableState.LIVE or table.rests):
        return RegisterOutcome(name, registered=True, error=None, rows=0, was_live=True, was_registered=True)
    return RegisterOutcome(
        name,
        registered=True,
        error=None,
        rows=0,
        was_registered=not is_new,
        numbers_as_text=numbers_as_text(connection, table),
        whole_rows=table.whole_rows,
        variants=variant_columns(table.columns),
    )


def _registered_outcomes(
    connection: PgConnection, table_ids: list[TableId], described: Mapping[str, RegisterOutcome]
) -> Iterator[RegisterOutcome]:
    """The results of tables that are registered, by what is known of them, and how far they are by now."""
    left_out = generated_left_out(connection, table_ids)
    for progress in copies_progress(connection, table_ids):
        why = progress.detail
        # A table that was renamed meanwhile is told by its new name alone.
        outcome = described.get(progress.table) or RegisterOutcome(progress.table, registered=True, error=None, rows=0)
        yield replace(
            outcome,
            error=TableError(why, "Mend the cause, then unregister and register the table.") if why else None,
            rows=progress.rows,
            generated_left_out=left_out.get(progress.table, ()),
        )


def _interrupted(names: Sequence[str], refused: Collection[str], registered: Sequence[str]) -> Interrupted:
    missing = [name for name in names if name not in refused and name not in registered]
    stands = []
    if registered:
        stands.append(f"registered: {', '.join(registered)}, whose copy a running pump or the same command continues")
    if missing:
        stands.append(f"not registered: {', '.join(missing)}")
    return Interrupted(f"interrupted; {'; '.join(stands)}")


def _register_one(
    connection: PgConnection,
    settings: Settings,
    lake: RegistrationTarget,
    name: str,
    wish: TableOptions,
    registered: dict[TableId, str],
) -> tuple[MirroredTable, bool]:
    """Register one table, or check that it is registered as requested. Add it to `registered` at the moment it is.
    Return the table, and whether this has registered it."""
    for _ in range(_RACES):
        # Another command may register the table meanwhile, and another table may take its name.
        with suppress(NameTaken):
            return _try_to_register(connection, settings, lake, name, wish, registered)
    raise TableError(f"{name} was renamed again and again while it was being registered", "Register it again.")


def _try_to_register(
    connection: PgConnection,
    settings: Settings,
    lake: RegistrationTarget,
    name: str,
    wish: TableOptions,
    registered: dict[TableId, str],
) -> tuple[MirroredTable, bool]:
    """As `_register_one`. Raises NameTaken if the name has come to mean another table, or the table was registered
    meanwhile."""
    table_name, table_id = resolve_name(connection, name)
    current_table = load_table(connection, table_id)
    if current_table is not None and current_table.state is not TableState.DROPPED:
        refuse_otherwise(connection, settings, current_table, wish)
        registered[table_id] = name
        return current_table, False
    checked = check_table(connection, settings, lake, table_id, table_name, wish)
    with WrittenFiles(lake.storage) as files:
        staged = _stage(connection, settings, lake, checked, files)
        if staged.table.name != table_name:
            raise NameTaken(table_name)
        enter = partial(_enter, connection, settings, staged)
        try:
            locked_transaction(connection, settings, table_name, f"registering {table_name}", enter, files)
        finally:
            if files.may_have_landed:
                registered[table_id] = name
    return staged.table, True


def _stage(
    connection: PgConnection,
    settings: Settings,
    lake: RegistrationTarget,
    checked: CheckedTable,
    files: WrittenFiles,
) -> _StagedRegistration:
    """Stage the empty lake table of a table that can be registered."""
    wish, plan = checked.wish, checked.plan
    if wish.feed is not None and wish.feed.mode is FeedMode.ROWS:
        table_id = checked.description.table_id
        require_old_rows(connection, settings, describe(connection, table_id, settings.publication))
        described = describe(connection, table_id, settings.publication)
        checked = replace(checked, description=chosen(connection, described, wish.choices))
    warehouse = warehouse_of(lake.profile)
    table, commit = new_lake_table(
        warehouse, checked.description, plan, wish.mode, checked.partitioning, checked.format_version, files
    )
    table = replace(
        table,
        leaves_out_new=wish.choices.leaves_out_new,
        column_list=bool(wish.choices.listed),
        row_filter=checked.row_filter,
        snapshots=wish.snapshots,
    )
    feed = None if wish.feed is None else stage_feed(connection, table, wish.feed, warehouse, files)
    return _StagedRegistration(table, commit, checked, lake.profile, feed)


def _free_name(lock: SlotLock, table: MirroredTable) -> None:
    """Have no other registration have the table's name, in the transaction that registers it.

    That of a dropped table ends, and its files stay as a former location. A table that was renamed takes its new name
    ahead of the stream. Raises TableError if a registration must not end.
    """
    holders = name_holders(lock.connection, table.table_id, table.name)
    retired_table = holders.retired
    if retired_table is not None:
        # The cut-line may have moved since the first check.
        refuse_to_retire(lock.connection, retired_table)
        end_registration(lock, retired_table, EndedBy.REGISTER, only_copy=False)
    if holders.holder is not None and (retired_table is None or holders.holder.table_id != retired_table.table_id):
        settle_names(lock, {}, {table.table_id: table.name})


def _locked_description(connection: PgConnection, settings: Settings, table: MirroredTable) -> RelationDescription:
    """The table as it is once it is locked. Raises NameTaken."""
    try:
        connection.execute(f"LOCK TABLE {table.name.quoted} IN SHARE ROW EXCLUSIVE MODE".encode())
    except pg_errors.UndefinedTable as error:
        raise NameTaken(table.name) from error
    description = describe(connection, table.table_id, settings.publication, table.mode)
    if description.name != table.name:
        raise NameTaken(table.name)
    require_unregistered(connection, table.table_id, table.name)
    return description


def _publish(connection: PgConnection, settings: Settings, table: MirroredTable, kind: str) -> None:
    """Publish a table that is to be registered, or take it out of the publication. `kind`: as in pg_class.relkind."""
    # A table that is in the publication already (a leftover) is removed from it first. Only a change of the publication
    # makes the server describe the relation again before its next change. That is how the pump learns of the table.
    remove_from_publication(connection, settings.publication, table.table_id)
    if table.mode is not TableMode.MIRRORED:
        return
    part = published_part(table.column_names, table.row_filter)
    if part:
        add_to_publication(connection, settings.publication, table.name, part)
    else:
        publish_whole(connection, settings.publication, table.name, table.table_id)
    if kind == "p":
        connection.execute(_SHAPE_SQL["watch"], {"table_id": table.table_id})


def _enter_lake_table(lock: SlotLock, name: TableName, location: str) -> None:
    """Enter the lake table, in the place of one that a former registration left. Raises TableError for another one."""
    pointer = load_pointer(lock.connection, name.schema, name.name)
    if pointer is None:
        lock.insert(name, location)
        return
    # Since the checks, the name may have gone to a change feed, or to another engine's table.
    refuse_name_of_feed(lock.connection, name)
    refuse_foreign_entry(lock.connection, name, pointer)
    note_newest_metadata(lock.connection, pointer)
    lock.replace(name, location)


def _enter(connection: PgConnection, settings: Settings, staged: _StagedRegistration) -> None:
    """Register the table, in a transaction."""
    table, plan, before = staged.table, staged.checked.plan, staged.checked.description
    # This comes first because it takes the strongest lock.
    own_default = plan is not None and enter_default(connection, table)
    described = _locked_description(connection, settings, table)
    description = chosen(connection, described, staged.checked.wish.choices)
    if plan is not None:
        # The table's lock keeps another mirror from registering it meanwhile.
        refuse_second_retention(connection, table.name, table.table_id)
    if (description.columns, description.identity) != (before.columns, before.identity):
        raise TableError(f"{table.name} was altered while it was being registered", "Register it again.")
    _publish(connection, settings, table, described.kind)
    forget_refusal(connection, table.table_id)
    table = replace(table, start_lsn=wal_end(connection))
    # Until the transaction is over no publish renames a table.
    lock = SlotLock.take(connection, settings.slot)
    _free_name(lock, table)
    _enter_lake_table(lock, table.name, staged.commit.new_location)
    require_unchanged(connection, staged.profile)
    insert_table(
        connection,
        table,
        snapshot_id=staged.commit.snapshot_id,
        lake_props=lake_props(staged.commit),
        slot=settings.slot,
        publication=settings.publication,
        profile=staged.profile.name,
        keep_heap=plan is not None and plan.keep_heap,
        lake_head=TableHead.of(staged.commit.table).to_json(),
    )
    if staged.feed is not None:
        enter_feed(lock, settings.slot, staged.feed)
    if table.mode is TableMode.MIRRORED:
        # The settings of the publication are recorded before they are checked, so that a later change differs from the
        # record.
        check_publication(connection, settings.publication)
    if plan is not None:
        enter_partitions(connection, table, plan, own_default=own_default)
