"""The seam protocol as readers use it: pins, and one database snapshot in which everything is read.

Invariant: a `ConsistentSnapshot` shows one state that the database had. The cut-line, the published snapshot, the
corrections and the heap are all read in one REPEATABLE READ snapshot, which is exported for parallel readers. Before
that database snapshot is taken, a pin on exactly this pair of cut-line and published snapshot is committed:

1. One statement reads the cut-line and the published snapshot, and inserts the pin on them. It is committed once the
   reader knows the pin's ID.
2. The database snapshot is taken, and the pair is read again in it. If it differs, the cut-line advanced or a fold was
   committed in between, perhaps by a transaction that looked for pins before ours was visible. The pin is released, and
   the reader starts again.
3. If the pair is the same, everything that the database snapshot needs stays. Rows below the cut-line are in the lake
   at the published snapshot, as changed by the corrections. The published snapshot is pinned, and was current when the
   pin existed already. The database snapshot keeps the corrections that it sees, even if they are cleared later. Rows
   at or above the cut-line are in the heap. Their partitions are not dropped, because the pinned cut-line protects
   them, and neither truncated nor rewritten, because their locks are held since before the database snapshot.

This is stricter than the protocol, which lets a reader read heap and corrections in any order under the pin. It makes
the reads of all tables of one `ConsistentSnapshot` agree on one point in time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import psycopg
from psycopg import sql

from mirror_pump.errors import SourceError, TableError, UsageError
from mirror_pump.model import EVERYTHING_IN_HEAP, Column, MirroredTable, SnapshotId, TableId, TableState
from mirror_pump.source.catalog.pins import (
    PIN_SECONDS,
    TRIES,
    PinRelation,
    PinSubject,
    ReaderPins,
    of_published,
    of_snapshots,
)
from mirror_pump.source.catalog.published_state import PublishedState, published_states
from mirror_pump.source.catalog.tables import formerly_registered, load_table, registered_as
from mirror_pump.source.connect import PgConnection, connect, exported_snapshot, source_errors
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.source.rows import fetch_rows
from sql import queries
from sql.mirror_names import SCHEMA

_SQL = queries("seam")

LOCK_SECONDS = 10.0
"""How long a reader waits for a lock that another session holds or queues for. Without this limit, a DDL statement that
waits for this very reader would block itself, and everybody behind it, forever."""

READER_SETTINGS = f"SET lock_timeout = '{LOCK_SECONDS:g}s'"
"""For every further connection that reads in the exported snapshot."""


@dataclass(frozen=True)
class TableCutline:
    """One table as of the consistent snapshot."""

    table: MirroredTable
    state: PublishedState

    @property
    def has_retention(self) -> bool:
        """Whether the table has a cut-line, so that a complete read needs both the lake and the heap."""
        return self.table.tier is not None


@dataclass(frozen=True)
class DeltaRow:
    """A correction of a row below the cut-line, as the texts that the columns' types print."""

    gone: bool
    """A tombstone: the row is deleted, and only its key columns are valid."""
    values: tuple[str | None, ...]
    """In the order of the table's columns."""


@dataclass(frozen=True)
class _AttributeRow:
    """A row of the query `attributes`."""

    name: str
    type_sql: str
    relation: str
    """The table's name, quoted for SQL."""


class Locks(StrEnum):
    """The tables whose heap will be read, and which therefore get ACCESS SHARE locks."""

    NONE = "none"
    WITH_RETENTION = "with retention"
    """The tables with heap retention."""
    ALL = "all"


class ConsistentSnapshot(ReaderPins):
    """One state of the database, while it is open. A context manager. Thread-safe except for `connection`.

    `snapshot`: use this exported snapshot instead of a new one, to read the heap alone. Nothing is pinned, and the
    locks are taken after the snapshot, so the caller must check that the heap did not change in between (`rewritten`).
    `stopped` is called once a second; when it returns True, because the reader is gone, the snapshot is released.

    Raises TableError for a table that is not mirrored, SourceError and ConnectionLost.
    """

    def __init__(
        self,
        dsn: str,
        table_ids: Collection[TableId],
        *,
        locks: Locks,
        snapshot: str | None = None,
        stopped: Callable[[], bool] = lambda: False,
        pin_seconds: float = PIN_SECONDS,
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        self._lock_seconds = lock_seconds
        super().__init__(dsn, PinRelation.TABLES, pin_seconds, "mirror-pump-read", stopped)
        self.connection = self.pinning
        try:
            self.connection = connect(dsn, autocommit=True, application_name="mirror-pump-read")
            """In the snapshot's transaction. Only for the thread that opened the snapshot."""
            self._open(table_ids, locks, snapshot)
            self.start()
        except BaseException:
            self.release()
            raise

    def close(self) -> None:
        super().close()
        self.connection.close()

    def _open(self, table_ids: Collection[TableId], locks: Locks, snapshot: str | None) -> None:
        """Pins the tables and takes the database snapshot, until one shows exactly what is pinned. With `snapshot`,
        that of another session, nothing is pinned and there is one try. Raises SourceError and TableError."""
        for _ in range(TRIES):
            pinned = [] if snapshot is not None else self.take(of_published(table_ids))
            with source_errors("pinning what is read"):
                try:
                    rows = self._snapshot(table_ids, locks, snapshot)
                except psycopg.errors.UndefinedTable:
                    # A partition was dropped or renamed during the wait for its lock.
                    if snapshot is not None:
                        raise
                    rows, self._complete = [], False
            same = {(pin.subject, pin.cut, pin.snapshot_id) for pin in pinned} == {_pair(row) for row in rows}
            if snapshot is not None or (same and self._complete):
                break
            with source_errors("letting go of what moved"):
                self.connection.execute("ROLLBACK")
            self.drop()
        else:
            raise SourceError("the lake moves faster than it can be pinned", "try again; see `mirror-pump status`")
        self.seams: Mapping[TableId, TableCutline] = {}
        seams = {}
        for row in rows:
            table = load_table(self.connection, row.table_id)
            if table is None:
                raise SourceError(f"table {row.table_id} left the mirror while it was being pinned", "try again")
            seams[table.table_id] = TableCutline(table, row)
        if missing := sorted(set(table_ids) - set(seams)):
            raise TableError(
                f"table {missing[0]} is not mirrored (any more)", "`mirror-pump status` lists those that are"
            )
        self.seams = seams

    def _snapshot(self, table_ids: Collection[TableId], locks: Locks, snapshot: str | None) -> list[PublishedState]:
        """Begins the transaction: locks what is read from the heap, then takes the database snapshot. Notes whether all
        that the snapshot sees is locked."""
        execute = self.connection.execute
        execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        execute(f"SET LOCAL lock_timeout = '{round(self._lock_seconds * 1000)}ms'".encode())
        if snapshot is not None:
            # Must come before any query. So the locks come after the snapshot; `_check_columns` of a read detects
            # changes in between.
            execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        # LOCK TABLE takes no database snapshot, so the snapshot begins when the locks are held.
        parameters = {"table_ids": sorted(table_ids), "all": locks is Locks.ALL}
        heaps = [] if locks is Locks.NONE else self.pinning.execute(_SQL["heaps"], parameters).fetchall()
        locked = {}
        for table_id, has_retention in heaps:
            which = {"table_id": table_id, "has_retention": has_retention}
            leaves = self.pinning.execute(_SQL["leaves"], which).fetchall()
            for _, leaf in leaves:
                execute(f"LOCK TABLE ONLY {leaf} IN ACCESS SHARE MODE".encode())
            locked[table_id] = which, leaves
        rows = _in_lake(self.connection, table_ids)
        # Everything that the snapshot sees must be locked, also a partition that was added, and a table that got heap
        # retention, in the meantime.
        self._complete = all(
            locks is Locks.NONE or (locks is Locks.WITH_RETENTION and not row.has_cutline) or row.table_id in locked
            for row in rows
        ) and all(execute(_SQL["leaves"], which).fetchall() == leaves for which, leaves in locked.values())
        for row in rows:
            if row.has_cutline and row.table_id in locked:
                _require_no_late_partition(self.connection, row)
        self.snapshot = exported_snapshot(self.connection)
        """For SET TRANSACTION SNAPSHOT of other readers, while this snapshot is open."""
        return rows

    def pin_also(self, table_id: TableId, snapshot_id: int) -> None:
        """Pins another Iceberg snapshot of the table while this is open. The caller must check afterwards that it still
        exists."""
        self.take(of_snapshots([PinSubject(table_id, SnapshotId(snapshot_id), cut=None)]))

    def main_now(self, table_id: TableId) -> str:
        """The metadata file that the catalog names now, not as of the consistent snapshot."""
        with source_errors("reading the lake's pointer"):
            rows = _in_lake(self.pinning, [table_id])
        if not rows:
            raise TableError("the table left the mirror while it was being read")
        return rows[0].pointer

    def rewritten(self, seam: TableCutline) -> bool:
        """Whether the table's heap, or a part of it, was truncated, rewritten or dropped after the snapshot. Reading
        such a heap in the older snapshot gives wrong rows without an error."""
        with source_errors(f"comparing the files of {seam.table.name}"):
            row = self.connection.execute(_SQL["rewritten"], {"table_id": seam.table.table_id}).fetchone()
        return row is None or bool(row[0])

    def delta(self, seam: TableCutline) -> list[DeltaRow]:
        """The corrections of rows below the table's cut-line."""
        with source_errors(f"reading the corrections of {seam.table.name}"):
            return _read_delta(self.connection, seam)


def _in_lake(connection: PgConnection, table_ids: Collection[TableId]) -> list[PublishedState]:
    """Those of the tables that are mirrored and in the lake."""
    return [row for row in published_states(connection, table_ids=table_ids) if row.metadata_location is not None]


def _require_no_late_partition(connection: PgConnection, row: PublishedState) -> None:
    """Raises SourceError if a partition lies below the cut-line whose rows are neither in the lake nor corrections
    (sql/functions/late_partitions.sql): the read would lack them."""
    (partition,) = connection.execute(_SQL["late"], {"table_id": row.table_id}).fetchone() or (None,)
    if partition is not None:
        raise SourceError(
            f"partition {partition} of {row.lake_name} was attached below the cut-line or across it, is partitioned"
            " itself, or was changed behind its trigger, and the lake may lack its rows",
            "a running pump brings them there within seconds, or `mirror-pump retain` says why not: then detach the"
            " partition, and insert its rows into the table",
        )


def _pair(row: PublishedState) -> tuple[TableId, int, SnapshotId]:
    """The table's cut-line and its published snapshot."""
    return row.table_id, row.cut, row.snapshot_id


def mirrored_ids(connection: PgConnection, names: Sequence[str]) -> list[TableId]:
    """The tables that these names refer to in Postgres. Raises UsageError for a name that is not a table's, TableError
    for a table that is not mirrored."""
    table_ids = []
    for name in names:
        try:
            table_name, table_id = resolve_name(connection, name)
        except UsageError:
            # It may have been dropped, and still be in the lake.
            dropped = formerly_registered(connection, name)
            if dropped is None:
                raise
            table_id = dropped.table_id
        else:
            dropped = registered_as(connection, table_name)
            if dropped is not None and dropped.state is TableState.DROPPED and load_table(connection, table_id) is None:
                table_id = dropped.table_id
        if load_table(connection, table_id) is None:
            raise TableError(f"{name} is not mirrored", "`mirror-pump status` lists the tables that are")
        table_ids.append(table_id)
    return table_ids


def _read_delta(connection: PgConnection, seam: TableCutline) -> list[DeltaRow]:
    table = seam.table
    if seam.state.dropped:
        return _read_delta_of_dropped(connection, seam)
    described = fetch_rows(connection, _AttributeRow, _SQL["attributes"], {"table_id": table.table_id})
    types = {attribute.name: attribute.type_sql for attribute in described}
    if missing := [column.name for column in table.columns if column.name not in types]:
        raise SourceError(
            f"{table.name} has no column {missing[0]} any more, and the pump has not got there yet",
            "try again in a few seconds; see `mirror-pump status`",
        )
    record = sql.SQL("jsonb_populate_record(NULL::{}, j.content) p").format(sql.SQL(described[0].relation))
    return _delta_rows(connection, seam, types, record)


def _read_delta_of_dropped(connection: PgConnection, seam: TableCutline) -> list[DeltaRow]:
    """Reads corrections by the types that the columns had, because the row type was dropped with the table."""
    types = {column.name: column.type_sql for column in seam.table.columns}
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_sql)) for name, type_sql in types.items()
    )
    return _delta_rows(connection, seam, types, sql.SQL("jsonb_to_record(j.content) AS p({})").format(columns))


def _delta_rows(
    connection: PgConnection, seam: TableCutline, types: Mapping[str, str], record: sql.Composed
) -> list[DeltaRow]:
    """`record`: the FROM item that makes a record from a payload's values, except for strings."""
    table = seam.table
    query = sql.SQL(
        "SELECT d.op, {values}"
        f" FROM {SCHEMA}.delta d"
        # Strings are left out, because jsonb_populate_record refuses a string for an array. The cast below accepts it.
        " CROSS JOIN LATERAL (SELECT coalesce(jsonb_object_agg(e.key, e.value) FILTER"
        " (WHERE jsonb_typeof(e.value) <> 'string'), '{{}}') AS content FROM jsonb_each(d.payload) e) j"
        " CROSS JOIN LATERAL {record}"
        " WHERE d.table_id = {table_id} AND d.tier_key >= {floor} AND d.tier_key < {cut}"
    ).format(
        values=sql.SQL(", ").join(_delta_value(column, types[column.name]) for column in table.columns),
        record=record,
        table_id=sql.Literal(int(table.table_id)),
        floor=sql.Literal(EVERYTHING_IN_HEAP if table.tier is None else table.tier.floor),
        cut=sql.Literal(seam.state.cut),
    )
    return [DeltaRow(operation == _TOMBSTONE, tuple(values)) for operation, *values in connection.execute(query)]


_TOMBSTONE = 1
"""modak.delta.op."""


def _delta_value(column: Column, type_sql: str) -> sql.Composed:
    """One column of a correction as its type's output function prints it. format() runs that function; a cast may
    not."""
    name, key = sql.Identifier(column.name), sql.Literal(column.name)
    return sql.SQL(
        "CASE WHEN jsonb_typeof(d.payload -> {key}) = 'string' THEN format('%s', (d.payload ->> {key})::{type})"
        " WHEN p.{name} IS DISTINCT FROM NULL THEN format('%s', p.{name}) END"
    ).format(key=key, name=name, type=sql.SQL(type_sql))
