"""When failed work is tried again: pauses that double up to a limit, with jitter. Nothing else computes such pauses."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, stop_any
from tenacity.wait import wait_base, wait_exponential

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Backoff:
    """The pauses after failures in a row: `first`, then twice as long each time, and never longer than `longest`."""

    first: float
    """Seconds."""
    longest: float
    """Seconds. Shortens the first pause too."""
    jitter: float = 0.0
    """Share of each pause that chance may take away: 0 for none of it, 1 for all. With jitter, processes that failed
    together do not try again together."""

    def pause(self, failures: int) -> float:
        """The longest pause in seconds after this many failures in a row, at least one."""
        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = failures
        return wait_exponential(multiplier=self.first, max=self.longest)(state)

    def shortened(self, pause: float) -> float:
        """The pause in seconds after chance has taken its share."""
        return pause * random.uniform(1.0 - self.jitter, 1.0)

    def call(
        self,
        attempt: Callable[[], _Result],
        curable: Callable[[BaseException], bool],
        *,
        most: int = sys.maxsize,
        seconds: float = math.inf,
    ) -> _Result:
        """Calls `attempt`, again after each error for which `curable` is true, and returns what it returns.

        An attempt that raises another error is the last one, and so is attempt number `most`, and the first one that
        fails after `seconds`. The last one's error is raised.
        """
        retrying = Retrying(
            stop=stop_any(stop_after_attempt(most), stop_after_delay(seconds)),
            wait=_Jittered(self),
            retry=retry_if_exception(curable),
            reraise=True,
        )
        return retrying(attempt)


class _Jittered(wait_base):
    """The pauses of a Backoff, for tenacity."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff

    def __call__(self, retry_state: RetryCallState) -> float:
        return self._backoff.shortened(self._backoff.pause(retry_state.attempt_number))


@dataclass(frozen=True)
class RetryPolicy:
    """How often a commit that met a conflict is tried, and how long the pauses between attempts get."""

    attempts: int = 16
    longest_pause: float = 10.0
    """Longest pause in seconds. Pauses double from `first_pause`."""
    first_pause: float = 0.05
    """Seconds."""
    jitter: float = 1.0
    """Share of each pause that chance may take away."""
    longest_turn: float = 2.0
    """Seconds for which an attempt on a table of a lake catalog lets other writers of this machine finish theirs: the
    longest delay by one that hangs in the middle of a commit (tables/table/turns.py)."""

    def call(self, attempt: Callable[[], _Result], curable: Callable[[BaseException], bool]) -> _Result:
        """What `attempt` returns, as Backoff.call."""
        return self._backoff.call(attempt, curable, most=self.attempts)

    def wait(self, failures: int) -> None:
        """Waits after so many failures in a row."""
        time.sleep(self._backoff.shortened(self._backoff.pause(failures)))

    @property
    def _backoff(self) -> Backoff:
        return Backoff(self.first_pause, self.longest_pause, self.jitter)


@dataclass
class Retries:
    """The failures in a row of one thing that is tried again and again, and when it is due."""

    backoff: Backoff
    failures: int = 0
    """In a row."""
    not_before: float = 0.0
    """The thing is due from this time.monotonic() on, in seconds."""

    @property
    def due(self) -> bool:
        return time.monotonic() >= self.not_before

    def failed(self, ran: float = 0.0) -> float:
        """Note a failure, after the thing ran for this many seconds. Longer than the longest pause counts as a success
        before the failure. Returns the pause in seconds, before jitter."""
        if ran > self.backoff.longest:
            self.failures = 0
        self.failures += 1
        pause = self.backoff.pause(self.failures)
        self.not_before = time.monotonic() + self.backoff.shortened(pause)
        return pause

    def succeeded(self) -> None:
        """The next failure will be the first in a row."""
        self.failures = 0

    def wait(self, sleep: Callable[[float], object] = time.sleep) -> None:
        """Wait until the thing is due. `sleep` may return early, for example `Event.wait`."""
        sleep(max(0.0, self.not_before - time.monotonic()))
