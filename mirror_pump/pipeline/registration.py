"""Puts tables under the mirror and takes them out: one transaction each, while the pump runs or not.

The registration transaction holds a lock that keeps writers out, for as long as it takes to note L0. Writers release
their locks only after their changes are visible, so every snapshot taken later sees all that committed before L0, and
every change after L0 is in the slot. Locks are asked for with a time limit and let go between tries: others queue
behind a waiting lock request.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import psycopg
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from mirror_pump.config import Settings
from mirror_pump.errors import MirrorPumpError, NotLeader, SourceError, TableError
from mirror_pump.lake.catalog import delete_pointer, ensure_namespace, insert_pointer, load_pointer
from mirror_pump.lake.commit import LakeTable, StagedCommit
from mirror_pump.lake.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions, delete, delete_tree, join
from mirror_pump.model import Lsn, MirroredTable, SequenceNumber, TableId, TableName, TableState
from mirror_pump.pipeline.listener import CHANNEL
from mirror_pump.pipeline.publish import lake_props
from mirror_pump.pipeline.pump import Pump
from mirror_pump.pipeline.steps import Observer, Step, unobserved
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.leader import is_led
from mirror_pump.source.relations import RelationDescription, describe, refuse, resolve_name
from mirror_pump.source.slot import add_to_publication, published_tables, remove_from_publication
from mirror_pump.source.tables import delete_table, insert_table, load_table
from sql import queries

_SQL = queries("copy")
_PUMP_SQL = queries("pump")
_PUBLISH_SQL = queries("publish")

_LOCK_PATIENCE = 120.0
"""Seconds in all that a table's lock is asked for, in tries of `lock_timeout`."""
_PROGRESS_INTERVAL = 0.25
"""Seconds between looks at the progress of copies."""
_NO_PUMP_GRACE = 5.0
"""Seconds without a leader after which a register that handed over copies itself."""

TABLE_PROPERTIES = {
    "format-version": "2",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
}
"""Iceberg table properties of a mirrored table."""


@dataclass(frozen=True)
class CopyProgress:
    """How far a table's initial copy is."""

    table: str
    state: str
    chunks_done: int
    chunks_total: int
    """0 until the copy is planned."""
    rows: int
    """Rows in finished chunks."""


@dataclass(frozen=True)
class RegisterOutcome:
    """What became of one table."""

    table: str
    registered: bool
    error: MirrorPumpError | None
    rows: int


def register(
    settings: Settings,
    names: Sequence[str],
    wait: bool,
    on_progress: Callable[[Sequence[CopyProgress]], None],
    observer: Observer = unobserved,
) -> tuple[RegisterOutcome, ...]:
    """Register tables and, with `wait`, return once they are live. One table's refusal does not stop the others.

    The copy is done by the pump that runs, else by a pump within this process. Registering again a table that is being
    copied resumes its copy.
    """
    outcomes: list[RegisterOutcome] = []
    registered: list[TableId] = []
    dsn = settings.require_dsn()
    with connect(dsn, autocommit=True) as connection:
        for name in names:
            try:
                table_id = _register_one(connection, settings, name)
            except MirrorPumpError as error:
                outcomes.append(RegisterOutcome(name, registered=False, error=error, rows=0))
            else:
                registered.append(table_id)
                observer(Step.REGISTERED, table=name)
        if registered:
            connection.execute("SELECT pg_notify(%s, 'copy')", (CHANNEL,))
        if registered and wait:
            _follow(connection, settings, registered, on_progress, observer)
        for progress, why in _progress(connection, registered).items():
            failure = TableError(why, "Mend the cause, then unregister and register the table.") if why else None
            outcomes.append(RegisterOutcome(progress.table, registered=True, error=failure, rows=progress.rows))
    return tuple(outcomes)


def unregister(settings: Settings, name: str, drop_lake: bool) -> str:
    """Take a table out of the mirror; with `drop_lake` its Iceberg table and files too. Returns what was done.

    A table that was dropped in Postgres is found under the name that it was registered with.
    """
    with connect(settings.require_dsn(), autocommit=True) as connection:
        table = _registered_table(connection, name)

        def take_out() -> None:
            with source_errors(f"unregistering {table.name}"), connection.transaction():
                _limit_lock(connection, settings)
                # By its present name: it may have been renamed since, and its former name be another table's.
                present = published_tables(connection, settings.publication).get(table.table_id)
                if present is not None:
                    remove_from_publication(connection, settings.publication, present)
                # Publishes and plans of copies hold this row too, so that none of them loses the table halfway.
                connection.execute(_PUBLISH_SQL["lock_slot"], {"slot": settings.slot})
                delete_table(connection, table.table_id)
                if drop_lake:
                    delete_pointer(connection, table.name.schema, table.lake_table)

        _with_lock_retries(settings, table.name, take_out)
    if not drop_lake:
        return f"{table.name} is no longer mirrored; its lake table stays as of its last F at {table.location}"
    delete_tree(table.location, StorageOptions(settings.storage_properties, settings.storage_fsync))
    return f"{table.name} is no longer mirrored; its lake table and its files were removed"


def _register_one(connection: PgConnection, settings: Settings, name: str) -> TableId:
    table_name, table_id = resolve_name(connection, name)
    known = load_table(connection, table_id)
    if known is not None:
        if known.state is TableState.FAILED:
            raise TableError(
                f"{known.name} is registered, but was set aside",
                "`mirror-pump status` says why; mend that, then unregister and register the table.",
            )
        return table_id
    if _named(connection, str(table_name)) is not None:
        raise TableError(
            f"another table was registered as {table_name}, and has been dropped or renamed since",
            f"Unregister it first: mirror-pump unregister {table_name.quoted}",
        )
    description = describe(connection, table_id)
    refuse(description)
    storage = StorageOptions(settings.storage_properties, settings.storage_fsync)
    table, staged = _new_lake_table(settings, description, storage)
    try:
        _with_lock_retries(settings, table_name, lambda: _enter(connection, settings, description, table, staged))
    except BaseException:
        for path in staged.files:
            delete(path, storage)
        raise
    return table_id


def _new_lake_table(
    settings: Settings, description: RelationDescription, storage: StorageOptions
) -> tuple[MirroredTable, StagedCommit]:
    """The table's value and its empty lake table, which nothing refers to yet. Files go to a place of their own, so
    that a table that is registered again never shares a directory with what it was before."""
    name = description.name
    # Iceberg locations are not percent-encoded, and engines disagree on paths with anything but these characters.
    schema, relation = (re.sub(r"[^A-Za-z0-9_-]", "_", part) for part in (name.schema, name.name))
    location = join(settings.require_warehouse(), schema, f"{relation}-{uuid.uuid4().hex[:12]}")
    table = MirroredTable(
        table_id=description.table_id,
        name=name,
        columns=description.columns,
        key=description.key,
        state=TableState.COPYING,
        start_lsn=Lsn(0),
        born_sequence=SequenceNumber(0),
        generation=0,
        lake_table=name.name,
        location=location,
        live_after_lsn=None,
    )
    staged = LakeTable.create(
        LakeSchema.of_table(table), location, storage, TABLE_PROPERTIES, time.time_ns() // 1_000_000
    )
    return replace(table, born_sequence=staged.sequence_number), staged


def _enter(
    connection: PgConnection,
    settings: Settings,
    description: RelationDescription,
    table: MirroredTable,
    staged: StagedCommit,
) -> None:
    """The registration transaction."""
    with source_errors(f"registering {table.name}"), connection.transaction():
        _limit_lock(connection, settings)
        connection.execute(f"LOCK TABLE {table.name.quoted} IN SHARE ROW EXCLUSIVE MODE".encode())
        present = describe(connection, description.table_id)
        if (present.columns, present.identity) != (description.columns, description.identity):
            raise TableError(f"{table.name} was altered while it was being registered", "Register it again.")
        # A table that is in the publication already (a leftover) is taken out first: only a change of the publication
        # makes the server describe the relation again before its next change, which is how the pump learns of us.
        remove_from_publication(connection, settings.publication, table.name)
        add_to_publication(connection, settings.publication, table.name)
        row = connection.execute(_PUMP_SQL["wal_end"]).fetchone()
        assert row is not None
        table = replace(table, start_lsn=Lsn(row[0]))
        ensure_namespace(connection, table.name.schema)
        if load_pointer(connection, table.name.schema, table.lake_table) is not None:
            delete_pointer(connection, table.name.schema, table.lake_table)
        insert_pointer(connection, table.name.schema, table.lake_table, staged.new_location)
        insert_table(
            connection,
            table,
            snapshot_id=staged.snapshot_id,
            lake_props=lake_props(staged),
            slot=settings.slot,
            publication=settings.publication,
        )


def _limit_lock(connection: PgConnection, settings: Settings) -> None:
    connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{int(settings.lock_timeout * 1000)}ms",))


def _with_lock_retries(settings: Settings, name: TableName, attempt: Callable[[], None]) -> None:
    """Run `attempt` until it gets its locks; TableError when the patience is over."""
    tries = Retrying(
        stop=stop_after_delay(_LOCK_PATIENCE),
        wait=wait_random_exponential(multiplier=settings.lock_timeout, max=4 * settings.lock_timeout),
        retry=retry_if_exception_type(_LockBusy),
        reraise=True,
    )
    try:
        for one in tries:
            with one:
                try:
                    attempt()
                except MirrorPumpError as error:
                    if isinstance(error.__cause__, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
                        raise _LockBusy from error
                    raise
    except _LockBusy as busy:
        raise TableError(
            f"{name} could not be locked within {_LOCK_PATIENCE:.0f} s: other sessions hold it",
            "See pg_locks for a long transaction that wrote to the table, wait for it or end it, and try again.",
        ) from busy


class _LockBusy(Exception):
    """The lock was not granted within lock_timeout."""


def _registered_table(connection: PgConnection, name: str) -> MirroredTable:
    """The registration that `name` means: of the relation of that name, else of one that had it and was dropped."""
    unknown: MirrorPumpError = TableError(
        f"{name} is not registered", "`mirror-pump status` lists the tables that are."
    )
    written = name
    try:
        table_name, table_id = resolve_name(connection, name)
    except MirrorPumpError as error:
        unknown = error
    else:
        table = load_table(connection, table_id)
        if table is not None:
            return table
        written = str(table_name)
    table = _named(connection, written)
    if table is None:
        raise unknown
    return table


def _named(connection: PgConnection, name: str) -> MirroredTable | None:
    """The table that was registered under this name, with or without its schema, whatever it is called now."""
    with source_errors("looking for a registered table"):
        row = connection.execute(
            "SELECT table_id FROM modak.tables WHERE schema_name || '.' || table_name = %(name)s"
            " OR table_name = %(name)s ORDER BY table_name = %(name)s LIMIT 1",
            {"name": name},
        ).fetchone()
    return None if row is None else load_table(connection, TableId(row[0]))


def _follow(
    connection: PgConnection,
    settings: Settings,
    tables: Sequence[TableId],
    on_progress: Callable[[Sequence[CopyProgress]], None],
    observer: Observer,
) -> None:
    """Return when none of the tables is being copied any more, having copied them here unless a pump does it."""
    led_at: float | None = None
    while True:
        progress = list(_progress(connection, tables))
        on_progress(progress)
        if all(one.state != TableState.COPYING for one in progress):
            return
        if is_led(connection, settings.slot):
            led_at = time.monotonic()
        elif led_at is None or time.monotonic() - led_at > _NO_PUMP_GRACE:
            # No pump runs (one that only restarts is back before long): the work is ours.
            with suppress(NotLeader), _shown(settings, tables, on_progress):
                Pump(settings, observer=observer).run(copies=True)
        time.sleep(_PROGRESS_INTERVAL)


@contextmanager
def _shown(
    settings: Settings, tables: Sequence[TableId], on_progress: Callable[[Sequence[CopyProgress]], None]
) -> Iterator[None]:
    """Report progress from a thread while the block runs."""
    done = threading.Event()

    def show() -> None:
        with suppress(SourceError), connect(settings.require_dsn(), autocommit=True) as connection:
            while not done.wait(_PROGRESS_INTERVAL):
                on_progress(list(_progress(connection, tables)))

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _progress(connection: PgConnection, tables: Sequence[TableId]) -> dict[CopyProgress, str]:
    """Where the tables' copies stand, each with its table's error text."""
    with source_errors("reading the copies' progress"):
        rows = connection.execute(_SQL["progress"], {"table_ids": list(tables)}).fetchall()
    return {
        CopyProgress(str(TableName(schema, name)), state, done, total, copied): error
        for _, schema, name, state, error, done, total, copied in rows
    }
