"""Catalogs of tables on the command line: a directory or bucket, a SQLite file, or the mirror's database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qs, unquote

import typer

from mirror_pump.config import Settings, warehouse_uri
from mirror_pump.errors import UsageError

if TYPE_CHECKING:
    from mirror_pump.lake.catalogs.lake_catalog import LakeCatalog
    from mirror_pump.lake.storage import StorageOptions

_HELP = (
    "Catalog: a directory or s3:// URI (path:DIR), sqlite:///FILE?warehouse=DIR, or postgres, the database of --dsn. "
    "TABLE is a name then, such as sales.orders"
)
_REMEDY = "give path:DIR, path:s3://BUCKET/PREFIX, sqlite:///FILE?warehouse=DIR, or postgres"

CatalogOption = Annotated[str, typer.Option("--catalog", metavar="URI", help=_HELP, show_default=False)]
OptionalCatalogOption = Annotated[str | None, typer.Option("--catalog", metavar="URI", help=_HELP, show_default=False)]


def open_catalog(uri: str, settings: Settings, *, transactions: bool = False) -> LakeCatalog:
    """The catalog of a URI. `transactions`: a path catalog becomes one with a log if it has no tables yet.

    Raises UsageError for what is no catalog, and the errors of the database.
    """
    kind, _, rest = uri.partition(":")
    if uri in ("postgres", "postgres:"):
        return _postgres(settings)
    if kind == "sqlite":
        return _sqlite(rest, settings)
    from mirror_pump.lake.catalogs.transaction_log import path_catalog

    root = _location(rest if kind == "path" else uri)
    return path_catalog(root, storage_of(settings), transactions=transactions)


def storage_of(settings: Settings) -> StorageOptions:
    """How the settings reach the tables' files."""
    from mirror_pump.lake.storage import StorageOptions

    return StorageOptions(settings.storage_properties, fsync=settings.storage_fsync)


def _postgres(settings: Settings) -> LakeCatalog:
    from mirror_pump.lake.catalogs.postgres_catalog import PostgresCatalog
    from mirror_pump.ops.setup.stored_settings import complete

    settings = complete(settings)
    assert settings.warehouse is not None
    return PostgresCatalog(settings.require_dsn(), settings.warehouse, storage_of(settings))


def _sqlite(rest: str, settings: Settings) -> LakeCatalog:
    """`sqlite:///FILE`, as SQLAlchemy has it but that both ///FILE and ////FILE are absolute; `sqlite:FILE` is relative
    to the working directory."""
    from mirror_pump.lake.catalogs.sqlite_catalog import SqliteCatalog

    path, _, query = rest.partition("?")
    options = parse_qs(query, strict_parsing=False)
    if set(options) - {"warehouse", "name"} or (path.startswith("//") and not path.startswith("///")):
        raise UsageError(f"sqlite:{rest} is no catalog", _REMEDY)
    file = Path(unquote("/" + path.lstrip("/") if path.startswith("//") else path)).expanduser().absolute()
    if not path.strip("/") or not file.parent.is_dir():
        raise UsageError(f"sqlite:{rest}: there is no directory {file.parent}", "make it, or name a file elsewhere")
    warehouse = _location(options.get("warehouse", [str(file.parent)])[-1])
    return SqliteCatalog(file, warehouse, storage_of(settings), name=options.get("name", ["lake"])[-1])


def _location(text: str) -> str:
    try:
        return warehouse_uri(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is no catalog: {error}", _REMEDY) from None


def metadata_of(table: str, catalog: str | None, settings: Settings) -> str:
    """URI of the newest metadata file: of a table by its name in a catalog, or of one by its location. Raises
    UsageError, and LakeError without the table."""
    from mirror_pump.lake.metadata.table_documents import metadata_location

    if catalog is None:
        return metadata_location(table, storage_of(settings))
    from mirror_pump.lake.table.table import Table

    return Table.open(open_catalog(catalog, settings), table).metadata_location
