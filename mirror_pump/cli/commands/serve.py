"""`mirror-pump serve`: the mirror as an Iceberg REST catalog, without a pump in the process."""

from __future__ import annotations

import threading

import typer

from mirror_pump.cli.arguments.options import CATALOG, SLOT, STORAGE, command
from mirror_pump.cli.terminal.output import remark
from mirror_pump.cli.terminal.stop_signals import StoppedBySignal, StopSignals
from mirror_pump.config import Settings, host_and_port
from mirror_pump.errors import UsageError

_ADDRESS = "127.0.0.1:8181"


def add(app: typer.Typer) -> None:
    @command(app, "serve", (*SLOT, *STORAGE, "listen", *CATALOG))
    def serve(settings: Settings) -> int:
        """Serve the mirror as an Iceberg REST catalog, read-only, until Ctrl-C or SIGTERM.

        Engines attach it by its URI, which is printed, and a warehouse: `mirror` shows the newest state of each table,
        `mirror@latest` all tables at the frontier of the moment in which they attach. It listens at 127.0.0.1:8181
        unless `--listen` says otherwise. A pump serves the same with `run --listen ... --catalog true`.
        """
        signals = StopSignals()
        stopped = threading.Event()
        try:
            with signals.handled():
                signals.serve(lambda: True, stopped.set, "")
                _serve(settings, stopped)
        except StoppedBySignal:
            remark(f"mirror-pump: {signals.name}: stopped before it served anything")
        return signals.exit_code


def _serve(settings: Settings, stopped: threading.Event) -> None:
    try:
        from mirror_pump.monitoring.access import Access
        from mirror_pump.monitoring.http_server import HttpServer, application
        from mirror_pump.rest_catalog.endpoints import CATALOG_PATH
        from mirror_pump.rest_catalog.service import CatalogService
    except ModuleNotFoundError as error:
        raise UsageError(
            f"serve needs a package that is not installed: {error.name}", "pip install 'mirror-pump[telemetry]'"
        ) from None
    from mirror_pump.ops.setup.stored_settings import complete

    settings = complete(settings)
    host, port = host_and_port(settings.listen or _ADDRESS)
    token = settings.listen_token
    access = Access.at(host, None if token is None else token.get_secret_value())
    with CatalogService(settings) as service:
        service.begin(settings)
        server = HttpServer(host, port, application(service.endpoints.routes(), access))
        with server:
            remark(
                f"mirror-pump: Iceberg REST catalog at {server.url}{CATALOG_PATH} (warehouse mirror or mirror@latest)"
            )
            stopped.wait()
    remark("mirror-pump: stopped serving")
