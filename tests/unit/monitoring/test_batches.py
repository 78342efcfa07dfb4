"""Steps of the pump become batches, spans and counts."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from mirror_pump.monitoring.batches import BatchObserver, BatchTraces, ObservedBatch
from mirror_pump.monitoring.monitor import all_of
from mirror_pump.monitoring.pump_state import PumpPhase, PumpState
from mirror_pump.monitoring.step_metrics import StepMetrics
from mirror_pump.pipeline.flow.batches import Period
from mirror_pump.pipeline.flow.steps import Observer, Step
from mirror_pump.testing.mirror import Steps


def publish_batch(observer: Observer, changes: int = 5) -> None:
    """The steps of one batch, as the session loop reports them."""
    observer(Step.RECEIVED, changes=changes, segments=2, receive=Period(100.0, 101.0))
    observer(Step.WRITTEN, frontier=7, decode=Period(100.5, 101.5), write=Period(101.0, 102.0))
    observer(Step.STAGED, frontier=7)
    observer(Step.PUBLISHED, frontier=7, snapshots=3, files=9)
    observer(Step.ACKNOWLEDGED, frontier=7)


def observed() -> tuple[BatchObserver, list[ObservedBatch]]:
    """An observer at time 103, and the batches whose end it has seen."""
    ended: list[ObservedBatch] = []
    return BatchObserver(ended.append, clock=lambda: 103.0), ended


def test_a_published_batch_has_its_phases_and_figures() -> None:
    observer, ended = observed()
    publish_batch(observer)
    (batch,) = ended
    assert (batch.changes, batch.segments, batch.snapshots, batch.frontier, batch.error) == (5, 2, 3, 7, None)
    assert batch.phases == {
        "receive": Period(100.0, 101.0),
        "decode": Period(100.5, 101.5),
        "write": Period(101.0, 102.0),
        "publish": Period(103.0, 103.0),
    }
    assert (batch.began_at, batch.complete_at, batch.ended_at) == (100.0, 101.0, 103.0)


def test_publishes_without_a_batch_and_steps_of_other_threads_are_no_batches() -> None:
    observer, ended = observed()
    for step in (Step.STREAMING, Step.CHUNK_COPIED, Step.STAGED, Step.PUBLISHED, Step.RETRYING):
        observer(step)
    assert ended == []


def test_an_abandoned_batch_ends_with_the_error_and_is_counted_once() -> None:
    observer, ended = observed()
    observer(Step.RECEIVED, changes=5, segments=1, receive=Period(100.0, 101.0))
    observer(Step.RETRYING, error="the server closed the connection")
    observer(Step.STREAMING, frontier=1)
    publish_batch(observer)
    assert [batch.error for batch in ended] == ["the server closed the connection", None]
    # A cut-line that has moved ends a session without an error.
    observer(Step.RECEIVED, changes=5, segments=1, receive=Period(100.0, 101.0))
    observer(Step.STREAMING, frontier=1)
    assert ended[2].error is not None


@pytest.fixture
def spans() -> InMemorySpanExporter:
    """The exported spans."""
    return InMemorySpanExporter()


@pytest.fixture
def traces(spans: InMemorySpanExporter) -> BatchTraces:
    """An observer at time 103 that exports at once."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return BatchTraces(provider.get_tracer("test"), clock=lambda: 103.0)


def test_a_batch_is_one_trace_with_a_child_for_each_phase(traces: BatchTraces, spans: InMemorySpanExporter) -> None:
    publish_batch(traces)
    *children, batch = spans.get_finished_spans()
    assert [child.name for child in children] == ["receive", "decode", "write", "publish"]
    assert {child.parent and child.parent.span_id for child in children} == {batch.context.span_id}
    assert (batch.name, batch.start_time, batch.end_time) == ("batch", 100_000_000_000, 103_000_000_000)
    assert batch.attributes is not None
    assert batch.attributes["mirror_pump.frontier"] == "0/7"
    assert (children[1].start_time, children[1].end_time) == (100_500_000_000, 101_500_000_000)


def test_a_child_never_ends_before_it_begins_though_an_executors_clock_is_ahead(
    traces: BatchTraces, spans: InMemorySpanExporter
) -> None:
    traces(Step.RECEIVED, changes=5, segments=1, receive=Period(100.0, 101.0))
    traces(Step.WRITTEN, frontier=7, decode=Period(150.0, 151.0), write=Period(101.0, 102.0))
    traces(Step.PUBLISHED, frontier=7, snapshots=1)
    assert len(spans.get_finished_spans()) == 5
    for span in spans.get_finished_spans():
        assert (span.start_time or 0) <= (span.end_time or 0)


def test_an_abandoned_batch_is_a_failed_span_without_secrets(traces: BatchTraces, spans: InMemorySpanExporter) -> None:
    traces(Step.RECEIVED, changes=5, segments=1, receive=Period(100.0, 101.0))
    traces(Step.RETRYING, error="cannot connect to postgresql://pump:hunter2@db/shop")
    *_, span = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert "hunter2" not in str(span.status.description)
    assert "cannot connect" in str(span.status.description)


def test_steps_are_counted() -> None:
    reader = InMemoryMetricReader()
    metrics = StepMetrics(MeterProvider([reader]).get_meter("test"))
    publish_batch(metrics)
    publish_batch(metrics, changes=2)
    metrics(Step.RECEIVED, changes=100, segments=1, receive=Period(1.0, 2.0))
    metrics(Step.RETRYING, error="x", remedy="y", pause=1)
    # A publish without a batch.
    metrics(Step.PUBLISHED, frontier=8, snapshots=0)
    metrics(Step.CHUNK_COPIED, table="t", chunk=1, rows=40)
    metrics(Step.MERGED, table="t", bytes=900)
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        (metric.name, *map(str, point.attributes.values())): getattr(point, "value", None) or getattr(point, "count", 0)
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
        if point.attributes is not None
    }
    expected: dict[tuple[str, ...], int] = {
        ("mirror_pump.publishes",): 3,
        ("mirror_pump.commits",): 6,
        ("mirror_pump.files",): 18,
        ("mirror_pump.changes",): 7,
        ("mirror_pump.retries",): 1,
        ("mirror_pump.problems", "retrying"): 1,
        ("mirror_pump.copy.rows",): 40,
        ("mirror_pump.merged",): 900,
        ("mirror_pump.publish.duration",): 3,
        ("mirror_pump.batch.duration",): 2,
        **{("mirror_pump.batch.phase.duration", phase): 2 for phase in ("receive", "decode", "write", "publish")},
    }
    assert found == expected


def test_an_error_of_what_only_watches_goes_no_further() -> None:
    def broken(step: Step, /, **_: object) -> None:
        raise RuntimeError(step.value)

    before, state = Steps(), PumpState()
    all_of(before, broken, state)(Step.STREAMING, frontier=1)
    assert before.count(Step.STREAMING) == 1
    assert state.phase is PumpPhase.STREAMING
    with pytest.raises(RuntimeError):
        all_of(broken, state)(Step.STREAMING, frontier=1)


def test_the_phase_follows_the_steps() -> None:
    state = PumpState()
    seen = []
    for step in (
        Step.RETRYING,
        Step.STANDBY,
        Step.RETRYING,
        Step.LEADING,
        Step.STREAMING,
        Step.RETRYING,
        Step.STREAMING,
        Step.LEAD_LOST,
    ):
        state(step)
        seen.append((state.phase, state.phase.role))
    assert seen == [
        (PumpPhase.STARTING, "starting"),
        (PumpPhase.STANDBY, "standby"),
        (PumpPhase.STANDBY, "standby"),
        (PumpPhase.LEADING, "leader"),
        (PumpPhase.STREAMING, "leader"),
        (PumpPhase.RETRYING, "leader"),
        (PumpPhase.STREAMING, "leader"),
        (PumpPhase.STANDBY, "standby"),
    ]
