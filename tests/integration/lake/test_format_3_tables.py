"""Tables of format version 3 that the library writes: random commits against a model of the rows and their lineage."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StructType

from mirror_pump.errors import UsageError
from mirror_pump.lake.document.next_metadata import with_snapshot
from mirror_pump.lake.document.snapshot_summary import FileCounts, summarise
from mirror_pump.lake.document.snapshot_thinning import HistoryRetention
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.position_deletes import encoded_position_deletes
from mirror_pump.lake.manifests.manifest_files import stored_of
from mirror_pump.lake.manifests.manifests import ManifestWriter
from mirror_pump.lake.storage import StorageOptions, write_all
from mirror_pump.tables.catalogs.lake_catalog import PointerChange
from mirror_pump.tables.catalogs.memory_catalog import MemoryCatalog
from mirror_pump.tables.table.orphan_files import remove_orphans
from mirror_pump.tables.table.row_files import write_rows
from mirror_pump.tables.table.table import Table
from mirror_pump.tables.table.table_errors import ConflictingCommit, FileRefused, SchemaMismatch
from mirror_pump.testing.lake import duckdb_connection

NAME = "sales.orders"
STORAGE = StorageOptions(fsync=False)
SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("v", pa.int64())])
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
LINEAGE = ["_row_id", "_last_updated_sequence_number"]
_REGIONS = ("eu", "us")


@pytest.fixture
def table(warehouse: str) -> Table:
    return Table.create(MemoryCatalog(warehouse, STORAGE), NAME, SCHEMA, format_version=3)


@pytest.fixture(scope="module")
def duckdb() -> Iterator[DuckDBPyConnection]:
    with duckdb_connection() as connection:
        yield connection


def rows_of(table: Table, *columns: str, snapshot_id: int | None = None) -> list[dict[str, Any]]:
    scan = table.scan(columns=[*SCHEMA.names, *columns], snapshot_id=snapshot_id)
    rows: list[dict[str, Any]] = scan.to_arrow(threads=1).to_pylist()
    return sorted(rows, key=lambda row: row["id"])


@dataclass
class LineageRow:
    region: str
    v: int
    number: int
    """Sequence number of the commit that changed it last."""
    row_id: int | None = None
    """None until it has been read: a new row has an ID that no other row ever had."""


@dataclass
class LineageModel:
    """What random commits make of a table."""

    catalog: MemoryCatalog
    drawn: random.Random
    rows: dict[int, LineageRow] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    """All row IDs that have been read."""
    past: dict[int, dict[int, LineageRow]] = field(default_factory=dict)
    last_id: int = 0

    def open(self) -> Table:
        return Table.open(self.catalog, NAME)

    def new_rows(self, count: int) -> pa.Table:
        ids = range(self.last_id, self.last_id + count)
        self.last_id += count
        regions = [self.drawn.choice(_REGIONS) for _ in ids]
        return pa.table([pa.array(ids, pa.int64()), regions, pa.array([0] * count, pa.int64())], schema=SCHEMA)

    def append(self, table: Table) -> None:
        rows = self.new_rows(self.drawn.choice((1, 3, 40)))
        self.put(rows, table.append(rows).sequence_number)

    def put(self, rows: pa.Table, number: int) -> None:
        for row in rows.to_pylist():
            self.rows[row["id"]] = LineageRow(row["region"], row["v"], number)

    def delete(self, table: Table) -> None:
        low = self.drawn.randrange(self.last_id + 1)
        high = low + self.drawn.choice((1, 5, 60))
        predicate = f"id >= {low} and id < {high}"
        gone: Callable[[int, LineageRow], bool] = lambda number, _: low <= number < high  # noqa: E731
        if self.drawn.random() < 0.15:
            predicate, gone = "region = 'eu' and v = 1", lambda _, row: row.region == "eu" and row.v == 1
        elif self.drawn.random() < 0.05:
            predicate, gone = "region = 'us'", lambda _, row: row.region == "us"
        removes = {number for number, row in self.rows.items() if gone(number, row)}
        assert (table.delete(predicate) is None) == (not removes)
        self.rows = {number: row for number, row in self.rows.items() if number not in removes}

    def change(self, table: Table) -> None:
        """Some rows get other values, in new files; some of them lose their identity, some are deleted only."""
        stored = [row for row in rows_of(table.refresh(), "_file", "_pos", "_row_id") if self.drawn.random() < 0.2]
        deleted: dict[str, list[int]] = {}
        for row in stored:
            deleted.setdefault(row.pop("_file"), []).append(row.pop("_pos"))
        changed = [row for row in stored if self.drawn.random() < 0.8]
        renewed = {row["id"] for row in changed if self.drawn.random() < 0.2}
        for row in changed:
            row["v"] += 1
            row["region"] = self.drawn.choice(_REGIONS)
            if row["id"] in renewed:
                row["_row_id"] = None
        if not stored:
            return
        if changed:
            number = table.replace_rows(deleted, pa.Table.from_pylist(changed)).sequence_number
        else:
            number = table.commit_row_delta(deleted).sequence_number
        for row in stored:
            former = self.rows.pop(row["id"])
            if row in changed:
                row_id = None if row["id"] in renewed else former.row_id
                self.rows[row["id"]] = LineageRow(row["region"], row["v"], number, row_id)

    def compact(self, table: Table) -> None:
        """Some files become others with the same rows, which keep their lineage."""
        stored = table.refresh().scan(columns=[*SCHEMA.names, "_file", *LINEAGE]).to_arrow()
        paths = sorted(set(stored["_file"].to_pylist()))
        chosen = self.drawn.sample(paths, min(len(paths), self.drawn.choice((1, 2, 50))))
        moved = [row for row in stored.to_pylist() if row.pop("_file") in chosen]
        if not moved:
            return
        shape = pa.schema([*SCHEMA, *((name, pa.int64()) for name in LINEAGE)])
        added = write_rows(pa.Table.from_pylist(moved, shape), table.metadata, STORAGE)
        table.commit_overwrite(chosen, added)

    def check(self, table: Table) -> None:
        """Reads all rows, and notes the IDs of those that are new."""
        stored = rows_of(table.refresh(), *LINEAGE)
        for row in stored:
            expected = self.rows.get(row["id"])
            if expected is not None and expected.row_id is None:
                assert row["_row_id"] is not None
                assert row["_row_id"] not in self.used, "an ID is given once"
                self.used.add(row["_row_id"])
                expected.row_id = row["_row_id"]
        assert stored == [self.described(number) for number in sorted(self.rows)]
        assert not self.used or max(self.used) < table.metadata.next_row_id
        snapshot = table.current_snapshot()
        assert snapshot is not None
        self.past[snapshot.snapshot_id] = {number: replace(row) for number, row in self.rows.items()}
        require_sound_deletes(table)

    def described(self, number: int, rows: Mapping[int, LineageRow] | None = None) -> dict[str, Any]:
        row = (self.rows if rows is None else rows)[number]
        values = {"id": number, "region": row.region, "v": row.v}
        return {**values, "_row_id": row.row_id, "_last_updated_sequence_number": row.number}


def require_sound_deletes(table: Table) -> None:
    """At most one vector for a data file, which has no position-delete file of its own then; and none of a file that is
    not there."""
    files: list[str] = []
    named: list[str] = []
    for manifest in table.manifests:
        entries = stored_of(manifest, STORAGE) if manifest.live_files else []
        if manifest.content == ManifestContent.DATA:
            files += [entry.path for entry in entries]
            assert None not in [entry.first_row_id for entry in entries]
        else:
            assert {entry.content for entry in entries} <= {FileContent.POSITION_DELETES}
            named += [entry.referenced_data_file for entry in entries if entry.referenced_data_file is not None]
    assert len(set(files)) == len(files)
    assert len(set(named)) == len(named)
    assert set(named) <= set(files)


@pytest.mark.parametrize(
    ("spec", "upgraded"),
    [
        pytest.param(None, False, id="whole", marks=pytest.mark.further),
        pytest.param(None, True, id="whole, upgraded", marks=pytest.mark.further),
        pytest.param(BY_REGION, False, id="by region", marks=pytest.mark.further),
        pytest.param(BY_REGION, True, id="by region, upgraded"),
    ],
)
def test_random_commits(
    warehouse: str,
    spec: PartitionSpec | None,
    upgraded: bool,
    duckdb: DuckDBPyConnection,
) -> None:
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"SEED={seed}")
    model = LineageModel(MemoryCatalog(warehouse, STORAGE), random.Random(seed))
    partitioned = () if spec is None else (spec,)
    table = Table.create(model.catalog, NAME, SCHEMA, *partitioned, format_version=2 if upgraded else 3)
    if upgraded:
        for _ in range(4):
            model.append(table)
        delete_by_files(table, model)
        table.upgrade()
        assert {row["_row_id"] for row in rows_of(table, *LINEAGE)} == {None}
        # As the spec has it: rows from before have the number of their file.
        model.append(table)
    operations = [model.append, model.append, model.delete, model.change, model.change, model.compact]
    for _ in range(40):
        if model.drawn.random() < 0.3:
            table = model.open()
        model.drawn.choice(operations)(table)
        model.check(table)
    for snapshot_id, rows in model.past.items():
        expected = [model.described(number, rows) for number in sorted(rows)]
        assert rows_of(table, *LINEAGE, snapshot_id=snapshot_id) == expected
    values = [(number, row.region, row.v) for number, row in sorted(model.rows.items())]
    location = table.metadata_location
    assert duckdb.execute(f"SELECT * FROM iceberg_scan('{location}') ORDER BY id").fetchall() == values
    pyiceberg = StaticTable.from_metadata(location).scan().to_arrow().sort_by("id").to_pylist()
    assert [tuple(row.values()) for row in pyiceberg] == values


def delete_by_files(table: Table, model: LineageModel) -> None:
    """Position-delete files of format version 2: one of two data files, and one of one."""
    metadata = table.metadata
    positions = {file.path: np.arange(0, file.records, 2) for file in table.read_plan().files}
    partitions = {file.path: file.partition for file in table.read_plan().files}
    writer = ManifestWriter(metadata)
    deletes = []
    for partition in set(partitions.values()):
        paths = sorted(path for path in positions if partitions[path] == partition)
        for group in (paths[:2], paths[2:3]):
            if group:
                named = {path: positions[path] for path in group}
                file, content = encoded_position_deletes(sorted(named.items()), metadata.location, partition)
                deletes.append(file)
                writer.files.append((file.path, content))
        for path in paths[3:]:
            del positions[path]
    manifests = writer.next(
        table.manifests, {ManifestContent.DELETES: [(file, writer.sequence_number) for file in deletes]}, STORAGE
    )
    parent = metadata.current_snapshot
    assert parent is not None
    counts = summarise(FileCounts.of(deletes), FileCounts(), parent.summary, {})
    snapshot, _ = writer.snapshot(parent, manifests, counts, metadata.last_updated_ms)
    write_all(writer.files, STORAGE)
    after = with_snapshot(metadata, snapshot, table.metadata_location, (), HistoryRetention(newest=100))
    pointer = model.catalog.load(table.identifier)
    stored = table.scan(columns=["id", "_file", "_pos"]).to_arrow().to_pylist()
    model.catalog.commit([PointerChange(table.identifier, pointer, after)])
    table.refresh()
    for row in stored:
        if row["_pos"] in positions.get(row["_file"], ()):
            del model.rows[row["id"]]


def test_deletes_of_others_stay_deleted_whoever_comes_first(table: Table) -> None:
    rows = pa.table([pa.array(range(10), pa.int64()), ["eu"] * 10, pa.array([0] * 10, pa.int64())], schema=SCHEMA)
    table.append(rows)
    other = Table.open(table._catalog, NAME)
    (path,) = table.read_plan().paths
    other.delete("id < 3")
    table.commit_row_delta({path: [3, 4]})
    assert [row["id"] for row in rows_of(table)] == [5, 6, 7, 8, 9]
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary.operation == "delete"
    counts = {
        name: snapshot.summary.entries.get(name) for name in ("added-dvs", "removed-dvs", "added-position-deletes")
    }
    assert counts == {"added-dvs": "1", "removed-dvs": "1", "added-position-deletes": "5"}
    assert other.delete("id = 4") is None, "it sees what was committed"
    assert other.delete("id > 4") is not None
    assert table.refresh().read_plan().paths == [], "a file without rows goes, and its vector with it"
    require_sound_deletes(table)
    with pytest.raises(ConflictingCommit, match="rows are to be deleted"):
        table.commit_row_delta({path: [6]})


def test_what_cannot_be_deleted_is_refused(table: Table, warehouse: str) -> None:
    rows = pa.table([[1, 2], ["eu", "us"], [0, 0]], schema=SCHEMA)
    table.append(rows)
    (path,) = table.read_plan().paths
    for numbers in ([2], [-1], [0, 1, 2]):
        with pytest.raises(UsageError, match="has 2 rows"):
            table.commit_row_delta({path: numbers})
    old = Table.create(MemoryCatalog(f"{warehouse}/old", STORAGE), NAME, SCHEMA)
    old.append(rows)
    with pytest.raises(UsageError, match="without deletion vectors"):
        old.delete("id = 1")
    with pytest.raises(UsageError, match="no lineage"):
        old.scan(columns=["_row_id"])
    assert [row["_pos"] for row in rows_of(old, "_pos")] == [0, 1]
    with pytest.raises(UsageError, match="version 4"):
        old.upgrade(4)
    assert old.upgrade().upgrade().metadata.format_version == 3
    assert old.delete("id = 1") is not None
    with pytest.raises(SchemaMismatch, match="_pos says where a row was"):
        table.append(table.scan(columns=["id", "_pos"]).to_arrow())
    with pytest.raises(FileRefused, match="row lineage"):
        table.commit_append([_file_with(table, "_row_id")])


def test_vectors_that_no_snapshot_names_are_orphans(table: Table) -> None:
    rows = pa.table([pa.array(range(10), pa.int64()), ["eu"] * 10, pa.array([0] * 10, pa.int64())], schema=SCHEMA)
    table.append(rows)
    table.delete("id < 3")
    table.delete("id < 5")
    root = Path(table.location.removeprefix("file://"))
    stray = root / "data" / "stray-deletes.puffin"
    stray.write_bytes(b"PFA1")
    for file in root.rglob("*"):
        os.utime(file, (0, 0))
    assert len(list(root.rglob("*.puffin"))) == 3
    removed = remove_orphans(table._catalog, NAME, 3600)
    assert [Path(file.location.removeprefix("file://")) for file in removed] == [stray]
    assert [row["id"] for row in rows_of(table)] == [5, 6, 7, 8, 9]
    for snapshot in table.history():
        rows_of(table, snapshot_id=snapshot.snapshot_id)


def test_columns_have_the_defaults_that_they_were_made_with(warehouse: str) -> None:
    inner = NestedField(7, "n", LongType(), required=False, initial_default=3)
    schema = Schema(
        NestedField(5, "id", LongType(), required=False),
        NestedField(6, "k", LongType(), required=False, initial_default=12, write_default=10),
        NestedField(8, "s", StructType(inner), required=False),
    )
    table = Table.create(MemoryCatalog(warehouse, STORAGE), NAME, schema, format_version=3)
    assert [(column.initial_default, column.write_default) for column in table.schema.fields[:2]] == [
        (None, None),
        (12, 10),
    ]
    assert table.schema.find_field("s.n").initial_default == 3
    table.append(pa.table({"id": [1]}))
    assert table.scan(columns=["id", "k"]).to_arrow().to_pylist() == [{"id": 1, "k": 12}]


def _file_with(table: Table, name: str) -> str:
    """A file with a column of row lineage that does not have its field ID."""
    import pyarrow.parquet as pq

    path = f"{table.location.removeprefix('file://')}/data/own.parquet"
    pq.write_table(pa.table({"id": [1], name: [7]}), path)
    return path
