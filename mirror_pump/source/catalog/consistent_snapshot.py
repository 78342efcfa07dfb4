"""A reader's side of the seam protocol: pins, and one snapshot of the database in which everything is read.

Invariant: what a `ConsistentSnapshot` shows is one state that the database had. T, S, the delta and the heap are read
in ONE
REPEATABLE READ snapshot P (exported for parallel readers), and a pin on exactly that (T, S) was committed before P:

1. The pin is inserted and its (T, S) read by one statement, and committed.
2. P is taken, and the cut-line read again in it. If it says another (T, S), an advance or a fold landed in between;
   it may have looked for pins before ours was there, so the pin is given back and the next one tried.
3. Else nothing that P needs can go any more: rows below T are in the lake at S, as P's delta corrects them; S is
   pinned, and was current when the pin stood already; the delta rows that P sees are P's own, whatever is cleared
   later. Rows at or above T are in the heap as P sees it. Their partitions are neither dropped, since the pin's T keeps
   them, nor truncated or rewritten under our feet, since their locks are held from before P on.

That is stricter than the protocol asks (seeds: a reader takes heap and delta in whatever order under the pin), and what
makes the reads of all tables of one `ConsistentSnapshot` one point in time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql

from mirror_pump.errors import SourceError, TableError
from mirror_pump.model import Column, Lsn, MirroredTable, SnapshotId, TableId
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.relations.relations import resolve_name
from mirror_pump.telemetry import get_logger
from sql import queries

_SQL = queries("seam")

PIN_SECONDS = 900.0
"""How long a pin outlives a reader that died; one that lives moves it on."""
_TRIES = 20
"""Of pinning: each fails only if S moved within the millisecond or two that it takes."""
_LOOK_INTERVAL = 1.0
"""Seconds between two looks at whether the reader is still there."""
LOCK_SECONDS = 10
"""How long a reader waits for a lock that somebody holds or queues for: a DDL statement that waits for this very reader
would else wait, and let wait, for ever."""

READER_SETTINGS = f"SET lock_timeout = '{LOCK_SECONDS}s'"
"""For every connection that reads in a moment's snapshot."""


@dataclass(frozen=True)
class TableCutline:
    """One table's cut-line as of the moment."""

    table: MirroredTable
    cut: int
    """T."""
    snapshot_id: SnapshotId
    """S."""
    location: str
    """The metadata file whose current snapshot is S."""
    frontier: Lsn | None
    """F; None while the table is being copied."""
    main_location: str
    """The metadata file that the catalog names: its current snapshot is `main`'s head."""

    @property
    def divided(self) -> bool:
        """Whether the table has heap retention, so that a whole read takes both sides."""
        return self.table.tier is not None


@dataclass(frozen=True)
class DeltaRow:
    """A correction of a row below T, as texts that the columns' types print."""

    gone: bool
    """A tombstone: the row is deleted, and only its key columns mean something."""
    values: tuple[str | None, ...]
    """In the order of the table's columns."""


class Locks(StrEnum):
    """Of which tables the ACCESS SHARE locks are taken: those whose heap is to be read."""

    NONE = "none"
    DIVIDED = "divided"
    """Those with heap retention."""
    ALL = "all"


class ConsistentSnapshot:
    """A context manager: one state of the database, for as long as it is open. Thread-safe but for `connection`.

    `snapshot`: take this exported one instead of the present, for the heap alone: nothing is pinned, the locks come
    after it, and the caller has to see to it that nothing happened to the heap in between (`rewritten`). `stopped` is
    asked once a second whether the reader has gone away; then the moment ends by itself.
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
    ) -> None:
        self._dsn = dsn
        self._pin_seconds = pin_seconds
        self._stopped = stopped
        self._closing = threading.Event()
        self._release_lock = threading.Lock()
        self._released = False
        self._failure: SourceError | None = None
        self._pins: list[int] = []
        self._pinning = connect(dsn, autocommit=True, application_name="mirror-pump-read")
        try:
            self.connection = connect(dsn, autocommit=True, application_name="mirror-pump-read")
            """In the snapshot's transaction. For the thread that opened the moment."""
            try:
                self._open(table_ids, locks, snapshot)
            except BaseException:
                self.connection.close()
                raise
        except BaseException:
            with suppress(SourceError):
                self._drop_pins()
            self._pinning.close()
            raise
        self._keeper = threading.Thread(target=self._keep, name="read-pin", daemon=True)
        self._keeper.start()

    @property
    def pins(self) -> tuple[int, ...]:
        """IDs of the pins that are held."""
        return tuple(self._pins)

    def _open(self, table_ids: Collection[TableId], locks: Locks, snapshot: str | None) -> None:
        wanted = {"table_ids": sorted(table_ids), "seconds": self._pin_seconds}
        for _ in range(_TRIES):
            with source_errors("pinning what is read"):
                pinned = [] if snapshot is not None else self._pinning.execute(_SQL["pin"], wanted).fetchall()
                self._pins = [row[0] for row in pinned]
                try:
                    rows = self._snapshot(table_ids, locks, snapshot)
                except psycopg.errors.UndefinedTable:
                    # A partition was dropped, or got another name, while its lock was waited for.
                    if snapshot is not None:
                        raise
                    rows, self._complete = [], False
            same = {tuple(row[1:4]) for row in pinned} == {tuple(row[:3]) for row in rows}
            if snapshot is not None or (same and self._complete):
                break
            with source_errors("letting go of what moved"):
                self.connection.execute("ROLLBACK")
            self._drop_pins()
        else:
            raise SourceError("the lake moves faster than it can be pinned", "try again; see `mirror-pump status`")
        self.seams: Mapping[TableId, TableCutline] = {}
        seams = {}
        for row in rows:
            table = load_table(self.connection, TableId(row[0]))
            if table is None:
                raise SourceError(f"table {row[0]} left the mirror while it was being pinned", "try again")
            seams[table.table_id] = TableCutline(
                table, row[1], SnapshotId(row[2]), row[3], None if row[4] is None else Lsn(row[4]), row[5]
            )
        if missing := sorted(set(table_ids) - set(seams)):
            raise TableError(
                f"table {missing[0]} is not mirrored (any more)", "`mirror-pump status` lists those that are"
            )
        self.seams = seams

    def _snapshot(self, table_ids: Collection[TableId], locks: Locks, snapshot: str | None) -> list[tuple[Any, ...]]:
        execute = self.connection.execute
        execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        execute(READER_SETTINGS.replace("SET ", "SET LOCAL ", 1).encode())
        if snapshot is not None:
            # Must come before any query. The locks are late then: `_check_columns` of a read finds what that lets by.
            execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        # LOCK TABLE takes no snapshot: P begins after the locks are held.
        wanted = {"table_ids": sorted(table_ids), "all": locks is Locks.ALL}
        heaps = [] if locks is Locks.NONE else self._pinning.execute(_SQL["heaps"], wanted).fetchall()
        locked = {}
        for table_id, divided in heaps:
            which = {"table_id": table_id, "divided": divided}
            leaves = self._pinning.execute(_SQL["leaves"], which).fetchall()
            for _, leaf in leaves:
                execute(f"LOCK TABLE ONLY {leaf} IN ACCESS SHARE MODE".encode())
            locked[table_id] = which, leaves
        rows = execute(_SQL["seam"], {"table_ids": sorted(table_ids)}).fetchall()
        # Nothing may be without its lock that P sees: a partition that was added, a table that was not divided before.
        self._complete = all(
            locks is Locks.NONE or (locks is Locks.DIVIDED and not row[6]) or row[0] in locked for row in rows
        ) and all(execute(_SQL["leaves"], which).fetchall() == leaves for which, leaves in locked.values())
        exported = execute("SELECT pg_export_snapshot()").fetchone()
        assert exported is not None
        self.snapshot = str(exported[0])
        """For SET TRANSACTION SNAPSHOT of other readers, while the moment is open."""
        return rows

    def pin_also(self, table_id: TableId, snapshot_id: int) -> None:
        """Keeps another snapshot of the table as long as the moment is open. The caller looks afterwards whether it was
        there to be kept."""
        with source_errors("pinning a snapshot"):
            row = self._pinning.execute(
                _SQL["pin_snapshot"],
                {"table_id": table_id, "snapshot_id": snapshot_id, "seconds": self._pin_seconds},
            ).fetchone()
        if row is not None:
            self._pins.append(row[0])

    def main_now(self, table_id: TableId) -> str:
        """The metadata file that the catalog names now, not as of the moment."""
        with source_errors("reading the lake's pointer"):
            row = self._pinning.execute(_SQL["seam"], {"table_ids": [table_id]}).fetchone()
        if row is None:
            raise TableError("the table left the mirror while it was being read")
        return str(row[5])

    def rewritten(self, seam: TableCutline) -> bool:
        """Whether the table's heap, or part of it, is not the one any more that the snapshot sees: it was truncated,
        rewritten, or a partition is gone. What an older snapshot reads of such a heap is wrong, without a word."""
        with source_errors(f"comparing the files of {seam.table.name}"):
            row = self.connection.execute(_SQL["rewritten"], {"table_id": seam.table.table_id}).fetchone()
        return row is None or bool(row[0])

    def delta(self, seam: TableCutline) -> list[DeltaRow]:
        """The corrections of the table's rows below T."""
        with source_errors(f"reading the corrections of {seam.table.name}"):
            return _read_delta(self.connection, seam)

    def check(self) -> None:
        """Raises SourceError if the moment ended before its reader did: what was read since may lack rows."""
        if self._failure is not None:
            raise self._failure
        if self._released:
            raise SourceError("the read was released already", "open another one")

    def release(self) -> None:
        """Ends the moment: the pins and the snapshot go. Once is enough, twice does no harm."""
        with self._release_lock:
            if self._released:
                return
            self._released = True
        self._closing.set()
        if threading.current_thread() is not self._keeper:
            self._keeper.join()
        with suppress(SourceError):
            self._drop_pins()
        self._pinning.close()
        self.connection.close()

    def _drop_pins(self) -> None:
        if self._pins and not self._pinning.closed:
            with source_errors("releasing pins"):
                self._pinning.execute(_SQL["release"], {"pins": self._pins})
        self._pins = []

    def _keep(self) -> None:
        """Moves the pins on; ends the moment when its reader is gone."""
        interval = self._pin_seconds / 3
        waited = 0.0
        while not self._closing.wait(min(_LOOK_INTERVAL, interval)):
            if self._stopped():
                self.release()
                return
            waited += min(_LOOK_INTERVAL, interval)
            if waited < interval:
                continue
            waited = 0.0
            try:
                with source_errors("keeping a pin"):
                    kept = self._pinning.execute(_SQL["keep"], {"pins": self._pins, "seconds": self._pin_seconds})
                if kept.rowcount != len(self._pins):
                    raise SourceError("a pin expired while it was in use", "read again")  # noqa: TRY301 - one way out
            except SourceError as error:
                self._failure = error
                get_logger("read").warning("a pin was lost", error=str(error))
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def mirrored_ids(connection: PgConnection, names: Sequence[str]) -> list[TableId]:
    """The tables that these names are, as Postgres reads them. UsageError for one that is no table, TableError for one
    that is not mirrored."""
    found = []
    for name in names:
        _, table_id = resolve_name(connection, name)
        if load_table(connection, table_id) is None:
            raise TableError(f"{name} is not mirrored", "`mirror-pump status` lists the tables that are")
        found.append(table_id)
    return found


def _read_delta(connection: PgConnection, seam: TableCutline) -> list[DeltaRow]:
    table = seam.table
    described = connection.execute(_SQL["attributes"], {"table_id": table.table_id}).fetchall()
    types = {name: type_sql for name, type_sql, _ in described}
    if missing := [column.name for column in table.columns if column.name not in types]:
        raise SourceError(
            f"{table.name} has no column {missing[0]} any more, and the pump has not got there yet",
            "try again in a few seconds; see `mirror-pump status`",
        )
    query = sql.SQL(
        "SELECT d.op, {values} FROM modak.delta d"
        # A string is not for jsonb_populate_record: it refuses one for an array, which the cast below reads.
        " CROSS JOIN LATERAL (SELECT coalesce(jsonb_object_agg(e.key, e.value) FILTER"
        " (WHERE jsonb_typeof(e.value) <> 'string'), '{{}}') AS content FROM jsonb_each(d.payload) e) j"
        " CROSS JOIN LATERAL jsonb_populate_record(NULL::{relation}, j.content) p"
        " WHERE d.table_id = {table_id} AND d.tier_key < {cut}"
    ).format(
        values=sql.SQL(", ").join(_delta_value(column, types[column.name]) for column in table.columns),
        relation=sql.SQL(described[0][2]),
        table_id=sql.Literal(int(table.table_id)),
        cut=sql.Literal(seam.cut),
    )
    return [DeltaRow(row[0] == _TOMBSTONE, tuple(row[1:])) for row in connection.execute(query).fetchall()]


_TOMBSTONE = 1
"""modak.delta.op."""


def _delta_value(column: Column, type_sql: str) -> sql.Composed:
    """One column of a delta row as its type's output function prints it (format() runs that; a cast may not)."""
    name, key = sql.Identifier(column.name), sql.Literal(column.name)
    return sql.SQL(
        "CASE WHEN jsonb_typeof(d.payload -> {key}) = 'string' THEN format('%s', (d.payload ->> {key})::{type})"
        " WHEN p.{name} IS DISTINCT FROM NULL THEN format('%s', p.{name}) END"
    ).format(key=key, name=name, type=sql.SQL(type_sql))
