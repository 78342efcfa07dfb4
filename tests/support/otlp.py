"""An OTLP/HTTP receiver on loopback, which parses what an exporter sends."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpReceiver:
    """The exports received so far. Thread-safe."""

    def __init__(self) -> None:
        self.url = ""
        self._lock = threading.Lock()
        self._metrics: list[ExportMetricsServiceRequest] = []
        self._traces: list[ExportTraceServiceRequest] = []

    def take(self, path: str, body: bytes) -> bytes | None:
        """Parses a request. Returns the response's body; None for a path that is not one of OTLP's."""
        with self._lock:
            if path == "/v1/metrics":
                self._metrics.append(ExportMetricsServiceRequest.FromString(body))
                return bytes(ExportMetricsServiceResponse().SerializeToString())
            if path == "/v1/traces":
                self._traces.append(ExportTraceServiceRequest.FromString(body))
                return bytes(ExportTraceServiceResponse().SerializeToString())
        return None

    def metric(self, name: str) -> Metric | None:
        """The metric as it was exported last."""
        with self._lock:
            found = [
                metric
                for request in self._metrics
                for resource in request.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
                if metric.name == name
            ]
        return found[-1] if found else None

    def spans(self) -> list[Span]:
        """All spans."""
        with self._lock:
            return [
                span
                for request in self._traces
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]

    def resource(self) -> dict[str, Any]:
        """The attributes of the resource that exported metrics last."""
        with self._lock:
            attributes = self._metrics[-1].resource_metrics[0].resource.attributes
        return {each.key: each.value.string_value or each.value.int_value for each in attributes}


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """A receiver on a port of its own."""
    receiver = OtlpReceiver()

    class OtlpHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            answer = receiver.take(self.path, body)
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer or b"")))
            self.end_headers()
            self.wfile.write(answer or b"")

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
            """Discards the message: stderr belongs to the test."""

    with ThreadingHTTPServer(("127.0.0.1", 0), OtlpHandler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        yield receiver
        server.shutdown()
        thread.join()
