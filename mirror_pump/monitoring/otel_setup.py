"""Sets OpenTelemetry's SDK up from the standard OTEL_* variables, and shuts it down.

The SDK's own classes read most of the variables: endpoints, headers, certificates, intervals, limits, the sampler. Here
is only what its automatic configuration would do, which has no public interface: whether a signal is exported, by which
protocol, and as which service.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirror_pump.runtime.telemetry import get_logger, redact

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
_REPEAT = 3600.0
"""Seconds after which a warning of an exporter is logged again."""
_SHUTDOWN = 3.0
"""Seconds that the last export may take: a collector that is down must not hold up the pump's end."""


@dataclass(frozen=True)
class Exports:
    """What the environment asks for: the exporter of each signal. None: the signal is not exported."""

    metrics: str | None
    traces: str | None

    def __bool__(self) -> bool:
        return self.metrics is not None or self.traces is not None


def exports_of(environment: Mapping[str, str]) -> Exports:
    """What is to be exported. Nothing without one of the variables, so that a pump without configuration does not look
    for a collector on its own machine."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return Exports(None, None)
    return Exports(_exporter("METRICS", environment), _exporter("TRACES", environment))


def _exporter(signal: str, environment: Mapping[str, str]) -> str | None:
    chosen = environment.get(f"OTEL_{signal}_EXPORTER", "").strip().lower()
    if not chosen:
        endpoints = (_ENDPOINT, f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
        return "otlp" if any(environment.get(name, "").strip() for name in endpoints) else None
    if chosen in ("otlp", "console"):
        return chosen
    if chosen != "none":
        get_logger("telemetry").warning(
            f"OTEL_{signal}_EXPORTER={chosen} is not supported: nothing is exported",
            remedy="use otlp, console or none; for Prometheus, scrape /metrics of `mirror-pump run --listen ADDRESS`",
        )
    return None


def _protocol(signal: str) -> str:
    chosen = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or os.environ.get(_PROTOCOL) or "http/protobuf"
    if chosen != "http/protobuf":
        get_logger("telemetry").warning(
            f"the OTLP protocol {chosen} is not supported: http/protobuf is used",
            remedy=f"set {_PROTOCOL}=http/protobuf, and an endpoint that takes it (port 4318 of most collectors)",
        )
    return "http/protobuf"


def _resource() -> Resource:
    """This process, as far as OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES do not say otherwise."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    ours: dict[str, str | int] = {
        "service.name": "mirror-pump",
        "service.version": importlib.metadata.version("mirror-pump"),
        "service.instance.id": str(uuid.uuid4()),
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
    }
    given = OTELResourceDetector().detect().attributes
    return Resource.create({name: value for name, value in ours.items() if name not in given})


def meter_provider(exporter: str | None, readers: Sequence[MetricReader]) -> MeterProvider:
    """A provider that exports to `exporter` (None: not) and serves `readers`."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    _log_problems()
    periodic = [] if exporter is None else [PeriodicExportingMetricReader(_metric_exporter(exporter))]
    return MeterProvider([*readers, *periodic], _resource(), shutdown_on_exit=False)


def _metric_exporter(exporter: str) -> MetricExporter:
    if exporter == "console":
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

        # stdout is for the results of commands.
        return ConsoleMetricExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    _protocol("METRICS")
    return OTLPMetricExporter()


def tracer_provider(exporter: str) -> TracerProvider:
    """A provider that exports to `exporter`."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    _log_problems()
    provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_span_exporter(exporter)))
    return provider


def _span_exporter(exporter: str) -> SpanExporter:
    if exporter == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    _protocol("TRACES")
    return OTLPSpanExporter()


def foreign_meter_provider() -> bool:
    """Whether another program, such as `opentelemetry-instrument`, has set an SDK up in this process."""
    module = sys.modules.get("opentelemetry.sdk.metrics")
    if module is None:
        return False
    from opentelemetry.metrics import get_meter_provider

    return isinstance(get_meter_provider(), module.MeterProvider)


class _ExportProblems(logging.Handler):
    """Turns the SDK's complaints, several for each attempt to reach a collector that is down, into one warning an
    hour for each exporter."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._log = get_logger("telemetry")
        self._logged_at: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now - self._logged_at.get(record.name, -_REPEAT) < _REPEAT:
            return
        self._logged_at[record.name] = now
        self._log.warning(
            "telemetry is not exported",
            exporter=record.name,
            error=redact(record.getMessage()),
            remedy=f"See that the collector runs and that {_ENDPOINT} names it. The mirror itself goes on.",
        )


def _log_problems() -> None:
    logger = logging.getLogger("opentelemetry")
    logger.propagate = False
    logger.handlers = [_ExportProblems()]


def shut_down(shutdowns: Sequence[Callable[[], object]], within: float = _SHUTDOWN) -> None:
    """Export what is left, for at most `within` seconds in all."""
    thread = threading.Thread(
        target=lambda: [shutdown() for shutdown in shutdowns], name="telemetry-shutdown", daemon=True
    )
    thread.start()
    thread.join(within)
