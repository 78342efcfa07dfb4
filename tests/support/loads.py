"""Labelled loads into a table with heap retention that has no pump."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg.conninfo import make_conninfo

from mirror_pump.ops.load.load_job import LoadRequest, LoadResult, load
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.source.loads.load_writes import LoadMode
from mirror_pump.testing.database import Database
from tests.support.retention_sql import SqlTable


class LoadedTable(SqlTable):
    """public.ev: ev0 [0, 100) has been dropped below the cut-line 200, ev1 [100, 200) is below it and still there, ev2
    [200, 300) is above. The heap has (2, 150) and (3, 250); modak.delta is empty."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.pass_by("ev0", 100)
        assert self.drop("ev0") is None
        self.pass_by("ev1", 200)

    def load(
        self,
        label: str,
        text: str,
        mode: str = "upsert",
        *,
        columns: tuple[str, ...] | None = None,
        max_filtered: int = 0,
        form: FileFormat = FileFormat.CSV,
        dsn: str | None = None,
        name: str = "ev",
        **options: Any,
    ) -> LoadResult:
        """Loads a text."""
        request = LoadRequest(name, label, form, LoadMode(mode), columns, max_filtered)
        return load(dsn or self.database.dsn, request, io.BytesIO(text.encode()), **options)

    def heap(self) -> list[tuple[Any, ...]]:
        """id, at, v and n of all rows."""
        return self.database.rows("SELECT id, at, v, n FROM ev ORDER BY at, id")

    def labels(self) -> dict[str, str]:
        """States by label."""
        return dict(self.database.rows("SELECT label, state FROM modak.load_labels ORDER BY label"))


@dataclass(frozen=True)
class Loader:
    """A role that may log in and use schema modak, and nothing else that it was not granted."""

    database: Database
    name: str
    dsn: str

    def grant(self, rights: str, table: str) -> None:
        """Grants rights on a table."""
        with self.database.session() as connection:
            connection.execute(f"GRANT {rights} ON {table} TO {self.name}".encode())


@contextmanager
def new_loader(database: Database) -> Iterator[Loader]:
    """A role for the time of the block. Schema modak is there already."""
    name, password = f"loader_{os.urandom(4).hex()}", os.urandom(8).hex()
    with database.session() as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'".encode())
        connection.execute(f"GRANT USAGE ON SCHEMA modak TO {name}".encode())
    try:
        yield Loader(database, name, make_conninfo(database.dsn, user=name, password=password))
    finally:
        with database.session() as connection:
            connection.execute(f"DROP OWNED BY {name}".encode())
            connection.execute(f"DROP ROLE {name}".encode())
