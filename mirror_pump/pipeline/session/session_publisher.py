"""Publishes what the loop of a session requests, and tells the session's services what has landed."""

from __future__ import annotations

import time
from contextlib import suppress

import psycopg

from mirror_pump.errors import LakeError, SourceError, TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import discard
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.pipeline.flow.session_context import SessionContext
from mirror_pump.pipeline.flow.steps import Step, report_failure
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.operations.add_chunks import AddChunks
from mirror_pump.pipeline.operations.apply_stream import ApplyStream
from mirror_pump.pipeline.operations.fold_corrections import FoldCorrections
from mirror_pump.pipeline.operations.requests import PublishRequest
from mirror_pump.pipeline.publish.publisher import LandedPublish
from mirror_pump.pipeline.session.run_state import RunState
from mirror_pump.pipeline.session.services import SessionServices, drop_stale_indexes
from mirror_pump.source.catalog.tables import load_each
from mirror_pump.source.connect import source_errors
from mirror_pump.source.stream.slot import remove_from_publication
from sql import queries

_SQL = queries("pump")

_RETAIN_INTERVAL = 30.0
"""Seconds between two checks, made when the loop is idle: whether tables with a key index are still mirrored, and
whether failed tables are still published."""


class SessionPublisher:
    """The publishes of one session. Only the loop's thread may use it."""

    def __init__(
        self, context: SessionContext, services: SessionServices, indexes: KeyIndexes, run_state: RunState
    ) -> None:
        self._slot = context.slot
        self._storage = context.storage
        self._observer = context.observer
        self._backlog = context.backlog
        self._scattered_partitions = context.settings.limits.scattered_partitions
        self._services = services
        self._indexes = indexes
        self._run_state = run_state
        self._reported_failures: set[tuple[TableId, Lsn, str]] = set()
        self._checked_at = time.monotonic()
        self.frontier = run_state.frontier = services.applied
        self.recorded_at = Lsn(0)
        """A position behind the commit of the last publish that moved the frontier; 0 before the first."""

    def publish(self, request: PublishRequest) -> LandedPublish:
        """Carries out the request. Raises as Publisher.publish."""
        request = self._services.stream.positioned(request)
        landed = self._services.publisher.publish(request)
        self._record(landed)
        for table_request in request.tables:
            table = table_request.table
            if table.whole_rows and table.table_id in landed.tables:
                self.read_ahead(table, landed.tables[table.table_id])
        self._report_scattered(request, landed)
        if landed.failures:
            self._drop_failed(request, landed)
        if landed.dropped:
            self._drop_stale_indexes()
        if landed.live or landed.filling:
            self._begin_live(landed)
        return landed

    def read_ahead(self, table: MirroredTable, lake: LakeTable) -> None:
        """Has the row reader read what later deletes of a table without a key may need. `lake`: its present state."""
        # What is missing or damaged is found and reported by what needs it.
        with suppress(LakeError, TableError):
            reading = self._services.publisher.later_reading(table, lake)
            if reading is not None:
                self._services.row_reader.submit(reading)

    def check_tables(self) -> None:
        """The loop is idle: look from time to time which tables are still mirrored and published."""
        if time.monotonic() - self._checked_at >= _RETAIN_INTERVAL:
            self._drop_stale_indexes()
            self.unpublish_failed()

    def unpublish_failed(self) -> None:
        """Remove failed tables from the publication. The server may be unable to send one of their rows, or may refuse
        their updates because they are published."""
        connection = self._services.connection
        for table_id, publication in connection.execute(_SQL["failed"], {"slot": self._slot}).fetchall():
            # A table that is locked stays published until the next check. The loop notices a lost connection by itself.
            with suppress(SourceError), connection.transaction() as transaction:
                connection.execute("SELECT set_config('lock_timeout', '1s', true)")
                with source_errors("removing a failed table from the publication"):
                    remove_from_publication(connection, publication, table_id)
                # This transaction now holds a lock that registering needs. If the table was registered again before
                # that, it has to stay published.
                if connection.execute(_SQL["failed_or_dropped"], {"table_id": table_id}).fetchone() is None:
                    raise psycopg.Rollback(transaction)

    def _record(self, landed: LandedPublish) -> None:
        if landed.frontier > self.frontier:
            self.recorded_at = landed.recorded_at or self.recorded_at
        self.frontier = self._run_state.frontier = landed.frontier
        self._backlog.reached(landed.frontier)
        self._run_state.published = landed.frontier
        self._run_state.commits += 1
        self._observer(Step.PUBLISHED, frontier=landed.frontier, snapshots=landed.snapshots, files=len(landed.files))
        self._services.upkeep.published(landed.tables)
        self._services.feed_upkeep.published(landed.feeds)
        self._services.retention.published()
        self._services.stream.acknowledge(landed)
        self._observer(Step.ACKNOWLEDGED, frontier=landed.frontier)

    def _report_scattered(self, request: PublishRequest, landed: LandedPublish) -> None:
        """Reports each table of which the publish has changed many lake partitions. Each of them got a small file.
        Copies and rewrites are not reported: they concern partitions in any number."""
        for table_request in request.tables:
            lake = landed.tables.get(table_request.table.table_id)
            brings_rows = table_request.get(ApplyStream) or table_request.get(FoldCorrections)
            if lake is None or not brings_rows or table_request.get(AddChunks):
                continue
            partitions = lake.summary.changed_partitions
            if partitions >= self._scattered_partitions:
                self._observer(Step.PARTITIONS_SCATTERED, table=str(table_request.table.name), partitions=partitions)

    def _drop_failed(self, request: PublishRequest, landed: LandedPublish) -> None:
        """Ends the mirroring of tables that the publish has failed, and removes the files of theirs that it left
        out."""
        for failure in landed.failures:
            self._services.stream.drop(failure.table)
            self._indexes.forget(failure.table.table_id)
            # Changes that were received before it failed may fail again.
            failure_key = (failure.table.table_id, failure.table.start_lsn, failure.error)
            if failure_key not in self._reported_failures:
                self._reported_failures.add(failure_key)
                report_failure(self._observer, failure)
        failed = {failure.table.table_id for failure in landed.failures}.difference(landed.tables)
        left_out = tuple(table_request for table_request in request.tables if table_request.table.table_id in failed)
        discard(PublishRequest(tables=left_out).files, self._storage)
        self.unpublish_failed()

    def _begin_live(self, landed: LandedPublish) -> None:
        """Has the stream and the upkeep take over tables whose copy is complete."""
        completed = (*landed.live, *landed.filling)
        tables = load_each(self._services.connection, completed)
        self._services.stream.refresh(tuple(tables.values()))
        self._services.upkeep.live(completed)
        for table_id in landed.live:
            self._observer(Step.LIVE, table=str(tables[table_id].name if table_id in tables else None))

    def _drop_stale_indexes(self) -> None:
        self._checked_at = time.monotonic()
        drop_stale_indexes(self._indexes, self._services.connection, self._slot)
