"""The ingest's transaction: it makes rows of the heap and rows of the lake visible together, or neither.

Invariant: at any time, the rows of an ingest are all visible or none of them is, and its row in `op_log` is `done` if
and only if they are.

The Iceberg catalog is a table of the same database. So one transaction of this process does it all: COPY into the
heap, the swap of the lake's pointer, the new published snapshot, and `done`. There is no second phase, nothing that the
leader would have to do, and nothing to resume: a process that dies, at whatever step, has either committed or left
files that nothing refers to. Data files are announced in `op_log`, and the table's next ingest removes them (undo).
Position-delete files, manifests and metadata are not: they wait for a sweep.

*Rows of the heap* are written first, by the user's own INSERT, with triggers and constraints. They are those at or
above the cut-line, and those below it that a partition would hold. Whatever happens to cut-line and partitions
meanwhile, an INSERT is right: the table's triggers send a row to where it belongs. The locks that the INSERT takes keep
the cut-line from passing the partitions that it has written to.

*Rows of the lake* were below the cut-line when they were divided, and the cut-line only advances.

- A row of the lake that has one of their keys is deleted by its position. Under the slot's lock, which every publish
  takes, this process looks whether it knows all files that may hold such rows. If a fold, a merge or a compaction has
  brought others, it releases the lock, looks at them, and tries again.
- A correction of one of their keys would win over the row. So the row is also written to the table, and becomes a newer
  correction (mirror_pump.ops.ingest.commit.corrected_keys). Under the slot's lock this process looks for corrections
  that have come since. One that commits later wins: it is later. A fold of an older correction that is under way lands
  below the newer correction.
- What the stream brings below the cut-line is dropped anyway.

*Readers that pinned before* and read heap and corrections later, in another snapshot of the database, would see the
heap's rows without the lake's. If there are any of the heap's, the transaction waits for these pins, under a lock that
keeps new ones out, as an advance of the cut-line does.

*A tiered table whose cut-line has not moved* gets its first one in the same publish, at the lower end of the lowest
partition. modak.begin_cutline says why no row of the heap is below it then.

*The table's description* is compared under a lock of the table, so no ALTER TABLE comes in between; one that the mirror
has not followed yet refuses the ingest. A copy, a fill, a failure or another registration is seen under the slot's
lock.

*Lock order.* The table and its partitions, ROW EXCLUSIVE; the slot's row; `read_pin_rows`; the table's catalog rows. A
publish that wants a partition's lock while it holds the slot's row gives up after 200 ms, so the two do not deadlock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import psycopg
import pyarrow as pa
from psycopg.types.json import Jsonb

from mirror_pump.errors import CommitConflict, ExpectedOutcome, TableError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.ingest.commit.corrected_keys import find_corrected, rows_at
from mirror_pump.ops.ingest.commit.existing_rows import ReplacedRows
from mirror_pump.ops.ingest.commit.heap_insert import insert_rows
from mirror_pump.ops.ingest.commit.staged_rows import CommittedRows, IngestedRows, RowsInLake
from mirror_pump.ops.ingest.ingest_request import IngestStep, OnConflict
from mirror_pump.ops.ingest.ingest_target import insertable, read_columns
from mirror_pump.pipeline.landing.landing import Landing
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.pipeline.operations.ingest_files import IngestFiles
from mirror_pump.pipeline.operations.requests import PublishRequest, TableRequest
from mirror_pump.pipeline.publish.guest_publish import GuestPublish, GuestPublisher
from mirror_pump.settings.limits import InternalLimits
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.copy_csv import csv_bytes
from sql import queries

_SQL = queries("ingest")

_PIN_PAUSE = 0.5
"""Seconds between two looks whether readers have released their pins."""


class _LockReleased(ExpectedOutcome):
    """A reader's pin was in the way of the open transaction for too long. Nothing was done; all locks are released."""


class IngestCommit(Landing[None, GuestPublish]):
    """One ingest's transaction, on a connection of its own. `observe` is called with each step and a text."""

    tries = 100
    late_tries = 99
    """Its locks keep a busy table's partitions from leaving: publishes may come all the time, and it waits once."""
    quick_seconds = 60.0
    """An ingest may have taken hours."""
    stopped_seconds = 120

    def __init__(
        self,
        connection: PgConnection,
        slot: str,
        storage: StorageOptions,
        rows: IngestedRows,
        on_conflict: OnConflict,
        limits: InternalLimits,
        observe: Callable[[IngestStep, str], None],
    ) -> None:
        super().__init__(connection, slot, WrittenFiles(storage), f"ingesting into {rows.target.table.name}")
        self._rows = rows
        self._refuses = on_conflict is OnConflict.REFUSE
        self._limits = limits
        self._pinned_since: float | None = None
        """When a reader's pin was in the way first."""
        self._observe = observe
        self._table = rows.target.table
        self._corrected: dict[int, bool] = {}
        """Ingested rows that have a correction, by place: whether their first one was a tombstone."""
        self._written: set[int] = set()
        """Those of them that were written to the table."""
        self._versions: list[int] = []
        """Of the corrections that were looked at."""
        self._guest: GuestPublisher | None = None
        self._staged: GuestPublish | None = None
        self._replaced = 0
        """Rows that readers saw below the cut-line, and that are replaced."""
        self._landed = CommittedRows(0, 0)

    @property
    def may_have_landed(self) -> bool:
        """COMMIT was sent, and the server has not refused it."""
        return self.files.may_have_landed

    def run(self) -> CommittedRows:
        """Does it. Raises TableError, LakeError, psycopg.Error; nothing is visible then, unless `may_have_landed`.

        Ctrl-C waits for the answer to COMMIT: psycopg would cancel it, and give up a server that does not answer soon.
        """
        self._look_for_keys()
        with self.files:
            while True:
                self._await_pins()
                try:
                    with self.files.committing(self.connection, lambda: None):
                        self._write_all()
                    self._observe(IngestStep.COMMITTED, "")
                    return self._landed
                except _LockReleased:
                    # The corrections that it has written are gone with it.
                    self._corrected, self._written, self._versions = {}, set(), []

    def _write_all(self) -> None:
        self._lock_table()
        if self._rows.heap_rows:
            self._observe(IngestStep.HEAP, "")
            self._write_heap()
        self._landed = self._land()
        self._observe(IngestStep.COMMITTING, "")

    def landed(self) -> CommittedRows:
        """What the transaction has done, if it has landed."""
        return self._landed

    def _look_for_keys(self) -> None:
        """Looks for rows with the same keys, outside of the transaction."""
        if self._rows.lake is not None:
            self._observe(IngestStep.LOOKING, "")
            self._rows.lake.existing.look(self._publisher.load(self._table))

    @property
    def _publisher(self) -> GuestPublisher:
        if self._guest is None:
            self._guest = GuestPublisher(self.connection, self.slot, self.files.storage)
        return self._guest

    def _lock_table(self) -> None:
        """Keeps the table's description as it is, and checks that it is what the rows were made for."""
        relation = self._rows.target.relation
        try:
            self.connection.execute(f"LOCK TABLE ONLY {relation} IN ROW EXCLUSIVE MODE".encode())
        except psycopg.errors.UndefinedTable as error:
            raise self._altered() from error
        self._require_same()

    def _require_same(self) -> None:
        current_table = load_table(self.connection, self._table.table_id)
        table = self._table
        if (
            current_table is None
            or (
                current_table.columns,
                current_table.key,
                current_table.start_lsn,
                current_table.location,
                current_table.excluded,
            )
            != (table.columns, table.key, table.start_lsn, table.location, table.excluded)
            or read_columns(self.connection, current_table) != (self._rows.target.relation, self._rows.target.columns)
        ):
            raise self._altered()

    def _altered(self) -> TableError:
        return TableError(f"{self._table.name} was altered or registered again meanwhile", "ingest again")

    def _write_heap(self) -> None:
        parts = (part for rows in self._rows.heap for part in rows.parts())
        target = self._rows.target
        names = insertable(target, [*(column.name for column in target.lake_columns), *target.unmirrored])
        insert_rows(self.connection, target, parts, names, refuses=self._refuses)

    def _land(self) -> CommittedRows:
        """The last step, under the slot's lock: repeated until nothing has changed since it was looked at."""
        if self._rows.lake is None:
            self._finish_heap()
            return CommittedRows(0, 0)
        pinned_since = None
        while True:
            try:
                self.land()
                return CommittedRows(self._replaced, len(self._written))
            except _Pinned as pinned:
                self.files.supersede(self.files.locations)
                pinned_since = pinned_since or time.monotonic()
                if time.monotonic() - pinned_since > self._limits.ingest_pin_hold:
                    raise _LockReleased from pinned
                self._wait_for(str(pinned))
            except CommitConflict as conflict:
                raise CommitConflict(
                    f"{self._table.name} changed faster than the ingest could look at it, {self.tries} times",
                    "ingest again",
                ) from conflict

    def _finish_heap(self) -> None:
        """Without rows of the lake, there is nothing to publish."""
        self.connection.execute(
            _SQL["done"], {"op_id": self._rows.op_id, "snapshot_id": None, "details": _json(self._details(0))}
        )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A part of the ingest's transaction: the lock is released if it fails."""
        with self.connection.transaction():
            yield

    def read(self) -> None:
        self._write_corrected(self._lake)

    def look(self) -> None:
        """Nothing: `has_moved` asks for it."""

    def has_moved(self, _base: None, _current: None) -> bool:
        return self._staged is None or self._publisher.has_moved(self._staged)

    def supersede(self, conflict: CommitConflict) -> None:
        super().supersede(conflict)
        self._observe(IngestStep.LOOKING, str(conflict))

    def stage(self, _base: None) -> GuestPublish:
        lake, publisher = self._lake, self._publisher
        lake_table = publisher.load(self._table)
        lake.existing.look(lake_table)
        replaced = lake.existing.replaced(lake_table)
        self._replaced = self._count(replaced)
        self._refuse_existing(lake, replaced, self._replaced)
        self._staged = publisher.stage(self._request(lake, replaced, self._replaced), self.files)
        return self._staged

    def stage_late(self, base: None) -> GuestPublish:
        """Looking at other files may take long, and is left to another try."""
        self._require_known(self._lake)
        return self.stage(base)

    def swap(self, lock: SlotLock, _base: None, publish: GuestPublish) -> None:
        self._require_known(self._lake)
        self._require_line(self._lake)
        self._require_no_pins()
        self._publisher.land(lock, publish)
        self._observe(IngestStep.STAGED, "")

    @property
    def _lake(self) -> RowsInLake:
        assert self._rows.lake is not None
        return self._rows.lake

    def _require_known(self, lake: RowsInLake) -> None:
        """Raises CommitConflict if there is anything under the lock that was not looked at before it."""
        if lake.existing.unknown(self._publisher.load(self._table)):
            raise CommitConflict("the lake has other files")
        if self._find_corrected(lake):
            raise CommitConflict("rows were corrected")

    def _request(self, lake: RowsInLake, replaced: ReplacedRows, count: int) -> PublishRequest:
        rows = self._rows
        assert rows.division.cut is not None
        operation = IngestFiles(
            rows.op_id,
            lake.files,
            replaced.positions,
            replaced.partitions,
            rows.division.cut,
            self._details(count),
            lake.raw_text_columns,
            rows.division.begins,
        )
        return PublishRequest(tables=(TableRequest(self._table, (operation,)),), written_since=rows.written_since)

    def _details(self, replaced: int) -> tuple[tuple[str, int], ...]:
        rows = self._rows
        return (
            ("rows", rows.lake_rows + rows.heap_rows),
            ("lake_rows", rows.lake_rows),
            ("heap_rows", rows.heap_rows),
            ("corrected", len(self._written)),
            ("replaced", replaced),
        )

    def _count(self, replaced: ReplacedRows) -> int:
        """How many rows that readers saw below the cut-line are replaced."""
        count = len(replaced.places)
        if not self._corrected:
            return count
        # Corrections are few, and replaced rows may be as many as all ingested ones: only numpy's arrays hold those.
        corrected = np.array(list(self._corrected), np.int64)
        are_replaced = np.isin(corrected, replaced.places)
        for is_replaced, tombstone in zip(are_replaced.tolist(), self._corrected.values(), strict=True):
            count += int(not tombstone) - int(is_replaced)
        return count

    def _refuse_existing(self, lake: RowsInLake, replaced: ReplacedRows, count: int) -> None:
        if not self._refuses or not count:
            return
        place = int(replaced.places[0]) if len(replaced.places) else next(iter(self._corrected))
        raise TableError(
            f"{count:,} rows of the input have keys that {self._table.name} has already, such as"
            f" {self.key_text(lake, place)}",
            "leave them out, or replace the rows with --on-conflict replace",
        )

    def key_text(self, lake: RowsInLake, place: int) -> str:
        """The key of an ingested row, for people."""
        texts = rows_at(np.array([place], np.int64), lake.paths, self._table, self.files.storage)
        return ", ".join(f"{name} {texts[name][0].as_py()}" for name in self._table.key)

    def _find_corrected(self, lake: RowsInLake) -> bool:
        """Looks for corrections that were not known. Returns whether an ingested row has one."""
        corrected_rows = find_corrected(self.connection, self._rows.target, lake.existing, self._versions)
        self._versions += corrected_rows.versions
        new = False
        for place, tombstone in zip(corrected_rows.places.tolist(), corrected_rows.tombstones.tolist(), strict=True):
            # What this transaction has written is a correction, too.
            if place not in self._written:
                self._corrected[place] = tombstone
                new = True
        return new

    def _write_corrected(self, lake: RowsInLake) -> None:
        """Writes ingested rows that have a correction to the table, so that they become newer corrections."""
        self._find_corrected(lake)
        while places := [place for place in self._corrected if place not in self._written]:
            target = self._rows.target
            texts = rows_at(np.array(places, np.int64), lake.paths, self._table, self.files.storage)
            names = insertable(target, [column.name for column in target.lake_columns])
            content = csv_bytes(pa.table([texts[name] for name in names], names))
            insert_rows(self.connection, target, [content], names, refuses=False)
            self._written.update(places)
            self._find_corrected(lake)

    def _require_line(self, lake: RowsInLake) -> None:
        """Raises TableError if rows have expired since they were divided."""
        row = self.connection.execute(_SQL["limits"], {"table_id": self._table.table_id}).fetchone()
        span = lake.existing.range
        if row is not None and row[0] is not None and span is not None and span[0] < row[0]:
            raise TableError(
                f"the retention line of {self._table.name} has passed rows of the input meanwhile",
                "ingest again: they are named then, or left out with --on-error skip",
            )

    @property
    def _touches_heap(self) -> bool:
        """Whether a reader that has pinned may find a part of the ingest: its rows in the heap, or corrections, which
        there were none of before the cut-line began."""
        rows = self._rows
        return rows.lake is not None and bool(rows.heap_rows or self._written or rows.division.begins)

    def _await_pins(self) -> None:
        """Waits, before the transaction, for readers that would see a part of the ingest."""
        while self._touches_heap:
            row = self.connection.execute(_SQL["pins"], {"table_id": self._table.table_id}).fetchone()
            if row is None or row[0] is None:
                return
            self._wait_for(str(row[0]))

    def _wait_for(self, reader: str) -> None:
        """Waits a moment. Raises TableError if readers have been in the way for too long."""
        self._pinned_since = self._pinned_since or time.monotonic()
        patience = self._limits.ingest_pin_patience
        if time.monotonic() - self._pinned_since > patience:
            raise TableError(
                f"{self._table.name}: {reader}, and readers that pinned have been in the way for {patience:g} s",
                "nothing was ingested: ingest again when they have ended. `mirror-pump status` shows their pins, which"
                " expire; one that is renewed belongs to a reader that runs",
            )
        self._observe(IngestStep.WAITING, reader)
        time.sleep(_PIN_PAUSE)

    def _require_no_pins(self) -> None:
        if not self._touches_heap:
            return
        self.connection.execute("SELECT set_config('lock_timeout', '200ms', true)")
        row = self.connection.execute(_SQL["lock_pins"], {"table_id": self._table.table_id}).fetchone()
        self.connection.execute("SELECT set_config('lock_timeout', '0', true)")
        if row is not None and row[0] is not None:
            raise _Pinned(str(row[0]))


class _Pinned(ExpectedOutcome):
    """A reader has pinned the table. Nothing was done; the lock is released. Its pin expires."""


def _json(details: tuple[tuple[str, int], ...]) -> Jsonb:
    return Jsonb({"kind": "ingest", **dict(details)})
