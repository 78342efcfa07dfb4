"""The one step that all guarantees of tables without a server hang on: what each catalog's swap refuses, and what it
says when its own answer gets lost."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from mirror_pump.database.catalog_cursor import CatalogCursor
from mirror_pump.errors import LakeError, OutcomeUnknown
from mirror_pump.lake.commit.catalog import swap_pointer
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.tables.catalogs.lake_catalog import PointerChange, TableMoved
from mirror_pump.tables.catalogs.memory_catalog import MemoryCatalog
from mirror_pump.tables.catalogs.postgres_catalog import PostgresCatalog
from mirror_pump.tables.catalogs.sqlite_catalog import SqliteCatalog
from mirror_pump.tables.put_if_absent import put_if_absent
from mirror_pump.tables.table.table import Table
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from tests.support.catalog_kinds import KINDS, ROWS, TRANSACTIONS, CatalogPlace, file_of, files_at, rows
from tests.support.local_files import path_of

NAME = "sales.orders"


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_a_change_on_another_base_changes_nothing(place: CatalogPlace) -> None:
    """Appending, dropping and creating, each on a state that is not the table's any more."""
    catalog = place.open()
    table = Table.create(catalog, NAME, ROWS)
    name, old, metadata = table.identifier, catalog.load(table.identifier), table.metadata
    file = file_of(table, 1)
    table.commit_append([file])
    newest = catalog.load(name)
    for change in (
        PointerChange(name, old, metadata),
        PointerChange(name, old, None),
        PointerChange(name, None, metadata),
    ):
        with pytest.raises(TableMoved):
            catalog.commit([change])
        assert catalog.load(name) == newest
    assert files_at(Table.open(catalog, NAME)) == {file}
    catalog.commit([PointerChange(name, newest, None)])
    for change in (PointerChange(name, newest, metadata), PointerChange(name, newest, None)):
        with pytest.raises(TableMoved):
            catalog.commit([change])
        assert catalog.load(name) is None


@pytest.mark.parametrize("place", TRANSACTIONS, indirect=True)
def test_one_table_that_moved_stops_all_changes_of_a_commit(place: CatalogPlace) -> None:
    """Whichever of them it is."""
    catalog = place.open()
    tables = [Table.create(catalog, f"sales.t{number}", ROWS) for number in range(3)]
    for moved in range(3):
        bases = [(table.identifier, catalog.load(table.identifier), table.metadata) for table in tables]
        tables[moved].append(rows(moved))
        before = catalog.pointers()
        with pytest.raises(TableMoved) as refused:
            catalog.commit([PointerChange(*base) for base in bases])
        assert refused.value.tables == {tables[moved].identifier}
        assert catalog.pointers() == before


class LockWithGuest:
    """Lets another writer in at the first moment at which it is free."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.guest: Callable[[], object] | None = None

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        guest, self.guest = self.guest, None
        if guest is not None:
            guest()


def test_the_catalog_in_memory_compares_and_swaps_in_one_step(tmp_path: Path) -> None:
    catalog = MemoryCatalog(tmp_path.as_uri(), StorageOptions(fsync=False))
    table = Table.create(catalog, NAME, ROWS)
    change = PointerChange(table.identifier, catalog.load(table.identifier), table.metadata)
    landed: list[str] = []

    def commit(name: str) -> None:
        with suppress(TableMoved):
            catalog.commit([change])
            landed.append(name)

    catalog._lock = lock = LockWithGuest()  # type: ignore[assignment]
    lock.guest = lambda: commit("guest")
    commit("host")
    assert landed == ["host"]


def test_postgres_compares_again_once_it_has_the_row(database: Database, warehouse: str) -> None:
    """Another writer has changed the row, and commits while this one waits for it."""
    catalog = PostgresCatalog(database.dsn, warehouse, StorageOptions(fsync=False))
    table = Table.create(catalog, NAME, ROWS)
    change = PointerChange(table.identifier, catalog.load(table.identifier), table.metadata)
    with psycopg.connect(database.dsn, cursor_factory=CatalogCursor) as other, ThreadPoolExecutor(1) as pool:
        assert swap_pointer(other, "sales", "orders", table.metadata_location, "file:///newer")
        waiting = pool.submit(catalog.commit, [change])
        query = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"
        await_true(lambda: database.rows(query) == [(True,)], 60, "the commit waits for the row")
        other.commit()
        with pytest.raises(TableMoved):
            waiting.result(60)
    newest = catalog.load(table.identifier)
    assert newest is not None
    assert newest.metadata_location == "file:///newer"


class FailingConnection(sqlite3.Connection):
    """Fails at the next COMMIT, before it is done or after, and then perhaps at each look."""

    after: bool | None = None
    blind = False
    failed = False

    def execute(self, statement: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if self.after is not None and statement == "COMMIT":
            after, FailingConnection.after = self.after, None
            if after:
                super().execute(statement)
            FailingConnection.failed = True
            raise sqlite3.OperationalError("disk I/O error")
        if self.blind and self.failed and statement.startswith("SELECT"):
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(statement, parameters)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> type[FailingConnection]:
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, factory=FailingConnection, **named))
    for name, value in (("after", None), ("blind", False), ("failed", False)):
        monkeypatch.setattr(FailingConnection, name, value)
    return FailingConnection


@pytest.mark.parametrize("after", [False, True])
def test_a_commit_of_sqlite_that_fails_is_found_out(
    tmp_path: Path, failing: type[FailingConnection], after: bool
) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db", tmp_path.as_uri(), StorageOptions(fsync=False))
    table = Table.create(catalog, NAME, ROWS)
    file = file_of(table, 1)
    metadata = path_of(table.location) / "metadata"
    before = sorted(metadata.iterdir())
    failing.after = after
    if after:
        table.commit_append([file])
    else:
        with pytest.raises(LakeError, match="disk I/O error"):
            table.commit_append([file])
        assert sorted(metadata.iterdir()) == before
    assert files_at(Table.open(catalog, NAME)) == ({file} if after else set())
    table.commit_append([file_of(table, 2)])


@pytest.mark.parametrize("after", [False, True])
def test_a_commit_of_sqlite_whose_outcome_is_unknown_keeps_its_files(
    tmp_path: Path, failing: type[FailingConnection], after: bool
) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db", tmp_path.as_uri(), StorageOptions(fsync=False))
    table = Table.create(catalog, NAME, ROWS)
    file = file_of(table, 1)
    failing.after, failing.blind = after, True
    with pytest.raises(OutcomeUnknown):
        table.commit_append([file])
    failing.blind = False
    # Whatever happened, the table is whole, and the commit is there once or can be made.
    opened = Table.open(catalog, NAME)
    assert files_at(opened) == ({file} if after else set())
    if not after:
        opened.commit_append([file])
    assert files_at(Table.open(catalog, NAME)) == {file}


def test_commits_to_a_database_are_flushed_whatever_its_settings_say(database: Database, warehouse: str) -> None:
    name = database.rows("SELECT current_database()")[0][0]
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    settings: list[Any] = []

    class Looking(PostgresCatalog):
        def _swapped(self, connection: psycopg.Connection[Any], *given: Any) -> str:
            found = super()._swapped(connection, *given)
            settings.append(connection.execute("SHOW synchronous_commit").fetchone())
            return found

    Table.create(Looking(database.dsn, warehouse, StorageOptions(fsync=False)), NAME, ROWS)
    # Flushed by the server itself; a commit waits for no standby.
    assert settings == [("local",)]


@pytest.mark.parametrize("made", [False, True])
def test_a_link_whose_answer_is_lost_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bool) -> None:
    """As on NFS, where a repetition of the request that was done is refused."""
    link = os.link

    def lossy(source: Path, target: Path) -> None:
        if made:
            link(source, target)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", lossy)
    path = tmp_path / "v1.metadata.json"
    assert put_if_absent(path.as_uri(), b"1", StorageOptions(fsync=False)) is made
    assert path.exists() is made
    assert [each.name for each in tmp_path.iterdir()] == ([path.name] if made else []), "no temporary file is left"
