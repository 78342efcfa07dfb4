"""Where a session may begin to stream: the catalog, the server's history, the slot and the publication fit together.

A pump begins only there, and `mirror-pump resync` begins anew only where nothing but the slot is wrong. Both ask here,
so that they say the same. A session of a mirror without a stream begins where the catalog and the lake fit together.
"""

from __future__ import annotations

from dataclasses import dataclass

from decoders.masks import MaskKeyUnusable
from mirror_pump.engine.lake_storage import refresh_profiles
from mirror_pump.errors import ConnectionLost, SourceError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Lsn, TableId, format_lsn
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.pipeline.session.history import (
    FollowedTimeline,
    follow,
    follow_upgrade,
    record_timeline,
    unusable_slot,
)
from mirror_pump.pipeline.session.run_state import RunState
from mirror_pump.pipeline.session.without_stream import follow_without_stream, note_going_back
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_schema import require_current
from mirror_pump.source.catalog.catalog_slot import CatalogSlot, catalog_slot
from mirror_pump.source.catalog.server_change import UpgradedServer, accept_server, require_same_server
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.stream.slot import check_publication, check_slot
from sql import queries

_SQL = queries("pump")


@dataclass(frozen=True)
class StreamStart:
    """Where the session begins."""

    publication: str | None
    """None: the mirror has no stream, for tiered tables only."""
    applied: Lsn
    """The frontier."""
    followed: FollowedTimeline
    """The server's timeline."""


def examine_start(
    connection: PgConnection, settings: Settings, storage: StorageOptions, run_state: RunState
) -> StreamStart:
    """Where a stream can begin. Changes nothing.

    Another program may have changed the catalog since the last session, and the server may be another one. Raises
    SlotLost if nothing but the slot is wrong, HistoryDiverged if readers may have seen what the server does not have,
    if that cannot be told, or if it took the place of the mirror's, SourceError for a foreign server or a publication
    that is not what the mirror needs, and LakeError if the storage does not answer.
    """
    slot = settings.slot
    require_current(connection)
    recorded = catalog_slot(connection, slot)
    server = require_same_server(connection, slot, recorded)
    refresh_profiles(storage, connection)
    if server is not None:
        return _upgraded(connection, settings, storage, run_state, recorded, server)
    if not recorded.streams:
        return StreamStart(None, recorded.applied, follow_without_stream(connection, slot, storage, run_state))
    followed = follow(connection, settings.require_dsn(), slot, storage, run_state)
    try:
        check_slot(connection, slot, applied_lsn=recorded.applied, applied_at=recorded.applied_at)
    except ConnectionLost:
        raise
    except SourceError as error:
        raise unusable_slot(error, followed) from error
    check_publication(connection, recorded.publication)
    return StreamStart(recorded.publication, recorded.applied, followed)


def _upgraded(
    connection: PgConnection,
    settings: Settings,
    storage: StorageOptions,
    run_state: RunState,
    recorded: CatalogSlot,
    server: UpgradedServer,
) -> StreamStart:
    followed = follow_upgrade(connection, settings.slot, storage, run_state, server)
    check_slot(connection, settings.slot, applied_lsn=None)
    check_publication(connection, recorded.publication)
    return StreamStart(recorded.publication, recorded.applied, followed)


def check_start(
    connection: PgConnection, settings: Settings, storage: StorageOptions, run_state: RunState, observer: Observer
) -> StreamStart:
    """As `examine_start`, for the leader: records the timeline, that the database went back, and what `run_state`
    remembers of it."""
    start = examine_start(connection, settings, storage, run_state)
    _require_mask_keys(connection, settings.slot)
    followed = start.followed
    if followed.upgraded is not None:
        accept_server(connection, settings.slot, followed.upgraded, followed.accepted)
        observer(
            Step.UPGRADE_FOLLOWED,
            server=connection.info.server_version,
            slot_at=format_lsn(followed.upgraded.position),
            frontier=start.applied,
        )
    elif followed.former_timeline is not None:
        record_timeline(connection, settings.slot, followed.timeline, followed.accepted)
        observer(
            Step.FAILOVER_FOLLOWED,
            timeline=followed.timeline,
            former=followed.former_timeline,
            left_at=None if followed.left_at is None else format_lsn(followed.left_at),
            frontier=start.applied,
        )
    if followed.lost:
        note_going_back(connection, settings.slot)
        newest = max(followed.lost, key=lambda publish: publish.metadata.frontier)
        observer(
            Step.DATABASE_WENT_BACK,
            table=str(newest.table),
            metadata=newest.metadata.location,
            lake_frontier=format_lsn(newest.metadata.frontier),
            frontier=start.applied,
        )
    for publish in followed.unpublished:
        observer(
            Step.METADATA_UNKNOWN,
            table=str(publish.table),
            metadata=publish.metadata.location,
            lake_frontier=format_lsn(publish.metadata.frontier),
            frontier=start.applied,
        )
    run_state.timeline = followed.timeline
    run_state.missing += followed.missing
    # After a promotion this may be less than before: what the server lost without harm is made again.
    run_state.published = start.applied
    return start


def _require_mask_keys(connection: PgConnection, slot: str) -> None:
    """Raises SourceError if a live table's masks lack their key: its next change would fail it, and all of it would be
    copied again. A table that is still being copied fails alone."""
    with source_errors("looking for masked columns"):
        masked = connection.execute(_SQL["masked"], {"slot": slot}).fetchall()
    for (table_id,) in masked:
        table = load_table(connection, TableId(table_id))
        if table is None or not table.state.has_all_rows:
            continue
        for column in table.masked_columns:
            assert column.type.mask is not None
            try:
                column.type.mask.require_key()
            except MaskKeyUnusable as error:
                raise SourceError(
                    f"column {column.name} of {table.name} cannot be masked: {error}",
                    "give the pump the key; nothing is lost meanwhile. Or unregister the table",
                ) from error
