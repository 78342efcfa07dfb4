"""A round of one follower, begun by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import FollowerError, MirrorPumpError, one_line_of, with_remedy
from mirror_pump.ops.follow.follower_catalog import FollowerCatalog
from mirror_pump.ops.follow.follower_round import FollowerRound
from mirror_pump.runtime.backoff import Backoff
from mirror_pump.runtime.telemetry import redact
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.followers import Follower, note_failed, one_follower, take_lock
from mirror_pump.source.connect import PgConnection, connect

_LOCK_PAUSES = Backoff(0.1, 1.0)
PATIENCE = 90.0
"""Seconds for which commands wait for a round that is under way."""
_LATER = "try again in some minutes"


@contextmanager
def locked_follower(settings: Settings, name: str, patience: float = 0.0) -> Iterator[tuple[PgConnection, Follower]]:
    """A follower that no other program changes within the block. Raises FollowerError if another does for longer than
    `patience` seconds, UsageError, SourceError."""
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-follower") as connection:
        follower = one_follower(connection, settings.slot, name)

        def lock() -> None:
            if not take_lock(connection, follower):
                raise FollowerError(f"follower {name}: a pump or another command is at work there", _LATER)

        _LOCK_PAUSES.call(lock, lambda error: isinstance(error, FollowerError), seconds=patience)
        # As the program before has left it.
        locked = one_follower(connection, settings.slot, name)
        if locked.follower_id != follower.follower_id:
            raise FollowerError(f"follower {name} was removed meanwhile, and added again", _LATER)
        yield connection, locked


def follow(settings: Settings, name: str, *, step: Callable[[str], None] = lambda _: None) -> None:
    """One round of a follower, unless it is being removed. Raises MirrorPumpError, which is recorded."""
    with locked_follower(settings, name) as (connection, follower):
        if follower.ends:
            return
        try:
            storage = lake_storage(settings)
            with closing(FollowerCatalog(follower, storage)) as catalog:
                FollowerRound(connection, follower, catalog, storage, step).run(examine=follower.examination_due)
        except MirrorPumpError as error:
            note_failed(connection, follower, redact(one_line_of(with_remedy(error))))
            raise
