"""Change feeds of tables: which can have one, and its empty Iceberg table, which is created with the registration.

A feed begins with the publish in which its table is first live with it. So the feed of a table that is registered
already is created the same way: no row is copied.
"""

from __future__ import annotations

import shlex
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from psycopg import errors as pg_errors

from mirror_pump.engine.lake_storage import lake_storage, refresh_profiles
from mirror_pump.errors import TableError
from mirror_pump.lake.commit.catalog import ENGINE_PROPERTIES, load_pointer
from mirror_pump.lake.commit.row_delta import LakeTable, StagedCommit
from mirror_pump.lake.commit.table_head import TableHead
from mirror_pump.lake.format.feed_schema import (
    FEED_PARTITIONING,
    FEED_SUFFIX,
    TRANSACTION_NAMESPACE,
    TRANSACTION_SCHEMA,
    TRANSACTION_TABLE,
    feed_schema,
    is_feed_column,
)
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import join
from mirror_pump.model import FeedMode, Lsn, MirroredTable, TableName
from mirror_pump.ops.register.new_lake_table import warehouse_of
from mirror_pump.ops.register.unregistration import registered_table
from mirror_pump.ops.table_locks import locked_transaction
from mirror_pump.pipeline.landing.registration_end import end_feed
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.change_feeds import (
    TRANSACTIONS_ID,
    ChangeFeed,
    feed_of_name,
    insert_feed,
    keep_feed,
    load_feed,
)
from mirror_pump.source.catalog.profiles import find_profile, profile_of
from mirror_pump.source.catalog.pump_channel import RESYNC, notify_pump
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.options.option_values import refuse_alteration
from mirror_pump.source.relations.description import RelationDescription
from mirror_pump.source.relations.relations import describe
from mirror_pump.source.stream.slot import wal_end

_PROPERTIES = {"format-version": "2", **ENGINE_PROPERTIES}


@dataclass(frozen=True)
class FeedOptions:
    """What the user wants of a feed."""

    mode: FeedMode
    keep: timedelta | None = None
    """How long changes stay; None: for ever."""


@dataclass(frozen=True)
class StagedFeed:
    """A feed whose empty Iceberg table is staged, to be entered into the catalog."""

    wish: FeedOptions
    table: MirroredTable
    commit: StagedCommit
    transactions: StagedCommit | None
    """The table of the mirror's transactions, if this is its first feed."""
    files: WrittenFiles
    """Owns both tables."""
    not_before: Lsn | None = None
    """Changes that end before this position may lack their old rows or keys: it begins at this frontier or a later
    one."""


def refuse_feed(connection: PgConnection, description: RelationDescription, wish: FeedOptions) -> None:
    """Raise TableError if the relation cannot have the feed."""
    name = description.name
    taken = sorted(column.name for column in description.columns if is_feed_column(column.name))
    if taken:
        raise TableError(
            f"{name} has a column {taken[0]}, as its change feed has", "leave out --changes, or rename the column"
        )
    if not description.key and description.whole_rows and wish.mode is FeedMode.KEYS:
        raise TableError(
            f"{name} has no key, so its change feed cannot say which row was changed",
            "--changes=rows has the old rows, or give the table a primary key",
        )
    if wish.mode is FeedMode.ROWS and description.kind == "p":
        raise TableError(
            f"{name} is partitioned: a partition that is created without REPLICA IDENTITY FULL would have no old rows",
            "--changes=keys",
        )
    feed_name = TableName(name.schema, name.name + FEED_SUFFIX)
    pointer = load_pointer(connection, feed_name.schema, feed_name.name)
    # The feed of a table that was called so before is renamed, or ends.
    if pointer is not None and feed_of_name(connection, feed_name) is None:
        raise TableError(
            f"the lake has a table {feed_name}, as the change feed would be called",
            "rename that table; if it is of a former registration, have it removed: `mirror-pump unregister --former"
            f" {name.shell}`",
        )


def refuse_name_of_feed(connection: PgConnection, name: TableName) -> None:
    """Raise TableError if a table to be registered is called like a feed."""
    feed = feed_of_name(connection, name)
    if feed is not None:
        raise TableError(f"{name} is the name of a change feed in the lake", "rename the table, then register it")


def require_old_rows(connection: PgConnection, settings: Settings, description: RelationDescription) -> None:
    """Have the stream bring old rows: REPLICA IDENTITY FULL. Raise TableError if the table is another role's, or if
    another publication has some of its columns: the server would refuse UPDATE and DELETE of the table then."""
    if description.identity.setting == "f":
        return
    if description.listed_by:
        raise TableError(
            f"{description.name} has not REPLICA IDENTITY FULL, which --changes=rows needs, and"
            f" {description.against_full}",
            "--changes=keys",
        )
    statement = f"ALTER TABLE {description.name.quoted} REPLICA IDENTITY FULL"

    def alter() -> None:
        try:
            connection.execute(statement.encode())
        except pg_errors.InsufficientPrivilege as error:
            raise TableError(
                f"{description.name} has not REPLICA IDENTITY FULL, which --changes=rows needs, and it is not ours to"
                " alter",
                f"as its owner: {statement}",
            ) from error

    locked_transaction(connection, settings, description.name, f"altering {description.name}", alter)


def stage_feed(
    connection: PgConnection,
    table: MirroredTable,
    wish: FeedOptions,
    warehouse: str,
    files: WrittenFiles,
    not_before: Lsn | None = None,
) -> StagedFeed:
    """Write the empty Iceberg tables, which nothing refers to yet, and which `files` owns. `not_before`: as in
    StagedFeed."""
    now_ms = time.time_ns() // 1_000_000
    location = table.location.rstrip("/") + FEED_SUFFIX
    # Registered again, a table has another location; a feed that is created again may not have one that was used.
    location = f"{location}-{uuid.uuid4().hex[:6]}"

    def new_table(schema: LakeSchema, location: str) -> StagedCommit:
        files.add_table(location)
        return LakeTable.create(schema, location, files.storage, _PROPERTIES, now_ms, partitioning=FEED_PARTITIONING)

    commit, transactions = new_table(feed_schema(table, wish.mode), location), None
    if load_feed(connection, TRANSACTIONS_ID) is None:
        location = join(warehouse, TRANSACTION_NAMESPACE, f"{TRANSACTION_TABLE}-{uuid.uuid4().hex[:12]}")
        transactions = new_table(TRANSACTION_SCHEMA, location)
    return StagedFeed(wish, table, commit, transactions, files, not_before)


def enter_feed(lock: SlotLock, slot: str, staged: StagedFeed) -> None:
    """Enter the feed into the catalog, in the transaction of its registration."""
    name = staged.table.name
    feed_name = TableName(name.schema, name.name + FEED_SUFFIX)
    wish = staged.wish
    table_id, not_before = staged.table.table_id, staged.not_before
    _enter(lock, slot, table_id, wish.mode, wish.keep, feed_name, staged.commit, not_before)
    if staged.transactions is None:
        return
    if load_feed(lock.connection, TRANSACTIONS_ID) is not None:
        # Another feed became the first one meanwhile.
        staged.files.supersede_table(staged.transactions.table.location)
        return
    transactions_name = TableName(TRANSACTION_NAMESPACE, TRANSACTION_TABLE)
    _enter(lock, slot, TRANSACTIONS_ID, FeedMode.TRANSACTIONS, wish.keep, transactions_name, staged.transactions)


def _enter(
    lock: SlotLock,
    slot: str,
    feed_id: int,
    mode: FeedMode,
    keep: timedelta | None,
    name: TableName,
    commit: StagedCommit,
    not_before: Lsn | None = None,
) -> None:
    try:
        lock.insert(name, commit.new_location)
    except pg_errors.UniqueViolation as error:
        raise TableError(
            f"the lake has a table {name}, as the change feed would be called", "rename that table"
        ) from error
    head = TableHead.of(commit.table).to_json()
    insert_feed(lock.connection, feed_id, slot, mode, keep, name, commit.table.location, head, not_before)


@dataclass(frozen=True)
class FeedChange:
    """What became of a table whose feed was to be changed."""

    table: str
    feed: ChangeFeed | None
    """None: it has none now."""
    changed: bool


def alter_feed(settings: Settings, name: str, wish: FeedOptions | None) -> FeedChange:
    """Give a registered table a feed, let its changes stay for another time, or, without a wish, take its feed away. A
    running pump begins a new session. Raise TableError if the table cannot have it."""
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-alter") as connection:
        with source_errors(f"altering {name}"):
            table = registered_table(connection, name)
        storage = lake_storage(settings)
        current = load_feed(connection, table.table_id)
        description = refuse_feed_change(connection, settings, table, wish)
        with WrittenFiles(storage) as files:
            staged: StagedFeed | None = None
            if wish is not None and description is not None:
                staged = _stage_anew(connection, settings, table, wish, description, files)
            alter = partial(_alter_locked, connection, settings, table, wish, staged)
            locked_transaction(connection, settings, table.name, f"altering {table.name}", alter, files)
        feed = load_feed(connection, table.table_id)
        return FeedChange(str(table.name), feed, _choices(feed) != _choices(current))


def _choices(feed: ChangeFeed | None) -> tuple[object, ...] | None:
    """What tells a feed from another one, and from one whose changes stay for another time."""
    return None if feed is None else (feed.location, feed.mode, feed.keep)


def _stage_anew(
    connection: PgConnection,
    settings: Settings,
    table: MirroredTable,
    wish: FeedOptions,
    description: RelationDescription,
    files: WrittenFiles,
) -> StagedFeed:
    """Stage the feed of a table that is registered."""
    if wish.mode is FeedMode.ROWS:
        require_old_rows(connection, settings, description)
    # Its owner, too, may have altered it a moment ago, and the pump is behind.
    not_before = wal_end(connection)
    profile = find_profile(connection, profile_of(connection, table.table_id))
    refresh_profiles(files.storage, connection)
    return stage_feed(connection, table, wish, warehouse_of(profile), files, not_before)


def refuse_feed_change(
    connection: PgConnection, settings: Settings, table: MirroredTable, wish: FeedOptions | None
) -> RelationDescription | None:
    """Raise TableError if a registered table cannot have the feed, or another one. Return the relation if it gets a
    feed that it has not."""
    current = load_feed(connection, table.table_id)
    if wish is None:
        return None
    if current is not None:
        if current.mode is wish.mode:
            return None
        raise TableError(
            f"the change feed of {table.name} is of --changes={current.mode}",
            f"take it away first: mirror-pump register {shlex.quote(str(table.name))} --alter --no-changes",
        )
    refuse_alteration(table, "changes")
    description = describe(connection, table.table_id, settings.publication, table.mode)
    refuse_feed(connection, description, wish)
    return description


def _alter_locked(
    connection: PgConnection,
    settings: Settings,
    table: MirroredTable,
    wish: FeedOptions | None,
    staged: StagedFeed | None,
) -> None:
    """The change, in a transaction."""
    lock = SlotLock.take(connection, settings.slot)
    current = load_table(connection, table.table_id)
    if current is None or (current.location, current.name, current.columns) != (
        table.location,
        table.name,
        table.columns,
    ):
        raise TableError(f"{table.name} was altered meanwhile: nothing was done", "try again")
    if staged is not None:
        enter_feed(lock, settings.slot, staged)
    elif wish is not None:
        keep_feed(connection, table.table_id, wish.keep)
    else:
        end_feed(lock, table.table_id)
    notify_pump(connection, RESYNC)
