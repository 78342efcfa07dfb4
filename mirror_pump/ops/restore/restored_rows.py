"""What a restore copies, corrects and compares: the rows of its unattached tables."""

from __future__ import annotations

import secrets
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mirror_pump.engine.comparison.live_rows import TierRange
from mirror_pump.engine.comparison.tier_files import tier_ranges
from mirror_pump.engine.restore.row_restore import RangeTable, RestoredColumn, RestoreTask, restore_rows
from mirror_pump.errors import TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.partition_life import PartitionState
from mirror_pump.pipeline.flow.tasks import Tasks
from mirror_pump.pipeline.retention.drop_proof import ComparedState, Prover, published_table
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.pins import Pin, PinnedSet, PinRelation
from mirror_pump.source.connect import PgConnection, connect, portable_dsn, source_errors
from mirror_pump.source.retention import restore_journal as journals
from mirror_pump.source.retention.corrections import Correction, read_chosen
from mirror_pump.source.retention.partitions import Partition
from mirror_pump.source.retention.restore_journal import CorrectionVersion, RestoreJournal, RestorePin
from mirror_pump.source.retention.restored_tables import RestoredTable, as_numbered, columns_of, write_corrections

if TYPE_CHECKING:
    from mirror_pump.engine.spark_runtime.runner import TaskRunner

_AT_ONCE = 1000
"""Corrections applied in one transaction."""


def pins_of(connection: PgConnection, table_id: TableId, pin: RestorePin | None) -> PinnedSet:
    """The pins of a restore: none yet, or that which its journal names."""
    pins = [] if pin is None else [Pin(pin.pin_id, table_id, pin.snapshot_id, pin.cut)]
    return PinnedSet(lambda: nullcontext(connection), PinRelation.ROWS_OF_TABLES, journals.PIN_SECONDS, pins)


class RestoredRows:
    """The rows of one restore. Knows which corrections its tables have; that is forgotten with the process, and all are
    applied again then, which does no harm."""

    def __init__(
        self,
        settings: Settings,
        connection: PgConnection,
        table: MirroredTable,
        journal: RestoreJournal,
        storage: StorageOptions,
        role: str | None,
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._table = table
        self._journal = journal
        self._storage = storage
        self._role = role
        self._tables = sorted(journal.tables, key=lambda made: made.lo)
        self._starts = [made.lo for made in self._tables]
        self._applied: dict[str, int] = {}
        """Versions of the corrections that the tables have, by canonical key."""
        self._uncompared: dict[RestoredTable, dict[str, CorrectionVersion]] = {}
        """Corrections that were applied since the tables were compared with the lake."""

    def copy(self, runner: TaskRunner, workers: int, copied: Callable[[str, int, int], None]) -> int:
        """Copies the files of the lake that are not copied yet. Returns the number of rows of all.

        `copied` is called after each file, with the numbers of files that are done and of all. Raises LakeError,
        TableError for a row that Postgres refuses, SourceError, ConnectionLost.
        """
        with source_errors("reading what is copied already"):
            done = journals.copied(self._connection, self._table.table_id)
        rows = sum(done.values())
        tasks = list(self._tasks())
        left = deque(task for task in tasks if task.entry not in done)
        finished = len(tasks) - len(left)
        stopped = threading.Event()
        running: deque[tuple[RestoreTask, Future[int]]] = deque()
        try:
            while left or running:
                while left and len(running) < workers:
                    task = left.popleft()
                    running.append((task, runner.submit(partial(restore_rows, stopped=stopped.is_set), task)))
                task, future = running.popleft()
                rows += future.result()
                finished += 1
                self.keep_pin()
                copied(task.chosen.files[0].path, finished, len(tasks))
        finally:
            stopped.set()
            for _, future in running:
                future.cancel()
        return rows

    def _tasks(self) -> Iterator[RestoreTask]:
        """One task for each file."""
        lake = published_table(self._journal.pin.location, self._journal.pin.snapshot_id, self._storage)
        field_ids = {field.field_id for field in lake.schema.fields}
        if filling := [c.name for c in self._table.columns if c.field_id not in field_ids and c.initial is not None]:
            raise TableError(
                f"column {filling[0]} of {self._table.name} is not filled yet below the cut-line",
                "wait until `mirror-pump status` shows the table live, then try again",
            )
        packing = KeyPacking.of(lake.schema, secrets.token_bytes(32))
        assert packing is not None
        with self._connection.transaction():
            columns = {column.name: column for column in columns_of(self._connection, self._table.table_id)}
        ids = {column.name: column.field_id for column in self._table.columns}
        for chosen in self._files(lake):
            yield RestoreTask(
                dsn=portable_dsn(self._settings.require_dsn(), self._connection),
                entry=self._journal.file_entry(chosen.files[0].path),
                restore=self._journal.op_id,
                table_id=self._table.table_id,
                role=self._role,
                chosen=chosen,
                packing=packing,
                key_ids=tuple(ids[name] for name in self._table.key),
                columns=tuple(
                    RestoredColumn(column, columns[column.name].is_array)
                    for column in self._table.columns
                    if not columns[column.name].generated
                ),
                tables=tuple(RangeTable(made.name, made.lo, made.hi) for made in self._tables),
            )

    def _files(self, lake: LakeTable) -> Iterator[TierRange]:
        """The files with rows of the tables' ranges, each once."""
        paths: set[str] = set()
        lo, hi = max(self._tables[0].lo, self._journal.floor), self._tables[-1].hi
        for start, end in _joined(self._tables):
            for tier_range in tier_ranges(self._table.tier_column, lake, start, end, self._storage, 0):
                if tier_range.files[0].path not in paths:
                    paths.add(tier_range.files[0].path)
                    yield replace(tier_range, lo=lo, hi=hi)

    def keep_pin(self) -> None:
        """Extends the pin. Raises TableError if it is gone."""
        with source_errors("keeping a pin"):
            is_renewed = pins_of(self._connection, self._table.table_id, self._journal.pin).renew()
        if not is_renewed:
            raise TableError(
                f"the pin on the lake of {self._table.name} was removed", "run the command again: it begins anew"
            )

    def pending(
        self, connection: PgConnection, among: RestoredTable | None = None
    ) -> dict[RestoredTable, list[CorrectionVersion]]:
        """The corrections that the tables, or one of them, have not got, as of the connection's snapshot."""
        corrections: dict[RestoredTable, list[CorrectionVersion]] = {}
        if not self._tables:
            return corrections
        lo, hi = (among.lo, among.hi) if among is not None else (self._tables[0].lo, self._tables[-1].hi)
        for correction in journals.correction_versions(connection, self._table.table_id, lo, hi):
            made = self._table_of(correction.tier_key)
            if made is not None and self._applied.get(correction.pk) != correction.version:
                corrections.setdefault(made, []).append(correction)
        return corrections

    def _table_of(self, tier_key: int) -> RestoredTable | None:
        place = bisect_right(self._starts, tier_key) - 1
        if place < 0 or tier_key >= self._tables[place].hi or tier_key < self._journal.floor:
            return None
        return self._tables[place]

    def correct(self, pending: Mapping[RestoredTable, Sequence[CorrectionVersion]]) -> None:
        """Applies corrections, as they are by now."""
        for made, corrections in pending.items():
            for applied in self._correct(self._connection, made, corrections):
                self._applied.update((correction.pk, correction.version) for correction in applied)
            self._uncompared.setdefault(made, {}).update((correction.pk, correction) for correction in corrections)

    def correct_finally(
        self, connection: PgConnection, pending: Mapping[RestoredTable, Sequence[CorrectionVersion]]
    ) -> None:
        """Applies corrections in the caller's transaction, and compares them and those that no proof has seen. Raises
        TableError if one is not in its table as it should be."""
        for made, corrections in pending.items():
            for _ in self._correct(connection, made, corrections):
                pass
        for made in self._tables:
            last = {correction.pk: correction for correction in pending.get(made, ())}
            corrected = [*{**self._uncompared.get(made, {}), **last}.values()]
            unlike = journals.unlike(connection, self._table.table_id, made, corrected) if corrected else []
            if unlike:
                self._refuse(made, [f"{key!r}: {difference}" for key, difference in unlike[:10]])

    def _correct(
        self, connection: PgConnection, made: RestoredTable, corrections: Sequence[CorrectionVersion]
    ) -> Iterator[tuple[Correction, ...]]:
        """Applies a table's corrections, some at a time, and yields those."""
        for first in range(0, len(corrections), _AT_ONCE):
            keys = [correction.pk for correction in corrections[first : first + _AT_ONCE]]
            with connection.transaction():
                current_corrections = read_chosen(connection, self._table, keys)
                if current_corrections is None:
                    raise TableError(
                        f"{self._table.name} was altered, or is being altered, and the mirror has not applied that",
                        "try again in a few seconds; `mirror-pump status` shows if the table is waiting for something",
                    )
                write_corrections(connection, self._table, made, current_corrections, self._role)
            yield current_corrections

    def prove(self, runner: TaskRunner) -> int:
        """Compares every row of the tables with the lake, as `drop_proof` does. Returns the number of rows.

        Corrections that were written since the last round are left to the last transaction. Raises TableError for a
        difference, and what Prover.compare raises.
        """
        dsn = self._settings.require_dsn()
        tasks = Tasks(runner, lambda: False)
        prover = Prover(lambda: connect(dsn, autocommit=True), tasks, self._storage, dsn, self._settings.limits)
        rows = 0
        for made in self._tables:
            with connect(dsn, autocommit=True) as reader, source_errors(f"comparing {made.name} with the lake"):
                reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                state = ComparedState.of(reader, self._table)
                numbered = as_numbered(reader, self._table, made)
                ignored = {correction.pk for correction in self.pending(reader, made).get(made, ())}
                compared_rows, differing = prover.compare(
                    numbered, self._compared(made), reader, state, self.keep_pin, ignored
                )
            rows += compared_rows
            self._uncompared.pop(made, None)
            if differing:
                self._refuse(made, differing[:10])
        return rows

    def _refuse(self, made: RestoredTable, differing: Sequence[str]) -> None:
        raise TableError(
            f"the rows copied into {made.name} differ from the lake's: {'; '.join(differing)}",
            "Nothing was attached. `mirror-pump unregister TABLE --restore-heap --abort` removes the copied rows; then"
            " try again. If it happens again, report it.",
        )

    def _compared(self, made: RestoredTable) -> Partition:
        return Partition(
            partition_id=str(made.name),
            relation_id=made.relation_id,
            lo=max(made.lo, self._journal.floor),
            hi=made.hi,
            state=PartitionState.TIERING,
            sealed_lsn=None,
            truncated=False,
            reason=None,
            attempts=0,
            name=made.name,
            present_lo=None,
            present_hi=None,
            captured=False,
            corrected=False,
            disproved=False,
        )


def _joined(tables: Sequence[RestoredTable]) -> Iterator[tuple[int, int]]:
    """The tables' ranges, in ascending order, with neighbours as one."""
    start: int | None = None
    end = 0
    for made in tables:
        if start is not None and made.lo != end:
            yield start, end
            start = None
        start = made.lo if start is None else start
        end = made.hi
    if start is not None:
        yield start, end
