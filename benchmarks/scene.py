"""The server of the benchmarks, with fsync on, and in it a mirrored database for each benchmark."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg

from mirror_pump.database.catalog_cursor import CatalogCursor
from mirror_pump.model import Lsn
from mirror_pump.settings.config import Settings
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.program import Program

ROOT = Path(__file__).resolve().parents[1]

SERVER_SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "4GB", "checkpoint_timeout": "5min"}
"""Differences from a default installation, besides wal_level. fsync and synchronous_commit stay on."""

SHOWN_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "wal_level", "shared_buffers", "max_wal_size")


@dataclass(frozen=True)
class BenchmarkMirror:
    """A database after `init`, with a public.acct that is not registered yet."""

    server: EmbeddedPostgres
    program: Program
    dsn: str
    directory: Path
    name: str
    """The name of the database, the slot and the publication."""
    rows: int
    """In public.acct at first."""
    storage: Mapping[str, str] = field(default_factory=dict)
    """Settings of the pump for the warehouse, if that is not a directory."""

    def connect(self) -> psycopg.Connection[Any]:
        """A plain connection in autocommit; the caller closes it."""
        return psycopg.connect(self.dsn, autocommit=True, cursor_factory=CatalogCursor)

    def execute(self, statement: str, *parameters: object) -> None:
        with self.connect() as connection:
            connection.execute(statement.encode(), parameters or None)

    def heap_bytes(self, table: str) -> int:
        """Size of a table without its indexes."""
        with self.connect() as connection:
            row = connection.execute("SELECT pg_table_size(%s)", (table,)).fetchone()
        assert row is not None
        return int(row[0])

    def wal_end(self) -> Lsn:
        with self.connect() as connection:
            row = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
        assert row is not None
        return Lsn(row[0])


class BenchmarkScene:
    """The server, and the directory with all files, which is removed at the end unless `keep` is set."""

    def __init__(self, directory: Path, *, keep: bool) -> None:
        self._directory = directory
        self._keep = keep
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        self._server = EmbeddedPostgres(directory / "postgres", fsync=True, settings=SERVER_SETTINGS)

    def __enter__(self) -> BenchmarkScene:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        if not self._keep:
            shutil.rmtree(self._directory)

    def server_facts(self) -> dict[str, str]:
        """The server's version and the settings that matter for speed."""
        with psycopg.connect(self._server.dsn(), autocommit=True) as connection:
            names = ("server_version", *SHOWN_SETTINGS)
            rows = connection.execute("SELECT name, current_setting(name) FROM unnest(%s::text[]) name", (list(names),))
            return dict(rows.fetchall())

    @contextmanager
    def mirror(
        self,
        name: str,
        rows: int,
        fill: Callable[[psycopg.Connection[Any]], None] = lambda _: None,
        storage: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[BenchmarkMirror]:
        """A new database with rows 1 .. `rows` in public.acct, and a warehouse; both are removed at the end, with the
        slots.

        `fill` makes what else there is to be. All rows are there before the slot is, as in a database that somebody
        begins to mirror. They are vacuumed, so that nobody's first read has to write hint bits, and on disk. `storage`:
        settings of the pump with another warehouse than a directory.
        """
        directory = self._directory / name
        directory.mkdir()
        dsn = self._server.create_database(name)
        warehouse = storage.get("warehouse", f"file://{directory / 'lake'}")
        program = Program(dsn, directory, Settings(**storage).environment(storage))  # type: ignore[arg-type]  # pydantic reads texts
        mirror = BenchmarkMirror(self._server, program, dsn, directory, name, rows, storage)
        try:
            with mirror.connect() as connection:
                connection.execute(Path(__file__).with_name("acct.sql").read_bytes())
                connection.execute("CALL public.bench_load(0, %s)", (rows,))
                fill(connection)
                connection.execute("VACUUM (ANALYZE)")
                connection.execute("CHECKPOINT")
            program.run(
                "init", "--warehouse", warehouse, "--slot", name, "--publication", name
            )  # fmt: skip
            yield mirror
        finally:
            if not self._keep:
                self._server.drop_database(name)
                shutil.rmtree(directory / "lake", ignore_errors=True)
