"""Continues a mirror whose database was promoted, restored or upgraded so that the pump refuses it.

If the slot still continues from the frontier, the catalog and the heap went back together, so the lake that the catalog
names is right: the mirror only has to accept the present history. Otherwise changes between the frontier and the
position of a slot are missing in every stream. Then a new slot is made, and each table is compared with its heap at
exactly the slot's first position. Equal tables go on from there; of the others the pump replaces the rows that differ,
or all, while readers keep their present content (docs/design/failover.md). Another server that took the place of the
mirror's is accepted as the mirror's from then on (docs/design/upgrade.md). A mirror without a stream has no slot: only
its files are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from mirror_pump.engine.lake_storage import lake_storage, refresh_profiles
from mirror_pump.errors import ConnectionLost, FileMissing, HistoryDiverged, SourceError
from mirror_pump.json_documents import JsonDocument
from mirror_pump.lake.contents.newer_metadata import NewerMetadata
from mirror_pump.model import Lsn, MirroredTable, TableId, TableMode, TableState, format_lsn
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.ops.verify.comparison_engines import ComparisonEngine
from mirror_pump.ops.verify.verification import TableReport, compare_at
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.operations.copy_again import CopyAgain
from mirror_pump.pipeline.operations.record_publication import RecordPublication
from mirror_pump.pipeline.operations.requests import PublishRequest, TableRequest
from mirror_pump.pipeline.operations.table_changes import Failure, TableChange
from mirror_pump.pipeline.publish.publisher import Publisher
from mirror_pump.pipeline.schema.comparable_rows import rows_are_comparable
from mirror_pump.pipeline.session.history import record_timeline
from mirror_pump.pipeline.session.lost_publishes import (
    CatalogPosition,
    LostPublishes,
    describe_loss,
    is_lost,
    lost_publishes,
    read_position,
)
from mirror_pump.pipeline.session.without_stream import forget_going_back, missing_files_of, unknown_publishes
from mirror_pump.runtime.backoff import RetryPolicy
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_slot import CatalogSlot, catalog_slot
from mirror_pump.source.catalog.change_feeds import interrupt_feeds
from mirror_pump.source.catalog.server_change import (
    RecognisedServer,
    SameServer,
    SuccessorServer,
    UpgradedServer,
    accept_server,
    forget_drain,
    recognised,
    require_ahead,
)
from mirror_pump.source.catalog.tables import load_table, load_tables
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.source.retention.partitions import read_attached
from mirror_pump.source.stream.consistent_point import ConsistentPoint
from mirror_pump.source.stream.leader import Leader
from mirror_pump.source.stream.publication import altered_tables, how_to_restore, make_publication, not_whole
from mirror_pump.source.stream.slot import (
    check_publication,
    check_slot,
    drop_slot,
    system_identity,
)
from mirror_pump.source.stream.timelines import TimelineHistory, read_timelines

_APPLICATION_NAME = "mirror-pump-reconcile"
_POINT_TIMEOUT = 600.0
"""Seconds to wait for transactions that were open when the slot was made."""

_COPIED = (TableState.LIVE, TableState.COPYING, TableState.FILLING)
"""States in which a table depends on every change since its start. A table that waits is copied from a later position
anyway, and the others are not mirrored any more."""


_INTERRUPTED = "the mirror was reconciled, and changes before may be missing: the next publish brings a reset"
_UNDER_WAY = {TableState.COPYING: "copy", TableState.FILLING: "fill"}


@dataclass(frozen=True)
class ReconciledTable(JsonDocument):
    """What became of a table."""

    table: str
    outcome: str
    """`equal`, `copied-again` (by the next pump), or `failed`."""
    reason: str
    """Why it is copied again, or has failed. Empty if it is equal."""


@dataclass(frozen=True)
class Reconciled(JsonDocument):
    """How the mirror continues."""

    timeline: int
    """The timeline that the server writes."""
    former_timeline: int
    """The timeline on which the mirror was published so far."""
    lost: str | None
    """What readers may have seen and the server no longer has, for people. None if nothing is known of that."""
    slot: str
    """`kept`: it continues from the frontier. `made`: there was none that did. `none`: the mirror has no stream
    (docs/operations.md#a-mirror-without-a-stream)."""
    frontier: Lsn
    """The frontier from which the mirror continues."""
    tables: tuple[ReconciledTable, ...]
    """Those that were compared or are copied again; without a stream, those that lack files. Empty if the slot was
    kept."""


def reconcile(
    settings: Settings,
    say: Callable[[str], None],
    engine: ComparisonEngine | None = None,
    observe: Callable[[TableProgress], None] = lambda _: None,
) -> Reconciled:
    """Make the mirror continue on the server's present history.

    `say` is called with one line for each thing that is found or done, `engine` compares all tables. Raises NotLeader
    while a pump leads, SourceError if this is another cluster or the publication is not what the mirror needs,
    HistoryDiverged if rows that left the heap could be lost, and LakeError if the storage does not answer. After an
    error it can be repeated.
    """
    dsn, slot = settings.require_dsn(), settings.slot
    with (
        Leader.acquire(dsn, slot) as leader,
        connect(dsn, autocommit=True, application_name=_APPLICATION_NAME) as connection,
    ):
        recorded = catalog_slot(connection, slot)
        old_timeline = recorded.identity.timeline
        server = recognised(connection, slot, recorded)
        if not recorded.streams:
            return _reconcile_files(connection, settings, leader.epoch, recorded, server, say)
        if isinstance(server, SuccessorServer):
            make_publication(connection, recorded.publication)
        check_publication(connection, recorded.publication)
        history = read_timelines(dsn)
        publishes, lost = _lost(connection, settings, server, history)
        if lost is not None:
            say(lost)
        if not isinstance(server, SameServer):
            server = _ahead_of_lake(connection, slot, server, publishes)
        unusable = _unusable(connection, slot, recorded.applied, server)
        if unusable is None:
            _record_server(connection, slot, server, history.timeline, publishes.modified)
            if lost is not None:
                interrupt_feeds(connection, slot, _INTERRUPTED)
            say(f"slot {slot}: kept; it continues from frontier {format_lsn(recorded.applied)}")
            return Reconciled(history.timeline, old_timeline, lost, "kept", recorded.applied, ())
        say(f"slot {slot}: made again, because {unusable}; this waits for the transactions that are open now")
        forget_drain(connection, slot)
        drop_slot(connection, slot)
        with ConsistentPoint(dsn, slot, _POINT_TIMEOUT, temporary=False) as point:
            # A crash from here on leaves a slot ahead of the frontier, which every pump refuses.
            _record_server(connection, slot, server, history.timeline, publishes.modified)
            say(f"slot {slot}: made at {point}; every table is compared with the heap at that position")
            reasons = _compared(connection, settings, point, engine, observe)
        # Tables that are equal may have been changed and changed back.
        interrupt_feeds(connection, slot, _INTERRUPTED)
        tables = _publish(connection, settings, leader.epoch, history.timeline, point.lsn, reasons)
    for table in tables:
        say(f"{table.table}: {table.outcome}{f' ({table.reason})' if table.reason else ''}")
    return Reconciled(history.timeline, old_timeline, lost, "made", point.lsn, tables)


def _record_server(
    connection: PgConnection, slot: str, server: RecognisedServer, timeline: int, accepted: float
) -> None:
    """Record that the mirror continues on this server and timeline."""
    if isinstance(server, SameServer):
        record_timeline(connection, slot, timeline, accepted)
    else:
        accept_server(connection, slot, server, accepted)


def _lost(
    connection: PgConnection, settings: Settings, server: RecognisedServer, history: TimelineHistory
) -> tuple[LostPublishes, str | None]:
    """What the lake has shown and the server no longer has, also as a text; None if nothing is known of that. Raises
    HistoryDiverged if it may be the only copy of rows."""
    position = read_position(connection, settings.slot)
    same = isinstance(server, SameServer)
    if not same:
        # Its timelines and the slot's position say nothing of the mirror's former server.
        position = replace(position, acknowledged=Lsn(0))
    left = same and history.timeline != position.timeline
    publishes = _find_lost_publishes(connection, settings, position, history if left else None)
    if not left:
        _refuse_loss_of_rows(connection, position, publishes)
    return publishes, _described(publishes, position, history if left else None)


def _ahead_of_lake(
    connection: PgConnection, slot: str, server: UpgradedServer | SuccessorServer, lost: LostPublishes
) -> UpgradedServer | SuccessorServer:
    """The server, as one without the slot if another server's pump went on. Raises SourceError if the frontier would go
    back behind what readers have seen."""
    if not lost.tables:
        return server
    require_ahead(connection, slot, max(publish.metadata.frontier for publish in lost.tables))
    return SuccessorServer(server.identity, "the mirror was published on another server after that")


def _find_lost_publishes(
    connection: PgConnection, settings: Settings, position: CatalogPosition, history: TimelineHistory | None
) -> LostPublishes:
    """What the lake has shown and the server no longer has. Without a history that left the recorded timeline, nothing
    says where that was: then whatever is beyond the catalog's frontier counts."""
    storage = lake_storage(settings)

    def matches(state: NewerMetadata) -> bool:
        if history is not None:
            return is_lost(state.promise, history, position.timeline)
        return state.frontier > position.applied or state.promise.timeline != position.timeline

    return lost_publishes(
        connection, settings.slot, storage, matches, accepted=position.accepted, cut_lines=history is None
    )


def _described(lost: LostPublishes, position: CatalogPosition, history: TimelineHistory | None) -> str | None:
    if not lost.tables:
        return None
    if history is not None and history.has_ended(position.timeline):
        return describe_loss(lost.tables, position.timeline, history, position.applied)
    newest = max(lost.tables, key=lambda publish: publish.metadata.frontier)
    return (
        f"the lake has metadata up to frontier {format_lsn(newest.metadata.frontier)}, of {newest.table} for instance"
        f" ({newest.metadata.location}), and the catalog knows {format_lsn(position.applied)}. If the database was"
        " restored, readers may have seen commits that it no longer has; if a pump was killed, the files were never"
        " published"
    )


def _refuse_loss_of_rows(connection: PgConnection, position: CatalogPosition, lost: LostPublishes) -> None:
    """Raise HistoryDiverged if files that the catalog does not know may be the only copy of rows: partitions left the
    heap after the moment to which the catalog went back, and the heap did not go back with it.

    A slot ahead of the catalog shows that: it goes back only with the server's files. Without a slot, a heap that went
    back has the partitions that left it since.
    """
    for publish in lost.tables:
        if publish.metadata.cut_line is None:
            continue
        heap_stayed = position.acknowledged > position.applied
        cut = publish.moved_cut_line
        ends = {attached.hi for attached in read_attached(connection, publish.table_id)}
        if heap_stayed or (not position.acknowledged and cut is not None and cut not in ends):
            raise HistoryDiverged(
                f"{publish.table} has heap retention, and its catalog went back to frontier"
                f" {format_lsn(position.applied)}, but its heap did not: rows that have left the heap since may be"
                f" only in {publish.metadata.location}. Nothing was changed",
                "restore the database as a whole, or a newer copy of schema modak. If neither exists, save the rows"
                " from that file first (`iceberg_scan('...')` in DuckDB). Run no maintenance until then. If nothing was"
                " restored, but a pump was killed and another session moved the slot: drop the slot, and repeat",
            )


def _unusable(connection: PgConnection, slot: str, applied: Lsn, server: RecognisedServer) -> str | None:
    """Why the slot does not continue from the frontier. None if it does."""
    if not isinstance(server, SameServer):
        return server.reason if isinstance(server, SuccessorServer) else None
    try:
        check_slot(connection, slot, applied_lsn=applied)
    except ConnectionLost:
        raise
    except SourceError as error:
        return str(error)
    return None


def _compared(
    connection: PgConnection,
    settings: Settings,
    point: ConsistentPoint,
    engine: ComparisonEngine | None,
    observe: Callable[[TableProgress], None],
) -> list[tuple[MirroredTable, str]]:
    """The tables that depend on the stream, and why each has to be copied again: an empty text if it is equal."""
    slot = settings.slot
    altered = set(altered_tables(connection, slot))
    tables = [
        table
        for table in load_tables(connection, slot)
        if table.mode is TableMode.MIRRORED
        and (table.state in _COPIED or (table.state is TableState.WAITING and table.table_id in altered))
    ]
    reasons = {table.table_id: _before_comparison(table, altered) for table in tables}
    live = [table for table in tables if not reasons[table.table_id]]
    reports = compare_at(settings, point.snapshot, live, engine, observe) if live else {}
    return [(table, reasons[table.table_id] or _difference(reports[table.table_id], point.lsn)) for table in tables]


def _before_comparison(table: MirroredTable, altered: set[TableId]) -> str:
    if table.table_id in altered:
        return "another session changed how it is published"
    return "" if table.state is TableState.LIVE else f"its {_UNDER_WAY[table.state]} was under way"


def _difference(report: TableReport, lsn: Lsn) -> str:
    if report.problem is not None:
        return f"it could not be compared: {report.problem}"
    comparison = report.comparison
    if comparison is None or not comparison.different_rows:
        return ""
    return (
        f"{comparison.different_rows} rows differ at {format_lsn(lsn)}: the heap has {comparison.heap_rows}, the lake"
        f" {comparison.lake_rows}"
    )


def _publish(
    connection: PgConnection,
    settings: Settings,
    epoch: int,
    timeline: int,
    frontier: Lsn,
    reasons: Sequence[tuple[MirroredTable, str]],
) -> tuple[ReconciledTable, ...]:
    """One publish: equal tables are promised at the slot's position, and the others begin a new copy."""
    missing = not_whole(connection, settings.slot)
    requests = [
        _copy_again(
            table,
            f"{reason}: {how_to_restore(settings.publication, table)}" if table.table_id in missing else reason,
            frontier,
            incomplete=table.table_id in missing,
        )
        for table, reason in reasons
        if reason
    ]
    with _publisher(settings, epoch, timeline, streams=True) as publisher:
        landed = publisher.publish(PublishRequest(frontier=frontier, tables=tuple(requests)))
    failed = {failure.table.table_id: failure.error for failure in landed.failures}
    return tuple(
        ReconciledTable(
            str(table.name),
            "failed" if table.table_id in failed else "copied-again" if reason else "equal",
            failed.get(table.table_id, reason),
        )
        for table, reason in reasons
    )


def _copy_again(table: MirroredTable, reason: str, frontier: Lsn, *, incomplete: bool) -> TableRequest:
    """The copy begins at a note of the schema watcher, once a pump streams."""
    waiting = replace(
        table,
        state=TableState.WAITING,
        start_lsn=Lsn(max(frontier, table.start_lsn + 1)),
        live_after_lsn=None,
    )
    # Of another table the copy has emptied what readers do not see.
    by_rows = table.state is TableState.LIVE and rows_are_comparable(table, table)
    change = TableChange(waiting, table.start_lsn, 0, reason, where_different=by_rows, waits_for_owner=incomplete)
    return TableRequest(waiting, (CopyAgain(change), RecordPublication()))


def _reconcile_files(
    connection: PgConnection,
    settings: Settings,
    epoch: int,
    recorded: CatalogSlot,
    server: RecognisedServer,
    say: Callable[[str], None],
) -> Reconciled:
    """Reconcile a mirror without a stream: accept what the catalog does not know of the lake, unless rows depend on it,
    and fail tables that lack files. The caller leads, with `epoch`.

    Its heap and its lake go back together (mirror_pump.pipeline.session.without_stream), so nothing is compared or
    copied. The operator who runs it says that this is the mirror's database, and that no other one uses the warehouse:
    from then on maintenance may delete the files that only the lost publishes named.

    Raises HistoryDiverged if the heap did not go back with the catalog, and LakeError if the storage does not answer.
    """
    slot, old_timeline = settings.slot, recorded.identity.timeline
    storage = lake_storage(settings, make_directories=False)
    refresh_profiles(storage, connection)
    timeline = system_identity(connection).timeline
    publishes = unknown_publishes(connection, slot, storage, read_position(connection, slot), timeline)
    lost = _unknown_publishes_text(publishes)
    if lost is not None:
        say(lost)
    missing = missing_files_of(publishes.unsettled, storage)
    if not isinstance(server, SameServer):
        accept_server(connection, slot, server, 0.0)
    failed = _fail(settings, epoch, timeline, missing)
    record_timeline(connection, slot, timeline, publishes.modified)
    forget_going_back(connection, slot)
    say("the mirror has no stream: heap and lake are as the database says, and continue from there")
    for table in failed:
        say(f"{table.table}: {table.outcome} ({table.reason})")
    return Reconciled(timeline, old_timeline, lost, "none", recorded.applied, failed)


def _unknown_publishes_text(publishes: LostPublishes) -> str | None:
    if not publishes.tables:
        return None
    newest = max(publishes.tables, key=lambda publish: publish.metadata.frontier)
    return (
        f"the lake has publishes up to {format_lsn(newest.metadata.frontier)} that the catalog does not know, of"
        f" {newest.table} for instance ({newest.metadata.location}): the database lost them, or a pump was killed"
        " before it had published them"
    )


def _fail(
    settings: Settings, epoch: int, timeline: int, missing: tuple[tuple[TableId, str], ...]
) -> tuple[ReconciledTable, ...]:
    if not missing:
        return ()
    with connect(settings.require_dsn(), autocommit=True, application_name=_APPLICATION_NAME) as connection:
        tables = [(load_table(connection, table_id), location) for table_id, location in missing]
    with _publisher(settings, epoch, timeline, streams=False) as publisher:
        failures: list[Failure] = [
            publisher.missing.failure(table, FileMissing(f"{location} is missing", "", location))
            for table, location in tables
            if table is not None and not table.state.has_ended
        ]
        publisher.publish(PublishRequest(failures=tuple(failures)))
    return tuple(ReconciledTable(str(failure.table.name), "failed", failure.error) for failure in failures)


@contextmanager
def _publisher(settings: Settings, epoch: int, timeline: int, *, streams: bool) -> Iterator[Publisher]:
    """A publisher without key indexes. `epoch` and `timeline`: as for Publisher. `streams`: whether the mirror has a
    stream."""
    storage = lake_storage(settings, make_directories=False)
    dsn = settings.require_dsn()
    publisher = Publisher(
        lambda: connect(dsn, autocommit=True, application_name=_APPLICATION_NAME),
        settings.slot,
        epoch,
        storage,
        RetryPolicy(settings.publish_attempts, settings.publish_backoff_max),
        KeyIndexes(0, storage),
        staged=lambda _: None,
        timeline=timeline,
        streams=streams,
    )
    try:
        yield publisher
    finally:
        publisher.close()
