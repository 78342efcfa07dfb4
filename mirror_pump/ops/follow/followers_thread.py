"""Followers of a leading pump: each follows in rounds of its own, so that one that hangs holds neither the others back,
nor the pump."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from mirror_pump.errors import MirrorPumpError, one_line_of
from mirror_pump.ops.catalog_poll import CatalogPoll
from mirror_pump.runtime.backoff import Backoff
from mirror_pump.runtime.telemetry import get_logger, redact
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.followers import Follower, read_followers
from mirror_pump.source.connect import PgConnection

_RETRIES = Backoff(2.0, 60.0)
_STOP_GRACE = 5.0
"""Seconds that stopping waits for a round. One that is cut off is finished by the next pump."""


@dataclass
class _FollowerRounds:
    """The rounds of one follower."""

    thread: threading.Thread | None = None
    failures: int = 0
    next_try: float = field(default_factory=time.monotonic)
    """As time.monotonic() has it, after failures."""


class FollowersThread(CatalogPoll[Follower]):
    """Looks which followers are behind, and begins their rounds. Enter it to start, leave it to stop."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, "followers")
        self._rounds: dict[str, _FollowerRounds] = {}
        """By the IDs of followers: one that is forgotten may be added again, and its round hang on."""

    def stop(self) -> None:
        """End the thread, and wait a while for rounds that are under way."""
        super().stop()
        deadline = time.monotonic() + _STOP_GRACE
        for rounds in list(self._rounds.values()):
            if rounds.thread is not None:
                rounds.thread.join(max(0.0, deadline - time.monotonic()))

    def _due(self, connection: PgConnection) -> list[Follower]:
        return [follower for follower in read_followers(connection, self._settings.slot) if self._is_due(follower)]

    def _is_due(self, follower: Follower) -> bool:
        rounds = self._rounds.setdefault(follower.follower_id, _FollowerRounds())
        if follower.ends or not follower.may_move or (rounds.thread is not None and rounds.thread.is_alive()):
            return False
        behind = follower.error is not None or follower.frontier != follower.published
        return time.monotonic() >= rounds.next_try and (behind or follower.examination_due)

    def _do(self, connection: PgConnection, due: Follower) -> None:  # noqa: ARG002 - a round has one of its own
        rounds = self._rounds[due.follower_id]
        # A daemon: a catalog that never answers must not keep the pump from ending.
        rounds.thread = threading.Thread(target=self._round, args=(due.name, rounds), name="follower", daemon=True)
        rounds.thread.start()

    def _round(self, name: str, rounds: _FollowerRounds) -> None:
        # pyiceberg's catalogs take time and memory, which a pump without followers does without.
        from mirror_pump.ops.follow.following import follow

        try:
            follow(self._settings, name)
        except Exception as error:  # noqa: BLE001 - a follower must not end in silence, and is tried again
            rounds.failures += 1
            rounds.next_try = time.monotonic() + _RETRIES.pause(rounds.failures)
            expected = isinstance(error, MirrorPumpError)
            get_logger("followers").warning(
                "a follower is behind", follower=name, error=redact(one_line_of(error)), exc_info=not expected
            )
        else:
            rounds.failures = 0
