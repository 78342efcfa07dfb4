"""A pump in a separate process that is killed repeatedly, at random steps and times, and started again."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.mirror import Mirror
from tests.support.pipeline import in_thread

ROOT = Path(__file__).parents[2]

STEPS = (
    Step.RECEIVED, Step.WRITTEN, Step.STAGED, Step.PUBLISHED, Step.ACKNOWLEDGED,
    Step.RETENTION, Step.RETENTION, Step.TIER_ADVANCED, Step.TIER_ADVANCED, Step.FOLDED, Step.FOLDED,
    Step.CONVERTED, Step.POSITIONS_WRITTEN, Step.MERGE_WRITTEN, Step.MERGED, Step.INDEX_BUILDING, Step.INDEX_READY,
)  # fmt: skip

_OPTIONS = {
    "batch_age": 0.05, "storage_fsync": "false", "retention_interval": 0.1, "fold_age": 0.3, "convert_age": 1,
    "reconnect_backoff_max": 0.5,
}  # fmt: skip

PROVERS = "DELETE FROM modak.read_pins WHERE expires_at <= now() + interval '2 minutes'"
"""Pins of a proof expire within two minutes; those of readers are renewed long before. A killed proof leaves its pin,
which would delay later drops, and tests need to see what follows the next kill."""


@contextlib.contextmanager
def dying_pump(mirror: Mirror, seed: int, shortest: float, longest: float) -> Iterator[Counter[str]]:
    """Runs such a pump within the block. Each life ends at the n-th occurrence of a random step, or after some random
    seconds, whichever comes first. Yields how often it was killed by what, which grows. A pump that ends in another way
    fails the block."""
    chance = random.Random(seed)
    killed: Counter[str] = Counter()

    def live(stop: threading.Event) -> None:
        while not stop.is_set():
            step, nth = chance.choice(STEPS), chance.choice((1, 2, 5, 20, 50))
            seconds = chance.uniform(shortest, longest)
            with tempfile.TemporaryFile("w+") as output:
                pump = subprocess.Popen(_command(mirror, step, nth), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=output)
                deadline = time.monotonic() + seconds
                while pump.poll() is None and time.monotonic() < deadline and not stop.is_set():
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        pump.wait(0.1)
                at_random = pump.poll() is None
                if at_random:
                    pump.kill()
                code = pump.wait()
                output.seek(0)
                assert code == -signal.SIGKILL, f"the pump ended with {code}, not by our hand: {output.read()[-4000:]}"
            if not stop.is_set():
                killed["at random" if at_random else str(step)] += 1
            with mirror.database.session() as connection:
                connection.execute(PROVERS)

    with in_thread(live, "reaper"):
        yield killed


def _command(mirror: Mirror, step: Step, nth: int) -> list[str]:
    settings = mirror.settings
    return [
        sys.executable, "-m", "tests.support.run_and_die", settings.dsn, settings.require_warehouse(), settings.slot,
        step, str(nth), "threads", "once=false", *(f"{name}={value}" for name, value in _OPTIONS.items()),
    ]  # fmt: skip
