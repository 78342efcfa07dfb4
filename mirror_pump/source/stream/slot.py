"""The publication and the replication slot: created once, checked at every start, never re-created silently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg
from psycopg import sql

from mirror_pump.database.quoting import identifier
from mirror_pump.errors import SourceError
from mirror_pump.model import Lsn, TableId, TableName, format_lsn
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.rows import fetch_row
from mirror_pump.source.server import OUTPUT_PLUGIN
from sql import queries
from sql.mirror_names import SCHEMA

_SQL = queries("slot")

COPY_AGAIN = (
    "the lake stays readable as of the frontier, but is no longer updated: its tables have to be copied again."
    " `mirror-pump resync --all` makes a new slot and copies them in the background; readers keep the old content until"
    " all tables are complete"
)
"""What to do when a slot is lost, and nothing else is wrong."""

RECONCILE = (
    "`mirror-pump reconcile` says what was lost, continues on the present history, and copies again what differs."
    " Readers keep the present content meanwhile"
)
"""What to do when the server was promoted or restored so that the pump refuses it, with or without a slot."""


ANEW = (
    "keep a copy of the warehouse and of schema modak first: after heap retention they alone have rows that left"
    " PostgreSQL. Then `mirror-pump unregister TABLE` for each, with --restore-heap if its rows left PostgreSQL, and"
    " with --keep-lake if the original still uses the warehouse. When none is registered, sql/uninstall.sql removes the"
    " mirror, `mirror-pump init` makes another one, and the tables are registered again (docs/operations.md, Upgrading)"
)
"""What to do when a mirror cannot continue in its database. Schema modak must not be dropped before: it has the only
pointers to rows that the heap has shed. `unregister` and uninstall.sql refuse what would lose them."""


class SlotLost(SourceError):
    """The mirror cannot continue from its slot: it is gone, was invalidated, or stands ahead of the frontier."""


@dataclass(frozen=True)
class SystemIdentity:
    """A database of a cluster. A slot is only valid there."""

    system_identifier: str
    """pg_control_system().system_identifier: an unsigned 64-bit number, kept as text."""
    timeline: int
    database: str


@dataclass(frozen=True)
class SlotStatus:
    """A row of pg_replication_slots. Fields that the server's version does not know are None."""

    name: str
    plugin: str | None
    database: str | None
    temporary: bool
    two_phase: bool
    active_pid: int | None
    """Process ID of the walsender that streams from the slot; None if the slot is not in use."""
    restart_lsn: Lsn | None
    """WAL from this position on is retained. None once the slot is lost."""
    confirmed_flush_lsn: Lsn | None
    """The acknowledged position. The server does not send transactions again that ended before it."""
    wal_status: str | None
    """reserved, extended, unreserved or lost."""
    safe_wal_bytes: int | None
    """Bytes of WAL that can be written before the slot may be lost; None if there is no limit."""
    retained_bytes: int | None
    """Bytes of WAL that the server keeps for this slot."""
    invalidation_reason: str | None
    """PostgreSQL 17 and later. In 16 only `conflict`."""
    failover: bool | None
    """Whether the slot is synchronised to standbys. PostgreSQL 17 and later."""
    inactive_since: datetime | None
    """PostgreSQL 17 and later."""

    @property
    def active(self) -> bool:
        return self.active_pid is not None

    @property
    def invalidated(self) -> bool:
        """Whether the server has invalidated the slot, so that nothing can be read from it any more."""
        return self.invalidation_reason is not None or self.wal_status == "lost" or self.restart_lsn is None


def create_publication(conn: PgConnection, name: str) -> bool:
    """Creates the publication without tables. It publishes changes of partitions under the partitioned table's name,
    and stored generated columns if the server supports that. Returns False if the publication exists, with or without
    these.

    Raises SourceError if an existing publication of that name does not publish what the mirror needs.
    """
    if not _publishes_ours(conn, name):
        with source_errors(f"creating publication {name}"):
            generated = ", publish_generated_columns = stored" if publishes_generated(conn) else ""
            statement = sql.SQL("CREATE PUBLICATION {} WITH (publish_via_partition_root = true" + generated + ")")
            conn.execute(statement.format(sql.Identifier(name)))
        return True
    with source_errors(f"reading publication {name}"):
        schemas = conn.execute(_SQL["published_schemas"], {"publication": name}).fetchone()
    if schemas is not None:
        raise _publishes_too_much(name, "whole schemas")
    return False


def publication_exists(conn: PgConnection, name: str) -> bool:
    """Whether a publication of this name exists, regardless of what it publishes."""
    with source_errors(f"reading publication {name}"):
        return conn.execute("SELECT FROM pg_publication WHERE pubname = %s", (name,)).fetchone() is not None


def check_publication(conn: PgConnection, name: str) -> None:
    """Raises SourceError, with a remedy, if the publication does not exist or does not publish what the mirror
    needs."""
    if not _publishes_ours(conn, name):
        raise SourceError(
            f"publication {name} does not exist (any more): changes since the frontier are lost to the mirror",
            "`mirror-pump init` creates it again with the registered tables, which the pump then copies again. If it"
            " was only renamed, rename it back",
        )


def _publishes_ours(conn: PgConnection, name: str) -> bool:
    """False if there is no such publication. Raises SourceError if it does not publish all changes of its tables."""
    with source_errors(f"reading publication {name}"):
        row = conn.execute(_SQL["settings"], {"publication": name}).fetchone()
    if row is None:
        return False
    all_tables, as_needed = row
    if all_tables:
        raise _publishes_too_much(name, "all tables")
    if not as_needed:
        raise SourceError(
            f"publication {name} exists with other settings than the mirror needs",
            f"ALTER PUBLICATION {identifier(name)} SET (publish = 'insert, update, delete, truncate',"
            " publish_via_partition_root = true)",
        )
    return True


def _publishes_too_much(name: str, what: str) -> SourceError:
    return SourceError(
        f"publication {name} publishes {what}; the mirror adds tables one by one, each at a known WAL position",
        "give mirror-pump a publication name of its own",
    )


def publishes_generated(conn: PgConnection) -> bool:
    """Whether publications have the parameter publish_generated_columns (PostgreSQL 18 and later)."""
    return conn.info.server_version >= 180000


def sends_generated(conn: PgConnection, publication: str | None) -> bool:
    """Whether the publication's stream contains stored generated columns. None: a publication that the mirror
    creates."""
    if publication is None or not publishes_generated(conn):
        return publishes_generated(conn)
    with source_errors(f"reading publication {publication}"):
        row = conn.execute("SELECT pubgencols = 's' FROM pg_publication WHERE pubname = %s", (publication,)).fetchone()
    return row is not None and bool(row[0])


def send_generated(conn: PgConnection, publication: str) -> None:
    """Makes the publication publish stored generated columns from the caller's commit on, also for its present
    tables."""
    with source_errors(f"altering publication {publication}"):
        statement = sql.SQL("ALTER PUBLICATION {} SET (publish_generated_columns = stored)")
        conn.execute(statement.format(sql.Identifier(publication)))


def published_part(columns: Sequence[str], row_filter: str) -> str:
    """SQL: what a publication has of a table, behind its name. Empty for all columns and rows. `columns`: names, or
    none for all; `row_filter`: an SQL condition, or empty."""
    listed = f" ({', '.join(map(identifier, columns))})" if columns else ""
    return listed + (f" WHERE ({row_filter})" if row_filter else "")


def add_to_publication(conn: PgConnection, publication: str, table: TableName, part: str = "") -> bool:
    """Adds a table, with its partitions, or a `published_part` of it, to the publication. False if it is already in it.

    The caller's transaction must hold a lock that blocks writers of the table. Only then does the WAL position recorded
    in it separate the rows that the copy reads from the changes that the stream contains.
    """
    with source_errors(f"adding {table} to publication {publication}"):
        parameters = {"schema": table.schema, "name": table.name, "publication": publication}
        if conn.execute(_SQL["has_table"], parameters).fetchone() == (True,):
            return False
        statement = f"ALTER PUBLICATION {identifier(publication)} ADD TABLE {table.quoted}{part}"
        # As a prepared statement it cannot be more than one.
        conn.execute(statement.encode(), prepare=True)
        return True


def publish_whole(conn: PgConnection, publication: str, table: TableName, table_id: TableId) -> bool:
    """As `add_to_publication`, with all columns and rows. The driver forgets all that it has prepared on the connection
    after an ALTER of its own, so a function of the catalog executes it: hundreds of tables may be registered in a
    row."""
    with source_errors(f"adding {table} to publication {publication}"):
        row = conn.execute(f"SELECT {SCHEMA}.mirror_publish(%s, %s)", (publication, table_id)).fetchone()
    return row is not None and bool(row[0])


def remove_from_publication(conn: PgConnection, publication: str, table_id: TableId) -> bool:
    """Removes a table, under its present name, from the publication. False if it was not in it, or was dropped."""
    with source_errors(f"removing table {table_id} from publication {publication}"):
        row = conn.execute(f"SELECT {SCHEMA}.mirror_unpublish(%s, %s)", (publication, table_id)).fetchone()
    return row is not None and bool(row[0])


def create_slot(conn: PgConnection, name: str) -> tuple[SlotStatus, bool]:
    """Creates the logical slot, with failover since PostgreSQL 17. Returns it, and False if it existed already.

    `conn` must be in autocommit mode, since a transaction that has written cannot create a slot. Waits for transactions
    that are open at the moment. Raises SourceError if no slot is free, if the name is invalid, or if a slot of that
    name is of another kind or belongs to another database.
    """
    existing = read_slot(conn, name)
    if existing is None:
        arguments = "%s, %s, false, false, true" if conn.info.server_version >= 170000 else "%s, %s, false, false"
        with source_errors(f"creating replication slot {name}"):
            try:
                # The server waits for each open transaction as for a lock.
                conn.execute("SET lock_timeout = 0")
                conn.execute(f"SELECT pg_create_logical_replication_slot({arguments})".encode(), (name, OUTPUT_PLUGIN))
                conn.execute("RESET lock_timeout")
            except psycopg.errors.ConfigurationLimitExceeded as error:
                raise _no_free_slot() from error
            except (psycopg.errors.InvalidName, psycopg.errors.NameTooLong) as error:
                raise SourceError(
                    f"{name!r} is not a valid slot name", "use lower-case letters, digits and underscores"
                ) from error
        created = read_slot(conn, name)
        if created is None:
            raise SourceError(f"replication slot {name} vanished right after it was created", "see who dropped it")
        return created, True
    _check_kind(conn, existing)
    return existing, False


def drop_slot(conn: PgConnection, name: str) -> bool:
    """Drops the slot. False if there is none. Raises SourceError while it is in use."""
    if read_slot(conn, name) is None:
        return False
    with source_errors(f"dropping replication slot {name}"):
        conn.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    return True


def read_slot(conn: PgConnection, name: str) -> SlotStatus | None:
    """The slot as the server shows it; None if it does not exist."""
    with source_errors(f"reading replication slot {name}"):
        return fetch_row(conn, SlotStatus, _SQL["slot"], {"slot": name})


def wal_end(connection: PgConnection) -> Lsn:
    """The insert position of the WAL: all transactions that are visible by now committed before it. The flushed
    position may be before asynchronous commits."""
    with source_errors("reading the end of the WAL"):
        ((position,),) = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchall()
    return Lsn(position)


def flushed_end(connection: PgConnection) -> Lsn:
    """The flushed end of the WAL, which a stream can reach without further WAL: behind every commit of a session that
    waits for its commits."""
    with source_errors("reading the end of the WAL"):
        ((position,),) = connection.execute("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint").fetchall()
    return Lsn(position)


def system_identity(conn: PgConnection) -> SystemIdentity:
    """The cluster, its timeline, and the database that `conn` is connected to."""
    with source_errors("reading the cluster's identity"):
        row = fetch_row(conn, _SystemIdentityRow, _SQL["identity"])
    assert row is not None
    # A WAL file's name begins with the timeline in hexadecimal. That of the last checkpoint may be outdated after a
    # promotion.
    timeline = int(row.wal_file[:8], 16) if row.wal_file else row.checkpoint_timeline
    return SystemIdentity(row.system_identifier, timeline, row.database)


@dataclass(frozen=True)
class _SystemIdentityRow:
    """A row of the query `identity`."""

    system_identifier: str
    database: str
    wal_file: str | None
    """The name of the WAL file that is written now. None on a standby."""
    checkpoint_timeline: int


def check_slot(
    conn: PgConnection,
    name: str,
    *,
    applied_lsn: Lsn | None,
    applied_at: datetime | None = None,
) -> SlotStatus:
    """The slot, if the mirror can continue from it. Otherwise raises SourceError, which says since when it cannot:
    SlotLost if a new slot and new copies of all tables help.

    `applied_lsn` and `applied_at` (when the frontier last moved) are from the catalog, None if not recorded yet. The
    server may be another one: mirror_pump.source.catalog.server_change and mirror_pump.pipeline.session.history examine
    it.
    """
    slot = read_slot(conn, name)
    frontier = "the frontier" if applied_lsn is None else f"the frontier {format_lsn(applied_lsn)}"
    moved = "" if applied_at is None else f" The frontier last moved at {_minute(applied_at)}."
    if slot is None:
        raise SlotLost(
            f"replication slot {name} does not exist (any more): whatever was committed after {frontier} is lost to the"
            f" mirror.{moved}",
            COPY_AGAIN,
        )
    _check_kind(conn, slot)
    if slot.invalidated:
        why = slot.invalidation_reason or "the WAL it needs was removed"
        since = "" if slot.inactive_since is None else f" No pump has read it since {_minute(slot.inactive_since)}."
        raise SlotLost(
            f"replication slot {name} was invalidated by the server ({why}): whatever was committed after {frontier} is"
            f" lost to the mirror.{since}{moved}",
            f"{COPY_AGAIN}. Before that, raise max_slot_wal_keep_size (or idle_replication_slot_timeout), or"
            " it will happen again",
        )
    end = (slot.restart_lsn or 0) + (slot.retained_bytes or 0)
    if applied_lsn is not None and end and applied_lsn > end:
        raise SourceError(
            f"{frontier} is beyond the end of WAL, {format_lsn(Lsn(end))}: modak.mirror_slots was changed by hand, or"
            " damaged. What is committed before that position would be lost to the mirror",
            "restore the row of modak.mirror_slots from a backup",
        )
    position = slot.confirmed_flush_lsn
    if applied_lsn is None or position is None or position <= applied_lsn or position == drained_position(conn, name):
        return slot
    raise SlotLost(
        f"replication slot {name} stands at {format_lsn(position)}, ahead of what the mirror has applied"
        f" ({format_lsn(applied_lsn)}): another program consumed or re-created it, and what was committed in between is"
        f" lost to the mirror.{moved}",
        COPY_AGAIN,
    )


def drained_position(conn: PgConnection, name: str) -> Lsn | None:
    """Where the slot may stand ahead of the frontier (mirror_pump.source.stream.drained_slot). None if it was never
    drained."""
    with source_errors(f"reading where slot {name} was drained to"):
        row = conn.execute(_SQL["drained"], {"slot": name}).fetchone()
    return None if row is None or row[0] is None else Lsn(row[0])


def _minute(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _check_kind(conn: PgConnection, slot: SlotStatus) -> None:
    wrong = ""
    if slot.plugin is None:
        wrong = "is a physical slot"
    elif slot.plugin != OUTPUT_PLUGIN:
        wrong = f"uses output plugin {slot.plugin}"
    elif slot.database != conn.info.dbname:
        wrong = f"belongs to database {slot.database}"
    elif slot.temporary:
        wrong = "is temporary"
    elif slot.two_phase:
        wrong = "decodes prepared transactions early (two_phase)"
    if wrong:
        raise SourceError(f"replication slot {slot.name} {wrong}", "choose another slot name for the mirror")


def _no_free_slot() -> SourceError:
    return SourceError(
        "all replication slots of the server are in use",
        "drop one without a use (see pg_replication_slots), or raise max_replication_slots and restart the server",
    )
