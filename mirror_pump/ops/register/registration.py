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

from psycopg import errors as pg_errors

from mirror_pump.errors import (
    ConnectionLost,
    Interrupted,
    MirrorPumpError,
    TableError,
)
from mirror_pump.lake.commit.catalog import (
    ensure_namespace,
    insert_pointer,
    load_pointer,
    replace_pointer,
)
from mirror_pump.lake.commit.row_delta import StagedCommit
from mirror_pump.lake.commit.table_head import TableHead
from mirror_pump.lake.storage import delete, discard
from mirror_pump.model import (
    Column,
    FeedMode,
    MirroredTable,
    SnapshotPlan,
    TableId,
    TableMode,
    TableState,
)
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
    FeedWish,
    StagedFeed,
    enter_feed,
    refuse_name_of_feed,
    require_old_rows,
    stage_feed,
)
from mirror_pump.ops.register.new_lake_table import (
    new_lake_table,
    refuse_foreign_entry,
    warehouse_of,
)
from mirror_pump.ops.register.table_wish import TableWish, refuse_otherwise
from mirror_pump.ops.table_locks import limit_lock, with_lock_retries
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.pipeline.flow.steps import Observer, Step, unobserved
from mirror_pump.pipeline.operations.lake_names import settle_names
from mirror_pump.pipeline.publish.publish_transaction import lake_props
from mirror_pump.runtime.interrupts import deferred_interrupt
from mirror_pump.runtime.table_work import REPORT, work_for
from mirror_pump.settings.config import Settings
from mirror_pump.settings.storage_profiles import StorageProfile
from mirror_pump.source.catalog.change_feeds import end_feed
from mirror_pump.source.catalog.followed import forget_refusal
from mirror_pump.source.catalog.former_locations import EndedBy, note_newest_metadata, record_former_location
from mirror_pump.source.catalog.profiles import require_unchanged
from mirror_pump.source.catalog.pump_channel import COPY, RETAIN, notify_pump
from mirror_pump.source.catalog.tables import (
    delete_table,
    generated_left_out,
    insert_table,
    load_table,
    refresh_statistics,
)
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.relations.column_choices import (
    NO_CHOICES,
    ColumnChoices,
    chosen,
    numbers_as_text,
    variant_columns,
)
from mirror_pump.source.relations.relations import RelationDescription, describe, resolve_name
from mirror_pump.source.retention.retention_plan import (
    RetentionPlan,
    RetentionWish,
    enter_default,
    enter_partitions,
)
from mirror_pump.source.stream.slot import (
    add_to_publication,
    check_publication,
    publish_whole,
    published_part,
    remove_from_publication,
    wal_end,
)
from sql import queries

_SQL = queries("copy")
_PUBLISH_SQL = queries("publish")
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
    staged: StagedCommit
    description: RelationDescription
    choices: ColumnChoices
    plan: RetentionPlan | None
    profile: StorageProfile
    feed: StagedFeed | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """URIs of the files that staging wrote."""
        return (*self.staged.files, *(() if self.feed is None else self.feed.files))


def register(
    settings: Settings,
    names: Sequence[str],
    wait: bool,
    on_progress: Callable[[Sequence[TableProgress]], None],
    observer: Observer = unobserved,
    choices: ColumnChoices = NO_CHOICES,
    retention: RetentionWish | None = None,
    profile: str | None = None,
    snapshots: SnapshotPlan | None = None,
    on_refused: Callable[[RegisterOutcome], None] = lambda _: None,
    feed: FeedWish | None = None,
    format_version: int | None = None,
) -> tuple[RegisterOutcome, ...]:
    """Register tables and, with `wait`, return once they are live. If one table is refused, `on_refused` is called
    before anything is copied, and the others go on.

    A running pump copies the tables; if none runs, a pump within this process does. Registering a table again while it
    is being copied resumes its copy. `choices` apply to each of the tables. With `retention`, the tables shed old
    partitions once they are live. `profile` names their storage profile; None: the default one. With `snapshots`, their
    changes are not followed: once they are live, a running pump or the caller pauses them
    (`ops/resync/snapshots.py`). With `feed`, each gets a change feed. `format_version` is their lake tables' one; None:
    what `init` set. Ctrl-C, where it raises KeyboardInterrupt in this process, raises Interrupted, which says which
    tables are registered and which are not.
    """
    wish = TableWish(choices, retention, profile, snapshots, feed, format_version)
    outcomes: list[RegisterOutcome] = []
    registered: dict[TableId, str] = {}
    described: dict[str, RegisterOutcome] = {}
    copied: list[TableId] = []
    with connect(settings.require_dsn(), autocommit=True) as connection:
        lake = RegistrationTarget(connection, settings, profile)
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
    wish: TableWish,
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
    wish: TableWish,
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
    prepared = _prepare(connection, settings, lake, check_table(connection, settings, lake, table_id, table_name, wish))

    def enter() -> None:
        if prepared.table.name != table_name:
            raise NameTaken(table_name)
        # An interrupt cancels the running statement, and is raised only once it is certain whether the COMMIT happened.
        with deferred_interrupt(connection.cancel):
            _enter(connection, settings, prepared)
            registered[table_id] = name

    try:
        with_lock_retries(settings, table_name, enter)
    except ConnectionLost:
        # The COMMIT may have happened. Then the table is registered, and the staged files are its files.
        raise
    except BaseException:
        if table_id not in registered:
            for path in prepared.files:
                delete(path, prepared.staged.table.storage)
        raise
    return prepared.table, True


def _prepare(
    connection: PgConnection, settings: Settings, lake: RegistrationTarget, checked: CheckedTable
) -> _StagedRegistration:
    """Stage the empty lake table of a table that can be registered."""
    wish, description, plan = checked.wish, checked.description, checked.plan
    if wish.feed is not None and wish.feed.mode is FeedMode.ROWS:
        require_old_rows(connection, settings, describe(connection, description.table_id, settings.publication))
        described = describe(connection, description.table_id, settings.publication)
        description = chosen(connection, described, wish.choices)
    profile, storage = lake.profile, lake.storage
    table, staged = new_lake_table(
        warehouse_of(profile), description, storage, plan, wish.mode, checked.partitioning, checked.format_version
    )
    table = replace(
        table,
        leaves_out_new=wish.choices.leaves_out_new,
        column_list=bool(wish.choices.listed),
        row_filter=checked.row_filter,
        snapshots=wish.snapshots,
        no_copy=wish.choices.no_copy,
    )
    feed = None if wish.feed is None else stage_feed(table, wish.feed, warehouse_of(profile), storage)
    return _StagedRegistration(table, staged, description, wish.choices, plan, profile, feed)


def _free_name(connection: PgConnection, settings: Settings, table: MirroredTable) -> None:
    """Have no other registration have the table's name, in the transaction that registers it.

    That of a dropped table ends, and its files stay as a former location. A table that was renamed takes its new name
    ahead of the stream. Raises TableError if a registration must not end.
    """
    # Until it is over no publish renames a table.
    connection.execute(_PUBLISH_SQL["lock_slot"], {"slot": settings.slot})
    holders = name_holders(connection, table.table_id, table.name)
    retired_table = holders.retired
    if retired_table is not None:
        # The cut-line may have moved since the first check.
        refuse_to_retire(connection, retired_table)
        record_former_location(connection, retired_table.table_id, EndedBy.REGISTER, only_copy=False)
        end_feed(connection, retired_table.table_id)
        delete_table(connection, retired_table.table_id)
    if holders.holder is not None and (retired_table is None or holders.holder.table_id != retired_table.table_id):
        with connection.cursor() as cursor:
            settle_names(cursor, {}, {table.table_id: table.name})


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


def _enter(connection: PgConnection, settings: Settings, prepared: _StagedRegistration) -> None:
    """Run the registration transaction."""
    table, staged, plan = prepared.table, prepared.staged, prepared.plan
    unused: list[str] = []
    with source_errors(f"registering {table.name}"), connection.transaction():
        limit_lock(connection, settings)
        # This comes first because it takes the strongest lock.
        own_default = plan is not None and enter_default(connection, table)
        described = _locked_description(connection, settings, table)
        current_description = chosen(connection, described, prepared.choices)
        before = prepared.description
        if (current_description.columns, current_description.identity) != (before.columns, before.identity):
            raise TableError(f"{table.name} was altered while it was being registered", "Register it again.")
        # A table that is in the publication already (a leftover) is removed from it first. Only a change of the
        # publication makes the server describe the relation again before its next change. That is how the pump learns
        # of the table.
        remove_from_publication(connection, settings.publication, table.table_id)
        if table.mode is TableMode.MIRRORED:
            part = published_part(table.column_names, table.row_filter)
            if part:
                add_to_publication(connection, settings.publication, table.name, part)
            else:
                publish_whole(connection, settings.publication, table.name, table.table_id)
            if described.kind == "p":
                connection.execute(_SHAPE_SQL["watch"], {"table_id": table.table_id})
        forget_refusal(connection, table.table_id)
        table = replace(table, start_lsn=wal_end(connection))
        ensure_namespace(connection, table.name.schema)
        _free_name(connection, settings, table)
        pointer = load_pointer(connection, table.name.schema, table.lake_table)
        if pointer is not None:
            # Since the checks, the name may have gone to a change feed, or to another engine's table.
            refuse_name_of_feed(connection, table.name)
            refuse_foreign_entry(connection, table.name, pointer)
            note_newest_metadata(connection, pointer)
            replace_pointer(connection, table.name.schema, table.lake_table, staged.new_location)
        else:
            insert_pointer(connection, table.name.schema, table.lake_table, staged.new_location)
        require_unchanged(connection, prepared.profile)
        insert_table(
            connection,
            table,
            snapshot_id=staged.snapshot_id,
            lake_props=lake_props(staged),
            slot=settings.slot,
            publication=settings.publication,
            profile=prepared.profile.name,
            keep_heap=plan is not None and plan.keep_heap,
            lake_head=TableHead.of(staged.table).to_json(),
        )
        if prepared.feed is not None:
            unused = enter_feed(connection, settings.slot, prepared.feed)
        if table.mode is TableMode.MIRRORED:
            # The settings of the publication are recorded before they are checked, so that a later change differs from
            # the record.
            check_publication(connection, settings.publication)
        if plan is not None:
            enter_partitions(connection, table, plan, own_default=own_default)
    discard(unused, staged.table.storage)
