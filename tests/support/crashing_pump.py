"""A pump in a separate process that is killed repeatedly, at random steps and times, and started again."""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.mirror import Mirror
from tests.support.killed_pump import DoomedPump
from tests.support.pipeline import in_thread

STEPS = (
    Step.RECEIVED, Step.WRITTEN, Step.STAGED, Step.PUBLISHED, Step.ACKNOWLEDGED,
    Step.RETENTION, Step.RETENTION, Step.TIER_ADVANCED, Step.TIER_ADVANCED, Step.FOLDED, Step.FOLDED,
    Step.CONVERTED, Step.POSITIONS_WRITTEN, Step.MERGE_WRITTEN, Step.MERGED, Step.INDEX_BUILDING, Step.INDEX_READY,
)  # fmt: skip

_OPTIONS: dict[str, Any] = {
    "retention_interval": 0.1, "fold_age": 0.3, "convert_age": 1, "reconnect_backoff_max": 0.5,
}  # fmt: skip

PROVERS = "DELETE FROM modak.read_pins WHERE expires_at <= now() + interval '2 minutes'"
"""Pins of a proof expire within two minutes; those of readers are renewed long before. A killed proof leaves its pin,
which would delay later drops, and tests need to see what follows the next kill."""

_WALSENDER = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"


@contextlib.contextmanager
def dying_pump(mirror: Mirror, seed: int, shortest: float, longest: float) -> Iterator[Counter[str]]:
    """Runs such a pump within the block. Each life ends at the n-th occurrence of a random step, or some random seconds
    after the pump has begun to stream, however long it took to start; one in five ends soon after the start of its
    process. Yields how often it was killed by what, which grows. A pump that ends in another way fails the block."""
    chance = random.Random(seed)
    killed: Counter[str] = Counter()

    def live(stop: threading.Event) -> None:
        while not stop.is_set():
            step, nth = chance.choice(STEPS), chance.choice((1, 2, 5, 20, 50))
            early = chance.random() < 0.2
            seconds = chance.uniform(0, 2) if early else chance.uniform(shortest, longest)
            former = _walsender(mirror)
            pump = DoomedPump(mirror, step, nth, once="false", **_OPTIONS)
            counted_from = time.monotonic() if early else math.inf
            while pump.is_alive and time.monotonic() < counted_from + seconds and not stop.is_set():
                pump.join(0.1)
                if counted_from == math.inf and _walsender(mirror) not in (None, former):
                    counted_from = time.monotonic()
            at_random = pump.is_alive
            pump.kill()
            if not stop.is_set():
                killed[("early" if early else "at random") if at_random else str(step)] += 1
            with mirror.database.session() as connection:
                connection.execute(PROVERS)

    with in_thread(live, "reaper"):
        try:
            yield killed
        except BaseException as error:
            error.add_note(f"killed so far: {dict(killed)}")
            raise


def _walsender(mirror: Mirror) -> int | None:
    """The server process that streams to a pump, or None."""
    with mirror.database.session() as connection:
        row = connection.execute(_WALSENDER, (mirror.settings.slot,)).fetchone()
    return row[0] if row else None
