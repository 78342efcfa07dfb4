"""Ingests files into a table: rows below the cut-line go to the lake, the others to the heap, all at once.

The main thread cuts the files into batches. Threads convert these and write data files; Arrow does most of that without
Python's lock. Nothing is sent to Spark, which takes as long to start as some millions of rows take to ingest. Then one
transaction makes everything visible (mirror_pump.ops.ingest.commit.ingest_commit). What it needs, pyiceberg above all,
is imported while rows are read: that takes 0.4 s of Python, while the threads are in Arrow.

Memory: some batches, and a row group of the data file of each thread. The keys of all rows, and the rows of the heap,
are in temporary files without a name, in the directory that TMPDIR names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING

import psycopg
from psycopg.pq import TransactionStatus

from mirror_pump.engine.lake_storage import lake_storage, refresh_profiles
from mirror_pump.errors import Interrupted, MirrorPumpError, OutcomeUnknown, TableError, UsageError, one_line_of
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.lake.storage import StorageOptions, discard
from mirror_pump.model import MirroredTable, TableState
from mirror_pump.ops.ingest.commit.ingest_journal import IngestJournal, has_landed
from mirror_pump.ops.ingest.commit.staged_rows import CommittedRows, IngestedRows, RowsInLake
from mirror_pump.ops.ingest.divide.row_division import RowDivision
from mirror_pump.ops.ingest.ingest_request import (
    IngestOutcome,
    IngestRequest,
    IngestStep,
    Observe,
    OnError,
)
from mirror_pump.ops.ingest.read.input_pieces import Batches, IngestInput, results_in_order
from mirror_pump.ops.ingest.row_lanes import LaneOutput, RejectFile, RowLane
from mirror_pump.ops.ingest.write.ingested_keys import IngestedKeys
from mirror_pump.ops.ingest.write.lake_writer import LakeFiles
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.runtime.memory import without_collector
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.pauses import state_text, way_to_live
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect, source_errors
from mirror_pump.source.relations.relations import resolve_name

if TYPE_CHECKING:
    from mirror_pump.ops.ingest.commit.ingest_commit import IngestCommit

_APPLICATION = "mirror-pump-ingest"
_IMPORTED_LATE = "mirror_pump.ops.ingest.commit.ingest_commit"


def ingest(settings: Settings, request: IngestRequest, observe: Observe = lambda _: None) -> IngestOutcome:
    """Ingests files into a table. `observe` is called in the caller's thread, except for steps of the lanes.

    Raises UsageError for files and columns that do not fit, RowRefused for a row that the table cannot hold,
    TableError, LakeError and SourceError; nothing was ingested then, nor after KeyboardInterrupt. Raises Interrupted
    after a Ctrl-C that came when the ingest committed: all was ingested. Raises OutcomeUnknown if the ingest was cut
    off during COMMIT, and the server cannot be asked what became of it.
    """
    if (request.on_error is OnError.SKIP) != (request.rejects is not None):
        raise UsageError("--on-error skip and --rejects FILE go together", "rows that are left out are written to FILE")
    storage = lake_storage(settings)
    with (
        source_errors(f"ingesting into {request.table}"),
        connect(settings.require_dsn(), autocommit=True, application_name=_APPLICATION, lock_timeout="0") as connection,
    ):
        refresh_profiles(storage, connection)
        return _Ingestion(settings, request, storage, connection, observe).run()


class _Ingestion:
    """One ingest."""

    def __init__(
        self,
        settings: Settings,
        request: IngestRequest,
        storage: StorageOptions,
        connection: PgConnection,
        observe: Observe,
    ) -> None:
        self._settings = settings
        self._request = request
        self._storage = storage
        self._connection = connection
        self._observe = observe
        self._began = time.monotonic()
        self._written_since = time.time()
        self._input = IngestInput(request, storage)
        self._table = _load(connection, request.table)
        self._division = RowDivision.read(connection, self._table)
        self._target = self._input.target(connection, self._table)
        self._journal = IngestJournal(connection, self._table)
        self._progress = TableProgress(str(self._table.name), IngestStep.READING, total=self._input.size)
        self._lanes: list[RowLane] = []
        self._commit: IngestCommit | None = None

    def run(self) -> IngestOutcome:
        with ExitStack() as closing:
            rejects = self._rejects(closing)
            output = self._output(rejects)
            if output.lake is not None:
                closing.callback(output.lake.keys.close)
            closing.callback(self._close_lanes)
            if not output.dry_run:
                self._journal.begin([file.name for file in self._input.files])
            try:
                committed = self._read_and_land(output)
            except BaseException as error:
                if output.dry_run:
                    raise
                committed = self._after(error)
        return self._outcome(output, committed, rejects)

    def _rejects(self, closing: ExitStack) -> RejectFile:
        path = self._request.rejects
        if path is None:
            return RejectFile(self._request.on_error, lambda _: None)
        try:
            stream = closing.enter_context(path.open("wb"))
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error}") from error
        return RejectFile(self._request.on_error, stream.write)

    def _output(self, rejects: RejectFile) -> LaneOutput:
        return LaneOutput(
            target=self._target,
            division=self._division,
            rejects=rejects,
            connect=partial(connect, self._settings.require_dsn(), autocommit=True, application_name=_APPLICATION),
            dry_run=self._request.dry_run,
            lake=None if self._division.cut is None else self._lake_files(),
        )

    def _lake_files(self) -> LakeFiles | None:
        """None for a dry run. Raises TableError if rows cannot be looked up in the lake."""
        table, schema = self._table, LakeSchema.of_table(self._table)
        packing = KeyPacking.of(schema, os.urandom(16))
        if packing is None:
            raise TableError(f"{table.name} has a key of a type that cannot be looked up", "ingest by COPY")
        if self._request.dry_run:
            return None
        return LakeFiles(
            schema,
            table.location,
            table.partitioning,
            self._storage,
            self._journal.begin_file,
            self._journal.files,
            packing,
            IngestedKeys(packing.words),
        )

    def _read_and_land(self, output: LaneOutput) -> CommittedRows | None:
        if output.dry_run:
            self._read(output)
            return None
        self._journal.undo_others(self._storage)
        with ThreadPoolExecutor(1, thread_name_prefix="import") as pool:
            imported = pool.submit(_import_late)
            self._read(output)
            imported.result()
        return self._land(output)

    def _read(self, output: LaneOutput) -> None:
        """Reads all files. The first error ends it; of several, the one that comes first in the input."""
        workers = max(self._request.workers, 1)
        free: SimpleQueue[RowLane] = SimpleQueue()
        self._lanes = [RowLane(output) for _ in range(workers)]
        for lane in self._lanes:
            free.put(lane)
        with ThreadPoolExecutor(workers, thread_name_prefix="ingest") as pool:
            try:
                pieces, parsed = self._announced(self._input.pieces(self._target)), partial(_through_lane, free)
                for rows, stored in results_in_order(pool, pieces, parsed, 2 * workers):
                    self._note(rows, stored)
                for _ in pool.map(RowLane.finish, self._lanes):
                    pass
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _announced(self, pieces: Iterator[Batches]) -> Iterator[Batches]:
        """The pieces of the input. The first observation follows two of them, which threads parse meanwhile: a command
        that logs it imports what it logs with."""
        yield from islice(pieces, 2)
        self._observe(self._progress)
        yield from pieces

    def _note(self, rows: int, stored: int) -> None:
        progress = self._progress
        self._progress = replace(progress, rows=progress.rows + rows, done=progress.done + stored)
        self._observe(self._progress)

    def _land(self, output: LaneOutput) -> CommittedRows:
        """Makes all rows visible, in one transaction."""
        from mirror_pump.ops.ingest.commit.ingest_commit import IngestCommit

        rows = self._staged(output)
        commit = self._commit = IngestCommit(
            self._connection,
            self._settings.slot,
            self._storage,
            rows,
            self._request.on_conflict,
            self._settings.limits,
            self._report,
        )
        if rows.lake is not None:
            twins = rows.lake.existing.keys.finish(max(self._request.workers, 1))
            if twins:
                shown = "; ".join(commit.key_text(rows.lake, first) for first, _ in twins)
                raise TableError(
                    f"several rows of the input have the same key of {self._table.name}: {shown}",
                    "nothing was ingested: leave all but one of them out",
                )
        return commit.run()

    def _staged(self, output: LaneOutput) -> IngestedRows:
        lake = output.lake
        return IngestedRows(
            op_id=self._journal.op_id,
            target=self._target,
            division=self._division,
            heap=[lane.heap for lane in self._lanes],
            lake=self._rows_in_lake(lake) if lake is not None and lake.written else None,
            written_since=self._written_since,
        )

    def _rows_in_lake(self, lake: LakeFiles) -> RowsInLake:
        from mirror_pump.ops.ingest.commit.existing_rows import ExistingRows

        assert self._table.tier is not None
        tier = next(field for field in lake.schema.fields if field.name == self._table.tier.column)
        files = tuple(lake.written[number] for number in sorted(lake.written))
        existing = ExistingRows(
            lake.schema, lake.packing, self._storage, tier, lake.keys, files, max(self._request.workers, 1)
        )
        return RowsInLake(files, lake.paths, frozenset(lake.raw_text_columns), existing)

    def _report(self, step: IngestStep, text: str) -> None:
        self._progress = replace(self._progress, step=step, detail=text)
        self._observe(self._progress)

    def _after(self, error: BaseException) -> CommittedRows:
        """What became of an ingest that ended with an error, or was interrupted. Raises that unless the ingest has
        landed; Interrupted if it was interrupted after that."""
        for lane in self._lanes:
            with suppress(MirrorPumpError, OSError):
                lane.abandon(error)
        commit = self._commit
        if commit is not None and commit.may_have_landed and self._has_landed(error):
            if isinstance(error, Exception):
                return commit.landed()
            raise Interrupted(
                f"interrupted when the ingest had committed: all of its rows are in {self._table.name}",
                "nothing is left to be done; `modak.op_log` has the counts",
            ) from error
        if not self._connection.closed and not self._connection.broken:
            with suppress(psycopg.Error):
                self._journal.undo(self._storage)
        discard(self._journal.files, self._storage)
        raise error

    def _has_landed(self, error: BaseException) -> bool:
        """Whether the ingest has landed, by another connection if this one is lost or has not ended its transaction.
        Raises OutcomeUnknown if the server cannot be asked: then no file may be removed."""
        try:
            if self._connection.info.transaction_status is TransactionStatus.IDLE:
                return has_landed(self._connection, self._journal.op_id)
            self._connection.close()
            with connect(self._settings.require_dsn(), autocommit=True, application_name=_APPLICATION) as connection:
                return has_landed(connection, self._journal.op_id)
        except (MirrorPumpError, psycopg.Error) as again:
            raise OutcomeUnknown(
                f"the ingest was cut off during COMMIT ({one_line_of(error) or type(error).__name__}), and the server"
                f" cannot be asked what became of it: {one_line_of(again)}",
                f"modak.op_log says so in the row {self._journal.op_id}: phase `done`, or else the next ingest removes"
                " the files",
            ) from error

    def _close_lanes(self) -> None:
        for lane in self._lanes:
            lane.close()

    def _outcome(self, output: LaneOutput, committed: CommittedRows | None, rejects: RejectFile) -> IngestOutcome:
        lake_rows, heap_rows = sum(lane.lake_rows for lane in self._lanes), sum(lane.heap_rows for lane in self._lanes)
        return IngestOutcome(
            table=str(self._table.name),
            op_id="" if committed is None else self._journal.op_id,
            rows=lake_rows + heap_rows,
            lake_rows=lake_rows,
            heap_rows=heap_rows,
            corrected=0 if committed is None else committed.corrected,
            replaced=None if committed is None else committed.replaced,
            rejected=rejects.rows,
            files=0 if output.lake is None else len(output.lake.written),
            seconds=time.monotonic() - self._began,
        )


def _import_late() -> None:
    with without_collector():
        import_module(_IMPORTED_LATE)


def _through_lane(free: SimpleQueue[RowLane], batches: Batches) -> tuple[int, int]:
    """Parses one piece of the input in a free lane. Returns its rows, and the bytes of files that it took."""
    lane = free.get()
    try:
        rows = stored = 0
        for batch in batches():
            rows += lane.take(batch)
            stored += batch.stored_bytes
        return rows, stored
    finally:
        free.put(lane)


def _load(connection: PgConnection, name: str) -> MirroredTable:
    """The table, if rows can be ingested into it."""
    resolved, table_id = resolve_name(connection, name)
    table = load_table(connection, table_id)
    if table is None:
        raise TableError(f"{resolved} is not registered", f"`mirror-pump register {resolved.shell}` first, or use COPY")
    if table.state is not TableState.LIVE:
        raise TableError(f"{resolved} is {state_text(table)}, not live", way_to_live(table))
    if table.keyless:
        raise TableError(
            f"{resolved} has no key, by which an ingest would find rows that are there already",
            "use COPY: the stream brings the rows",
        )
    if table.tier is not None and (table.masked_columns or table.row_filter):
        raise TableError(
            f"{resolved} has masks or a row filter, and rows below the cut-line become files of the lake as they are",
            "load the rows instead (`mirror-pump load TABLE FILE --label LABEL`), or use COPY: what the stream"
            " brings is filtered and masked",
        )
    return table
