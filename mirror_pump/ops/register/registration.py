"""Registers tables, each in one transaction, whether or not a pump runs.

The registration transaction holds a lock that keeps writers out while it records the start LSN. Writers release their
locks only after their changes are visible. So every snapshot taken later sees all that committed before the start LSN,
and every change after the start LSN is in the slot. Lock requests have a time limit, and locks are released between
tries, because others queue behind a waiting lock request.
"""

from __future__ import annotations

import re
import shlex
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from mirror_pump.config import Settings
from mirror_pump.errors import (
    ConnectionLost,
    FileMissing,
    Interrupted,
    MirrorPumpError,
    NotLeader,
    SourceError,
    TableError,
    UsageError,
)
from mirror_pump.interrupts import deferred_interrupt
from mirror_pump.lake.commit.catalog import (
    ENGINE_PROPERTIES,
    delete_pointer,
    ensure_namespace,
    insert_pointer,
    load_pointer,
)
from mirror_pump.lake.commit.presence import require_any
from mirror_pump.lake.commit.row_delta import LakeTable, StagedCommit
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.metadata.metadata_files import read_any_version
from mirror_pump.lake.metadata.snapshot_summary import Total
from mirror_pump.lake.storage import StorageOptions, delete, join
from mirror_pump.model import Lsn, MirroredTable, SequenceNumber, TableId, TableMode, TableName, TableState
from mirror_pump.ops.table_locks import limit_lock, with_lock_retries
from mirror_pump.pipeline.flow.steps import Observer, Step, unobserved
from mirror_pump.pipeline.lake_storage import lake_storage, refresh_profiles
from mirror_pump.pipeline.missing_files.missing_files import stored_tables
from mirror_pump.pipeline.publish.publisher import lake_props
from mirror_pump.pipeline.session.pump import Pump
from mirror_pump.source.catalog.catalog_slot import require_stream
from mirror_pump.source.catalog.former_locations import EndedBy, note_newest_metadata, record_former_location
from mirror_pump.source.catalog.profiles import find_profile, profile_of, require_unchanged
from mirror_pump.source.catalog.pump_channel import COPY, RETAIN, notify_pump
from mirror_pump.source.catalog.registered_names import registered_as
from mirror_pump.source.catalog.tables import delete_table, generated_left_out, insert_table, load_table
from mirror_pump.source.connect import PgConnection, connect, session_time_zone, source_errors
from mirror_pump.source.relations.column_choices import (
    NO_CHOICES,
    ColumnChoices,
    chosen,
    describe_choices,
    same_choices,
)
from mirror_pump.source.relations.lake_layout import is_present_layout
from mirror_pump.source.relations.relations import RelationDescription, describe, is_gone, refuse, resolve_name
from mirror_pump.source.retention.partitions import read_choices
from mirror_pump.source.retention.retention_plan import (
    RetentionPlan,
    RetentionWish,
    enter_default,
    enter_partitions,
    plan_retention,
    sheds,
)
from mirror_pump.source.rows import fetch_rows
from mirror_pump.source.stream.leader import is_led
from mirror_pump.source.stream.publication import how_to_publish, not_whole
from mirror_pump.source.stream.slot import add_to_publication, check_publication, remove_from_publication, wal_end
from mirror_pump.storage_profiles import StorageProfile
from mirror_pump.table_life import TableEvent, state_after
from sql import queries

_SQL = queries("copy")
_PUBLISH_SQL = queries("publish")
_SHAPE_SQL = queries("shape")

_PROGRESS_INTERVAL = 0.25
"""Seconds between looks at the progress of copies."""
_FIRST_LOOK = 0.02
"""Seconds between the first two looks. The interval doubles up to _PROGRESS_INTERVAL: a small table is copied in
moments."""
_NO_PUMP_GRACE = 5.0
"""Seconds without a leader after which `register` stops waiting for a pump and copies the tables itself."""

TABLE_PROPERTIES = {
    "format-version": "2",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    **ENGINE_PROPERTIES,
}
"""Iceberg table properties of a mirrored table."""


@dataclass(frozen=True)
class CopyProgress:
    """The progress of a table's initial copy."""

    table: str
    state: str
    chunks_done: int
    chunks_total: int
    """0 until the copy is planned."""
    rows: int
    """Rows in finished chunks."""
    error: str = ""
    """Why the table cannot be copied, or cannot be copied until its owner acts; empty if there is no error."""

    @property
    def under_way(self) -> bool:
        if self.state == TableState.WAITING:
            return not self.error
        return self.state in (TableState.COPYING, TableState.FILLING)


@dataclass(frozen=True)
class RegisterOutcome:
    """The result of registering one table."""

    table: str
    registered: bool
    error: MirrorPumpError | None
    rows: int
    generated_left_out: tuple[str, ...] = ()
    """Generated columns of the table that are not mirrored."""


def register(
    settings: Settings,
    names: Sequence[str],
    wait: bool,
    on_progress: Callable[[Sequence[CopyProgress]], None],
    observer: Observer = unobserved,
    choices: ColumnChoices = NO_CHOICES,
    retention: RetentionWish | None = None,
    profile: str | None = None,
) -> tuple[RegisterOutcome, ...]:
    """Register tables and, with `wait`, return once they are live. If one table is refused, the others go on.

    A running pump copies the tables; if none runs, a pump within this process does. Registering a table again while it
    is being copied resumes its copy. `choices` apply to the columns of a single table: UsageError is raised if several
    tables are named. With `retention`, the tables shed old partitions once they are live. `profile` names their storage
    profile; None: the default one. Ctrl-C, where it raises KeyboardInterrupt in this process, raises Interrupted, which
    says which tables are registered and which are not.
    """
    if choices and len(names) != 1:
        raise UsageError("--column and --exclude-column are about one table", "register the tables one by one")
    outcomes: list[RegisterOutcome] = []
    registered: dict[TableId, str] = {}
    dsn = settings.require_dsn()
    with connect(dsn, autocommit=True) as connection:
        try:
            for name in names:
                try:
                    _register_one(connection, settings, name, choices, retention, profile, registered)
                except MirrorPumpError as error:
                    outcomes.append(RegisterOutcome(name, registered=False, error=error, rows=0))
                else:
                    observer(Step.REGISTERED, table=name)
            if registered:
                notify_pump(connection, COPY)
                notify_pump(connection, RETAIN)
            if registered and wait:
                follow_copies(connection, settings, list(registered), on_progress, observer)
        except KeyboardInterrupt:
            refused = {outcome.table for outcome in outcomes}
            raise _interrupted(names, refused, list(registered.values())) from None
        left_out = generated_left_out(connection, list(registered))
        for progress, why in copies_progress(connection, list(registered)).items():
            failure = TableError(why, "Mend the cause, then unregister and register the table.") if why else None
            outcomes.append(
                RegisterOutcome(
                    progress.table,
                    registered=True,
                    error=failure,
                    rows=progress.rows,
                    generated_left_out=left_out.get(progress.table, ()),
                )
            )
    return tuple(outcomes)


def _interrupted(names: Sequence[str], refused: Collection[str], registered: Sequence[str]) -> Interrupted:
    missing = [name for name in names if name not in refused and name not in registered]
    stands = []
    if registered:
        stands.append(
            f"registered: {', '.join(registered)}, whose copy a running pump or the same `mirror-pump register`"
            " continues"
        )
    if missing:
        stands.append(f"not registered: {', '.join(missing)}")
    return Interrupted(f"interrupted; {'; '.join(stands)}")


def _register_one(
    connection: PgConnection,
    settings: Settings,
    name: str,
    choices: ColumnChoices,
    retention: RetentionWish | None,
    profile: str | None,
    registered: dict[TableId, str],
) -> None:
    """Register one table, or check that it is registered as requested. Add it to `registered` at the moment it is."""
    table_name, table_id = resolve_name(connection, name)
    known = load_table(connection, table_id)
    former = known if known is not None and known.state is TableState.DROPPED else None
    if known is not None and former is None:
        if known.state is TableState.FAILED:
            raise TableError(
                f"{known.name} is registered, but has failed",
                "`mirror-pump status` says why. Fix that, then unregister and register the table.",
            )
        if table_id in not_whole(connection, settings.slot):
            raise TableError(
                f"{known.name} is registered, but not published whole: somebody changed publication"
                f" {settings.publication}",
                how_to_publish(settings.publication, known.name),
            )
        if choices and not same_choices(known, choices):
            raise TableError(
                f"{known.name} is registered with"
                f" {describe_choices(known.columns, known.excluded) or 'its columns as they are'}",
                "to change that, unregister and register the table: it is copied again",
            )
        wanted = TableMode.MIRRORED if retention is None else retention.mode
        if known.mode is not wanted:
            raise TableError(
                f"{known.name} is registered as a {known.mode} table", "to change that, unregister and register it"
            )
        if retention is not None and read_choices(connection, table_id) is None:
            raise TableError(
                f"{known.name} is registered without heap retention", "to change that, unregister and register it"
            )
        if retention is not None:
            _refuse_other_layout(known, retention)
        if profile is not None and profile != (present := profile_of(connection, table_id)):
            raise TableError(
                f"{known.name} is registered with storage profile {present}",
                "to move it, unregister and register the table: it is copied again",
            )
        registered[table_id] = name
        return
    mode = TableMode.MIRRORED if retention is None else retention.mode
    if mode is TableMode.MIRRORED:
        require_stream(connection, settings.slot, f"{table_name} cannot be mirrored")
    if former is None:
        former = registered_as(connection, table_name)
    if former is not None:
        _refuse_to_retire(connection, former)
    description = chosen(connection, describe(connection, table_id, settings.publication, mode), choices)
    refuse(description, mode)
    plan = None
    if retention is not None:
        plan = plan_retention(connection, description, retention, partial(session_time_zone, settings.require_dsn()))
    home = find_profile(connection, profile)
    storage = lake_storage(settings)
    refresh_profiles(storage, connection)
    _refuse_missing_warehouse(connection, _warehouse(home), storage)
    _refuse_left_over(connection, description.name, storage)
    table, staged = _new_lake_table(_warehouse(home), description, storage, plan, mode)

    def enter() -> None:
        # An interrupt cancels the running statement, and is raised only once it is certain whether the COMMIT happened.
        with deferred_interrupt(connection.cancel):
            _enter(connection, settings, description, table, staged, choices, plan, former, home)
            registered[table_id] = name

    try:
        with_lock_retries(settings, table_name, enter)
    except ConnectionLost:
        # The COMMIT may have happened. Then the table is registered, and the staged files are its files.
        raise
    except (MirrorPumpError, KeyboardInterrupt):
        if table_id not in registered:
            for path in staged.files:
                delete(path, storage)
        raise


def _refuse_other_layout(known: MirroredTable, wish: RetentionWish) -> None:
    """Raise TableError if the lake table of a registered table is not partitioned as requested."""
    present = None if known.partitioning is None else known.partitioning.transform
    if wish.lake_partition is None or is_present_layout(wish.lake_partition, present):
        return
    layout = f"partitioned by {present}" if present is not None else "not partitioned"
    raise TableError(
        f"the lake table of {known.name} is {layout}, which cannot change: its files are written that way",
        "to change that, unregister and register the table: what its heap holds is copied again. Rows that have left"
        " the heap stay in the former lake table (docs/retention.md#tables-that-exist)",
    )


def _refuse_to_retire(connection: PgConnection, former: MirroredTable) -> None:
    """Raise TableError if the former registration must not end when another table of its name is registered."""
    unregister = f"mirror-pump unregister {shlex.quote(str(former.name))}"
    if former.state is not TableState.DROPPED and not is_gone(connection, former.table_id):
        raise TableError(
            f"another table was registered as {former.name}, and has been renamed since",
            f"Unregister it first: {unregister}",
        )
    if sheds(connection, former) or (former.tier is not None and former.tier.moved):
        raise TableError(
            f"{former.name} was dropped, and its lake table holds rows that its heap had shed before: nothing else has"
            " them",
            f"Say what is to become of them: `{unregister} --keep-lake`, or `--drop-lake` if nobody needs them.",
        )


def _retire(connection: PgConnection, settings: Settings, former: MirroredTable) -> None:
    """End the registration of a dropped table, in the transaction that registers another table of its name.

    Its files stay as a former location. Raises TableError if the registration has ended meanwhile or must not end.
    """
    connection.execute(_PUBLISH_SQL["lock_slot"], {"slot": settings.slot})
    present = load_table(connection, former.table_id)
    if present is None or present.location != former.location:
        raise TableError(f"{former.name} was unregistered by somebody else meanwhile", "Register it again.")
    # The cut-line may have moved since the first check.
    _refuse_to_retire(connection, present)
    record_former_location(connection, former.table_id, EndedBy.REGISTER)
    delete_table(connection, former.table_id)


def _warehouse(profile: StorageProfile) -> str:
    if not profile.warehouse:
        raise UsageError(
            f"storage profile {profile.name} has no warehouse",
            "run `mirror-pump init --warehouse URI`, or name another",
        )
    return profile.warehouse


def _refuse_missing_warehouse(connection: PgConnection, warehouse: str, storage: StorageOptions) -> None:
    """Raise LakeError if the files of registered tables show that the warehouse is missing now.

    Without this check, the new table would be written to the disk below the missing mount.
    """
    with source_errors("reading where the tables' files are"):
        tables = stored_tables(connection)
    require_any(warehouse, tables, storage)


def _refuse_left_over(connection: PgConnection, name: TableName, storage: StorageOptions) -> None:
    """Raise TableError if a lake table left by `unregister` holds rows from below a cut-line.

    A new registration would take its name and put those rows out of reach. Nothing tells whether the heap had shed
    them, or kept them or got them back. A lake table without metadata holds nothing.
    """
    pointer = load_pointer(connection, name.schema, name.name)
    if pointer is None:
        return
    try:
        archive = read_any_version(pointer, storage).archive_snapshot
    except FileMissing:
        return
    if archive is not None and archive.summary.total(Total.RECORDS):
        raise TableError(
            f"the lake table {name} of a former registration holds old rows, which the heap may have shed",
            "If the heap has all rows (it was kept, or they were brought back), or nobody needs them, have the lake"
            f" table removed: mirror-pump unregister --former {shlex.quote(str(name))}. Otherwise rename it first, with"
            " an engine that has the catalog (mirror-pump connect).",
        )


def _new_lake_table(
    warehouse: str,
    description: RelationDescription,
    storage: StorageOptions,
    plan: RetentionPlan | None,
    mode: TableMode,
) -> tuple[MirroredTable, StagedCommit]:
    """Return the table's value and its empty lake table, which nothing refers to yet.

    The files go to a new location, so that a table that is registered again never shares a directory with its former
    registration.
    """
    name = description.name
    # Iceberg locations are not percent-encoded, and engines disagree on paths with characters other than these.
    schema, relation = (re.sub(r"[^A-Za-z0-9_-]", "_", part) for part in (name.schema, name.name))
    location = join(warehouse, schema, f"{relation}-{uuid.uuid4().hex[:12]}")
    table = MirroredTable(
        table_id=description.table_id,
        name=name,
        columns=description.columns,
        key=description.key,
        state=state_after(None, TableEvent.REGISTERED if mode is TableMode.MIRRORED else TableEvent.REGISTERED_TIERED),
        start_lsn=Lsn(0),
        data_sequence_number=SequenceNumber(0),
        generation=0,
        lake_table=name.name,
        location=location,
        live_after_lsn=None,
        excluded=description.excluded,
        tier=None if plan is None else plan.tier,
        mode=mode,
        partitioning=None if plan is None else plan.partitioning,
    )
    # This refuses a lake type chosen by the user that does not sort as the tier key does.
    CutLine.of(table, cut=0)
    staged = LakeTable.create(
        LakeSchema.of_table(table),
        location,
        storage,
        TABLE_PROPERTIES,
        time.time_ns() // 1_000_000,
        has_retention=table.tier is not None,
        partitioning=table.partitioning,
    )
    return replace(table, data_sequence_number=staged.sequence_number), staged


def _enter(
    connection: PgConnection,
    settings: Settings,
    description: RelationDescription,
    table: MirroredTable,
    staged: StagedCommit,
    choices: ColumnChoices,
    plan: RetentionPlan | None,
    former: MirroredTable | None,
    profile: StorageProfile,
) -> None:
    """Run the registration transaction. It also ends `former`, the registration of a dropped table of the same name."""
    with source_errors(f"registering {table.name}"), connection.transaction():
        limit_lock(connection, settings)
        # This comes first because it takes the strongest lock.
        own_default = plan is not None and enter_default(connection, table)
        connection.execute(f"LOCK TABLE {table.name.quoted} IN SHARE ROW EXCLUSIVE MODE".encode())
        described = describe(connection, description.table_id, settings.publication, table.mode)
        present = chosen(connection, described, choices)
        if (present.columns, present.identity) != (description.columns, description.identity):
            raise TableError(f"{table.name} was altered while it was being registered", "Register it again.")
        # A table that is in the publication already (a leftover) is removed from it first. Only a change of the
        # publication makes the server describe the relation again before its next change. That is how the pump learns
        # of the table.
        remove_from_publication(connection, settings.publication, table.table_id)
        if table.mode is TableMode.MIRRORED:
            add_to_publication(connection, settings.publication, table.name)
            connection.execute(_SHAPE_SQL["watch"], {"table_id": table.table_id})
        table = replace(table, start_lsn=wal_end(connection))
        ensure_namespace(connection, table.name.schema)
        if former is not None:
            _retire(connection, settings, former)
        pointer = load_pointer(connection, table.name.schema, table.lake_table)
        if pointer is not None:
            note_newest_metadata(connection, pointer)
            delete_pointer(connection, table.name.schema, table.lake_table)
        insert_pointer(connection, table.name.schema, table.lake_table, staged.new_location)
        require_unchanged(connection, profile)
        insert_table(
            connection,
            table,
            snapshot_id=staged.snapshot_id,
            lake_props=lake_props(staged),
            slot=settings.slot,
            publication=settings.publication,
            profile=profile.name,
            keep_heap=plan is not None and plan.keep_heap,
        )
        if table.mode is TableMode.MIRRORED:
            # The settings of the publication are recorded before they are checked, so that a later change differs from
            # the record.
            check_publication(connection, settings.publication)
        if plan is not None:
            enter_partitions(connection, table, plan, own_default=own_default)


def follow_copies(
    connection: PgConnection,
    settings: Settings,
    tables: Sequence[TableId],
    on_progress: Callable[[Sequence[CopyProgress]], None],
    observer: Observer,
) -> None:
    """Return once no table is being copied any more. If no pump runs, copy the tables in this process."""
    led_at: float | None = None
    pause = _FIRST_LOOK
    while True:
        progress = list(copies_progress(connection, tables))
        on_progress(progress)
        if not any(table.under_way for table in progress):
            return
        if is_led(connection, settings.slot):
            led_at = time.monotonic()
        elif led_at is None or time.monotonic() - led_at > _NO_PUMP_GRACE:
            # No pump runs; one that is only restarting would be back by now. So this process copies the tables.
            with suppress(NotLeader), _shown(settings, tables, on_progress):
                Pump(settings, observer=observer).run(copies=True)
        time.sleep(pause)
        pause = min(2 * pause, _PROGRESS_INTERVAL)


@contextmanager
def _shown(
    settings: Settings, tables: Sequence[TableId], on_progress: Callable[[Sequence[CopyProgress]], None]
) -> Iterator[None]:
    """Report progress from a separate thread while the block runs."""
    done = threading.Event()

    def show() -> None:
        with suppress(SourceError), connect(settings.require_dsn(), autocommit=True) as connection:
            while not done.wait(_PROGRESS_INTERVAL):
                on_progress(list(copies_progress(connection, tables)))

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def copies_progress(connection: PgConnection, tables: Sequence[TableId]) -> dict[CopyProgress, str]:
    """Return the progress of each table's copy, mapped to the table's error text."""
    with source_errors("reading the copies' progress"):
        rows = fetch_rows(connection, _ProgressRow, _SQL["progress"], {"table_ids": list(tables)})
    return {row.progress(): row.error for row in rows}


@dataclass(frozen=True)
class _ProgressRow:
    """A row of the query `progress`; see CopyProgress."""

    schema_name: str
    table_name: str
    state: str
    error: str
    chunks_done: int
    chunks_total: int
    rows: int

    def progress(self) -> CopyProgress:
        name = TableName(self.schema_name, self.table_name)
        return CopyProgress(str(name), self.state, self.chunks_done, self.chunks_total, self.rows, self.error)
