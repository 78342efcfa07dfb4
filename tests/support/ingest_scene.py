"""A table whose old rows go straight to the lake: its cut-line is above all of its partitions' lower neighbours."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mirror_pump.database.quoting import identifier
from mirror_pump.model import TableId
from mirror_pump.ops.ingest.ingest_request import (
    IngestOutcome,
    IngestRequest,
    IngestStep,
    OnConflict,
    OnError,
)
from mirror_pump.ops.ingest.ingestion import ingest
from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.ops.table_progress import TableProgress
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, assert_same, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.retention_table import at_once

CUT = 200
"""Rows below are the lake's; partitions p2 [200, 300) and p3 [300, 400) are in the heap."""

Row = tuple[Any, ...]


@dataclass
class IngestScene:
    """public.events, without partitions below the cut-line, and public.model, a plain table that has every row."""

    database: Database
    directory: Path
    mirror: Mirror
    columns: Sequence[str]
    steps: list[TableProgress] = field(default_factory=list)

    @classmethod
    def create(
        cls,
        database: Database,
        warehouse: str,
        directory: Path,
        definitions: str = "n int, v text",
        *,
        runner: ThreadTaskRunner | None = None,
        **settings: Any,
    ) -> IngestScene:
        """Creates, registers and copies the table, of which no row is below the cut-line yet. `definitions`: further
        columns."""
        mirror = Mirror.create(database, warehouse, runner or ThreadTaskRunner(1), retention_interval=30.0, **settings)
        database.execute(
            f"CREATE TABLE events (at bigint, id bigint, {definitions}, PRIMARY KEY (at, id)) PARTITION BY RANGE (at);"
            "CREATE TABLE p2 PARTITION OF events FOR VALUES FROM (200) TO (300);"
            "CREATE TABLE p3 PARTITION OF events FOR VALUES FROM (300) TO (400);"
            f"CREATE TABLE model (at bigint, id bigint, {definitions}, PRIMARY KEY (at, id));"
            "INSERT INTO events (at, id) SELECT 200 + g * 10, g FROM generate_series(0, 19) g;"
            "INSERT INTO model OVERRIDING SYSTEM VALUE SELECT * FROM events"
        )
        mirror.register("public.events", retention=at_once("1000"))
        mirror.catch_up()
        # As if partitions below had left, with no row in them.
        database.execute(
            "UPDATE modak.cutline SET tier_key_hi = 200 WHERE table_id = 'public.events'::regclass::oid::bigint"
        )
        names = [
            name
            for (name,) in database.rows(
                "SELECT attname::text FROM pg_attribute WHERE attrelid = 'model'::regclass AND attnum > 0"
                " ORDER BY attnum"
            )
        ]
        return cls(database, directory, mirror, names)

    def file(self, name: str, content: str | bytes) -> str:
        """A file of the test's directory."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def csv(self, name: str, rows: Iterable[Sequence[object]], columns: Sequence[str] | None = None) -> str:
        """A CSV file of these rows."""
        return self.file(name, csv_text(rows, columns or self.columns))

    def ingest(
        self,
        *files: str,
        table: str = "events",
        on_step: Callable[[IngestStep], object] | None = None,
        **options: Any,
    ) -> IngestOutcome:
        """Ingests files in this process, with two threads."""

        def observe(progress: TableProgress) -> None:
            self.steps.append(progress)
            if on_step is not None:
                on_step(IngestStep(progress.step))

        return ingest(self.mirror.settings, IngestRequest(table, files, **options), observe)

    def into_model(self, rows: Iterable[Sequence[object]], columns: Sequence[str] | None = None) -> None:
        """Writes the same rows to the model: those of a key that it has are replaced."""
        names = ", ".join(columns or self.columns)
        with self.database.connect(autocommit=False) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TEMP TABLE coming (LIKE model INCLUDING DEFAULTS) ON COMMIT DROP")
            with cursor.copy(f"COPY coming ({names}) FROM STDIN (FORMAT csv, HEADER)".encode()) as copy:
                copy.write(csv_text(rows, columns or self.columns))
            cursor.execute("DELETE FROM model USING coming WHERE (model.at, model.id) = (coming.at, coming.id)")
            cursor.execute("INSERT INTO model SELECT * FROM coming")

    def assert_exact(self) -> None:
        """Fails unless a read across the cut-line finds exactly the rows of the model, and nothing else is visible."""
        assert_same(self.model(), self.seam(), "the read across the cut-line")

    def model(self) -> list[Row]:
        return normalised(self.database.rows(f"SELECT {', '.join(self.columns)} FROM model"))

    def seam(self) -> list[Row]:
        """All rows, as the product's own reads find them."""
        names = ", ".join(map(identifier, self.columns))
        with open_query(self.mirror.settings, Query("FROM events", ReadMode.SEAM), print) as duckdb:
            table = duckdb.execute(f"SELECT {names} FROM events").to_arrow_table()
        return normalised(list(zip(*(column.to_pylist() for column in table.columns), strict=True)))

    def lake(self, query: str = "SELECT * FROM lake") -> list[Row]:
        """Rows of the published snapshot, by DuckDB alone."""
        ((location,),) = self.database.rows("SELECT lake_props ->> 'metadata_location' FROM modak.cutline")
        table = read_duckdb(location, query)
        return [tuple(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]

    def files_in_lake(self) -> set[str]:
        """Names of all data files that are in the storage."""
        root = Path(self.mirror.settings.require_warehouse().removeprefix("file://"))
        return {path.name for path in root.rglob("data/*.parquet")}

    def phases(self) -> list[str]:
        """The phases of all ingests, the oldest first."""
        return [
            phase
            for (phase,) in self.database.rows(
                "SELECT phase FROM modak.op_log WHERE op_kind = 'ingest' ORDER BY updated_at"
            )
        ]

    @property
    def table_id(self) -> TableId:
        return TableId(int(self.database.rows("SELECT 'events'::regclass::oid::bigint")[0][0]))


def csv_text(rows: Iterable[Sequence[object]], columns: Sequence[str] | None = None) -> str:
    """Rows as CSV, NULL as an empty field."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    if columns:
        writer.writerow(columns)
    writer.writerows([["" if value is None else value for value in row] for row in rows])
    return stream.getvalue()


__all__ = ["CUT", "IngestScene", "OnConflict", "OnError", "csv_text"]
