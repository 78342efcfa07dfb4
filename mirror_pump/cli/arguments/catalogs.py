"""Catalogs of tables on the command line. What names one: mirror_pump.tables.catalogs.catalog_uris."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirror_pump.lake.storage import StorageOptions, storage_of
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from mirror_pump.tables.catalogs.lake_catalog import StoredCatalog

_HELP = (
    "Catalog: path:DIR or an s3:// URI, sqlite:FILE, postgres (the database of --dsn) or postgresql://... ."
    " TABLE is a name then, such as sales.orders"
)

RequiredCatalog = Annotated[str, typer.Option("--catalog", metavar="URI", help=_HELP, show_default=False)]
OptionalCatalog = Annotated[str | None, typer.Option("--catalog", metavar="URI", help=_HELP, show_default=False)]


def open_catalog(uri: str, settings: Settings, *, create: bool = False, transactions: bool = False) -> StoredCatalog:
    """The catalog of a URI. `create` and `transactions` as in CatalogUri.open().

    Raises UsageError for what is no catalog of several processes, and the errors of the database.
    """
    from mirror_pump.ops.setup.stored_settings import with_stored_storage
    from mirror_pump.tables.catalogs.catalog_uris import BadCatalogUri, CatalogKind, CatalogUri

    parsed = CatalogUri.parse(uri)
    if parsed.kind is CatalogKind.MEMORY:
        raise BadCatalogUri(
            f"{uri} would end with this command",
            "give a catalog that lasts, such as path:DIR; memory: is for `mirror-pump serve --read-write`",
        )
    return parsed.open(settings, with_stored_storage, create=create, transactions=transactions)


def location_of(text: str) -> str:
    """A URI, or a path that may be relative to the working directory, as a location."""
    return text if ":/" in text else str(Path(text).absolute())


def metadata_of(table: str, catalog: str | None, settings: Settings) -> tuple[str, StorageOptions]:
    """URI of the newest metadata file, and how its table's files are reached: of a table by its name in a catalog, or
    of one by its location. Raises UsageError, and LakeError without the table."""
    from mirror_pump.tables.metadata.table_documents import metadata_location

    if catalog is None:
        storage = storage_of(settings, location_of(table))
        return metadata_location(location_of(table), storage), storage
    from mirror_pump.tables.table.table import Table

    opened = open_catalog(catalog, settings)
    return Table.open(opened, table).metadata_location, opened.storage
