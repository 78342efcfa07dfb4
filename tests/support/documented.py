"""A mirror for the tests that run a document's blocks as they stand."""

from __future__ import annotations

from typing import Any

from mirror_pump.config import Settings
from mirror_pump.ops.setup.initialisation import initialise
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner


def documented_mirror(database: Database, warehouse: str, slot: str, **settings: Any) -> Mirror:
    """The mirror that the commands of a document use, initialised, with partitions looked at ten times a second."""
    chosen = Settings(
        dsn=database.dsn,
        warehouse=warehouse,
        slot=slot,
        publication=slot,
        batch_age=0.05,
        storage_fsync=False,
        retention_interval=0.1,
        **settings,
    )
    initialise(chosen, lambda _: None)
    return Mirror(database, chosen, ThreadTaskRunner(2))
