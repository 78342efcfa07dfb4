"""Texts that name a catalog: the one grammar of `lake ... --catalog` and `serve --catalog-uri`.

    path:DIR   path:s3://BUCKET/PREFIX      tables in a directory or a bucket. Also without `path:`, if it has a slash
    sqlite:FILE   sqlite:///FILE            tables in a SQLite file; with three slashes or more its path is absolute
    postgres                                tables in the mirror's database
    postgresql://USER@HOST/DATABASE         tables in another one, in the catalog of its mirror without a name
    memory:DIR                              tables that one process knows, with their files in a directory

`?name=NAME&warehouse=DIR` may follow all but `path` and `memory`: the catalog's name, where one place has several, and
where the files of new tables are. In the values `%20` and the like are decoded; in paths nothing is, but in a SQLite
file's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote

from mirror_pump.errors import UsageError
from mirror_pump.lake.commit.catalog import CATALOG
from mirror_pump.lake.storage import local_path, storage_of
from mirror_pump.runtime.telemetry import redact
from mirror_pump.settings.config import Settings, warehouse_uri
from mirror_pump.tables.catalogs.lake_catalog import StoredCatalog
from mirror_pump.tables.catalogs.memory_catalog import MemoryCatalog
from mirror_pump.tables.catalogs.postgres_catalog import PostgresCatalog
from mirror_pump.tables.catalogs.sqlite_catalog import SqliteCatalog
from mirror_pump.tables.catalogs.transaction_log import path_catalog

FORMS = (
    "path:DIR, path:s3://BUCKET/PREFIX, sqlite:FILE, postgres (the database of --dsn), postgresql://USER@HOST/DATABASE"
    " or memory:DIR"
)
_DSNS = ("postgresql", "postgres")
"""Schemes of libpq's URIs."""


class CatalogKind(StrEnum):
    """How a catalog keeps its pointers."""

    PATH = "path"
    SQLITE = "sqlite"
    POSTGRES = "postgres"
    MEMORY = "memory"


class BadCatalogUri(UsageError):
    """A text names no catalog, or one that is not there."""


@dataclass(frozen=True)
class CatalogUri:
    """What a text says about a catalog."""

    kind: CatalogKind
    place: str
    """URI of the tables' directory, path of the SQLite file, or DSN; empty for the mirror's database."""
    name: str = CATALOG
    """The catalog's name in a database of several."""
    warehouse: str | None = None
    """URI of the directory of new tables, if it was given."""

    @classmethod
    def parse(cls, text: str) -> CatalogUri:
        """Raises BadCatalogUri. Nothing is looked for yet."""
        scheme, colon, rest = text.partition(":")
        if text == CatalogKind.POSTGRES:
            return cls(CatalogKind.POSTGRES, "")
        if colon and scheme in _DSNS and rest.startswith("//"):
            return _of_dsn(text)
        match scheme if colon else "":
            case "path" | "memory":
                if "?" in rest:
                    raise _bad(text, f"{scheme}: has no options")
                return cls(CatalogKind(scheme), _directory(rest, text))
            case "sqlite":
                return _of_file(rest, text)
            case "postgres":
                return _with_options(cls(CatalogKind.POSTGRES, ""), rest.removeprefix("?"), text)
        # What is none of these would otherwise become a directory of that name.
        if "/" not in text or "?" in text or (colon and "/" not in scheme and not rest.startswith("//")):
            raise _bad(text)
        return cls(CatalogKind.PATH, _directory(text, text))

    def open(
        self, settings: Settings, stored: Callable[[Settings], Settings], *, create: bool, transactions: bool = False
    ) -> StoredCatalog:
        """The catalog, to be closed by the caller. The settings say how storage and the mirror's database are reached;
        `stored` completes them with the warehouse and the storage options that the database of their DSN has.

        `create`: a directory or file that is not there is not missing, if the directory above it is. `transactions`: a
        path catalog becomes one with a log, if it has no tables yet. Raises UsageError for what is not there, and the
        errors of the database and of the storage.
        """
        match self.kind:
            case CatalogKind.PATH:
                self._require_place(local_path(self.place), create=create)
                return path_catalog(self.place, storage_of(settings, self.place), transactions=transactions)
            case CatalogKind.MEMORY:
                self._require_place(local_path(self.place), create=create)
                return MemoryCatalog(self.place, storage_of(settings, self.place))
            case CatalogKind.SQLITE:
                file = Path(self.place)
                self._require_place(file, create=create)
                warehouse = self.warehouse or warehouse_uri(str(file.parent))
                return SqliteCatalog(file, warehouse, storage_of(settings, warehouse), name=self.name)
            case CatalogKind.POSTGRES:
                if self.place:
                    # A mirror that the settings name is one of their own database.
                    update = {"dsn": self.place, "password_command": None, "mirror": None}
                    settings = settings.model_copy(update=update)
                dsn = settings.require_dsn()
                settings = stored(settings)
                warehouse = self.warehouse or settings.require_warehouse()
                return PostgresCatalog(
                    dsn, warehouse, storage_of(settings, settings.warehouse or warehouse), name=self.name
                )

    def _require_place(self, path: Path | None, *, create: bool) -> None:
        """Raises BadCatalogUri if a local file or directory is missing, or is the other of the two."""
        if path is None:
            return
        is_file = self.kind is CatalogKind.SQLITE
        if path.exists():
            if path.is_file() != is_file:
                raise BadCatalogUri(f"{path} is no {'file' if is_file else 'directory'}", f"give {FORMS}")
        elif create and not path.parent.is_dir():
            raise BadCatalogUri(f"there is no directory {path.parent}", "make it, or name another one")
        elif not create:
            raise BadCatalogUri(
                f"there is no {'file' if is_file else 'directory'} {path}",
                "name the one of a catalog; `mirror-pump lake init TABLE --catalog URI` makes one with its first table",
            )


def _of_file(rest: str, text: str) -> CatalogUri:
    """`sqlite:///FILE`, as SQLAlchemy has it but that both ///FILE and ////FILE are absolute; `sqlite:FILE` is relative
    to the working directory."""
    path, _, options = rest.partition("?")
    if not path.strip("/") or (path.startswith("//") and not path.startswith("///")):
        raise _bad(text)
    path = unquote("/" + path.lstrip("/") if path.startswith("//") else path)
    file = Path(path).expanduser().absolute()
    return _with_options(CatalogUri(CatalogKind.SQLITE, str(file)), options, text)


def _of_dsn(text: str) -> CatalogUri:
    """Takes our options out of the DSN's own."""
    base, _, query = text.partition("?")
    parts = [part for part in query.split("&") if part]
    ours = [part for part in parts if part.partition("=")[0] in ("name", "warehouse")]
    theirs = [part for part in parts if part not in ours]
    dsn = f"{base}?{'&'.join(theirs)}" if theirs else base
    return _with_options(CatalogUri(CatalogKind.POSTGRES, dsn), "&".join(ours), text)


def _with_options(uri: CatalogUri, query: str, text: str) -> CatalogUri:
    options: dict[str, str] = {}
    for part in query.split("&") if query else ():
        key, _, value = part.partition("=")
        if key not in ("name", "warehouse") or not value or key in options:
            raise _bad(text, "its options are name=NAME and warehouse=DIR, each once")
        # Not as in a form, where + is a space.
        options[key] = unquote(value)
    warehouse = options.get("warehouse")
    return replace(
        uri,
        name=options.get("name", CATALOG),
        warehouse=None if warehouse is None else _directory(warehouse, text),
    )


def _directory(place: str, text: str) -> str:
    try:
        return warehouse_uri(place)
    except ValueError as error:
        raise _bad(text, str(error)) from None


def _bad(text: str, reason: str = "") -> BadCatalogUri:
    return BadCatalogUri(f"{redact(text)!r} is no catalog{reason and f': {reason}'}", f"give {FORMS}")
