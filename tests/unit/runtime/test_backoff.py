"""Pauses between attempts: how they grow, how jitter changes them, and what resets them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from mirror_pump.runtime.backoff import Backoff, Retries


class Busy(Exception):
    """An error that is worth another attempt."""


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(first=0.5, longest=3.0)
    assert [backoff.pause(failures) for failures in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.pause(10_000) == 3.0


@pytest.mark.parametrize(("first", "longest", "pause"), [(2.0, 0.5, 0.5), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)])
def test_the_longest_pause_holds_for_the_first_one_too(first: float, longest: float, pause: float) -> None:
    assert {Backoff(first, longest).pause(failures) for failures in range(1, 4)} == {pause}


@pytest.mark.parametrize(("jitter", "least"), [(0.0, 8.0), (0.5, 4.0), (1.0, 0.0)])
def test_chance_takes_at_most_its_share(jitter: float, least: float) -> None:
    backoff = Backoff(first=1.0, longest=60.0, jitter=jitter)
    pauses = [backoff.shortened(8.0) for _ in range(1000)]
    assert all(least <= pause <= 8.0 for pause in pauses)
    assert max(pauses) - min(pauses) >= 0.9 * (8.0 - least)


def test_a_success_or_a_long_run_begins_anew() -> None:
    retries = Retries(Backoff(first=1.0, longest=60.0))
    assert [retries.failed() for _ in range(3)] == [1.0, 2.0, 4.0]
    assert retries.failed(ran=60.0) == 8.0
    assert retries.failed(ran=60.1) == 1.0
    retries.succeeded()
    assert retries.failed() == 1.0


def test_what_failed_is_due_after_its_pause() -> None:
    assert Retries(Backoff(first=3600.0, longest=3600.0)).due
    retries = Retries(Backoff(first=3600.0, longest=3600.0))
    began = time.monotonic()
    retries.failed()
    assert not retries.due
    waited: list[float] = []
    retries.wait(waited.append)
    assert 3600.0 - (time.monotonic() - began) <= waited[0] <= 3600.0
    assert Retries(Backoff(first=1.0, longest=0.0), failures=7).due


def attempted(outcomes: list[Exception | None], **limits: Any) -> int:
    """Makes attempts with these outcomes. Returns their number."""
    made = 0

    def attempt() -> int:
        nonlocal made
        made += 1
        outcome = outcomes[made - 1]
        if outcome is not None:
            raise outcome
        return made

    return Backoff(first=0.0, longest=0.0).call(attempt, lambda error: isinstance(error, Busy), **limits)


def test_attempts_end_with_a_success_with_another_error_and_with_the_last() -> None:
    assert attempted([None], most=3) == 1
    assert attempted([Busy(), None], most=3) == 2
    with pytest.raises(Busy, match="the third"):
        attempted([Busy(), Busy(), Busy("the third"), None], most=3)
    with pytest.raises(ValueError, match="not curable"):
        attempted([Busy(), ValueError("not curable"), None], most=3)


def test_attempts_end_when_their_time_is_over() -> None:
    with pytest.raises(Busy, match="the first"):
        attempted([Busy("the first"), None], seconds=0.0)
    assert attempted([Busy(), Busy(), None], seconds=3600.0) == 3
