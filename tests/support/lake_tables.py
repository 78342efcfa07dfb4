"""A small lake table, its files and its readers, for the tests of mirror_pump.lake."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import ManifestContent, ManifestEntry
from pyiceberg.table import StaticTable

from decoders.columns import ColumnType, Kind
from mirror_pump.database.catalog_cursor import CatalogCursor
from mirror_pump.engine.rewrite.conversion_plan import MOST_DELETES, file_rewrite_of, plan_conversion
from mirror_pump.engine.rewrite.delete_conversion import convert_deletes
from mirror_pump.engine.rewrite.file_merge import merge_files, merge_positions
from mirror_pump.engine.rewrite.merge_plan import MergePlan, MergeSizes, merged_file_rewrite, plan_merge, plan_rewrite
from mirror_pump.lake.commit.catalog import ensure_namespace, insert_pointer, load_pointer, swap_pointer
from mirror_pump.lake.commit.file_rewrite import FileRewrite
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles, StagedCommit
from mirror_pump.lake.contents.file_listing import Listing, LiveFile
from mirror_pump.lake.document.metadata_files import next_location
from mirror_pump.lake.document.next_metadata import with_snapshot
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.snapshot_summary import FileCounts, summarise
from mirror_pump.lake.document.snapshot_thinning import DEFAULT_RETENTION
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.partitioned_files import write_data_files, write_equality_delete_files
from mirror_pump.lake.format.partitioning import partition_values
from mirror_pump.lake.format.position_deletes import PATH_ID
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.format.versions import FORMAT_VERSION
from mirror_pump.lake.manifests.manifests import ManifestWriter
from mirror_pump.lake.storage import StorageOptions, local_path, write_all
from mirror_pump.model import LakePartitioning
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
TARGET = 1 << 25
"""Data files of at least this many bytes are not merged."""

Rows = dict[int, str | None]


@dataclass(frozen=True)
class PendingRewrite:
    """A rewrite of all data files that is under way."""

    table: LakeTable
    """The state at which it began."""
    rows: Rows


@dataclass
class SmallTable:
    """public.t (id, v). Its commits have a clock of their own, 1 s apart, and move the catalog's pointer if there is
    one."""

    location: str
    dsn: str | None = None
    now_ms: int = START_MS
    locations: list[str] = field(default_factory=list)
    """Metadata locations of all commits."""
    sizes: MergeSizes = field(default_factory=MergeSizes)
    """The sizes that decide about its merges."""
    partitioning: LakePartitioning | None = None
    format_version: int = FORMAT_VERSION
    most_deletes: int = MOST_DELETES
    """Of one conversion."""

    def __post_init__(self) -> None:
        self.listing = Listing(STORAGE, (1, PATH_ID))
        self.table = self._land(
            LakeTable.create(
                SCHEMA,
                self.location,
                STORAGE,
                {},
                self.now_ms,
                partitioning=self.partitioning,
                format_version=self.format_version,
            )
        )

    @property
    def summary(self) -> dict[str, str]:
        """The newest snapshot's summary, as it is stored."""
        return dict(self.table.metadata.snapshots[-1].summary.entries)

    def data(self, rows: Rows) -> WrittenFile:
        """Writes a data file of these rows, which are in one lake partition."""
        (file,) = self.data_files(rows)
        return file

    def data_files(self, rows: Rows) -> tuple[WrittenFile, ...]:
        """Writes these rows as a data file for each lake partition."""
        table = pa.table({"id": list(rows), "v": pa.array(rows.values(), pa.string())}, schema=SCHEMA.arrow)
        return write_data_files(table, SCHEMA, self.location, STORAGE, self.partitioning)

    def deletes(self, keys: Iterable[int]) -> WrittenFile:
        """Writes a delete file of these keys, which are in one lake partition."""
        (file,) = self.delete_files(keys)
        return file

    def delete_files(self, keys: Iterable[int]) -> tuple[WrittenFile, ...]:
        """Writes these keys as a delete file for each lake partition."""
        table = pa.table({"id": pa.array(keys, pa.int64())}, schema=SCHEMA.key.arrow)
        return write_equality_delete_files(table, SCHEMA, self.location, STORAGE, self.partitioning)

    def segment(self, rows: Rows, deleted: Iterable[int] = ()) -> SegmentFiles:
        """A segment of at most one file of each kind for each lake partition."""
        return SegmentFiles(self.data_files(rows), self.delete_files(list(deleted)))

    def commit(self, delta: RowDelta, keep: frozenset[int] = frozenset()) -> StagedCommit:
        """Stages and lands one commit."""
        self.now_ms += 1000
        staged = self.table.stage(delta, self.now_ms, keep)
        self.table = self._land(staged)
        return staged

    def compute(self) -> FileRewrite | None:
        """The result of a conversion of the present state; None if there is nothing to convert."""
        plan = plan_conversion(self.table, self.listing, self.most_deletes)
        if plan is None:
            return None
        return file_rewrite_of(plan, [convert_deletes(task) for task in plan.tasks])

    def convert(self) -> StagedCommit | None:
        """Conversions until there is nothing to convert. Returns the last one."""
        staged = None
        while (file_rewrite := self.compute()) is not None:
            staged = self.commit(RowDelta((), replaces=file_rewrite))
        return staged

    def compute_merge(self, target_bytes: int = TARGET) -> FileRewrite | None:
        """The result of a merge of the present state; None if too little has accumulated."""
        return self._computed(plan_merge(self.table, self.listing, target_bytes, self.sizes))

    def compute_rewrite(self) -> FileRewrite | None:
        """The rewrite of the file with the most deleted rows; None if no file has enough."""
        return self._computed(plan_rewrite(self.table, self.listing, self.sizes))

    def _computed(self, plan: MergePlan | None) -> FileRewrite | None:
        if plan is None:
            return None
        merged = [merge_files(task) for task in plan.data]
        return merged_file_rewrite(
            plan, merged, merge_positions(plan.positions) if plan.positions is not None else None
        )

    def merge(self, target_bytes: int = TARGET) -> StagedCommit | None:
        """A whole merge, or a whole rewrite of a much-deleted file if too little has accumulated."""
        file_rewrite = self.compute_merge(target_bytes) or (self.compute_rewrite() if target_bytes else None)
        return None if file_rewrite is None else self.commit(RowDelta((), replaces=file_rewrite))

    def begin_rewrite(self, rows: Rows) -> PendingRewrite:
        """Another engine begins to rewrite all data files; `rows` are those that a reader sees now."""
        return PendingRewrite(self.table, rows)

    def end_rewrite(self, rewrite: PendingRewrite) -> bool:
        """The other engine commits as Iceberg does: its file has the sequence number at which the rewrite began.
        Equality deletes that landed since stay, except those that are older than all data files that it did not write
        (see mirror_pump.lake.commit.new_snapshot). Returns False and does nothing if a file is missing or has
        a new position delete."""
        began, now = rewrite.table, self.table
        replaced = {file.path for file in began.live_data_files()}
        positions = {delete.path for delete in self._deletes(now) if delete.content is FileContent.POSITION_DELETES}
        gone = not replaced <= {file.path for file in now.live_data_files()}
        if gone or not positions <= {delete.path for delete in self._deletes(began)}:
            return False
        self.now_ms += 1000
        writer = ManifestWriter(now.metadata, sequence_number=now.sequence_number + 1)
        others = [file.sequence_number for file in now.live_data_files() if file.path not in replaced]
        oldest = min(others, default=now.sequence_number)
        removal = writer.remove(
            now.manifests,
            STORAGE,
            lambda manifest: manifest.path in replaced or (manifest.content != 0 and manifest.sequence_number < oldest),
            lambda _: True,
        )
        files = self.data_files(rewrite.rows)
        added = writer.next((), {ManifestContent.DATA: [(file, began.sequence_number) for file in files]}, STORAGE)
        counts = FileCounts.of(files)
        manifests = [*added, *removal.untouched, *removal.rewritten]
        snapshot = Snapshot.new(
            writer.snapshot_id,
            now.metadata.current_snapshot,
            writer.sequence_number,
            self.now_ms,
            summarise(counts, removal.removed, now.summary, {}, only_rewrites=True),
            writer.list(manifests, now.snapshot_id),
            now.metadata.current_schema_id,
        )
        metadata = with_snapshot(now.metadata, snapshot, now.metadata_location, (), DEFAULT_RETENTION)
        location = next_location(now.metadata, now.metadata_location)
        write_all([*writer.files, (location, metadata.to_json())], STORAGE)
        self.locations.append(location)
        self.table = LakeTable.load(location, STORAGE)
        return True

    def _deletes(self, table: LakeTable) -> list[LiveFile]:
        found = Listing(STORAGE).files(
            [manifest for manifest in table.manifests if manifest.content == ManifestContent.DELETES]
        )
        return [file for files in found.values() for file in files]

    def reload(self) -> None:
        """Forgets what is in memory, as a restarted pump does, and loads other engines' commits."""
        location = self.table.metadata_location
        if self.dsn is not None:
            with psycopg.connect(self.dsn, cursor_factory=CatalogCursor) as connection:
                location = load_pointer(connection, "public", "t") or location
        self.table = LakeTable.load(location, STORAGE)

    def duckdb(self, options: str = "") -> Rows:
        """The live rows as DuckDB reads them; fails on a key that occurs twice."""
        location = self.table.metadata_location
        found = read_duckdb(location, f"SELECT id, v FROM iceberg_scan('{location}'{options})").to_pylist()
        return by_key([(row["id"], row["v"]) for row in found])

    def spark(self, session: SparkSession, suffix: str = "") -> Rows:
        """The live rows as Spark reads them from the catalog."""
        return by_key([(row[0], row[1]) for row in read_spark(session, f"public.t{suffix}")])

    def pyiceberg(self) -> StaticTable:
        """The table as pyiceberg parses it."""
        return StaticTable.from_metadata(self.table.metadata_location)

    def scanned(self) -> Rows:
        """The live rows as pyiceberg reads them, which refuses equality deletes."""
        read = self.pyiceberg().scan().to_arrow()
        return by_key(zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True))

    def entries(self, *, written: bool = False) -> list[ManifestEntry]:
        """Live manifest entries of the current snapshot, by pyiceberg; with `written`, only those in manifests that it
        wrote itself."""
        table = self.pyiceberg()
        snapshot = table.current_snapshot()
        assert snapshot is not None
        manifests = [
            manifest
            for manifest in snapshot.manifests(table.io)
            if not written or manifest.added_snapshot_id == snapshot.snapshot_id
        ]
        return [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]

    def _land(self, staged: StagedCommit) -> LakeTable:
        self.locations.append(staged.new_location)
        if self.dsn is not None:
            land(self.dsn, staged)
        return staged.table


def land(dsn: str, staged: StagedCommit) -> None:
    """Commits a new state of the table public.t."""
    with psycopg.connect(dsn, cursor_factory=CatalogCursor) as connection:
        if staged.old_location is None:
            ensure_namespace(connection, "public")
            insert_pointer(connection, "public", "t", staged.new_location)
        else:
            assert swap_pointer(connection, "public", "t", staged.old_location, staged.new_location)


def by_key(rows: Iterable[tuple[int, str | None]]) -> Rows:
    """Rows as a dict; AssertionError for a key that occurs twice, which shows a wrong sequence number."""
    found = list(rows)
    result = dict(found)
    assert len(result) == len(found), f"a key occurs twice in {sorted(found)}"
    return result


def assert_divided(table: SmallTable) -> None:
    """Fails unless each file holds, or deletes, rows of its own lake partition only, and manifest lists say so."""
    if table.partitioning is None:
        return
    found = table.pyiceberg()
    snapshot = found.current_snapshot()
    assert snapshot is not None
    partition_of: dict[str, int] = {}
    for manifest in snapshot.manifests(found.io):
        entries = manifest.fetch_manifest_entry(found.io, discard_deleted=False)
        values = [entry.data_file.partition[0] for entry in entries]
        (summary,) = manifest.partitions or []
        bounds = (summary.lower_bound, summary.upper_bound)
        low, high = (int.from_bytes(bound or b"", "little", signed=True) for bound in bounds)
        assert (low, high, summary.contains_null) == (min(values), max(values), False)
        partition_of |= {entry.data_file.file_path: entry.data_file.partition[0] for entry in entries}
    for path, partition in partition_of.items():
        rows = pq.read_table(local_path(path))
        if "file_path" in rows.column_names:
            named = set(rows.column("file_path").to_pylist())
            assert {partition_of.get(path, partition) for path in named} == {partition}
        else:
            keys = partition_values(rows.column("id").combine_chunks(), table.partitioning.fields[0].transform)
            assert set(keys.to_pylist()) <= {partition}
