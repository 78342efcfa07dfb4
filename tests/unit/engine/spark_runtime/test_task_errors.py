"""What the errors of Spark's workers advise."""

from __future__ import annotations

from mirror_pump.engine.spark_runtime.task_errors import workers_failed


def test_workers_that_cannot_be_started_on_this_machine_have_a_remedy_for_it() -> None:
    error = RuntimeError("EOFException occurred while reading the port number from the daemon's stdout")
    assert "docs/cluster.md" in workers_failed(error, on_cluster=True).remedy
    local = workers_failed(error, on_cluster=False).remedy
    assert "cluster" not in local
    assert "started again, the pump goes on" in local
