"""The lake catalogs that `serve --catalog-uri` names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from mirror_pump.config import Settings, warehouse_uri
from mirror_pump.errors import UsageError
from mirror_pump.lake.catalogs.lake_catalog import LakeCatalog
from mirror_pump.lake.catalogs.postgres_catalog import PostgresCatalog
from mirror_pump.lake.catalogs.sqlite_catalog import SqliteCatalog
from mirror_pump.lake.catalogs.transaction_log import path_catalog
from mirror_pump.lake.commit.catalog import CATALOG
from mirror_pump.lake.storage import StorageOptions, local_path

_DEFAULT_NAME = "lake"
_URI = re.compile(r"(?:(?P<name>[A-Za-z0-9_-]+)=)?(?P<kind>[a-z]+):(?P<place>[^?]*)(?:\?(?P<query>.*))?", re.DOTALL)
_FORMS = "path:DIRECTORY, sqlite:FILE or postgres:, with NAME= before it for another warehouse than `lake`"


@dataclass(frozen=True)
class OpenedCatalog:
    """A catalog to be served."""

    warehouse: str
    """The name by which clients attach it."""
    catalog: LakeCatalog
    close: Callable[[], None]


@dataclass(frozen=True)
class CatalogUri:
    """`[NAME=]KIND:PLACE[?name=...&warehouse=...]`."""

    warehouse: str
    """The name by which clients attach it."""
    kind: str
    place: str
    """URI or path; empty for `postgres`."""
    name: str
    """The catalog's name in a database of several."""
    root: str | None
    """URI or path of the directory of new tables, where the kind does not say it."""

    @classmethod
    def parse(cls, text: str) -> CatalogUri:
        """Raises UsageError."""
        found = _URI.fullmatch(text)
        query = dict(parse_qsl(found["query"] or "", keep_blank_values=True)) if found else {}
        if (
            found is None
            or found["kind"] not in ("path", "sqlite", "postgres")
            or bool(found["place"]) == (found["kind"] == "postgres")
            or query.keys() - (set() if found["kind"] == "path" else {"name", "warehouse"})
        ):
            raise UsageError(f"{text!r} is no catalog", f"give {_FORMS}")
        name = found["name"] or _DEFAULT_NAME
        if name == "mirror":
            raise UsageError("the warehouse `mirror` is the mirror's", "give the catalog another name")
        place = unquote(found["place"])
        return cls(name, found["kind"], place, query.get("name", _DEFAULT_NAME), query.get("warehouse"))

    def open(self, settings: Settings, *, read_write: bool) -> OpenedCatalog:
        """Raises UsageError for what is not there, LakeError."""
        storage = StorageOptions(settings.storage_properties, fsync=settings.storage_fsync)
        match self.kind:
            case "sqlite":
                file = Path(self.place).absolute()
                if not file.is_file() and not (read_write and file.parent.is_dir()):
                    raise UsageError(f"there is no file {file}", "name the SQLite file of a catalog")
                sqlite = SqliteCatalog(file, _uri(self.root or str(file.parent)), storage, name=self.name)
                return OpenedCatalog(self.warehouse, sqlite, sqlite.close)
            case "postgres":
                if read_write and self.name == CATALOG:
                    raise UsageError(
                        "the mirror's own catalog is not served for writing, since its tables are the pump's",
                        "give another one's name: postgres:?name=NAME",
                    )
                root = _uri(self.root or settings.require_warehouse())
                postgres = PostgresCatalog(settings.require_dsn(), root, storage, name=self.name)
                return OpenedCatalog(self.warehouse, postgres, postgres.close)
            case _:
                root = _uri(self.place)
                directory = local_path(root)
                if directory is not None and not Path(directory).is_dir():
                    raise UsageError(f"there is no directory {directory}", "make it, or name another one")
                return OpenedCatalog(self.warehouse, path_catalog(root, storage), lambda: None)


def _uri(place: str) -> str:
    try:
        return warehouse_uri(place)
    except ValueError as error:
        raise UsageError(f"{place!r} is no catalog: {error}", f"give {_FORMS}") from None
