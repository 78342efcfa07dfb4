"""Completes settings with those that `init` stored in the database, so that the DSN alone is enough afterwards."""

from __future__ import annotations

from typing import Any

from mirror_pump.errors import ConnectionLost, SourceError, TransientRefusal, UsageError
from mirror_pump.runtime.backoff import Backoff, Retries
from mirror_pump.runtime.telemetry import get_logger
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_schema import require_current
from mirror_pump.source.connect import CATALOG_LOCK_TIMEOUT, PgConnection, connect, source_errors
from mirror_pump.storage_kinds import S3, kind_of
from sql.mirror_names import SCHEMA

_REMEMBERED = {"endpoint": "storage_endpoint", "region": "storage_region"}


def remembered_storage(warehouse: str) -> dict[str, str]:
    """Storage options that are not secret: lake_config of the storage profile -> Settings. The keys are FileIO's
    names."""
    names = (kind_of(warehouse) or S3).short_names
    return {names[key]: field for key, field in _REMEMBERED.items() if key in names}


_FIRST_PAUSE = 0.5
"""Seconds before the second attempt to reach the server. Further pauses double up to `reconnect_backoff_max`."""
_JITTER = 0.5

_PROFILE = (
    f"SELECT warehouse, coalesce(lake_config, '{{}}') FROM {SCHEMA}.storage_profiles WHERE profile_name = 'default'"
)
_SLOTS = f"SELECT slot_name, publication_name FROM {SCHEMA}.mirror_slots WHERE database_name = current_database()"


def complete(settings: Settings) -> Settings:
    """Return `settings` with the warehouse, storage options, slot and publication that the database has stored.

    The stored warehouse always wins, because a table's files cannot be in two places. Raises SourceError if the
    database was not initialised. Raises UsageError if --slot names an unknown slot, or if it is missing and the
    mirror has several slots.
    """
    with _settings_connection(settings) as connection:
        return complete_from(connection, settings)


def complete_when_up(settings: Settings) -> Settings:
    """Do as `complete`, but wait for a server that is unreachable or starting. Each failed attempt is logged."""
    log = get_logger("start")
    retries = Retries(Backoff(_FIRST_PAUSE, settings.reconnect_backoff_max, _JITTER))
    while True:
        try:
            return complete(settings)
        except (ConnectionLost, TransientRefusal) as error:
            pause = retries.failed()
            log.warning("waiting for the server", error=str(error), remedy=error.remedy, again_in=round(pause, 1))
            retries.wait()


def complete_from(connection: PgConnection, settings: Settings) -> Settings:
    """Do as `complete`, over the caller's connection."""
    with source_errors("reading the mirror's settings"):
        require_current(connection)
        slots = connection.execute(_SLOTS).fetchall()
        if not slots:
            raise _not_initialised(connection, "modak.mirror_slots has no row of it")
        storage = _stored_storage(connection, settings)
    slot = _slot(settings, {str(slot): str(publication) for slot, publication in slots})
    return settings.model_copy(update=storage | slot)


def with_stored_storage(settings: Settings) -> Settings:
    """Return `settings` with the warehouse and the storage options that the database has stored, for tables that are no
    mirror's. Raises SourceError if it was not initialised."""
    with _settings_connection(settings) as connection, source_errors("reading the mirror's settings"):
        require_current(connection)
        return settings.model_copy(update=_stored_storage(connection, settings))


def _settings_connection(settings: Settings) -> PgConnection:
    return connect(
        settings.require_dsn(),
        autocommit=True,
        application_name="mirror-pump-settings",
        lock_timeout=CATALOG_LOCK_TIMEOUT,
    )


def _stored_storage(connection: PgConnection, settings: Settings) -> dict[str, Any]:
    warehouse, options = connection.execute(_PROFILE).fetchone() or ("", {})
    if not warehouse:
        raise _not_initialised(connection, "modak.storage_profiles has no warehouse of profile default")
    update: dict[str, Any] = {"warehouse": warehouse}
    for key, field in remembered_storage(warehouse).items():
        if getattr(settings, field) is None and options.get(key) is not None:
            update[field] = str(options[key])
    return update


def _slot(settings: Settings, publications: dict[str, str]) -> dict[str, str]:
    slot_names = ", ".join(sorted(publications))
    if "slot" in settings.model_fields_set:
        slot = settings.slot
        if slot not in publications:
            raise UsageError(f"no mirror here uses slot {slot}", f"known slots: {slot_names}; or leave --slot out")
    elif len(publications) == 1:
        (slot,) = publications
    elif settings.slot in publications:
        slot = settings.slot
    else:
        raise UsageError("this mirror has several slots", f"choose one with --slot: {slot_names}")
    return {"slot": slot, "publication": publications[slot]}


def _not_initialised(connection: PgConnection, lacking: str) -> SourceError:
    return SourceError(
        f"database {connection.info.dbname} is not set up for the mirror: {lacking}",
        "run `mirror-pump init --warehouse URI` first",
    )
