"""The services of one session: its connections, and the threads that hand work to its loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from mirror_pump.model import Lsn, MirroredTable, TableId, TableMode
from mirror_pump.pipeline.copy.copier import Copier
from mirror_pump.pipeline.copy.copy_budget import CopyBudget
from mirror_pump.pipeline.copy.difference_copier import DifferenceCopier
from mirror_pump.pipeline.flow.events import LakeFileMissing
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.key_index.index_builder import IndexBuilder
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.key_index.row_reader import RowReader
from mirror_pump.pipeline.missing_files.file_watch import FileWatch
from mirror_pump.pipeline.missing_files.lake_watch import LakeWatch
from mirror_pump.pipeline.publish.publisher import Publisher
from mirror_pump.pipeline.retention.fold import Folder
from mirror_pump.pipeline.retention.partition_premake import PartitionPremake
from mirror_pump.pipeline.retention.partition_shedding import PartitionShedding
from mirror_pump.pipeline.schema.column_fill import FillJob
from mirror_pump.pipeline.schema.decisions import SchemaChangeDecision
from mirror_pump.pipeline.schema.publication_changes import copy_altered
from mirror_pump.pipeline.schema.schema_watcher import SchemaWatcher
from mirror_pump.pipeline.schema.tiered_changes import decide_from_note
from mirror_pump.pipeline.session.listener import Listener
from mirror_pump.pipeline.session.run_state import RunState
from mirror_pump.pipeline.session.session_stream import NoStream, SessionStream
from mirror_pump.pipeline.session.stream_start import StreamStart, check_start
from mirror_pump.pipeline.stream.batch_pace import BatchPace
from mirror_pump.pipeline.stream.batch_planning import BatchPlanner
from mirror_pump.pipeline.stream.receiver import Receiver, StreamSource
from mirror_pump.pipeline.stream.unpublished_files import UnpublishedFiles
from mirror_pump.pipeline.upkeep.database_watch import NeglectWatch
from mirror_pump.pipeline.upkeep.feed_upkeep import FeedUpkeep
from mirror_pump.pipeline.upkeep.jobs import ConvertDeletesJob, Job, MergeJob, RewriteJob
from mirror_pump.pipeline.upkeep.upkeep_threads import TableUpkeep, conversion_workers
from mirror_pump.runtime.backoff import RetryPolicy
from mirror_pump.runtime.cores import available_cores
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.relations.change_notes import Note, note_reader
from mirror_pump.source.stream.publication import PublicationCheck
from mirror_pump.source.stream.replication_stream import ReplicationStream
from mirror_pump.source.stream.slot import flushed_end
from sql import queries

_SQL = queries("pump")


@dataclass(frozen=True)
class SessionServices:
    """The services that the loop uses. The threads put their events into the loop's inbox."""

    applied: Lsn
    """The frontier at the start."""
    shared: SharedConnection
    """For short queries of all threads, which need no lock."""
    publisher: Publisher
    planner: BatchPlanner
    stream: SessionStream
    copier: Copier
    differences: DifferenceCopier
    upkeep: TableUpkeep
    feed_upkeep: FeedUpkeep
    watcher: SchemaWatcher
    retention: PartitionShedding
    row_reader: RowReader

    @property
    def connection(self) -> PgConnection:
        """The loop's connection: its publishes and its short queries follow one another."""
        return self.publisher.connection

    def wake_copies(self) -> None:
        """A copy has begun, or has to be planned again."""
        self.copier.wake()
        self.differences.wake()


def start_services(
    closing: ExitStack,
    context: SessionContext,
    indexes: KeyIndexes,
    unpublished_files: UnpublishedFiles,
    epoch: int,
    until: Lsn | None,
    run_state: RunState,
) -> SessionServices:
    """Open and start all services. `closing` ends whatever was started, also after an error.

    `epoch` is the epoch of the leadership, and `until` the position where the stream may end. Raises SourceError when
    the slot or the publication is not what the mirror needs, HistoryDiverged when the server's history is not.
    """
    shared, waiting = SharedConnection(context.connect), SharedConnection(context.connect)
    closing.callback(shared.close)
    closing.callback(waiting.close)
    with shared.use() as connection:
        start = check_start(connection, context.settings, context.storage, run_state, context.observer)
    publication = PublicationCheck(context.slot)
    publisher = _publisher(context, epoch, indexes, start, publication)
    closing.callback(publisher.close)
    connection = publisher.connection
    copier, differences = _copiers(context, shared, epoch)
    upkeep = TableUpkeep(context, shared, _upkeep_jobs(context, indexes))
    feed_upkeep = FeedUpkeep(context, shared)
    folder = Folder(context, shared, indexes)
    builder = IndexBuilder(context.runner, context.inbox, context.report_file)
    row_reader = RowReader(context, indexes.row_hashes, available_cores())
    indexes.attach(builder, context.observer, context.backlog)
    stream = _stream(closing, context, shared, publisher, indexes, unpublished_files, start, until, run_state)
    drop_stale_indexes(indexes, connection, context.slot)
    connection.execute(_SQL["no_indexes"], {"slot": context.slot})
    watcher = SchemaWatcher(context, shared, waiting, publication)
    premake = PartitionPremake(context, shared, run_state.key_speeds)
    retention = PartitionShedding(context, shared, waiting, run_state.turns)

    registered = partial(_each, copier.wake, differences.wake, stream.registered)
    listener = Listener(context, registered, partial(_each, premake.wake, retention.wake))
    part_bytes = context.settings.limits.completion_part_bytes
    planner = BatchPlanner(
        context.runner, context.storage, context.connect, publisher.load, publisher.missing, part_bytes
    )
    lake_watch = LakeWatch(context, shared)
    for missing in run_state.missing:
        context.inbox.put(LakeFileMissing(*missing))
    _start(closing, stream, copier, differences, upkeep, feed_upkeep, folder, builder, row_reader)
    neglect_watch = NeglectWatch(context, shared, run_state.neglect_reported_at)
    _start(closing, watcher, premake, retention, listener, lake_watch, FileWatch(context, shared), neglect_watch)
    return SessionServices(
        *(start.applied, shared, publisher, planner, stream, copier, differences, upkeep, feed_upkeep, watcher),
        *(retention, row_reader),
    )


def _stream(
    closing: ExitStack,
    context: SessionContext,
    shared: SharedConnection,
    publisher: Publisher,
    indexes: KeyIndexes,
    unpublished_files: UnpublishedFiles,
    start: StreamStart,
    until: Lsn | None,
    run_state: RunState,
) -> SessionStream:
    """What brings the stream's batches, not started yet. Raises as `start_services`."""
    connection = publisher.connection
    if start.publication is None:
        return NoStream(context, connection, shared)
    lookups = SharedConnection(context.connect_for_heap)
    closing.callback(lookups.close)
    source = _source(context, connection, lookups, start, start.publication, until, run_state)
    pace = BatchPace(run_state.file_ceiling, context.settings.limits.batch_pause, time.monotonic())
    # This runs before anything is received: for these tables, the stream does not continue what is in the lake.
    copy_altered(connection, context.slot, start.publication, start.applied, publisher, indexes, context.observer)
    return Receiver(context, source, indexes.packing, unpublished_files, pace)


def _copiers(context: SessionContext, shared: SharedConnection, epoch: int) -> tuple[Copier, DifferenceCopier]:
    budget = CopyBudget(context.settings.copy_rate_bytes)
    return Copier(context, shared, epoch, budget), DifferenceCopier(context, shared, epoch, budget)


class _Thread(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...


def _start(closing: ExitStack, *threads: _Thread) -> None:
    for thread in threads:
        thread.start()
        closing.callback(thread.stop)


def _each(*calls: Callable[[], None]) -> None:
    for call in calls:
        call()


def _source(
    context: SessionContext,
    connection: PgConnection,
    lookups: SharedConnection,
    start: StreamStart,
    publication: str,
    until: Lsn | None,
    run_state: RunState,
) -> StreamSource:
    timeline = start.followed.timeline
    return StreamSource(
        open_stream=lambda lsn: ReplicationStream.start(context.dsn, context.slot, publication, lsn, timeline=timeline),
        start=start.applied,
        # The publish of the present frontier is visible, so it is before this.
        recorded_at=flushed_end(connection),
        barrier=until,
        isolated_transaction=run_state.isolated_transaction,
        status_interval=_status_interval(connection),
        lookup=partial(_registered, lookups),
        mirrored=partial(_mirrored, lookups, context.slot),
        read_note=note_reader(connection, lambda xid: context.observer(Step.NOTE_REFUSED, xid=xid)),
        decide=partial(_decision, lookups),
    )


def _publisher(
    context: SessionContext, epoch: int, indexes: KeyIndexes, start: StreamStart, publication: PublicationCheck
) -> Publisher:
    return Publisher(
        context.connect,
        context.slot,
        epoch,
        context.storage,
        RetryPolicy(context.settings.publish_attempts, context.settings.publish_backoff_max),
        indexes,
        staged=lambda request: context.observer(Step.STAGED, frontier=request.frontier),
        timeline=start.followed.timeline,
        streams=start.publication is not None,
        observer=context.observer,
        publication=publication,
    )


def _upkeep_jobs(context: SessionContext, indexes: KeyIndexes) -> tuple[Job[MirroredTable], ...]:
    settings, observer = context.settings, context.observer
    workers = conversion_workers(available_cores())
    return (
        ConvertDeletesJob(settings.convert_rows, settings.convert_age, workers, observer),
        MergeJob(settings.merge_bytes, indexes.packing, observer),
        RewriteJob(settings.merge_bytes, indexes.packing, observer),
        FillJob(context, indexes.packing),
    )


def drop_stale_indexes(indexes: KeyIndexes, connection: PgConnection, slot: str) -> None:
    """Keep only the key indexes of live tables."""
    rows = connection.execute(_SQL["live"], {"slot": slot}).fetchall()
    indexes.keep_only([(TableId(table_id), Lsn(start)) for table_id, start in rows])


def _registered(lookups: SharedConnection, relation_id: int) -> MirroredTable | None:
    with lookups.use() as connection:
        table = load_table(connection, TableId(relation_id))
    return None if table is None or table.state.has_ended or table.mode is not TableMode.MIRRORED else table


def _decision(lookups: SharedConnection, table: MirroredTable, note: Note) -> SchemaChangeDecision:
    with lookups.use() as connection:
        return decide_from_note(connection, table, note)


def _mirrored(lookups: SharedConnection, slot: str) -> list[TableId]:
    with lookups.use() as connection:
        rows = connection.execute(_SQL["streamed"], {"slot": slot}).fetchall()
    return [TableId(table_id) for (table_id,) in rows]


def _status_interval(connection: PgConnection) -> float:
    """Seconds between status updates: a third of the server's `wal_sender_timeout`, at most 10 s."""
    row = connection.execute(_SQL["sender_timeout"]).fetchone()
    timeout = row[0] / 1000 if row is not None else 0
    return min(10.0, timeout / 3) if timeout else 10.0
