"""The order of tests in a run by several workers.

With `--dist worksteal` a worker begins with an equal share of consecutive tests, and takes over others' last ones. Slow
tests come first, so that none of them begins when the others have ended. Then come those that need Spark, for one
worker in four: each Spark costs a gigabyte, ten seconds of CPU to start, and as much until it is warm. Tests that share
a module's fixture stay together.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from tests.support import durations

_LONG = 10.0
"""Seconds of the clock that a case of a function took when durations were last kept, from which on it begins early."""


@dataclass(frozen=True)
class ItemNeeds:
    """What decides about the place of a test."""

    module: Path
    slow: bool = False
    spark: bool = False
    shares_its_module: bool = False
    """It uses a fixture that is made once for its module."""

    @classmethod
    def of(cls, item: pytest.Item, seconds: float) -> ItemNeeds:
        """`seconds`: what the test is known to take."""
        definitions = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else ()
        return cls(
            module=item.path,
            slow=item.get_closest_marker("slow") is not None or seconds >= _LONG,
            spark="spark" in getattr(item, "fixturenames", ()),
            shares_its_module=any(definition[-1].scope in ("module", "package", "class") for definition in definitions),
        )


def needs_of(items: Sequence[pytest.Item]) -> list[ItemNeeds]:
    """The needs of each test."""
    kept = durations.read(durations.KEPT)
    functions = [durations.function_of(item.nodeid) for item in items]
    cases = Counter(functions)
    seconds = [kept[name].seconds / cases[name] if name in kept else 0.0 for name in functions]
    return [ItemNeeds.of(item, taken) for item, taken in zip(items, seconds, strict=True)]


def in_shares(tests: Sequence[ItemNeeds], workers: int) -> list[int]:
    """The places of the tests in `tests`, share by share. Tests of a module are next to each other in `tests`."""
    first: list[list[int]] = [[] for _ in range(workers)]
    with_spark = first[: (workers + 3) // 4]
    placed: set[int] = set()
    slow = [place for place, test in enumerate(tests) if test.slow and not test.shares_its_module]
    for place in sorted(slow, key=lambda place: not tests[place].spark):
        min(with_spark if tests[place].spark else first, key=len).append(place)
        placed.add(place)
    left = (place for place in range(len(tests)) if place not in placed)
    for _, group in groupby(left, key=lambda place: tests[place].module):
        module = list(group)
        spark = [place for place in module if tests[place].spark]
        if any(tests[place].shares_its_module for place in spark):
            spark = module
        min(with_spark, key=len).extend(spark)
    placed.update(*first)
    others = deque(place for place in range(len(tests)) if place not in placed)
    order: list[int] = []
    for number, own in enumerate(first):
        share = (len(tests) - len(order)) // (workers - number)
        others.extendleft(reversed(own[share:]))
        order += own[:share]
        order += [others.popleft() for _ in range(share - len(own))]
    return order
