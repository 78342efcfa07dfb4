"""Searches all states of a small model, breadth first, for one that breaks an invariant.

A model is a frozen dataclass of values that can be hashed: a state. `steps` yields what may happen next in it, `broken`
the names of the invariants that do not hold in it. What the proof relies on is a guard: a lock, a check, an order. A
model runs with all of them, or without some, and then does what a program without them would do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

MOST_STATES = 2_000_000
"""A model of more is no small one."""


class State(Protocol):
    """A state of a model."""

    def steps(self, guards: frozenset[str]) -> Iterator[tuple[str, Self]]:
        """What may happen next under the guards: a sentence, and the state after it."""
        ...

    def broken(self) -> Iterator[str]:
        """The names of the invariants that this state breaks."""
        ...

    def __hash__(self) -> int: ...


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Counterexample:
    """A shortest way to a state that breaks an invariant."""

    invariant: str
    trace: tuple[str, ...]
    """What happens, from the initial state on."""


@dataclass(frozen=True)
class Search:
    """What a search of all states has shown."""

    states: int
    counterexample: Counterexample | None
    """None: the invariants hold in all states."""


def search(initial: S, guards: frozenset[str]) -> Search:
    """Searches all states that the initial one leads to. Raises ValueError for a model of more than MOST_STATES."""
    origins: dict[S, tuple[S, str] | None] = {initial: None}
    queue = deque([initial])
    while queue:
        state = queue.popleft()
        for invariant in state.broken():
            return Search(len(origins), Counterexample(invariant, _trace(origins, state)))
        for sentence, following in state.steps(guards):
            if following not in origins:
                origins[following] = state, sentence
                queue.append(following)
        if len(origins) > MOST_STATES:
            raise ValueError(f"{type(initial).__name__} has more than {MOST_STATES} states")
    return Search(len(origins), None)


def _trace(origins: dict[S, tuple[S, str] | None], state: S) -> tuple[str, ...]:
    trace: list[str] = []
    while (origin := origins[state]) is not None:
        state, sentence = origin
        trace.append(sentence)
    return tuple(reversed(trace))
