"""Commits to tables without a server, when writers die, answers get lost, and what a directory says is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from mirror_pump.errors import ConnectionLost, CredentialsError, LakeError, OutcomeUnknown
from mirror_pump.lake.storage import StorageOptions, exists
from mirror_pump.tables import put_if_absent as put_if_absent_module
from mirror_pump.tables.catalogs import lake_catalog, memory_catalog, postgres_catalog, sqlite_catalog, transaction_log
from mirror_pump.tables.catalogs import path_catalog as path_catalog_module
from mirror_pump.tables.catalogs.lake_catalog import MetadataPointer, PointerChange, TableMoved
from mirror_pump.tables.catalogs.path_catalog import PathCatalog
from mirror_pump.tables.catalogs.transaction_log import LoggedPathCatalog, path_catalog
from mirror_pump.tables.put_if_absent import put_if_absent
from mirror_pump.tables.table import staged_snapshot
from mirror_pump.tables.table import table as table_module
from mirror_pump.tables.table import transaction as transaction_module
from mirror_pump.tables.table.table import Table
from mirror_pump.tables.table.transaction import transaction
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from tests.support.catalog_kinds import NO_TURNS, PROCESSES, ROWS, CatalogPlace, file_of, files_at, rows
from tests.support.interrupts import InterruptedLines
from tests.support.proxy import Loss, Proxy
from tests.support.s3_server import S3Server, s3_server
from tests.support.shared_commits import append_and_die

NAME = "sales.orders"
_DYING = "dying writer"
_SOME = 1
"""Of the steps of a commit, besides the first and some of the last ones: `make test` kills at them, `make soak` at
each."""
_PARTS = 4


@pytest.fixture
def store() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def place_in(store: S3Server, kind: str = "path") -> CatalogPlace:
    properties = {
        "s3.endpoint": store.endpoint,
        "s3.access-key-id": "key",
        "s3.secret-access-key": "secret",
        "s3.region": "us-east-1",
    }
    return CatalogPlace(kind, "s3://lake/warehouse", properties=properties)


@pytest.mark.parametrize("place", PROCESSES, indirect=True)
def test_a_writer_that_dies_leaves_the_table_before_or_after_its_commit(place: CatalogPlace) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed of the steps: {seed}")
    dies_at(
        place,
        lambda steps: [0, *random.Random(seed).sample(range(1, steps - 1), _SOME)],
        lambda: chain((0, 1), (1 << number for number in count(1))),
    )


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("place", PROCESSES, indirect=True)
def test_a_writer_that_dies_at_each_step(place: CatalogPlace, part: int) -> None:
    """Each part takes every so many steps, on a table of its own, so that none of them grows long."""
    dies_at(place, lambda steps: range(part, steps, _PARTS), count)


def dies_at(place: CatalogPlace, chosen: Callable[[int], Iterable[int]], last: Callable[[], Iterable[int]]) -> None:
    """Kills writers at these of the steps of a commit, and then at later ones, until a commit is done. `last`: how many
    steps behind the last but one of the first commit."""
    table = Table.create(place.open(), NAME, ROWS)
    dying = place if place.kind != "postgres" else replace(place, dsn=make_conninfo(place.dsn, application_name=_DYING))
    expected = frozenset({file_of(table, 0)})
    steps = append_and_die(dying, NAME, min(expected), None)
    assert steps is not None
    effects = set()
    # The commits that follow do not have exactly as many steps: they read more, and may merge manifests.
    for number, step in enumerate(chain(chosen(steps), (steps - 2 + further for further in last()))):
        file = file_of(table, number)
        died = append_and_die(dying, NAME, file, step) is None
        if place.kind == "postgres":
            await_true(lambda: not sessions_of_the_dead(place.dsn), 60, "the dead writer's session ends")
        # As another process, which knows nothing of the one that died.
        table = Table.open(place.open(), NAME)
        found = files_at(table)
        assert found in (expected, expected | {file}), f"step {step}"
        assert died or file in found, "a commit that was answered is lost"
        effects.add(file in found)
        own = file_of(table, -number)
        table.commit_append([own])
        expected = found | {own}
        assert files_at(table) == expected
        assert files_at(table, table.history()[1]) == found
        if not died and step >= steps - 2:
            break
    assert effects == {False, True}
    assert len(table.history()) == 1 + len(expected)
    for snapshot in table.history():
        files_at(table, snapshot)


def sessions_of_the_dead(dsn: str) -> bool:
    """Whether the server has not noticed yet that a writer is gone: until then its COMMIT may still be done."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        row = connection.execute(query, (_DYING,)).fetchone()
        return row is None or row[0] > 0


@pytest.mark.parametrize("kind", ["path", "log"])
def test_a_put_whose_answer_is_lost_counts_once(store: S3Server, kind: str) -> None:
    place = place_in(store, kind)
    catalog = place.open()
    table = Table.create(catalog, NAME, ROWS)
    store.lost_answers = r"/v2\.metadata\.json$" if kind == "path" else r"_transactions/0*2\.json$"
    file = file_of(table, 1)
    table.commit_append([file])
    assert store.lost_answers == "", "the answer was not lost"
    assert files_at(Table.open(place.open(), NAME)) == {file}
    assert len(Table.open(place.open(), NAME).history()) == 2
    table.commit_append([file_of(table, 2)])
    # A writer that builds on the state of before, as after a lost answer of which it does not know the end.
    first = MetadataPointer(table.metadata.former_locations[0], 1)
    with pytest.raises(TableMoved):
        catalog.commit([PointerChange(table.identifier, first, table.metadata)])


@pytest.mark.parametrize("kind", ["path", "log"])
def test_a_refusal_after_a_lost_answer_removes_nothing(store: S3Server, kind: str) -> None:
    """The commit may have landed: then the table has its files, whatever the writer is told."""
    place = place_in(store, kind)
    table = Table.create(place.open(), NAME, ROWS)
    store.lost_answers = r"/v2\.metadata\.json$" if kind == "path" else r"_transactions/0*2\.json$"
    store.refused_after_loss = 2
    with suppress(OutcomeUnknown, CredentialsError):
        table.append(rows(1))
    assert store.lost_answers == "", "the answer was not lost"
    found = Table.open(place.open(), NAME)
    assert sorted(found.scan().to_arrow()["id"].to_pylist()) == [1]
    found.append(rows(2))
    assert sorted(found.scan().to_arrow()["id"].to_pylist()) == [1, 2]


def test_a_storage_that_fails_after_the_commit_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path catalog looks at what the commit built on, when the commit is there already."""
    table = Table.create(CatalogPlace("path", (tmp_path / "lake").as_uri()).open(), NAME, ROWS)

    def fails(location: str, storage: StorageOptions) -> bool:
        if location == table.metadata_location and exists(location.replace("/v1.", "/v2."), storage):
            raise LakeError(f"cannot look for {location}: planted")
        return exists(location, storage)

    with monkeypatch.context() as patched:
        patched.setattr(path_catalog_module, "exists", fails)
        with pytest.raises(OutcomeUnknown, match=r"v2\.metadata\.json was created"):
            table.append(rows(1))
    found = Table.open(CatalogPlace("path", (tmp_path / "lake").as_uri()).open(), NAME)
    assert found.scan().to_arrow()["id"].to_pylist() == [1]


_CATALOGS = (lake_catalog, memory_catalog, path_catalog_module, postgres_catalog, put_if_absent_module, sqlite_catalog)
_LINES = (*_CATALOGS, staged_snapshot, table_module, transaction_log, transaction_module)


@pytest.mark.parametrize("places", [12, pytest.param(200, marks=pytest.mark.soak)])
@pytest.mark.parametrize("place", PROCESSES, indirect=True)
def test_ctrl_c_at_any_line_of_a_commit(place: CatalogPlace, places: int) -> None:
    """A snapshot that has landed keeps its files, and the next commit goes on."""
    Table.create(place.open(), NAME, ROWS)
    expected: list[int] = []

    def append(at: int | None, number: int) -> int:
        table = Table.open(place.open(), NAME)
        lines = InterruptedLines(_LINES, at)
        with lines.counted(), suppress(KeyboardInterrupt):
            lines.begin()
            table.append(rows(number))
        found = sorted(Table.open(place.open(), NAME).scan().to_arrow()["id"].to_pylist())
        assert found in (expected, [*expected, number]), f"line {at} of {lines.lines}"
        assert at is not None or found[-1:] == [number]
        expected[:] = found
        return lines.lines

    total, seed = append(None, 0), random.SystemRandom().randrange(2**32)
    print(f"seed of the lines: {seed}, of {total}")
    # Half of them among the last ones, where the commit is.
    chosen = {
        *random.Random(seed).sample(range(total), min(places // 2, total)),
        *range(total - 1, 0, -3)[: places // 2],
    }
    for number, at in enumerate(sorted(chosen), 1):
        append(at, number)
    append(None, len(chosen) + 1)


@pytest.mark.parametrize("kind", ["path", "log"])
@pytest.mark.parametrize("verb", ["ignores", "refuses"])
def test_an_object_store_without_conditions_is_refused(store: S3Server, kind: str, verb: str) -> None:
    store.conditions = False
    store.knows_conditions = verb == "ignores"
    with pytest.raises(LakeError, match=f"{verb} If-None-Match"):
        Table.create(place_in(store, kind).open(), NAME, ROWS)
    assert not [key for key in store.objects if key.endswith(".json")]


def test_a_new_log_probes_its_store_once(store: S3Server) -> None:
    """A second probe would refuse what the store has become."""
    catalog = place_in(store, "log").open()
    store.conditions = False
    Table.create(catalog, NAME, ROWS)


@pytest.mark.parametrize("kind", ["path", "log"])
def test_writers_in_an_object_store(store: S3Server, kind: str) -> None:
    place = place_in(store, kind)
    table = Table.create(place.open(), NAME, ROWS)
    others = [Table.open(place.open(), NAME) for _ in range(2)]
    files = [file_of(table, number) for number in range(6)]
    for number, file in enumerate(files):
        others[number % 2].commit_append([file])
    assert files_at(table.refresh()) == set(files)
    if kind == "path":
        # A listing that is older than the newest files, and no hint.
        store.unlisted = r"/v[4-9]\.metadata\.json$"
        del store.objects["lake/warehouse/sales/orders/metadata/version-hint.text"]
        assert files_at(Table.open(place.open(), NAME)) == set(files)


@pytest.mark.parametrize("loss", list(Loss))
def test_a_commit_whose_connection_dies_is_found_out(database: Database, warehouse: str, loss: Loss) -> None:
    proxy = Proxy(database.dsn)
    table = Table.create(CatalogPlace("postgres", warehouse, proxy.dsn).open(), NAME, ROWS)
    file = file_of(table, 1)
    metadata = Path(table.location.removeprefix("file://")) / "metadata"
    before = sorted(metadata.iterdir())
    proxy.lose(loss)
    if loss is Loss.AFTER:
        table.commit_append([file])
    else:
        with pytest.raises(ConnectionLost):
            table.commit_append([file])
        assert sorted(metadata.iterdir()) == before
    assert proxy.lost == 1
    expected = {file} if loss is Loss.AFTER else set()
    assert files_at(Table.open(CatalogPlace("postgres", warehouse, database.dsn).open(), NAME)) == expected
    table.commit_append([file_of(table, 2)])
    assert len(files_at(table)) == len(expected) + 1


@pytest.mark.parametrize("hint", ["1", "99", "", "not a number", None])
def test_a_hint_that_lies_misleads_nobody(warehouse: str, hint: str | None) -> None:
    table = Table.create(PathCatalog(warehouse), NAME, ROWS)
    for number in range(4):
        table.commit_append([file_of(table, number)])
    path = Path(table.location.removeprefix("file://")) / "metadata" / "version-hint.text"
    assert path.read_text() == "5"
    if hint is None:
        path.unlink()
    else:
        path.write_text(hint)
    other = Table.open(PathCatalog(warehouse), NAME)
    assert other.metadata_location == table.metadata_location
    other.commit_append([file_of(other, 5)])
    assert path.read_text() == "6"
    assert len(files_at(table.refresh())) == 5


def test_metadata_that_was_removed_frees_no_number(warehouse: str) -> None:
    """A writer that slept while others committed and removed old metadata must not take a number that was in use."""
    sleeper = Table.create(PathCatalog(warehouse), NAME, ROWS)
    other = Table.open(PathCatalog(warehouse), NAME)
    files = [file_of(other, number) for number in range(3)]
    for file in files:
        other.commit_append([file])
    metadata = Path(other.location.removeprefix("file://")) / "metadata"
    for version in (1, 2):
        (metadata / f"v{version}.metadata.json").unlink()
    catalog = PathCatalog(warehouse)
    first = MetadataPointer(sleeper.metadata_location, 1)
    with pytest.raises(TableMoved):
        catalog.commit([PointerChange(sleeper.identifier, first, sleeper.metadata)])
    assert not (metadata / "v2.metadata.json").exists()
    assert files_at(sleeper.refresh()) == set(files)


def test_a_dropped_table_leaves_no_number_free(warehouse: str) -> None:
    sleeper = Table.create(PathCatalog(warehouse), NAME, ROWS)
    sleeper.append(rows(1))
    catalog = PathCatalog(warehouse)
    Table.drop(catalog, NAME, purge=True)
    assert catalog.load(sleeper.identifier) is None
    assert [path.name for path in Path(sleeper.location.removeprefix("file://")).rglob("*") if path.is_file()] == [
        "v3.metadata.json"
    ]
    with pytest.raises(LakeError):
        sleeper.append(rows(2))
    again = Table.create(PathCatalog(warehouse), NAME, ROWS)
    assert len(again.history()) == 1
    assert files_at(again) == frozenset()


def test_a_log_goes_on_from_its_checkpoint(warehouse: str) -> None:
    storage = StorageOptions(fsync=False)
    path_catalog(warehouse, storage, transactions=True)
    catalog = LoggedPathCatalog(warehouse, storage, checkpoint_every=4)
    tables = [Table.create(catalog, f"db.t{number}", ROWS) for number in range(2)]
    for number in range(9):
        tables[number % 2].append(rows(number))
    log = Path(warehouse.removeprefix("file://")) / "_transactions"
    assert (log / "last-checkpoint.text").read_text() == "8"
    for hint in ("99", "x", "8"):
        (log / "last-checkpoint.text").write_text(hint)
        assert path_catalog(warehouse, storage).pointers() == catalog.pointers()
    for number in range(1, 8):
        # They are not read any more.
        (log / f"{number:020d}.json").unlink()
    assert path_catalog(warehouse, storage).pointers() == catalog.pointers()


def test_a_writer_that_died_before_it_put_the_version_is_caught_up(warehouse: str) -> None:
    """Readers of the Hadoop layout see the commit as soon as anybody else commits."""
    catalog = path_catalog(warehouse, transactions=True)
    table = Table.create(catalog, "db.x", ROWS)
    table.append(rows(1))
    directory = Path(table.location.removeprefix("file://")) / "metadata"
    (directory / "v2.metadata.json").unlink()
    (directory / "version-hint.text").write_text("1")
    other = path_catalog(warehouse)
    with transaction(other) as begun:
        Table.create(begun, "db.y", ROWS)
    assert (directory / "v2.metadata.json").read_bytes() == Path(
        table.metadata_location.removeprefix("file://")
    ).read_bytes()
    assert (directory / "version-hint.text").read_text() == "2"


def test_another_program_that_bypasses_the_log_is_noticed(warehouse: str) -> None:
    table = Table.create(path_catalog(warehouse, transactions=True), NAME, ROWS)
    bypassed = f"{table.location}/metadata/v2.metadata.json"
    assert put_if_absent(bypassed, table.metadata.to_json(), StorageOptions())
    with pytest.raises(LakeError, match="does not know it"):
        table.append(rows(1))
    assert files_at(Table.open(path_catalog(warehouse), NAME)) == frozenset()


class InterruptedLog(LoggedPathCatalog):
    """Another writer commits between this one's look at the log and its own entry."""

    other: Callable[[], object] | None = None

    def _checked_tables(self, *arguments: Any) -> Any:
        found = super()._checked_tables(*arguments)
        other, self.other = self.other, None
        if other is not None:
            other()
        return found


@pytest.mark.parametrize("name", ["db.x", "db.y"])
def test_an_entry_that_is_taken_is_not_overwritten(warehouse: str, name: str) -> None:
    """By a commit to the same table, or to another one, which is in nobody's way."""
    other = path_catalog(warehouse, transactions=True)
    for each in ("db.x", "db.y"):
        Table.create(other, each, ROWS)
    catalog = InterruptedLog(warehouse)
    table, second = Table.open(catalog, "db.x"), Table.open(other, name, retry=NO_TURNS)
    catalog.other = lambda: second.append(rows(2))
    with transaction(catalog) as begun:
        Table.open(begun, "db.x" if name == "db.y" else "db.y").append(rows(1))
    catalog.other = lambda: second.append(rows(3))
    table.append(rows(4))
    reopened = path_catalog(warehouse)
    found = {each: len(files_at(Table.open(reopened, each))) for each in ("db.x", "db.y")}
    assert found == ({"db.x": 3, "db.y": 1} if name == "db.x" else {"db.x": 2, "db.y": 2})
