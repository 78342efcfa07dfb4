"""A small lake table, its files and its readers, for the tests of mirror_pump.lake."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
from pyiceberg.manifest import ManifestEntry
from pyiceberg.table import StaticTable

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.catalog import ensure_namespace, insert_pointer, load_pointer, swap_pointer
from mirror_pump.lake.commit import LakeTable, RowDelta, SegmentFiles, StagedCommit
from mirror_pump.lake.files import WrittenFile, write_data_file, write_equality_deletes
from mirror_pump.lake.schema import LakeField, LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.testing.lake import read_duckdb, read_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = LakeSchema(
    0,
    (
        LakeField(1, "id", ColumnType(Kind.LONG), required=True),
        LakeField(2, "v", ColumnType(Kind.STRING), required=False),
    ),
    (1,),
)
START_MS = 1_760_000_000_000
STORAGE = StorageOptions(fsync=False)

Rows = dict[int, str | None]


@dataclass
class SmallTable:
    """public.t (id, v): commits at a clock of its own, 1 s apart, and moves the catalog's pointer if there is one."""

    location: str
    dsn: str | None = None
    now_ms: int = START_MS
    locations: list[str] = field(default_factory=list)
    """Metadata locations of all commits."""

    def __post_init__(self) -> None:
        self.table = self._land(LakeTable.create(SCHEMA, self.location, STORAGE, {}, self.now_ms))

    def data(self, rows: Rows) -> WrittenFile:
        """A data file of these rows."""
        table = pa.table({"id": list(rows), "v": pa.array(rows.values(), pa.string())}, schema=SCHEMA.arrow)
        return write_data_file(table, SCHEMA, self.location, STORAGE)

    def deletes(self, keys: Iterable[int]) -> WrittenFile:
        """A delete file of these keys."""
        return write_equality_deletes(
            pa.table({"id": pa.array(keys, pa.int64())}, schema=SCHEMA.key.arrow), SCHEMA, self.location, STORAGE
        )

    def segment(self, rows: Rows, deleted: Iterable[int] = ()) -> SegmentFiles:
        """A segment of at most one file of each kind."""
        keys = list(deleted)
        return SegmentFiles((self.data(rows),) if rows else (), (self.deletes(keys),) if keys else ())

    def commit(self, delta: RowDelta, keep: frozenset[int] = frozenset()) -> StagedCommit:
        """Stages and lands one commit."""
        self.now_ms += 1000
        staged = self.table.stage(delta, self.now_ms, keep)
        self.table = self._land(staged)
        return staged

    def reload(self) -> None:
        """Forgets what is in memory, as a restarted pump does; takes other engines' commits in."""
        location = self.table.metadata_location
        if self.dsn is not None:
            with psycopg.connect(self.dsn) as connection:
                location = load_pointer(connection, "public", "t") or location
        self.table = LakeTable.load(location, STORAGE)

    def duckdb(self, options: str = "") -> Rows:
        """The live rows as DuckDB reads them; fails on a key that is there twice."""
        location = self.table.metadata_location
        found = read_duckdb(location, f"SELECT id, v FROM iceberg_scan('{location}'{options})").to_pylist()
        return by_key([(row["id"], row["v"]) for row in found])

    def spark(self, session: SparkSession, suffix: str = "") -> Rows:
        """The live rows as Spark reads them from the catalog."""
        return by_key([(row[0], row[1]) for row in read_spark(session, f"public.t{suffix}")])

    def pyiceberg(self) -> StaticTable:
        """The table as pyiceberg parses it."""
        return StaticTable.from_metadata(self.table.metadata_location)

    def entries(self) -> list[ManifestEntry]:
        """Live manifest entries of the current snapshot, by pyiceberg."""
        table = self.pyiceberg()
        snapshot = table.current_snapshot()
        assert snapshot is not None
        return [entry for manifest in snapshot.manifests(table.io) for entry in manifest.fetch_manifest_entry(table.io)]

    def _land(self, staged: StagedCommit) -> LakeTable:
        self.locations.append(staged.new_location)
        if self.dsn is not None:
            with psycopg.connect(self.dsn) as connection:
                if staged.old_location is None:
                    ensure_namespace(connection, "public")
                    insert_pointer(connection, "public", "t", staged.new_location)
                else:
                    assert swap_pointer(connection, "public", "t", staged.old_location, staged.new_location)
        return staged.table


def by_key(rows: Iterable[tuple[int, str | None]]) -> Rows:
    """Rows as a dict; AssertionError for a key that occurs twice, which is what a wrong sequence number looks like."""
    found = list(rows)
    result = dict(found)
    assert len(result) == len(found), f"a key occurs twice in {sorted(found)}"
    return result
