"""What works for one life of the pump: the connections and threads that its loop takes work from."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from mirror_pump.config import Settings
from mirror_pump.engine.runner import TaskRunner
from mirror_pump.errors import SourceError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, MirroredTable, TableId, TableState
from mirror_pump.pipeline.copy.copier import Copier, CopySettings
from mirror_pump.pipeline.flow.events import Event
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.key_index.index_builder import IndexBuilder
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.publish.publisher import Publisher, RetryPolicy
from mirror_pump.pipeline.retention.fold import Folder, FoldSettings
from mirror_pump.pipeline.retention.partition_shedding import PartitionShedding
from mirror_pump.pipeline.schema.column_fill import FillJob
from mirror_pump.pipeline.schema.publication_changes import copy_altered
from mirror_pump.pipeline.schema.schema_watcher import Watcher, decide_untold
from mirror_pump.pipeline.session.listener import Listener
from mirror_pump.pipeline.stream.batch_application import BatchApplier
from mirror_pump.pipeline.stream.receiver import Receiver, ReceiverSettings
from mirror_pump.pipeline.stream.unpublished_files import UnpublishedFiles
from mirror_pump.pipeline.upkeep.jobs import ConvertDeletesJob, MergeJob, RewriteJob
from mirror_pump.pipeline.upkeep.upkeep_threads import Upkeep, resolve_workers
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.source.relations.change_notes import note_reader
from mirror_pump.source.stream.replication_stream import ReplicationStream
from mirror_pump.source.stream.slot import SystemIdentity, check_publication, check_slot
from sql import queries

_SQL = queries("pump")


@dataclass(frozen=True)
class SessionServices:
    """What the loop speaks to. The threads put what they have into its inbox."""

    applied: Lsn
    """F at the start."""
    connection: PgConnection
    """The loop's own, for short questions."""
    publisher: Publisher
    applier: BatchApplier
    receiver: Receiver
    copier: Copier
    upkeep: Upkeep
    watcher: Watcher
    retention: PartitionShedding


def start_services(
    closing: ExitStack,
    settings: Settings,
    storage: StorageOptions,
    runner: TaskRunner,
    observer: Observer,
    inbox: SimpleQueue[Event],
    indexes: KeyIndexes,
    leftovers: UnpublishedFiles,
    epoch: int,
    until: Lsn | None,
    isolated_transaction: Lsn | None,
) -> SessionServices:
    """Opens and starts all of it; `closing` ends what was begun, also after an error.

    `epoch`: of the lead; `until`: where the stream may end; `isolated_transaction`: the transaction (LSN of its
    commit) that is
    received by itself. Raises SourceError when the slot or the publication is not what the mirror needs.
    """
    dsn = settings.require_dsn()

    def connected() -> PgConnection:
        return connect(dsn, autocommit=True)

    def opened() -> PgConnection:
        connection = connected()
        closing.callback(connection.close)
        return connection

    connection = opened()
    publication, applied = _checked_slot(connection, settings.slot)
    publisher = Publisher(
        connected,
        settings.slot,
        epoch,
        storage,
        RetryPolicy(settings.publish_attempts, settings.publish_backoff_max),
        indexes,
        staged=lambda request: observer(Step.STAGED, frontier=request.frontier),
    )
    closing.callback(publisher.close)
    lookups = opened()
    receiver = Receiver(
        lambda lsn: ReplicationStream.start(dsn, settings.slot, publication, lsn),
        partial(_registered, lookups),
        indexes.packing,
        runner,
        storage,
        inbox,
        leftovers,
        ReceiverSettings(
            segment_bytes=settings.segment_bytes,
            batch_bytes=settings.batch_bytes,
            row_bytes=settings.max_row_bytes,
            batch_age=settings.batch_age,
            max_buffered_bytes=settings.max_buffered_bytes,
            status_interval=_status_interval(connection),
        ),
        applied,
        until,
        note_reader(connection, lambda xid: observer(Step.NOTE_REFUSED, xid=xid)),
        partial(decide_untold, lookups),
        isolated_transaction,
        partial(_mirrored, lookups, settings.slot),
    )
    copier = Copier(
        connected,
        runner,
        storage,
        inbox,
        CopySettings(dsn, settings.slot, epoch, settings.copy_chunk_bytes, settings.copy_workers),
        observer,
    )
    workers = resolve_workers(os.cpu_count() or 1)
    upkeep = Upkeep(
        connected,
        runner,
        storage,
        inbox,
        settings.slot,
        (
            ConvertDeletesJob(settings.resolve_rows, settings.resolve_age, workers, observer),
            MergeJob(settings.merge_bytes, indexes.packing, observer),
            RewriteJob(settings.merge_bytes, indexes.packing, observer),
            FillJob(connected, inbox, indexes.packing, settings.copy_workers, observer),
        ),
        observer,
    )
    folder = Folder(
        connected,
        storage,
        inbox,
        settings.slot,
        indexes,
        FoldSettings(settings.fold_age, settings.fold_rows),
        observer,
    )
    builder = IndexBuilder(runner, inbox)
    indexes.attach(builder, observer)
    # Before anything is received: what follows in the stream is no continuation of these tables.
    copy_altered(connection, settings.slot, publication, applied, publisher, indexes, observer)
    retain_live(indexes, connection, settings.slot)
    connection.execute(_SQL["no_indexes"], {"slot": settings.slot})
    watcher = Watcher(connected, inbox, settings.slot)
    retention = PartitionShedding(
        connected, runner, storage, inbox, settings.slot, dsn, observer, settings.retention_interval
    )
    listener = Listener(connected, inbox, copier.wake, retention.wake)
    applier = BatchApplier(runner, storage, connected, publisher.load)
    for thread in (receiver, copier, upkeep, folder, builder, watcher, retention, listener):
        thread.start()
        closing.callback(thread.stop)
    return SessionServices(applied, connection, publisher, applier, receiver, copier, upkeep, watcher, retention)


def retain_live(indexes: KeyIndexes, connection: PgConnection, slot: str) -> None:
    """Memory is for tables that are still mirrored."""
    rows = connection.execute(_SQL["live"], {"slot": slot}).fetchall()
    indexes.retain([(TableId(table_id), Lsn(start)) for table_id, start in rows])


def _checked_slot(connection: PgConnection, slot: str) -> tuple[str, Lsn]:
    """Its publication, and F."""
    row = connection.execute(_SQL["slot"], {"slot": slot}).fetchone()
    if row is None:
        raise SourceError(f"slot {slot} is not in the catalog", "Run `mirror-pump init` first.")
    publication, system, timeline, database, applied, applied_at = row
    identity = SystemIdentity(system, timeline, database)
    check_slot(connection, slot, applied_lsn=applied, identity=identity, applied_at=applied_at)
    check_publication(connection, publication)
    return publication, Lsn(applied)


def _registered(connection: PgConnection, relation_id: int) -> MirroredTable | None:
    table = load_table(connection, TableId(relation_id))
    return None if table is None or table.state is TableState.FAILED else table


def _mirrored(connection: PgConnection, slot: str) -> list[TableId]:
    rows = connection.execute(_SQL["not_failed"], {"slot": slot}).fetchall()
    return [TableId(table_id) for (table_id,) in rows]


def _status_interval(connection: PgConnection) -> float:
    """Seconds between status updates: a third of the server's patience, 10 s at most."""
    row = connection.execute(_SQL["sender_timeout"]).fetchone()
    patience = row[0] / 1000 if row is not None else 0
    return min(10.0, patience / 3) if patience else 10.0
