"""The HTTP port of a pump, and what is mounted at it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CollectorRegistry, ProcessCollector
from starlette.routing import BaseRoute

from mirror_pump.http.access import Access
from mirror_pump.http.endpoints import Endpoints
from mirror_pump.http.server import HttpServer, application
from mirror_pump.monitoring.pump_state import PumpState
from mirror_pump.monitoring.sampler import StatusSource
from mirror_pump.ops.clients.access_file import AccessRules
from mirror_pump.settings.config import Settings, host_and_port

if TYPE_CHECKING:
    from mirror_pump.rest_catalog.service import CatalogService


class PumpPort:
    """Probes, metrics and the status page, and loads and the catalog if the settings ask for them.

    Listens from its creation on. Enter it to serve, leave it to stop.
    """

    def __init__(self, settings: Settings, address: str, state: PumpState, source: StatusSource) -> None:
        """Raises UsageError for tokens that are missing or too many, MirrorPumpError if the address is taken."""
        self._closing = ExitStack()
        self._catalog: CatalogService | None = None
        host, port = host_and_port(address)
        token, load_token = (
            None if secret is None else secret.get_secret_value()
            for secret in (settings.listen_token, settings.load_token)
        )
        access = Access.at(host, token, loads=settings.loads, load_token=load_token, access_file=settings.access_file)
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        endpoints = Endpoints(state, source, registry, settings.ready_max_lag)
        routes = (*endpoints.routes(), *_load_routes(settings), *self._catalog_routes(settings, access.rules))
        self._server = HttpServer(host, port, application(routes, access))
        self._closing.push(self._server)
        self.reader = PrometheusMetricReader(scope_info_enabled=False, registry=registry)
        """What /metrics shows is read by it."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._server.url

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def begin(self, settings: Settings) -> None:
        """Serve what needs complete settings."""
        if self._catalog is not None:
            self._catalog.begin(settings)

    def _catalog_routes(self, settings: Settings, rules: AccessRules | None) -> Sequence[BaseRoute]:
        if not settings.catalog:
            return ()
        from mirror_pump.rest_catalog.service import CatalogService

        self._catalog = self._closing.enter_context(CatalogService(settings, rules))
        return self._catalog.endpoints.routes()


def _load_routes(settings: Settings) -> Sequence[BaseRoute]:
    if not settings.loads:
        return ()
    from mirror_pump.ops.load.load_endpoint import LoadEndpoint

    return LoadEndpoint(settings).routes()
