"""Cost of converting on one core: `python -m benchmarks.conversion_micro [--rows 50000000]`.

A table of that many rows in files of 500,000, bigint keys in random order, gets 1,000 updates of random keys a second,
in ten commits between two conversions. No Postgres and no Spark: only the tasks' functions, and the commits.
Conversions keep up if each takes less than the ten seconds in which its deletes arrive; the report has its share of one
core. At the end, DuckDB and pyiceberg read the table.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.table import StaticTable

from decoders.columns import ColumnType, Kind
from mirror_pump.engine.rewrite.conversion_plan import file_rewrite_of, listing_for, plan_conversion
from mirror_pump.engine.rewrite.delete_conversion import convert_deletes
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles
from mirror_pump.lake.format.data_files import WrittenFile, write_data_file, write_equality_deletes
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.testing.lake import duckdb_connection

SCHEMA = LakeSchema(
    0,
    (
        LakeField(1, "id", ColumnType(Kind.LONG), required=True),
        LakeField(2, "n", ColumnType(Kind.INT), required=False),
    ),
    (1,),
)
STORAGE = StorageOptions(fsync=False)
FILE_ROWS = 500_000
UPDATES = 1_000
"""Updates per second."""
COMMITS = 10
"""Commits between two conversions, one a second."""


def data(location: str, keys: np.ndarray[tuple[int], np.dtype[np.int64]], number: int) -> WrittenFile:
    rows = pa.table([pa.array(keys), pa.array(np.full(len(keys), number, np.int32))], schema=SCHEMA.arrow)
    return write_data_file(rows, SCHEMA, location, STORAGE)


def deletes(location: str, keys: np.ndarray[tuple[int], np.dtype[np.int64]]) -> WrittenFile:
    return write_equality_deletes(pa.table([pa.array(keys)], schema=SCHEMA.key.arrow), SCHEMA, location, STORAGE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--conversions", type=int, default=12)
    arguments = parser.parse_args()
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as directory:
        location = f"{Path(directory).as_uri()}/t"
        table = LakeTable.create(SCHEMA, location, STORAGE, {}, 1).table
        keys = random.permutation(arguments.rows)
        first = tuple(data(location, part, 0) for part in np.array_split(keys, max(arguments.rows // FILE_ROWS, 1)))
        table = table.stage(RowDelta((SegmentFiles(first, ()),)), 2).table
        listing = listing_for(table)
        seconds, processor, commits = [], [], []
        for number in range(arguments.conversions):
            for _ in range(COMMITS):
                updated = np.unique(random.integers(0, arguments.rows, UPDATES))
                segment = SegmentFiles((data(location, updated, number + 1),), (deletes(location, updated),))
                table = table.stage(RowDelta((segment,)), table.metadata.last_updated_ms + 1000).table
            began, used = time.perf_counter(), time.process_time()
            plan = plan_conversion(table, listing)
            assert plan is not None
            results = [convert_deletes(task) for task in plan.tasks]
            resolution = file_rewrite_of(plan, results)
            computed = time.perf_counter()
            table = table.stage(RowDelta((), replaces=resolution), table.metadata.last_updated_ms).table
            seconds.append(time.perf_counter() - began)
            processor.append(time.process_time() - used)
            commits.append(time.perf_counter() - computed)
            rows = sum(result.rows_read for result in results)
            print(
                f"conversion {number + 1}: {plan.deletes:,} deletes, {rows:,} rows in {len(plan.tasks)} tasks:"
                f" {seconds[-1]:.2f} s, {processor[-1]:.2f} s of CPU, commit {commits[-1] * 1000:.0f} ms;"
                f" {table.delete_files} delete files"
            )
        share = statistics.median(processor) / COMMITS
        print(f"share of one core at {UPDATES:,} updates/s: {share:.0%}; {rows / processor[-1] / 1e6:.0f} M rows/s")
        began = time.perf_counter()
        with duckdb_connection() as duckdb:
            query = f"SELECT count(*), sum(n) FROM iceberg_scan('{table.metadata_location}')"
            counted = duckdb.execute(query).fetchone()
        print(f"DuckDB: {counted} in {time.perf_counter() - began:.2f} s")
        assert counted is not None
        assert counted[0] == arguments.rows == table.records - table.position_deletes
        began = time.perf_counter()
        scanned = StaticTable.from_metadata(table.metadata_location).scan(selected_fields=("n",)).to_arrow()
        print(f"pyiceberg: {scanned.num_rows:,} rows in {time.perf_counter() - began:.2f} s")
        assert scanned.num_rows == arguments.rows


if __name__ == "__main__":
    main()
