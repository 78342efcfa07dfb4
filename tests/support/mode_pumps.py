"""The pumps of tests/support/mode_world.py: one after the other, with other settings, with faults, and killed."""

from __future__ import annotations

import contextlib
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from mirror_pump.errors import CommitConflict, ConnectionLost
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.mirror import Mirror, RunningPump, Steps, await_true, paced
from mirror_pump.testing.tasks import GatedCopies
from tests.support.crashing_pump import PROVERS
from tests.support.killed_pump import DoomedPump
from tests.support.mode_trail import ModeTrail

_DEATHS = (
    Step.RECEIVED, Step.WRITTEN, Step.STAGED, Step.STAGED, Step.PUBLISHED, Step.PUBLISHED, Step.ACKNOWLEDGED,
    Step.RETENTION, Step.RETENTION, Step.TIER_ADVANCED, Step.CHUNK_COPIED, Step.CHUNK_COPIED, Step.EXPIRED, Step.FOLDED,
    Step.CONVERTED, Step.POSITIONS_WRITTEN, Step.MERGE_WRITTEN, Step.MERGED, Step.INDEX_READY, Step.FILLED,
)  # fmt: skip
"""Steps at which pumps are killed, or get an error."""
_QUIET = (
    Step.RECEIVED, Step.WRITTEN, Step.STAGED, Step.PUBLISHED, Step.ACKNOWLEDGED, Step.CHUNK_COPIED,
    Step.CHUNKS_PUBLISHED, Step.CONVERTING, Step.POSITIONS_WRITTEN, Step.MERGING, Step.MERGE_WRITTEN,
    Step.INDEX_BUILDING, Step.INDEX_READY, Step.FILLING,
)  # fmt: skip
"""Steps that a failure's trail leaves out: there are too many of them."""


class ModePumps:
    """At most one pump at a time, in a thread or in a process of its own. `gate` runs the tasks of those in threads."""

    def __init__(
        self, mirror: Mirror, gate: GatedCopies, chance: random.Random, found: Counter[str], trail: ModeTrail
    ) -> None:
        self._mirror = mirror
        self._gate = gate
        self._chance = chance
        self._found = found
        self._trail = trail
        self._fault: tuple[Step, type[Exception]] | None = None
        self._steps = Steps(self._on_step)
        self._pump: RunningPump | DoomedPump | None = None

    @property
    def leads(self) -> bool:
        """Whether a pump runs that nobody is going to kill."""
        return isinstance(self._pump, RunningPump)

    def start(self, **options: Any) -> None:
        """Starts one in a thread, with random settings and these. It waits as a standby, as `mirror-pump run` does,
        while the server has not noticed the end of the last one."""
        chosen = {**self._options(), "limits": paced(self._chance.choice([0.0, 0.05, 0.2])), **options}
        self._trail.note(f"  a pump starts: {chosen}")
        self._pump = self._mirror.with_options(**chosen).start(self._steps, standby=True)

    def stop(self) -> None:
        """Ends the pump, however it runs."""
        if isinstance(self._pump, RunningPump):
            self.require_alive()
            self._pump.stop(60)
        elif self._pump is not None:
            self._pump.kill()
            # Pins of a killed proof expire in two minutes.
            with self._mirror.database.session() as connection:
                connection.execute(PROVERS)
        self._pump = None

    def abandon(self) -> None:
        """Ends the pump after a failure."""
        self._gate.let_go()
        if isinstance(self._pump, RunningPump):
            self._pump.pump.request_stop()
            self._pump.thread.join(60)
        elif self._pump is not None:
            with contextlib.suppress(AssertionError):
                self._pump.kill()

    def calm(self) -> None:
        """Nothing is held or made to fail from now on."""
        self._fault = None
        self._gate.fail(0)
        self._gate.let_go()

    def require_alive(self) -> None:
        """Raises AssertionError if a pump in a thread has ended by an error."""
        if isinstance(self._pump, RunningPump) and self._pump.error is not None:
            output = "".join(traceback.format_exception(self._pump.error))
            raise AssertionError(f"the pump ended: {output}") from self._pump.error

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self, meanwhile: Sequence[Callable[[], None]]) -> None:
        """Another pump, in a process that dies by kill -9: at a step, or some seconds later."""
        self.stop()
        self._gate.let_go()
        step, nth = self._chance.choice(_DEATHS), self._chance.choice((1, 1, 2, 5))
        options = {**self._options(), "once": "false", "retention_interval": 0.1, "reconnect_backoff_max": 0.3}
        self._trail.note(f"  a pump that dies at {step}, {nth}: {options}")
        self._pump = removes = DoomedPump(self._mirror, step, nth, **options)
        deadline = time.monotonic() + self._chance.uniform(1.0, 6.0)
        while removes.is_alive and time.monotonic() < deadline:
            self._chance.choice(meanwhile)()
        self._trail.note(f"  dead: {not removes.is_alive}")
        self._found[f"killed at {step}" if not removes.is_alive else "killed at random"] += 1
        self.restart()

    def plant(self) -> None:
        """The next occurrence of some step fails."""
        self._fault = (self._chance.choice(_DEATHS), self._chance.choice((ConnectionLost, CommitConflict)))
        self._trail.note(f"  {self._fault}")

    def fail_tasks(self) -> None:
        self._gate.fail(self._chance.randint(1, 3))

    def hold_copies(self) -> None:
        """No chunk is copied, until `copy_on`."""
        self._gate.hold()

    def copy_on(self) -> None:
        self._gate.let_go(self._chance.choice((1, 2, None)))

    def copy_all(self) -> None:
        """Copies go on, until `hold_copies`: somebody waits for a table to be live."""
        self._gate.let_go()

    def await_live(self, table: str) -> None:
        """Returns once the table is live. Raises AssertionError with the pump's error if the pump has ended."""

        def is_live() -> bool:
            self.require_alive()
            return self._mirror.state(f"public.{table}") == "live"

        await_true(is_live, 90, f"{table} is live")

    def terminate(self, spared: Sequence[int]) -> None:
        """Ends connections of one kind, whatever the pump is doing: it may just begin. `spared`: backends of the
        test."""
        if not isinstance(self._pump, RunningPump):
            return
        kind = self._chance.choice(("walsender", "client backend"))
        self._trail.note(f"  {kind}")
        with self._mirror.database.session() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND backend_type = %s AND pid <> pg_backend_pid() AND NOT pid = ANY (%s)",
                (kind, list(spared)),
            )

    def wait(self) -> None:
        """Until the pump has published something, or for a second."""
        publishes, deadline = self._steps.count(Step.PUBLISHED), time.monotonic() + 1
        while self._steps.count(Step.PUBLISHED) < publishes + 3 and time.monotonic() < deadline:
            time.sleep(0.02)

    def _on_step(self, step: Step, details: dict[str, object]) -> None:
        """Called in the pump's threads."""
        if step not in _QUIET:
            self._trail.note(f"    pump: {step} {details}"[:400])
        fault = self._fault
        if fault is not None and fault[0] is step:
            self._fault = None
            self._found["faults"] += 1
            raise fault[1](f"planted at {step}")

    def _options(self) -> dict[str, Any]:
        chance = self._chance
        return {
            "segment_bytes": chance.choice([400, 5000, 1 << 20]),
            "batch_bytes": chance.choice([3000, 1 << 24]),
            "copy_chunk_bytes": chance.choice([8192, 8192, 24_000]),
            "copy_workers": chance.choice([1, 3]),
            "fold_age": chance.choice([0.05, 0.3, 1.0]),
            "convert_age": chance.choice([0.0, 0.3]),
            "index_memory": chance.choice([1 << 30, 3 << 20, 0]),
            "merge_bytes": chance.choice([1 << 25, 1 << 25, 0]),
        }
