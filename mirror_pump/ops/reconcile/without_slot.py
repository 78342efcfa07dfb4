"""Reconciles a mirror without a stream: accepts what the catalog does not know of the lake, unless rows depend on it.

Its heap and its lake go back together (mirror_pump.pipeline.session.without_stream), so nothing is compared or copied.
Whoever runs it says that this is the mirror's database, and that no other one uses the warehouse: from then on
maintenance may delete the files that only the lost publishes named.
"""

from __future__ import annotations

from collections.abc import Callable

from mirror_pump.config import Settings
from mirror_pump.errors import FileMissing
from mirror_pump.model import TableId, format_lsn
from mirror_pump.ops.reconcile.outcome import Reconciled, ReconciledTable
from mirror_pump.ops.reconcile.publishing import APPLICATION_NAME, reconciling_publisher
from mirror_pump.pipeline.lake_storage import lake_storage, refresh_profiles
from mirror_pump.pipeline.operations.requests import PublishRequest
from mirror_pump.pipeline.operations.table_changes import Failure
from mirror_pump.pipeline.session.history import record_timeline
from mirror_pump.pipeline.session.lost_publishes import LostPublishes, read_position
from mirror_pump.pipeline.session.without_stream import forget_going_back, missing_files_of, unknown_publishes
from mirror_pump.source.catalog.catalog_slot import CatalogSlot
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, connect
from mirror_pump.source.stream.slot import system_identity


def reconcile_files(
    connection: PgConnection, settings: Settings, epoch: int, recorded: CatalogSlot, say: Callable[[str], None]
) -> Reconciled:
    """Accept the lake's unknown files, and fail tables that lack files. The caller leads, with `epoch`.

    Raises HistoryDiverged if the heap did not go back with the catalog, and LakeError if the storage does not answer.
    """
    slot, former = settings.slot, recorded.identity.timeline
    storage = lake_storage(settings, make_directories=False)
    refresh_profiles(storage, connection)
    timeline = system_identity(connection).timeline
    found = unknown_publishes(connection, slot, storage, read_position(connection, slot), timeline)
    lost = _described(found)
    if lost is not None:
        say(lost)
    missing = missing_files_of(found.unsettled, storage)
    failed = _fail(settings, epoch, timeline, missing)
    record_timeline(connection, slot, timeline, found.modified)
    forget_going_back(connection, slot)
    say("the mirror has no stream: heap and lake are as the database says, and continue from there")
    for table in failed:
        say(f"{table.table}: {table.outcome} ({table.reason})")
    return Reconciled(timeline, former, lost, "none", recorded.applied, failed)


def _described(found: LostPublishes) -> str | None:
    if not found.tables:
        return None
    newest = max(found.tables, key=lambda publish: publish.metadata.frontier)
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
    with connect(settings.require_dsn(), autocommit=True, application_name=APPLICATION_NAME) as connection:
        tables = [(load_table(connection, table_id), location) for table_id, location in missing]
    with reconciling_publisher(settings, epoch, timeline, streams=False) as publisher:
        failures: list[Failure] = [
            publisher.missing.failure(table, FileMissing(f"{location} is missing", "", location))
            for table, location in tables
            if table is not None and not table.state.has_ended
        ]
        publisher.publish(PublishRequest(failures=tuple(failures)))
    return tuple(ReconciledTable(str(failure.table.name), "failed", failure.error) for failure in failures)
