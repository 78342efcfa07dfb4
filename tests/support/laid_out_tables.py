"""Tables whose lake tables are partitioned, with tier keys of several types, and what pyiceberg finds of their
files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import StaticTable

from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.storage import StorageOptions, local_path
from mirror_pump.ops.ingest.ingest_request import IngestRequest
from mirror_pump.ops.ingest.ingestion import ingest
from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Row, normalised
from tests.support.ingest_scene import csv_text
from tests.support.retention_table import run
from tests.support.tiered import tiered

COLUMNS = "at, id, n, v"


@dataclass(frozen=True)
class Layout:
    """A tier key of some type, counted in units from `origin` on: hours, days, or keys."""

    type: str
    origin: str
    unit: str
    """SQL: one unit."""
    width: int
    """Units of a partition of the heap."""
    lag: str
    lake_retention: str
    lake_partition: str
    literal: str
    """How engines write a value of the type, with `{}` for the text that PostgreSQL prints."""

    def at(self, units: int) -> str:
        """SQL: the key that is so many units behind the origin."""
        return f"({self.origin} + {units} * {self.unit})"


LAYOUTS = {
    "width": Layout("bigint", "0", "1", 100, "100", "130", "width", "{}"),
    # The heap's partitions are weeks, and the retention line is amid a day.
    "day": Layout(
        "timestamptz",
        "timestamptz '2026-01-26 00:00:00+00'",
        "interval '1 hour'",
        168,
        "1 week",
        "226 hours",
        "day",
        "TIMESTAMPTZ '{}'",
    ),
    # The heap's partitions are weeks, and lake partitions have parts of some.
    "month": Layout("date", "date '2026-01-12'", "1", 7, "1 week", "10 days", "month", "DATE '{}'"),
}


@dataclass
class LaidOutTable:
    """A partitioned table, and its model, a plain table that gets every change."""

    database: Database
    mirror: Mirror
    layout: Layout
    name: str
    sheds: bool
    partitions: int = 0

    def create(self) -> None:
        definitions = f"at {self.layout.type}, id bigint, n int, v text, PRIMARY KEY (at, id)"
        with self.database.session() as connection:
            run(connection, f"CREATE TABLE {self.name} ({definitions}) PARTITION BY RANGE (at)")
            run(connection, f"CREATE TABLE {self.name}_model ({definitions})")
        for _ in range(5):
            self.grow()
        lake_retention = self.layout.lake_retention if self.sheds else None
        wish = tiered(
            self.layout.lag,
            keep_heap=not self.sheds,
            lake_partition=self.layout.lake_partition,
            lake_retention=lake_retention,
        )
        self.mirror.register(self.name, retention=wish)

    def grow(self) -> None:
        """Adds a partition, with a row for each of its units."""
        low = self.partitions * self.layout.width
        high = low + self.layout.width
        with self.database.session(autocommit=False) as connection:
            bounds = run(connection, f"SELECT {self.layout.at(low)}::text, {self.layout.at(high)}::text").fetchone()
            assert bounds is not None
            run(
                connection,
                f"CREATE TABLE {self.name}_{self.partitions} PARTITION OF {self.name}"
                f" FOR VALUES FROM ('{bounds[0]}') TO ('{bounds[1]}')",
            )
            for table in (self.name, f"{self.name}_model"):
                at = f"{self.layout.origin} + g * {self.layout.unit}"
                run(
                    connection,
                    f"INSERT INTO {table} SELECT {at}, g, 0, 'first' FROM generate_series({low}, {high - 1}) g",
                )
        self.partitions += 1

    def put(self, units: int, key: int, value: str) -> None:
        """Writes a whole row, wherever its key is."""
        at = self.layout.at(units)
        insert = f" VALUES ({at}, {key}, 7, '{value}') ON CONFLICT (at, id) DO UPDATE SET n = 7, v = excluded.v"
        with self.database.session(autocommit=False) as connection:
            if self.sheds:
                row = f"jsonb_build_object('at', {at}, 'id', {key}, 'n', 7, 'v', '{value}')"
                run(connection, f"SELECT modak.upsert('{self.name}', {row})")
            else:
                run(connection, f"INSERT INTO {self.name}{insert}")
            run(connection, f"INSERT INTO {self.name}_model{insert}")

    def remove(self, units: int, key: int) -> None:
        """Deletes a row, wherever it is."""
        at = self.layout.at(units)
        with self.database.session(autocommit=False) as connection:
            if self.sheds:
                run(connection, f"SELECT modak.delete('{self.name}', jsonb_build_object('at', {at}, 'id', {key}))")
            else:
                run(connection, f"DELETE FROM {self.name} WHERE at = {at} AND id = {key}")
            run(connection, f"DELETE FROM {self.name}_model WHERE at = {at} AND id = {key}")

    def texts(self, units: range) -> list[str]:
        """The keys of so many units, as PostgreSQL prints them in UTC."""
        with self.database.session() as connection:
            run(connection, "SET TimeZone = 'UTC'")
            rows = run(
                connection,
                f"SELECT ({self.layout.origin} + g * {self.layout.unit})::text FROM"
                f" generate_series({units.start}, {units.stop - 1}, {units.step}) g",
            ).fetchall()
        return [text for (text,) in rows]

    def ingest(self, directory: Path, units: range, key: int) -> None:
        """Ingests a row for each of these, and one over a row that is there."""
        texts = self.texts(units)
        rows: list[tuple[object, ...]] = [(at, key, 3, "ingested") for at in texts]
        rows.append((texts[0], units.start, 3, "replaced"))
        source = directory / f"{self.name}_{key}.csv"
        source.write_text(csv_text(rows, ("at", "id", "n", "v")))
        outcome = ingest(self.mirror.settings, IngestRequest(self.name, (str(source),)), lambda _: None)
        assert bool(outcome.lake_rows) == self.sheds, "a table that keeps its heap gets them there"
        with self.database.session(autocommit=False) as connection:
            run(connection, "SET TimeZone = 'UTC'")
            for at, number, n, value in rows:
                connection.execute(
                    f"INSERT INTO {self.name}_model VALUES (%s, %s, %s, %s)"
                    " ON CONFLICT (at, id) DO UPDATE SET n = excluded.n, v = excluded.v".encode(),
                    (at, number, n, value),
                )

    @property
    def cut(self) -> int:
        """The number of the first partition from the cut-line on, once all that is due has left."""
        return self.partitions - 2

    def settled(self) -> bool:
        """Whether all that is due has left, or with a heap that stays is proven to be in the lake, and has expired."""
        states: LiteralString = (
            "SELECT count(*), count(*) FILTER (WHERE state = 'hot'), count(*) FILTER (WHERE state = %s)"
            " FROM modak.partitions WHERE table_id = %s::regclass::oid::bigint"
        )
        gone = "dropped" if self.sheds else "tiered"
        due: LiteralString = "SELECT modak.due_retention_line(%s::regclass::oid::bigint)"
        wanted = (self.partitions, 2, self.partitions - 2)
        return self.database.rows(states, (gone, self.name)) == [wanted] and (
            self.database.rows(due, (self.name,)) == [(None,)]
        )

    def model(self, *, below_cut: bool = False) -> list[Row]:
        """All rows that have not expired, or of these the ones below the cut-line."""
        unexpired = (
            f"at >= {self.layout.at(self.cut * self.layout.width)} - {self._lake_span()}" if self.sheds else "true"
        )
        below = f"at < {self.layout.at(self.cut * self.layout.width)}" if below_cut else "true"
        with self.database.session() as connection:
            run(connection, "SET TimeZone = 'UTC'")
            query = f"SELECT {COLUMNS} FROM {self.name}_model WHERE {unexpired} AND {below}"
            return normalised(run(connection, query).fetchall())

    def _lake_span(self) -> str:
        """SQL: the distance of lake retention."""
        match self.layout.type:
            case "bigint":
                return self.layout.lake_retention
            case "date":
                return self.layout.lake_retention.removesuffix(" days")
            case _:
                return f"interval '{self.layout.lake_retention}'"

    def whole(self) -> list[Row]:
        """All rows by a read across the cut-line."""
        with open_query(self.mirror.settings, Query(f"FROM {self.name}"), print) as duckdb:
            table = duckdb.execute(f"FROM {self.name}").to_arrow_table()
        return normalised(list(zip(*(column.to_pylist() for column in table.columns), strict=True)))

    @property
    def published(self) -> str:
        query: LiteralString = (
            "SELECT lake_props ->> 'metadata_location' FROM modak.cutline WHERE table_id = %s::regclass::oid::bigint"
        )
        return str(self.database.rows(query, (self.name,))[0][0])


@dataclass
class SnapshotFiles:
    """The files of a metadata file's current snapshot, as pyiceberg finds them."""

    location: str

    def __post_init__(self) -> None:
        self.table = StaticTable.from_metadata(self.location)
        (field,) = self.table.spec().fields
        self.source = self.table.schema().find_column_name(field.source_id)
        self.transform = field.transform.transform(self.table.schema().find_type(field.source_id))

    def partitions_of(self, keys: list[Any]) -> set[Any]:
        return {self.transform(key) for key in self.internal(keys)}

    @staticmethod
    def internal(keys: list[Any]) -> list[Any]:
        """Values as Iceberg's transforms take them."""
        array = pa.array(keys)
        if pa.types.is_timestamp(array.type):
            array = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
        elif pa.types.is_date32(array.type):
            array = array.cast(pa.int32())
        return list(array.to_pylist())

    def assert_divided(self) -> int:
        """Fails unless each data file has rows of its own lake partition alone, and each position-delete file that of
        the data files that it names. Returns the number of position deletes."""
        snapshot = self.table.metadata.current_snapshot()
        assert snapshot is not None
        partitions: dict[str, Any] = {}
        deletes: list[tuple[str, Any]] = []
        for manifest in snapshot.manifests(self.table.io):
            for entry in manifest.fetch_manifest_entry(self.table.io, discard_deleted=True):
                file = entry.data_file
                (partition,) = (file.partition[0],)
                if file.content == DataFileContent.DATA:
                    partitions[file.file_path] = partition
                    keys = pq.read_table(local_path(file.file_path), columns=[self.source]).column(0).to_pylist()
                    assert not keys or self.partitions_of(keys) == {partition}, file.file_path
                else:
                    assert file.content == DataFileContent.POSITION_DELETES
                    deletes.append((file.file_path, partition))
        count = 0
        for path, partition in deletes:
            if path.endswith(".puffin"):
                rows = HiddenRows.read([path], partitions, StorageOptions())
                named = Counter({data: len(positions) for data, positions in rows.items()})
                # Those of other vectors of the file: of other partitions, or replaced by a later commit.
                named = Counter({data: count for data, count in named.items() if partitions[data] == partition})
            else:
                named = Counter(pq.read_table(local_path(path), columns=["file_path"]).column(0).to_pylist())
            assert {partitions[data] for data in named} == {partition}, path
            count += sum(named.values())
        return count

    def planned(self, condition: str) -> set[Any]:
        """Lake partitions of the files that pyiceberg opens for rows that meet a condition."""
        return {task.file.partition[0] for task in self.table.scan(row_filter=condition).plan_files()}

    def rows(self, condition: str | None = None) -> list[Row]:
        scan = self.table.scan() if condition is None else self.table.scan(row_filter=condition)
        found = scan.to_arrow().select(COLUMNS.split(", ")).to_pylist()
        return normalised([tuple(row.values()) for row in found])
