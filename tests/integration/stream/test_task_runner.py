"""Tasks run in Spark's workers, and their errors keep their types."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from mirror_pump.engine.spark_runtime.executor_watch import ExecutorWatch
from mirror_pump.engine.spark_runtime.runner import SparkTaskRunner
from mirror_pump.errors import ConnectionLost, TaskFailed
from mirror_pump.runtime.telemetry import configure_logging
from mirror_pump.testing.mirror import await_true

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def doubled(number: int) -> tuple[int, int]:
    return number * 2, os.getpid()


def losing(reason: str) -> str:
    raise ConnectionLost(reason, "wait")


def dividing(number: int) -> float:
    return 1 / number


def dying(code: int) -> None:
    os._exit(code)


@pytest.fixture
def runner(spark: SparkSession) -> SparkTaskRunner:
    return SparkTaskRunner(spark, 2)


def test_results_come_from_another_process(runner: SparkTaskRunner) -> None:
    futures = [runner.submit(doubled, number) for number in range(5)]
    results = [future.result(60) for future in futures]
    assert [number for number, _ in results] == [0, 2, 4, 6, 8]
    assert os.getpid() not in {pid for _, pid in results}


def test_our_errors_keep_their_type_and_remedy(runner: SparkTaskRunner) -> None:
    with pytest.raises(ConnectionLost, match="the cable") as lost:
        runner.submit(losing, "the cable").result(60)
    assert lost.value.remedy == "wait"


def test_any_other_error_names_the_function_and_the_cause(runner: SparkTaskRunner) -> None:
    with pytest.raises(TaskFailed, match=r"dividing failed: .*ZeroDivisionError"):
        runner.submit(dividing, 0).result(60)


def test_a_worker_that_dies_fails_its_task_only(runner: SparkTaskRunner) -> None:
    with pytest.raises(TaskFailed, match="dying failed"):
        runner.submit(dying, 3).result(60)
    assert runner.submit(doubled, 4).result(60)[0] == 8


def test_a_spark_without_executors_is_a_warning(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """In local mode the driver runs the tasks: it has no executors, as a cluster without room for us has none."""
    configure_logging("json")
    watch = ExecutorWatch(spark.sparkContext, patience=0.0, interval=0.01)
    watch.start()
    try:
        said = ""

        def warned() -> bool:
            nonlocal said
            said += capsys.readouterr().err
            return "no-executors" in said

        await_true(warned, 30, "it warns")
    finally:
        watch.stop()
    assert "docs/cluster.md" in said
    assert said.count("no-executors") == 1
