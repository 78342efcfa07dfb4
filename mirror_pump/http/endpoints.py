"""What the HTTP port answers about the pump: /metrics, /healthz, /readyz, /status.json, /history.json and the page."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Sequence
from typing import Any

import orjson
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mirror_pump.monitoring.pump_state import PumpPhase, PumpState
from mirror_pump.monitoring.sampler import STALE_AFTER, StatusReading, StatusSource
from mirror_pump.ops.status.status_report import MirrorStatus

_NOT_STREAMING = {
    PumpPhase.STARTING: "starting: it does not lead yet",
    PumpPhase.STANDBY: "standby: another pump leads",
    PumpPhase.LEADING: "starting: it leads, and begins",
    PumpPhase.RETRYING: "retrying after an error: see the log",
}


class Endpoints:
    """The answers of one pump's port. All but `status` return at once."""

    def __init__(self, state: PumpState, source: StatusSource, registry: CollectorRegistry, max_lag: float) -> None:
        """`max_lag`: seconds beyond which the pump is not ready."""
        self._state = state
        self._source = source
        self._registry = registry
        self._max_lag = max_lag
        self._page = StatusPage()
        self._document: tuple[MirrorStatus, bytes] | None = None

    def routes(self) -> Sequence[BaseRoute]:
        """The part of the application that this is."""
        return (
            Route("/", self.page),
            Route("/healthz", self.health),
            Route("/history.json", self.history),
            Route("/metrics", self.metrics),
            Route("/readyz", self.readiness),
            Route("/status.json", self.status),
        )

    async def metrics(self, request: Request) -> Response:
        """Prometheus's text format, or OpenMetrics if that is asked for."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"Content-Type": content_type})

    async def health(self, _: Request) -> Response:
        """200 as long as the process lives."""
        return _json({"status": "ok", "role": self._state.phase.role})

    async def readiness(self, _: Request) -> Response:
        """200 while the pump streams and the lag is small enough, else 503 with the reason."""
        reading = self._source.reading
        reason = not_ready(self._state.phase, reading, self._max_lag)
        answer = {"ready": reason is None, "reason": reason, "lag_seconds": reading.lag_seconds}
        return _json(answer, 200 if reason is None else 503)

    def status(self, _: Request) -> Response:
        """The document of `mirror-pump status --json`. Runs in a thread of the framework, since it waits for a
        reading."""
        reading = self._source.fresh()
        if reading.full is None or (reading.problem is not None and reading.age >= STALE_AFTER):
            problem = reading.problem or "the mirror's status has not been read yet"
            return _json({"error": problem}, 503)
        document = self._document
        if document is None or document[0] is not reading.full:
            text = orjson.dumps(reading.full.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
            self._document = document = reading.full, text
        return Response(document[1], media_type="application/json")

    async def history(self, _: Request) -> Response:
        """The last hour, and what this process does."""
        reading = self._source.reading
        pump = {"phase": self._state.phase.value, "since": self._state.since, "lag_seconds": reading.lag_seconds}
        age = None if reading.status is None else reading.age
        return _json({"pump": pump, "problem": reading.problem, "age_seconds": age, **reading.history})

    async def page(self, _: Request) -> Response:
        """The status page."""
        return self._page.response()


def not_ready(phase: PumpPhase, reading: StatusReading, max_lag: float) -> str | None:
    """Why the pump does not stream, or is too far behind; None if all is well."""
    if phase is not PumpPhase.STREAMING:
        return _NOT_STREAMING[phase]
    lag = reading.lag_seconds
    if reading.status is None:
        return "the mirror's status has not been read yet"
    if lag is not None and lag > max_lag:
        return f"the lake is up to {lag:.0f} s behind, more than the {max_lag:g} s of ready_max_lag"
    return None


def _json(document: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE), status, media_type="application/json")


_DIRECTORY = importlib.resources.files("mirror_pump.http") / "page"


class StatusPage:
    """The status page, put together once: one HTML document with its style and its program, and a policy that allows
    nothing else. It holds no value of the mirror: its program fetches them."""

    def __init__(self) -> None:
        style, script = (_text(name) for name in ("status.css", "status.js"))
        self._html = _text("status.html").replace("/*style*/", style).replace("/*script*/", script)
        self._policy = "; ".join(
            (
                "default-src 'none'",
                f"style-src {_source(style)}",
                f"script-src {_source(script)}",
                "connect-src 'self'",
                "img-src data:",
                "frame-ancestors 'none'",
                "base-uri 'none'",
                "form-action 'none'",
                "require-trusted-types-for 'script'",
                "trusted-types 'none'",
            )
        )

    def response(self) -> Response:
        """The page with its policy."""
        return Response(self._html, media_type="text/html", headers={"Content-Security-Policy": self._policy})


def _text(name: str) -> str:
    return (_DIRECTORY / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """The policy's name for an inline element with exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
