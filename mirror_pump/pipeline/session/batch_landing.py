"""Takes a batch from the inbox to the lake: received, decoded, planned, staged, landed (`flow.batches`)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from dataclasses import replace

from mirror_pump.engine.ingest.segment_tasks import SegmentResult
from mirror_pump.errors import ExpectedOutcome, FileDamaged, TableError
from mirror_pump.lake.key_index.whole_rows import RemovedRows
from mirror_pump.model import MirroredTable, TableId
from mirror_pump.pipeline.flow.batches import DecodedBatch, ReceivedBatch
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.key_index.whole_rows import RowReading
from mirror_pump.pipeline.operations.add_chunks import AddChunks, CopiedChunk
from mirror_pump.pipeline.operations.requests import PublishRequest, TableRequest
from mirror_pump.pipeline.operations.truncate import Truncate
from mirror_pump.pipeline.publish.publisher import LandedPublish
from mirror_pump.pipeline.session.services import SessionServices
from mirror_pump.pipeline.session.session_publisher import SessionPublisher
from mirror_pump.pipeline.session.table_events import TableChangeReports
from mirror_pump.pipeline.stream.unpublished_files import UnpublishedFiles
from mirror_pump.source.catalog.tables import load_table

_POLL = 0.25
"""Seconds between checks for a stop request while the loop waits for a task's result."""
_STOP_GRACE = 3.0
"""Seconds that the current batch may still take after a stop request. After that it is abandoned."""


_CHUNKS_GATHERED = 0.2
"""Seconds between publishes for the sake of copied chunks, while others follow: those of hundreds of small tables come
one after the other, and a publish costs more than the copy of such a table."""


class Abandoned(ExpectedOutcome):
    """A stop was requested and the current batch did not finish in time. The batch will be received again."""


class PendingChunks:
    """The chunks of initial copies that are written and wait for the next publish, of one session.

    Only the loop's thread may use it.
    """

    def __init__(self) -> None:
        self._by_table: dict[TableId, list[tuple[MirroredTable, CopiedChunk]]] = {}
        self._due_at = 0.0

    @property
    def due_in(self) -> float:
        """Seconds until they are published, if no batch takes them along before; infinity if none waits."""
        return max(0.0, self._due_at - time.monotonic()) if self._by_table else math.inf

    @property
    def files(self) -> list[str]:
        """URIs of the chunks' files."""
        chunks = [chunk for copied in self._by_table.values() for _, chunk in copied]
        return [file.path for chunk in chunks for file in chunk.files]

    def add(self, table: MirroredTable, chunk: CopiedChunk, *, others_follow: bool) -> None:
        """Keep a chunk of the table's copy until the next publish, which is at once if no others follow."""
        if not others_follow:
            self._due_at = 0.0
        self._by_table.setdefault(table.table_id, []).append((table, chunk))

    def take_with(self, table_requests: Iterable[TableRequest]) -> tuple[TableRequest, ...]:
        """The requests, together with all waiting chunks, which wait no longer."""
        by_table = {table_request.table.table_id: table_request for table_request in table_requests}
        waiting, self._by_table = self._by_table, {}
        if waiting:
            self._due_at = time.monotonic() + _CHUNKS_GATHERED
        for table_id, copied in waiting.items():
            newest = max((table for table, _ in copied), key=lambda table: table.start_lsn)
            table_request = by_table.get(table_id, TableRequest(newest))
            if table_request.table.start_lsn < newest.start_lsn:
                # The table was registered again in the meantime. The request for its earlier registration is obsolete.
                table_request = TableRequest(newest)
            chunks = tuple(chunk for table, chunk in copied if table.start_lsn == table_request.table.start_lsn)
            by_table[table_id] = table_request.adding(AddChunks(chunks)) if chunks else table_request
        return tuple(by_table.values())


class BatchLanding:
    """The batches of one session, one after the other. Only the loop's thread may use it."""

    def __init__(
        self,
        observer: Observer,
        services: SessionServices,
        publisher: SessionPublisher,
        chunks: PendingChunks,
        unpublished_files: UnpublishedFiles,
        change_reports: TableChangeReports,
        stop_requested: Callable[[], bool],
    ) -> None:
        """`chunks` are published with the batch that comes next."""
        self._observer = observer
        self._services = services
        self._publisher = publisher
        self._chunks = chunks
        self._unpublished_files = unpublished_files
        self._change_reports = change_reports
        self._stop_requested = stop_requested

    def readings(self, received: ReceivedBatch) -> list[RowReading]:
        """What has to be read before the batch can land: tables without a key may need so much for its deletes that the
        loop should not wait for it. Raises errors of tasks, LakeError, and Abandoned."""
        if not any(table.whole_rows for segment in received.segments for table in segment.tables):
            return []
        deletes: dict[TableId, tuple[MirroredTable, list[RemovedRows]]] = {}
        for segment, result in zip(received.segments, self._results(received), strict=True):
            tables = {table.table_id: table for table in segment.tables}
            for table_result in result.tables:
                if table_result.deleted_rows is not None and table_result.deleted_rows.rows.num_rows:
                    table = tables[table_result.table_id]
                    _, rows = deletes.get(table.table_id, (table, []))
                    deletes[table.table_id] = table, [*rows, table_result.deleted_rows]
        readings = (self._reading(table, rows) for table, rows in deletes.values())
        return [reading for reading in readings if reading is not None]

    def _reading(self, table: MirroredTable, rows: Sequence[RemovedRows]) -> RowReading | None:
        # The batch may change the table: its files are those of the published registration.
        registered = load_table(self._services.connection, table.table_id)
        if registered is None or registered.state.has_ended:
            return None
        try:
            lake = self._services.publisher.load(registered)
            return self._services.publisher.row_reading(table, lake, rows)
        except (TableError, FileDamaged):
            # The publish meets the same error, and fails the table.
            return None

    def land(self, received: ReceivedBatch) -> LandedPublish:
        """Publishes the batch. Raises as Publisher.publish and BatchPlanner.plan, errors of tasks, and Abandoned."""
        end = received.end
        self._observer(Step.RECEIVED, changes=end.changes, segments=end.segments, receive=received.received)
        decoded = self._decoded(received)
        planned = self._services.planner.plan(decoded)
        self._observer(Step.WRITTEN, frontier=end.end_lsn, **decoded.task_periods(time.time()))
        self._unpublished_files.hand_over(result for segment in received.segments for result in segment.results)
        landed = self._publisher.publish(replace(planned, tables=self._chunks.take_with(planned.tables)))
        self._services.stream.batch_done(landed)
        self._report_changes(planned)
        return landed

    def _decoded(self, received: ReceivedBatch) -> DecodedBatch:
        """Waits for the tasks. Raises Abandoned if a stop is requested and they take too long."""
        tables = tuple(segment.tables for segment in received.segments)
        return DecodedBatch(received.end, tables, self._results(received), received.written_since)

    def _results(self, received: ReceivedBatch) -> tuple[SegmentResult, ...]:
        """The tasks' results. Raises as `_decoded`."""
        results: list[SegmentResult] = []
        deadline: float | None = None
        for segment in received.segments:
            # Not by a time-out of `result`, which a task's own TimeoutError looks like.
            while wait(segment.results, _POLL).not_done:
                if self._stop_requested():
                    deadline = deadline or time.monotonic() + _STOP_GRACE
                    if time.monotonic() > deadline:
                        raise Abandoned
            results.append(SegmentResult.joined([result.result() for result in segment.results]))
        return tuple(results)

    def _report_changes(self, planned: PublishRequest) -> None:
        """Reports changes of tables, and wakes the threads that go on with them."""
        changes = [table_request.change for table_request in planned.tables if table_request.change is not None]
        for change in changes:
            self._change_reports.report(change)
        if changes:
            self._services.watcher.wake()
        if changes or any(table_request.get(Truncate) is not None for table_request in planned.tables):
            self._services.wake_copies()
