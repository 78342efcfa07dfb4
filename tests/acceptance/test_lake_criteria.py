"""Tables without a server, by the criteria that they were asked for with: each test says the number of its own. Every
catalog has to meet all of them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from mirror_pump.lake.manifests.entry_reader import Status
from mirror_pump.lake.manifests.manifest_files import entries_of
from mirror_pump.lake.manifests.manifest_list import read_list
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.tables.catalogs.lake_catalog import (
    LakeCatalog,
    MetadataPointer,
    PointerChange,
    TableIdentifier,
    TableMoved,
)
from mirror_pump.tables.table.table import Table
from mirror_pump.tables.table.table_errors import ConflictingCommit, SchemaMismatch
from mirror_pump.tables.table.transaction import Transaction, transaction
from tests.support.catalog_kinds import KINDS, NO_TURNS, ROWS, TRANSACTIONS, CatalogPlace, file_of, files_at, rows
from tests.support.local_files import path_of
from tests.support.shared_commits import Round, commit_at_random, replayed

NAME = "sales.orders"


class LinedUp:
    """A catalog whose first commits wait until as many writers are about to swap the pointer."""

    def __init__(self, catalog: LakeCatalog, barrier: threading.Barrier) -> None:
        self._catalog = catalog
        self._barrier = barrier
        self._met: set[int] = set()
        self.refused = 0
        """Swaps that found the pointer moved."""

    storage = property(lambda self: self._catalog.storage)
    has_transactions = property(lambda self: self._catalog.has_transactions)

    def load(self, table: TableIdentifier) -> MetadataPointer | None:
        return self._catalog.load(table)

    def namespaces(self) -> Sequence[str]:
        return self._catalog.namespaces()

    def tables(self, namespace: str) -> Sequence[TableIdentifier]:
        return self._catalog.tables(namespace)

    def pointers(self) -> Mapping[TableIdentifier, MetadataPointer]:
        return self._catalog.pointers()

    def table_location(self, table: TableIdentifier) -> str:
        return self._catalog.table_location(table)

    def commit(self, changes: Sequence[PointerChange]) -> Sequence[MetadataPointer | None]:
        if threading.get_ident() not in self._met:
            self._met.add(threading.get_ident())
            self._barrier.wait(60)
        try:
            return self._catalog.commit(changes)
        except TableMoved:
            self.refused += 1
            raise


@pytest.fixture
def catalog(place: CatalogPlace) -> LakeCatalog:
    return place.open()


def every(kinds: Sequence[str] = KINDS) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("place", kinds, indirect=True)


@every()
def test_criterion_1_an_append_makes_a_snapshot_with_one_manifest_of_its_files(catalog: LakeCatalog) -> None:
    table = Table.create(catalog, NAME, ROWS)
    files = {file_of(table, 1), file_of(table, 2)}
    snapshot = table.commit_append(files)
    assert table.current_snapshot() == snapshot
    (manifest,) = read_list(snapshot, StorageOptions())
    assert {entry.path for entry in entries_of(manifest, StorageOptions())} == files
    assert files_at(Table.open(catalog, NAME)) == files


@every()
def test_criterion_2_ten_appends_leave_eleven_snapshots_in_a_chain(catalog: LakeCatalog) -> None:
    table = Table.create(catalog, NAME, ROWS)
    made = [table.current_snapshot(), *(table.commit_append([file_of(table, number)]) for number in range(10))]
    history = Table.open(catalog, NAME).history()
    assert [snapshot.snapshot_id for snapshot in history] == [s.snapshot_id for s in reversed(made) if s is not None]
    assert len(history) == 11
    assert [snapshot.parent_id for snapshot in history] == [*(s.snapshot_id for s in history[1:]), None]


@every()
def test_criterion_3_of_two_appends_at_once_one_conflicts_and_both_land(catalog: LakeCatalog) -> None:
    table = Table.create(catalog, NAME, ROWS)
    lined_up = LinedUp(catalog, threading.Barrier(2))
    files = [file_of(table, 1), file_of(table, 2)]
    writers = [Table.open(lined_up, NAME, retry=NO_TURNS) for _ in files]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda writer, file: writer.commit_append([file]), writers, files))
    assert lined_up.refused == 1
    table.refresh()
    assert files_at(table) == set(files)
    newest, first, empty = table.history()
    assert [len(files_at(table, snapshot)) for snapshot in (newest, first, empty)] == [2, 1, 0]


@every()
def test_criterion_4_an_overwrite_removes_and_adds_in_one_snapshot(catalog: LakeCatalog) -> None:
    table = Table.create(catalog, NAME, ROWS)
    old = [file_of(table, number) for number in range(3)]
    table.commit_append(old)
    added = file_of(table, 9)
    snapshot = Table.open(catalog, NAME).commit_overwrite(old[:2], [added])
    table.refresh()
    assert files_at(table) == {old[2], added}
    assert files_at(table, table.history()[1]) == set(old), "the snapshot before is as it was"
    statuses = statuses_of(table)
    assert {path: statuses[path] for path in old} == {
        old[0]: (Status.DELETED, snapshot.snapshot_id),
        old[1]: (Status.DELETED, snapshot.snapshot_id),
        old[2]: (Status.EXISTING, table.history()[1].snapshot_id),
    }
    assert statuses[added] == (Status.ADDED, snapshot.snapshot_id)


@every()
def test_criterion_4_of_two_overwrites_of_one_file_one_wins(catalog: LakeCatalog) -> None:
    table = Table.create(catalog, NAME, ROWS)
    old, kept = file_of(table, 1), file_of(table, 2)
    table.commit_append([old, kept])
    lined_up = LinedUp(catalog, threading.Barrier(2))
    writers = [Table.open(lined_up, NAME, retry=NO_TURNS) for _ in range(2)]
    new = [file_of(table, 3), file_of(table, 4)]

    def overwrite(writer: Table, file: str) -> tuple[str, ...] | None:
        """The files that were gone; None if it landed."""
        try:
            writer.commit_overwrite([old], [file])
        except ConflictingCommit as error:
            return error.files
        return None

    with ThreadPoolExecutor(2) as pool:
        gone = list(pool.map(overwrite, writers, new))
    assert set(gone) == {None, (old,)}
    assert files_at(table.refresh()) == {kept, new[gone.index(None)]}


@every()
def test_criterion_5_a_file_of_another_schema_changes_nothing(catalog: LakeCatalog) -> None:
    table = Table.create(catalog, NAME, ROWS)
    table.commit_append([file_of(table, 1)])
    pointer, before = catalog.load(table.identifier), files_at(table)
    directory = path_of(table.location)
    metadata = sorted((directory / "metadata").iterdir())
    wrong = directory / "data" / "wrong.parquet"
    pq.write_table(pa.table({"id": pa.array(["text"]), "name": ["x"]}), wrong)
    with pytest.raises(SchemaMismatch, match=r"wrong\.parquet: column id"):
        table.commit_append([file_of(table, 2), str(wrong)])
    assert catalog.load(table.identifier) == pointer
    assert files_at(Table.open(catalog, NAME)) == before
    assert sorted((directory / "metadata").iterdir()) == metadata


@every()
def test_criterion_6_a_plan_opens_only_manifests_of_the_partition(catalog: LakeCatalog) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    table = Table.create(catalog, NAME, ROWS, spec)
    by_name: dict[str | None, set[str]] = {}
    # The second n2 is in a manifest with n4, and each other partition is in one of its own: lowest value = highest.
    for commit in ([1], [2], [3], [2, 4]):
        files = {f"n{number}": file_of(table, number) for number in commit}
        table.commit_append(files.values())
        for name, file in files.items():
            by_name.setdefault(name, set()).add(file)
    table.append(pa.table({"id": [5], "name": [None]}, schema=ROWS))
    by_name[None] = set(files_at(table).difference(*by_name.values()))
    manifests = manifests_by_name(table)
    opened = Table.open(catalog, NAME)
    asked: list[tuple[str, set[str | None]]] = [
        ("name = 'n1'", {"n1"}),
        ("name = 'n2'", {"n2"}),
        ("name in ('n3', 'n4')", {"n3", "n4"}),
        ("name is null", {None}),
        ("name = 'n9'", set()),
        ("id > 0", set(by_name)),
    ]
    for predicate, names in asked:
        with opens() as read:
            plan = opened.read_plan(predicate)
        assert set(plan.paths) == set().union(*(by_name[name] for name in names))
        needed = {path for path, held in manifests.items() if held & names}
        assert {path for path in read if path in manifests} == needed
        assert plan.counts.manifests_opened == len(needed)
    assert opened.scan("name = 'n2'", ["id"]).to_arrow()["id"].to_pylist() == [2, 2]


@every()
def test_criterion_7_random_commits_of_two_writers(place: CatalogPlace, catalog: LakeCatalog) -> None:
    """A hundred on one catalog, fewer on the others: `make soak` has a hundred on each."""
    random_commits(place, catalog, 50 if place.kind == "path" else 12)


@pytest.mark.soak
@every()
def test_criterion_7_a_hundred_random_commits_of_two_writers(place: CatalogPlace, catalog: LakeCatalog) -> None:
    random_commits(place, catalog, 50)


def random_commits(place: CatalogPlace, catalog: LakeCatalog, each: int) -> None:
    """Commits of two writers, this many of each."""
    table = Table.create(catalog, NAME, ROWS)
    table.commit_append([file_of(table, number) for number in range(20)])
    # A process of its own for each writer, but where the catalog is in this one's memory.
    done = commit_at_random(
        Round(place, NAME, commits=each), writers=2, shared=catalog if place.kind == "memory" else None
    )
    assert len(done) == 2 * each
    table.refresh()
    assert replayed(table, done) == files_at(table)
    assert len(table.history()) == 2 + sum(commit.landed for commit in done)


@every()
def test_criterion_8_a_snapshot_of_50_commits_ago_is_readable(catalog: LakeCatalog) -> None:
    table = Table.create(catalog, NAME, ROWS)
    expected: list[frozenset[str]] = [frozenset()]
    for number in range(54):
        if number % 9 == 8:
            oldest = min(expected[-1])
            new = file_of(table, number)
            table.commit_overwrite([oldest], [new])
            expected.append(expected[-1] - {oldest} | {new})
        else:
            new = file_of(table, number)
            table.commit_append([new])
            expected.append(expected[-1] | {new})
    reopened = Table.open(catalog, NAME)
    history = reopened.history()[::-1]
    assert len(history) == len(expected)
    for number in (0, 1, 4, 30, 53):
        plan = reopened.read_plan(snapshot_id=history[number].snapshot_id)
        assert sorted(plan.paths) == sorted(expected[number])
    then = history[4].snapshot_id
    assert sorted(reopened.scan(snapshot_id=then).to_arrow()["id"].to_pylist()) == [0, 1, 2, 3]


@every(TRANSACTIONS)
def test_concurrent_table_writers(place: CatalogPlace, catalog: LakeCatalog) -> None:
    """Of two transactions that create a table of one name, the second to commit fails, and leaves nothing."""
    later = Transaction(catalog if place.kind == "memory" else place.open())
    with transaction(catalog) as earlier:
        Table.create(earlier, "db.x", ROWS).append(rows(1, 2))
    Table.create(later, "db.x", ROWS).append(rows(3))
    with pytest.raises(TableMoved):
        later.end()
    assert ids(Table.open(catalog, "db.x")) == [1, 2]


@every(TRANSACTIONS)
def test_concurrent_reader_with_writer_reads_snapshot(place: CatalogPlace, catalog: LakeCatalog) -> None:
    """A transaction sees its own rows, a reader beside it those of before, both tables of one moment."""
    with transaction(catalog) as writer:
        Table.create(writer, "db.x", ROWS).append(rows(1))
        Table.open(writer, "db.x").append(rows(2))
        Table.create(writer, "db.y", ROWS).append(rows(10))
    reader_catalog = catalog if place.kind == "memory" else place.open()
    with transaction(catalog) as writer, transaction(reader_catalog) as reader:
        Table.open(writer, "db.x").append(rows(3))
        assert ids(Table.open(reader, "db.x")) == [1, 2]
        assert ids(Table.open(writer, "db.x")) == [1, 2, 3]
        Table.open(reader_catalog, "db.y").append(rows(11))
        assert ids(Table.open(reader, "db.y")) == [10], "the reader's tables are of the moment at which it began"
        pointers = reader_catalog.pointers()
    assert {name: pointer for name, pointer in reader_catalog.pointers().items() if name.name == "y"} == {
        name: pointer for name, pointer in pointers.items() if name.name == "y"
    }, "a read-only transaction changes nothing"
    table = Table.open(catalog, "db.x")
    assert ids(table) == [1, 2, 3]
    for snapshot in table.history():
        files_at(table, snapshot)


@every(TRANSACTIONS)
def test_a_transaction_is_all_or_nothing(catalog: LakeCatalog, tmp_path: Path) -> None:
    for name in ("db.x", "db.y"):
        Table.create(catalog, name, ROWS).append(rows(1))
    before = metadata_files(tmp_path)
    both = Transaction(catalog)
    Table.open(both, "db.x").append(rows(2))
    Table.open(both, "db.y").append(rows(2))
    own = metadata_files(tmp_path) - before
    Table.open(catalog, "db.y").append(rows(3))
    with pytest.raises(TableMoved, match=r"db\.y"):
        both.end()
    assert ids(Table.open(catalog, "db.x")) == [1]
    assert ids(Table.open(catalog, "db.y")) == [1, 3]
    assert own
    assert not any(path.exists() for path in own), "a transaction that failed leaves no metadata"
    with suppress(ZeroDivisionError), transaction(catalog) as failing:
        Table.open(failing, "db.x").append(rows(4))
        _ = 1 / 0
    assert ids(Table.open(catalog, "db.x")) == [1]
    with transaction(catalog) as dropping:
        Table.drop(dropping, "db.x")
        Table.create(dropping, "db.z", ROWS)
    assert [str(table) for table in catalog.tables("db")] == ["db.y", "db.z"]


def ids(table: Table) -> list[int]:
    return sorted(number for path in files_at(table) for number in pq.read_table(path)["id"].to_pylist())


_OBSERVERS: list[list[str]] = []


def _note_open(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        for found in _OBSERVERS:
            found.append(str(arguments[0]))


sys.addaudithook(_note_open)


@contextmanager
def opens() -> Iterator[list[str]]:
    """Paths of the files that this process opens in the block, whatever opens them by Python's means."""
    found: list[str] = []
    _OBSERVERS.append(found)
    try:
        yield found
    finally:
        _OBSERVERS.remove(found)


def manifests_by_name(table: Table) -> dict[str, set[str | None]]:
    """The partitions in each manifest of a table that is partitioned by `name`, by the manifest's path."""
    found: dict[str, set[str | None]] = {}
    for manifest in table.manifests:
        names = {entry.partition[0] for entry in entries_of(manifest, table.storage)}
        found[manifest.path.removeprefix("file://")] = names
    return found


def metadata_files(root: Path) -> set[Path]:
    return set((root / "lake").rglob("metadata/*"))


def statuses_of(table: Table) -> dict[str, tuple[int, int]]:
    """Status and snapshot of each entry of the current snapshot's manifests, removed files included."""
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.manifest import read_manifest_list

    snapshot = table.current_snapshot()
    assert snapshot is not None
    io = PyArrowFileIO()
    return {
        entry.data_file.file_path: (int(entry.status), int(entry.snapshot_id or 0))
        for manifest in read_manifest_list(io.new_input(snapshot.manifest_list))
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=False)
    }
