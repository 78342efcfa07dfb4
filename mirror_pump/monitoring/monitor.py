"""Puts together what tells others how a pump is: as much of it as the settings and the environment ask for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from mirror_pump.config import Settings, host_and_port
from mirror_pump.errors import UsageError
from mirror_pump.monitoring.otel_setup import (
    Exports,
    exports_of,
    foreign_meter_provider,
    meter_provider,
    shut_down,
    tracer_provider,
)
from mirror_pump.telemetry import get_logger

# A pump that nobody monitors loads none of this, and a wrong DSN is reported before it is loaded.
if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.metrics.export import MetricReader
    from starlette.routing import BaseRoute

    from mirror_pump.monitoring.http_server import HttpServer
    from mirror_pump.monitoring.pump_state import PumpState
    from mirror_pump.monitoring.sampler import StatusSource
    from mirror_pump.pipeline.flow.steps import Observer, Step
    from mirror_pump.rest_catalog.service import CatalogService

_NAME = "mirror_pump"
"""Name of the meter and of the tracer."""


class Monitor:
    """Enter it before the pump, `watch` once the settings are complete, and give the pump its `observer`.

    Without --listen and without an OTEL_* variable it does nothing.
    """

    def __init__(self, settings: Settings) -> None:
        """Raises UsageError if something is asked for that cannot be had, MirrorPumpError if the address is taken."""
        self._services: _MonitoringServices | None = None
        exports, foreign = exports_of(os.environ), foreign_meter_provider()
        if not exports and not foreign and settings.listen is None:
            return
        try:
            self._services = _MonitoringServices(settings, exports, foreign=foreign)
        except ModuleNotFoundError as error:
            raise UsageError(
                f"--listen and the OTEL_* variables need a package that is not installed: {error.name}",
                "pip install 'mirror-pump[telemetry]'",
            ) from None

    def __enter__(self) -> Self:
        if self._services is not None:
            self._services.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def __init__(self, settings: Settings, exports: Exports, *, foreign: bool) -> None:
        from mirror_pump.monitoring.pump_state import PumpState
        from mirror_pump.monitoring.sampler import StatusSource

        self._state: PumpState = PumpState()
        self._source: StatusSource = StatusSource()
        self.observers: list[Observer] = [self._state]
        self._closing = ExitStack()
        self._server: HttpServer | None = None
        self._catalog: CatalogService | None = None
        self._shutdowns: list[Callable[[], object]] = []
        readers = [] if settings.listen is None else [self._listen(settings, settings.listen)]
        self._closing.callback(shut_down, self._shutdowns)
        if foreign:
            from opentelemetry.metrics import get_meter

            # Whoever set that SDK up has it export what it is to export.
            self._measure(get_meter(_NAME))
            exports = Exports(None, None)
        if exports.traces is not None:
            from mirror_pump.monitoring.batch_traces import BatchTraces

            tracers = tracer_provider(exports.traces)
            self._shutdowns.append(tracers.shutdown)
            self.observers.append(BatchTraces(tracers.get_tracer(_NAME)))
        if exports.metrics is not None or readers:
            meters = meter_provider(exports.metrics, readers)
            self._shutdowns.append(meters.shutdown)
            self._measure(meters.get_meter(_NAME))

    def start(self) -> None:
        if self._server is not None:
            self._server.__enter__()

    def close(self) -> None:
        """End in reverse order: the last export takes what the sampler read last."""
        self._closing.close()

    def watch(self, settings: Settings) -> None:
        from mirror_pump.monitoring.sampler import StatusSampler

        if self._catalog is not None:
            self._catalog.begin(settings)
        self._source.sampler = self._closing.enter_context(StatusSampler(settings, lambda: self._state.changes))

    def _measure(self, meter: Meter) -> None:
        from mirror_pump.monitoring.gauges import observe
        from mirror_pump.monitoring.step_metrics import StepMetrics

        self.observers.append(StepMetrics(meter))
        observe(meter, self._state, self._source)

    def _listen(self, settings: Settings, address: str) -> MetricReader:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import CollectorRegistry, ProcessCollector

        from mirror_pump.monitoring.access import Access
        from mirror_pump.monitoring.endpoints import Endpoints
        from mirror_pump.monitoring.http_server import HttpServer, application

        host, port = host_and_port(address)
        token, load_token = (
            None if secret is None else secret.get_secret_value()
            for secret in (settings.listen_token, settings.load_token)
        )
        access = Access.at(host, token, loads=settings.loads, load_token=load_token)
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        endpoints = Endpoints(self._state, self._source, registry, settings.ready_max_lag)
        routes = (*endpoints.routes(), *_load_routes(settings), *self._catalog_routes(settings))
        self._server = HttpServer(host, port, application(routes, access))
        self._closing.push(self._server)
        return PrometheusMetricReader(scope_info_enabled=False, registry=registry)

    def _catalog_routes(self, settings: Settings) -> Sequence[BaseRoute]:
        if not settings.catalog:
            return ()
        from mirror_pump.rest_catalog.service import CatalogService

        self._catalog = self._closing.enter_context(CatalogService(settings))
        return self._catalog.endpoints.routes()


def _load_routes(settings: Settings) -> Sequence[BaseRoute]:
    if not settings.loads:
        return ()
    from mirror_pump.monitoring.load_endpoint import LoadEndpoint

    return LoadEndpoint(settings).routes()
