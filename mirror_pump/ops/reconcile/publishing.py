"""The publisher with which `reconcile` publishes in the pump's place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirror_pump.backoff import RetryPolicy
from mirror_pump.config import Settings
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.lake_storage import lake_storage
from mirror_pump.pipeline.publish.publisher import Publisher
from mirror_pump.source.connect import connect

APPLICATION_NAME = "mirror-pump-reconcile"


@contextmanager
def reconciling_publisher(settings: Settings, epoch: int, timeline: int, *, streams: bool) -> Iterator[Publisher]:
    """A publisher without key indexes. `epoch` and `timeline`: as for Publisher. `streams`: whether the mirror has a
    stream."""
    storage = lake_storage(settings, make_directories=False)
    dsn = settings.require_dsn()
    publisher = Publisher(
        lambda: connect(dsn, autocommit=True, application_name=APPLICATION_NAME),
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
