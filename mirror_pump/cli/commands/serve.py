"""`mirror-pump serve`: the mirror as an Iceberg REST catalog, without a pump in the process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Annotated

import typer

from mirror_pump.cli.arguments.options import CATALOG, SLOT, SOURCE, STORAGE, command
from mirror_pump.cli.terminal.output import remark
from mirror_pump.cli.terminal.stop_signals import StoppedBySignal, StopSignals
from mirror_pump.settings.config import Settings, host_and_port

_ADDRESS = "127.0.0.1:8181"

CatalogUris = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog-uri",
        metavar="[NAME=]URI",
        help="Serve a catalog of other tables, too: path:DIR or an s3:// URI, sqlite:FILE, postgres:?name=CATALOG,"
        r" postgresql://... or memory:DIR. NAME is the warehouse \[lake]. Can be given several times",
        show_default=False,
    ),
]
ReadWrite = Annotated[bool, typer.Option("--read-write", help="Let clients write to the tables of these catalogs")]


def add(app: typer.Typer) -> None:
    @command(app, "serve", (*SOURCE, *SLOT, *STORAGE, "listen", *CATALOG), needs_dsn=False)
    def serve(settings: Settings, catalog_uri: CatalogUris = None, read_write: ReadWrite = False) -> int:
        """Serve the mirror, or other tables, as an Iceberg REST catalog until Ctrl-C or SIGTERM.

        Engines attach it by its URI, which is printed, and a warehouse: `mirror` shows the newest state of each table,
        `mirror@latest` all tables at the frontier of the moment in which they attach. It listens at 127.0.0.1:8181
        unless `--listen` says otherwise. A pump serves the same with `run --listen ... --catalog true`.

        `--catalog-uri` serves a catalog of tables that are not mirrored, as the warehouse `lake`; a database is then
        needed for the mirror only. The mirror is always read-only, and other tables are unless `--read-write` is given.
        """
        signals = StopSignals()
        stopped = threading.Event()
        try:
            with signals.handled():
                signals.serve(lambda: True, stopped.set, "")
                _serve(settings, catalog_uri or (), stopped, read_write=read_write)
        except StoppedBySignal:
            remark(f"mirror-pump: {signals.name}: stopped before it served anything")
        return signals.exit_code


def _serve(settings: Settings, catalog_uris: Sequence[str], stopped: threading.Event, *, read_write: bool) -> None:
    from mirror_pump.http.access import Access
    from mirror_pump.http.server import HttpServer, application
    from mirror_pump.ops.setup.stored_settings import complete, with_stored_storage
    from mirror_pump.rest_catalog.endpoints import CATALOG_PATH
    from mirror_pump.rest_catalog.service import CatalogService, NamedCatalog

    catalogs = list(map(NamedCatalog.parse, catalog_uris))
    if not catalogs or settings.dsn:
        settings.require_dsn()
        settings = complete(settings)
    host, port = host_and_port(settings.listen or _ADDRESS)
    token = settings.listen_token
    access = Access.at(host, None if token is None else token.get_secret_value(), access_file=settings.access_file)
    with CatalogService(settings, access.rules) as service:
        if settings.dsn:
            service.begin(settings)
        for catalog in catalogs:
            opened = catalog.open(settings, with_stored_storage, read_write=read_write)
            service.add(catalog.warehouse, opened, read_write=read_write)
        server = HttpServer(host, port, application(service.endpoints.routes(), access))
        with server:
            remark(
                f"mirror-pump: Iceberg REST catalog at {server.url}{CATALOG_PATH}"
                f" (warehouse {service.endpoints.warehouses()})"
            )
            stopped.wait()
    remark("mirror-pump: stopped serving")
