"""Puts together what tells others how a pump is: as much of it as the settings and the environment ask for."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

from mirror_pump.monitoring.otel_setup import (
    Exports,
    exports_of,
    foreign_meter_provider,
    meter_provider,
    shut_down,
    tracer_provider,
)
from mirror_pump.runtime.telemetry import get_logger
from mirror_pump.settings.config import Settings

# A pump without monitoring loads none of this, and a wrong DSN is reported before it is loaded.
if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.metrics.export import MetricReader

    from mirror_pump.monitoring.pump_state import PumpState
    from mirror_pump.monitoring.sampler import StatusSource
    from mirror_pump.pipeline.flow.steps import Observer, Step

_NAME = "mirror_pump"
"""Name of the meter and of the tracer."""


class MonitoredPort(AbstractContextManager[object], Protocol):
    """A port that shows how the pump is (mirror_pump.http.pump_port). Listens from its creation on, and serves while it
    is entered."""

    @property
    def reader(self) -> MetricReader:
        """What /metrics shows is read by it."""

    def begin(self, settings: Settings) -> None:
        """Serve what needs complete settings."""


OpenPort: TypeAlias = "Callable[[Settings, str, PumpState, StatusSource], MonitoredPort]"
"""Opens the port at the address that the settings name. It is only called if they name one."""


class Monitor:
    """Enter it before the pump, `watch` once the settings are complete, and give the pump its `observer`.

    Without --listen and without an OTEL_* variable it does nothing.
    """

    def __init__(self, settings: Settings, open_port: OpenPort) -> None:
        """Raises UsageError for tokens that are missing or too many, MirrorPumpError if the address is taken."""
        self._services: _MonitoringServices | None = None
        exports, foreign = exports_of(os.environ), foreign_meter_provider()
        if not exports and not foreign and settings.listen is None:
            return
        self._services = _MonitoringServices(settings, exports, open_port, foreign=foreign)

    def __enter__(self) -> Self:
        if self._services is not None:
            self._services.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._services is not None:
            self._services.close()

    def watch(self, settings: Settings) -> None:
        """Start reading the mirror's status. `settings` are complete."""
        if self._services is not None:
            self._services.watch(settings)

    def observer(self, first: Observer) -> Observer:
        """`first`, together with what has to know of the pump's steps."""
        return first if self._services is None else all_of(first, *self._services.observers)


def all_of(first: Observer, *others: Observer) -> Observer:
    """An observer that passes each step on to all of them, in this order. An error of one of `others` is logged and
    goes no further: what only watches the pump must not end its session."""
    log = get_logger("telemetry")

    def observe_all(step: Step, /, **details: object) -> None:
        first(step, **details)
        for observer in others:
            try:
                observer(step, **details)
            except Exception:
                log.warning("a step was not counted", step=step.value, exc_info=True)

    return observe_all


class _MonitoringServices:
    """Exporters, the HTTP port and the sampler, as far as the settings and the environment ask for them."""

    def __init__(self, settings: Settings, exports: Exports, open_port: OpenPort, *, foreign: bool) -> None:
        from mirror_pump.monitoring.pump_state import PumpState
        from mirror_pump.monitoring.sampler import StatusSource

        self._state: PumpState = PumpState()
        self._source: StatusSource = StatusSource()
        self.observers: list[Observer] = [self._state]
        self._closing = ExitStack()
        self._port: MonitoredPort | None = None
        self._shutdowns: list[Callable[[], object]] = []
        if settings.listen is not None:
            self._port = open_port(settings, settings.listen, self._state, self._source)
            self._closing.push(self._port)
        self._closing.callback(shut_down, self._shutdowns)
        if foreign:
            from opentelemetry.metrics import get_meter

            # The program that set that SDK up has it export what it is to export.
            self._measure(get_meter(_NAME))
            exports = Exports(None, None)
        if exports.traces is not None:
            from mirror_pump.monitoring.batches import BatchTraces

            tracers = tracer_provider(exports.traces)
            self._shutdowns.append(tracers.shutdown)
            self.observers.append(BatchTraces(tracers.get_tracer(_NAME)))
        readers = [] if self._port is None else [self._port.reader]
        if exports.metrics is not None or readers:
            meters = meter_provider(exports.metrics, readers)
            self._shutdowns.append(meters.shutdown)
            self._measure(meters.get_meter(_NAME))

    def start(self) -> None:
        if self._port is not None:
            self._port.__enter__()

    def close(self) -> None:
        """End in reverse order: the last export takes what the sampler read last."""
        self._closing.close()

    def watch(self, settings: Settings) -> None:
        from mirror_pump.monitoring.sampler import StatusSampler

        if self._port is not None:
            self._port.begin(settings)
        self._source.sampler = self._closing.enter_context(StatusSampler(settings, lambda: self._state.changes))

    def _measure(self, meter: Meter) -> None:
        from mirror_pump.monitoring.gauges import observe
        from mirror_pump.monitoring.step_metrics import StepMetrics

        self.observers.append(StepMetrics(meter))
        observe(meter, self._state, self._source)
