"""The thread that sheds partitions, while there is nothing to shed."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import Any

import pytest

from mirror_pump.errors import TransientRefusal
from mirror_pump.model import TableId
from mirror_pump.pipeline.retention.partition_shedding import PartitionShedding
from mirror_pump.source.retention import partitions


class _Rounds:
    """A thread that does not wait, for two rounds."""

    woken = False

    def __init__(self) -> None:
        self._left = 2

    def next_round(self) -> bool:
        self._left -= 1
        return self._left >= 0

    def await_wake(self, _seconds: float) -> None:
        pass


class _Unwritten:
    """A connection to a server to which nothing is written."""

    def snapshot(self, _interval: float, *, woken: bool) -> str:
        return f"1:1:{woken}"

    @contextmanager
    def use(self) -> Any:
        yield None

    connect = use


def test_a_lock_on_the_catalog_is_left_to_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither ends the session, nor counts as a look that found nothing."""
    looks: list[str] = []

    def retained(*_: object) -> tuple[TableId, ...]:
        looks.append("look")
        if len(looks) == 1:
            raise TransientRefusal("the catalog is locked")
        return (TableId(1),)

    monkeypatch.setattr(partitions, "retained_tables", retained)
    shedding: Any = object.__new__(PartitionShedding)
    shedding._thread, shedding._shared, shedding._slot = _Rounds(), _Unwritten(), "slot"
    shedding._context, shedding._look_on = shedding._shared, lambda _connection: looks.append("partitions")
    shedding._interval, shedding._swept_at = 1.0, time.monotonic()
    shedding._run()
    assert looks == ["look", "look", "partitions"]
