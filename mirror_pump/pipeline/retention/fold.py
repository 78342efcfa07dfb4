"""Folds corrections of rows below the cut-line into the lake: a thread reads modak.delta and writes files, the loop
publishes them.

A fold is a segment like the stream's: it deletes all its keys and adds the rows that are not tombstones. Nothing else
changes main below the cut-line, so a fold races with no stream change. It is not computed against a particular state of
the table: its deletes are worked out when it is published (`KeyIndexes.encode`). The same publish refreshes the
published snapshot and marks the corrections whose version is still the folded one. A row that was corrected again
meanwhile stays in modak.delta. It takes precedence over the folded row, since readers merge corrections over the
published snapshot.

The same thread requests a refresh of the published snapshot if that still refers to files that main has replaced, and
deletes corrections that no reader needs: folded ones, and those below the retention line. The latter were written by
transactions that had looked at a former line, and are not folded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import closing
from dataclasses import dataclass, field, replace

import pyarrow as pa

from decoders.text import parse_rows
from mirror_pump.engine.ingest.segment_tasks import keys_by_file
from mirror_pump.errors import ConnectionLost, LakeError, MirrorPumpError, SourceError, TableError, TaskFailed
from mirror_pump.lake.commit.catalog import load_pointer
from mirror_pump.lake.commit.row_delta import LakeTable, SegmentFiles
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.partitioned_files import write_data_files, write_equality_delete_files
from mirror_pump.lake.format.raw_text_columns import narrowed, raw_text_fields, widened
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.index_plan import SegmentKeys
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys
from mirror_pump.lake.manifests.manifest_list import read_list
from mirror_pump.lake.storage import StagedFiles, StorageOptions, delete
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.partition_life import TAKEN
from mirror_pump.pipeline.flow.events import IndexWanted, PublishWanted
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection, ThreadStopped, session_thread
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.flow.tasks import outcome
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.key_index.table_index import IndexPhase
from mirror_pump.pipeline.operations.fold_corrections import FoldCorrections
from mirror_pump.pipeline.operations.operation import SegmentChange
from mirror_pump.pipeline.operations.refresh_archive import RefreshArchive
from mirror_pump.runtime.backoff import Backoff, Retries
from mirror_pump.runtime.service_thread import ThreadedService
from mirror_pump.runtime.table_work import work_for
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.retention.corrections import (
    Correction,
    CorrectionBacklog,
    clear,
    purge_expired,
    read_backlog,
    read_corrections,
    tables_with_cutline,
)
from mirror_pump.source.unchanged_server import UnchangedServer

_LOOK_INTERVAL = 1.0
"""Seconds between looks at modak.delta, at most. It is short enough for the shortest useful fold age."""
_FIRST_PAUSE = 1.0
"""Seconds before a table's fold that failed is tried again."""
_INDEX_PAUSE = 300.0
"""Seconds before an index is requested again for a table that could not have one, or whose index did not come in
time."""


@dataclass
class _FoldTurn(Retries):
    """The fold state of one table, with pauses after failed folds."""

    looked_at: str = ""
    """The metadata file in which the published snapshot was last compared with main."""
    sequence_numbers: Mapping[int, int] = field(default_factory=dict)
    known_location: str = ""
    index_awaited_until: float | None = None
    """Folds wait for the key index until this time.monotonic(), in seconds. None: the last fold had it."""
    index_not_before: float = 0.0
    """Folds do without the key index until this time.monotonic(), in seconds."""


class Folder(ThreadedService):
    """A thread that folds the corrections of all tables of one mirror, one table after the other.

    A fold that was not published when it stops is discarded, and computed again later.
    """

    def __init__(self, context: SessionContext, shared: SharedConnection, indexes: KeyIndexes) -> None:
        """`shared`: for short queries of this thread and others. Most mirrors have no corrections."""
        self._context = context
        self._shared = shared
        self._connections = SharedConnection(context.connect)
        self._storage = context.storage
        self._inbox = context.inbox
        self._observer = context.observer
        self._indexes = indexes
        self._rows = context.settings.fold_rows
        """Number of corrections at which a table is folded at once, and the maximum of one fold."""
        self._age = context.settings.fold_age
        """Age in seconds at which a correction is due."""
        self._limits = context.settings.limits
        self._backoff = Backoff(_FIRST_PAUSE, self._limits.retry_pause_max)
        self._turns: dict[TableId, _FoldTurn] = {}
        self._compared_at = time.monotonic()
        self._thread = session_thread("folder", self._run, context.inbox)

    def _run(self) -> None:
        interval = min(_LOOK_INTERVAL, max(self._age, 0.02))
        unchanged = UnchangedServer()
        with closing(self._connections):
            while self._thread.next_round():
                again = False
                if not unchanged.skips(self._shared.snapshot(interval, woken=self._thread.woken)):
                    with self._shared.use() as connection:
                        backlogs = read_backlog(connection, self._context.slot, self._rows)
                    for backlog in backlogs:
                        with self._connections.use() as connection:
                            again |= self._look(connection, backlog)
                    if not backlogs:
                        unchanged.nothing_left()
                if time.monotonic() - self._compared_at >= self._limits.archive_check_interval:
                    self._compared_at = time.monotonic()
                    self._compare()
                if not again:
                    self._thread.await_wake(interval)

    def _look(self, connection: PgConnection, backlog: CorrectionBacklog) -> bool:
        """Does what is due for one table. Returns whether there is more to do."""
        turn = self._turns.setdefault(backlog.table_id, _FoldTurn(self._backoff))
        if self._thread.stopping() or not turn.due:
            return False
        table = load_table(connection, backlog.table_id)
        if table is None or table.tier is None:
            return False
        try:
            with work_for(table):
                if backlog.expired:
                    purge_expired(connection, table.table_id)
                if backlog.folded:
                    clear(connection, table.table_id, lambda location: self._sequence_numbers(turn, location))
                due = backlog.rows >= self._rows or backlog.age >= self._age
                folded = (
                    bool(backlog.rows and due)
                    and self._indexed(turn, table, backlog)
                    and self._fold(connection, turn, table)
                )
        except ConnectionLost:
            raise
        except (LakeError, TableError, SourceError, TaskFailed) as error:
            turn.failed()
            self._failed(table, error)
            return False
        turn.succeeded()
        return folded and backlog.rows >= self._rows

    def _indexed(self, turn: _FoldTurn, table: MirroredTable, backlog: CorrectionBacklog) -> bool:
        """Returns whether to fold now: the table has its key index, can have none, or has waited long enough for it."""
        now = time.monotonic()
        if now < turn.index_not_before:
            return True
        phase = self._indexes.phase(table)
        if phase is IndexPhase.READY and (turn.index_awaited_until is None or now < turn.index_awaited_until):
            return True
        if turn.index_awaited_until is None:
            turn.index_awaited_until = now + self._limits.index_patience
        coming = phase in (IndexPhase.BUILDING, IndexPhase.FOLLOWING)
        if now < turn.index_awaited_until and (coming or self._index_comes(table, backlog)):
            return False
        # Or commits that an index does not know come faster than it is built.
        turn.index_awaited_until, turn.index_not_before = None, now + _INDEX_PAUSE
        return True

    def _index_comes(self, table: MirroredTable, backlog: CorrectionBacklog) -> bool:
        """Requests the table's key index. Returns whether it is worth waiting for; also True if the session ends
        meanwhile."""
        answer: Future[bool] = Future()
        self._inbox.put(IndexWanted(table, backlog.rows, answer))
        try:
            return outcome(answer, self._thread.stopping)
        except (CancelledError, ThreadStopped):
            return True

    def _fold(self, connection: PgConnection, turn: _FoldTurn, table: MirroredTable) -> bool:
        """Does one fold. Returns whether it was published. It is not if the key index has turned out to be outdated,
        by an ingest for instance, unless folds do without it."""
        assert table.tier is not None
        began = time.time()
        corrections = read_corrections(connection, table, self._rows)
        if not corrections:
            return False
        awaits_index = time.monotonic() >= turn.index_not_before
        packing = self._indexes.packing(table)
        if awaits_index and packing is None:
            return False
        try:
            fold = write_fold(table, table.tier.cut, corrections, packing, self._storage)
        except ValueError as error:
            raise TableError(str(error)) from error
        fold = replace(fold, awaits_index=awaits_index)
        request = PublishWanted(table, fold, began)
        self._inbox.put(request)
        try:
            landed = outcome(request.answer, self._thread.stopping) is TAKEN
        except (CancelledError, ThreadStopped):
            return False
        if landed:
            turn.index_awaited_until = None
        else:
            for file in (*fold.segment.files.data, *fold.segment.files.deletes):
                delete(file.path, self._storage)
        return landed

    def _compare(self) -> None:
        """Requests a refresh of each published snapshot that names files which main no longer has."""
        with self._shared.use() as connection:
            table_ids = tables_with_cutline(connection, self._context.slot)
        for table_id in table_ids:
            if self._thread.stopping():
                return
            with self._connections.use() as connection:
                table = load_table(connection, table_id)
            if table is None:
                continue
            turn = self._turns.setdefault(table.table_id, _FoldTurn(self._backoff))
            try:
                with work_for(table), self._connections.use() as connection:
                    location = load_pointer(connection, table.name.schema, table.lake_table)
                if location is not None and location != turn.looked_at:
                    turn.looked_at = location
                    lake = LakeTable.load(location, self._storage)
                    if archive_is_outdated(lake, self._storage, self._limits.archive_refresh_age):
                        self._inbox.put(PublishWanted(table, RefreshArchive()))
            except (LakeError, TableError) as error:
                self._failed(table, error)

    def _failed(self, table: MirroredTable, error: Exception) -> None:
        remedy = error.remedy if isinstance(error, MirrorPumpError) else ""
        self._observer(Step.FOLD_FAILED, table=str(table.name), error=str(error), remedy=remedy)
        self._context.report_file(table.table_id, error)

    def _sequence_numbers(self, turn: _FoldTurn, location: str) -> Mapping[int, int]:
        if turn.known_location != location:
            snapshots = read_metadata(location, self._storage).snapshots
            turn.sequence_numbers = {snapshot.snapshot_id: snapshot.sequence_number for snapshot in snapshots}
            turn.known_location = location
        return turn.sequence_numbers


def write_fold(
    table: MirroredTable,
    cut: int,
    corrections: Sequence[Correction],
    packing: KeyPacking | None,
    storage: StorageOptions,
) -> FoldCorrections:
    """Writes the files of a fold of these corrections, which are in the order of their versions.

    Raises LakeError, and ValueError for a value that its column cannot hold.
    """
    schema = LakeSchema.of_table(table)
    places = [place for place, column in enumerate(table.columns) if column.name in table.key]
    # Two different canonical texts can denote one key (numeric 1.0 and 1.00). The later correction counts.
    newest = {tuple(correction.values[place] for place in places): correction for correction in corrections}
    rows = [correction.values for correction in newest.values() if not correction.tombstone]
    # These are the stream's own parsers.
    gone, _ = parse_rows(list(newest), {column.name: column.type for column in table.key_columns})
    values, raw = parse_rows(rows, {column.name: column.type for column in table.columns})
    deleted, brought = pa.table(gone), pa.table(values)
    data: tuple[WrittenFile, ...] = ()
    row_keys: tuple[PackedKeys, ...] = ()
    raw_text_columns: frozenset[int] = frozenset()
    versions = tuple((correction.pk, correction.version) for correction in corrections)
    line = None if table.tier is None else table.tier.line
    with StagedFiles(storage) as written:
        if rows:
            wide, file_schema = narrowed(widened(brought, raw, schema), schema)
            raw_text_columns = raw_text_fields(file_schema)
            data = write_data_files(wide, file_schema, table.location, storage, table.partitioning)
            written.add(*(file.path for file in data))
        if packing is not None:
            if rows:
                row_keys = keys_by_file(brought, schema, packing, table.partitioning)
            keys = SegmentKeys(
                schema=schema,
                deleted=deleted,
                packed=packing.pack(deleted.columns),
                packing=packing,
                rows=row_keys,
                may_be_absent=True,
            )
            change = SegmentChange(SegmentFiles(data, ()), keys)
            return FoldCorrections(change, versions, cut, line, raw_text_columns)
        deletes = write_equality_delete_files(deleted, schema, table.location, storage, table.partitioning)
        change = SegmentChange(SegmentFiles(data, deletes))
        return FoldCorrections(change, versions, cut, line, raw_text_columns)


def archive_is_outdated(table: LakeTable, storage: StorageOptions, age: float) -> bool:
    """Returns whether the published snapshot is at least `age` seconds old and names a data file or delete file that
    main no longer has."""
    head = table.metadata.archive_snapshot
    # A snapshot from the future is of unknown age: the clock was set back.
    if head is None or 0 <= time.time() * 1000 - head.timestamp_ms < age * 1000:
        return False
    listing = Listing(storage)
    main = {file.path for files in listing.files(table.manifests).values() for file in files}
    main_manifests = {manifest.path for manifest in table.manifests}
    others = [manifest for manifest in read_list(head, storage) if manifest.path not in main_manifests]
    for files in Listing(storage).files(others).values():
        # The archive branch's own hiding deletes are in no other snapshot. All published snapshots of one cut-line name
        # them. Main replaces vectors all the time, which says nothing about rows below the cut-line.
        if any(file.path not in main and file.vector is None and not file.path.endswith(_POSITIONS) for file in files):
            return True
    return False


_POSITIONS = "-positions.parquet"
"""Suffix of the names of the mirror's position-delete files."""
