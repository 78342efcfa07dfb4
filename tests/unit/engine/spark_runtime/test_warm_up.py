"""A Spark of the pump's own begins with as many Python workers as work at the same time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mirror_pump.engine.spark_runtime import runner
from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner
from mirror_pump.engine.spark_runtime.session import SparkSettings


@pytest.mark.parametrize(
    ("master", "started", "workers"),
    [("local[*]", "local[8]", 2), ("local[4]", "local[4]", 2), ("spark://host:7077", "spark://host:7077", 8)],
)
def test_workers_that_are_started(monkeypatch: pytest.MonkeyPatch, master: str, started: str, workers: int) -> None:
    masters: list[str] = []
    warmed: list[int] = []

    def session(settings: SparkSettings) -> SimpleNamespace:
        masters.append(settings.master)
        return SimpleNamespace(sparkContext=SimpleNamespace(master=settings.master))

    monkeypatch.setattr(runner, "spark_session", session)
    monkeypatch.setattr(runner, "ExecutorWatch", lambda _: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(SparkTaskRunner, "warm_up", lambda _, count: warmed.append(count))

    SparkTaskRunner.start(master, cores=2, others=6)

    assert (masters, warmed) == ([started], [workers])
