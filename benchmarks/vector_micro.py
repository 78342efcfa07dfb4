"""What commits cost that delete rows all over a table, by Iceberg's format version, without Postgres and Spark:
`python -m benchmarks.vector_micro [--files 500] [--commits 200]`.

Each commit deletes 1,000 rows, drawn from a table of 50,000,000, and adds a file with as many. Only the lake's side of
it is measured, from the row numbers that a key index gives to the metadata file. CPU time is that of the process; bytes
and files are those that the commits write. Each version in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta, SegmentFiles
from mirror_pump.lake.format.data_files import write_data_file
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.storage import StorageOptions

_ROWS = 50_000_000
_DELETES = 1_000
_WARM_UP = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--commits", type=int, default=200)
    parser.add_argument("--one", type=int, choices=[2, 3])
    arguments = parser.parse_args()
    if arguments.one is not None:
        with tempfile.TemporaryDirectory() as directory:
            _measure(arguments.one, arguments.files, arguments.commits, Path(directory))
        return
    for version in (2, 3):
        subprocess.run(
            [sys.executable, "-m", "benchmarks.vector_micro", *sys.argv[1:], "--one", str(version)], check=True
        )


def _measure(version: int, files: int, commits: int, directory: Path) -> None:
    storage = StorageOptions(fsync=False)
    schema = LakeSchema(0, (LakeField(1, "id", ColumnType(Kind.LONG), required=True),), (1,))
    now = 1_700_000_000_000
    table = LakeTable.create(schema, directory.as_uri(), storage, {}, now, format_version=version).table
    # Commits read manifests alone, so one file stands for all.
    written = write_data_file(pa.table({"id": pa.array([1], pa.int64())}), schema, table.location, storage)
    each = _ROWS // files
    names = [f"{table.location}/data/{number:032x}-0.parquet" for number in range(files)]
    first = [replace(written, path=name, record_count=each) for name in names]
    table = table.stage(RowDelta((SegmentFiles(tuple(first), ()),)), now).table
    # As a pump that has just started has it.
    table = LakeTable.load(table.metadata_location, storage)
    random = np.random.default_rng(1)
    cpu = began = size = count = 0.0
    for number in range(_WARM_UP + commits):
        if number == _WARM_UP:
            cpu, began, (size, count) = time.process_time(), time.monotonic(), _written(directory)
        places = np.unique(random.integers(0, _ROWS, _DELETES))
        limits = np.flatnonzero(np.diff(places // each)) + 1
        hidden = {names[int(part[0]) // each]: part % each for part in np.split(places, limits)}
        added = replace(written, path=f"{table.location}/data/{files + number:032x}-0.parquet", record_count=_DELETES)
        table = table.stage(RowDelta((SegmentFiles((added,), ()),), hidden=hidden), now + number).table
    cpu, began = time.process_time() - cpu, time.monotonic() - began
    after, objects = _written(directory)
    print(
        f"version {version}, {files:,} files: {cpu / commits * 1000:.1f} ms of CPU and {began / commits * 1000:.1f} ms"
        f" a commit, {(after - size) / commits / 1000:.0f} kB in {(objects - count) / commits:.1f} files"
    )


def _written(directory: Path) -> tuple[int, int]:
    files = [path.stat().st_size for path in directory.rglob("*") if path.is_file()]
    return sum(files), len(files)


if __name__ == "__main__":
    main()
