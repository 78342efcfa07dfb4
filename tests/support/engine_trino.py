"""Trino as an engine of tests/support/engine_runs.py: tables are registered in a catalog of its own by their metadata
files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tests.support.engine_process import SqlDialect, cell
from tests.support.engine_tables import KnownTable
from tests.support.trino_package import VERSION
from tests.support.trino_server import TrinoFailed, TrinoServer, trino_server

_CATALOG = """
connector.name=iceberg
iceberg.catalog.type=TESTING_FILE_METASTORE
hive.metastore.catalog.dir={directory}
iceberg.register-table-procedure.enabled=true
fs.hadoop.enabled=true
"""


class _TrinoDialect(SqlDialect):
    document = "json_format(CAST({} AS JSON))"
    casts: ClassVar = {"timestamptz": "TIMESTAMP(6) WITH TIME ZONE", "timestamp": "TIMESTAMP(6)"}

    def literal(self, kind: str, value: Any) -> str:
        """It takes no T between date and time."""
        return super().literal(kind, str(value).replace("T", " ") if kind.startswith("timestamp") else value)


@dataclass
class TrinoEngine:
    """A running Trino."""

    server: TrinoServer
    name: str = f"Trino {VERSION}"
    _tables: dict[str, str] = field(default_factory=dict)
    """By metadata file."""

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            table = self._registered(request["location"])
            if request.get("snapshot_id"):
                table += f" FOR VERSION AS OF {request['snapshot_id']}"
            rows = self.server.rows(_TrinoDialect().select(table, request))
        except TrinoFailed as error:
            return {"error": str(error)}
        if request.get("only_count"):
            return {"count": rows[0][0]}
        return {"rows": [[cell(value) for value in row] for row in rows]}

    def _registered(self, location: str) -> str:
        if location not in self._tables:
            directory, _, file = location.partition("/metadata/")
            name = f"t{len(self._tables)}"
            self.server.rows(f"CALL lake.system.register_table('known', '{name}', '{directory}', '{file}')")
            self._tables[location] = f"lake.known.{name}"
        return self._tables[location]


@contextmanager
def started_trino(directory: Path, tables: Sequence[KnownTable]) -> Iterator[TrinoEngine]:
    """A Trino that may read the tables. Raises NoTrino."""
    place = directory / "trino"
    place.mkdir()
    with trino_server(place, {"lake": _CATALOG.format(directory=(place / "catalog").as_uri())}) as server:
        server.rows("CREATE SCHEMA lake.known")
        yield TrinoEngine(server)
