"""Writes and reads Iceberg position-delete files, which tell the deleted rows of data files. Runs inside tasks."""

from __future__ import annotations

import struct
import uuid
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mirror_pump.lake.format.bounds import split_offsets
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.partitioning import UNPARTITIONED, PartitionTuple
from mirror_pump.lake.format.schema import FIELD_ID
from mirror_pump.lake.format.sorted_numbers import sorted_distinct
from mirror_pump.lake.storage import StorageOptions, join

PATH_ID = 2147483546
"""Field ID of file_path (Iceberg spec, reserved field IDs)."""
POSITION_ID = 2147483545
"""Field ID of pos."""

Positions: TypeAlias = npt.NDArray[np.int64]
"""Row numbers within a data file, from 0."""

_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID: str(PATH_ID).encode()}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: str(POSITION_ID).encode()}),
    ]
)
_LONG = struct.Struct("<q")

_FEW_ROWS = 100

ROW_GROUP_ROWS = 512 * 1024
"""Maximum rows per row group. Files are sorted by path, so readers skip groups by their paths."""


def encoded_position_deletes(
    positions: Mapping[str, Positions],
    location: str,
    partition: PartitionTuple = UNPARTITIONED,
    *,
    row_group_rows: int = ROW_GROUP_ROWS,
) -> tuple[WrittenFile, bytes]:
    """A file for `location`/data, with its content: nothing is written yet. `positions`: sorted row numbers by data
    file URI, as in manifests. All these data files must be in `partition`.

    The bounds on file_path are whole paths, never truncated. Equal bounds tell engines that the file refers to a single
    data file (field 143 says so too); truncated ones would name another file. Raises ValueError without positions,
    since readers cannot handle an empty file.
    """
    paths = sorted(data_path for data_path, rows in positions.items() if len(rows))
    if not paths:
        raise ValueError("a position-delete file needs at least one position")
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        _SCHEMA,
        compression="zstd",
        use_dictionary=["file_path"],
        column_encoding={"pos": "DELTA_BINARY_PACKED"},
        store_schema=False,
    ) as writer:
        for table in _row_groups(paths, positions, row_group_rows):
            writer.write_table(table, row_group_size=table.num_rows)
    content = sink.getvalue().to_pybytes()
    footer = writer.writer.metadata
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    rows = footer.num_rows
    file = WrittenFile(
        content=FileContent.POSITION_DELETES,
        path=join(location, "data", f"{uuid.uuid4().hex}-positions.parquet"),
        record_count=rows,
        size_bytes=len(content),
        column_sizes={
            field: sum(group.column(index).total_compressed_size for group in groups)
            for index, field in enumerate((PATH_ID, POSITION_ID))
        },
        value_counts={PATH_ID: rows, POSITION_ID: rows},
        null_counts={PATH_ID: 0, POSITION_ID: 0},
        lower_bounds={
            PATH_ID: paths[0].encode(),
            POSITION_ID: _LONG.pack(min(int(positions[data_path][0]) for data_path in paths)),
        },
        upper_bounds={
            PATH_ID: paths[-1].encode(),
            POSITION_ID: _LONG.pack(max(int(positions[data_path][-1]) for data_path in paths)),
        },
        split_offsets=split_offsets(groups),
        referenced_data_file=paths[0] if len(paths) == 1 else None,
        partition=partition,
    )
    return file, content


def _row_groups(paths: Sequence[str], positions: Mapping[str, Positions], most_rows: int) -> Iterator[pa.Table]:
    """The rows, sorted by file_path, then pos, as the Iceberg spec requires, and split into row groups."""
    waiting: list[tuple[str, Positions]] = []
    rows = 0
    for path in paths:
        remaining = positions[path]
        while len(remaining):
            part, remaining = remaining[: most_rows - rows], remaining[most_rows - rows :]
            waiting.append((path, part))
            rows += len(part)
            if rows == most_rows:
                yield _table(waiting)
                waiting, rows = [], 0
    if waiting:
        yield _table(waiting)


def _table(parts: Sequence[tuple[str, Positions]]) -> pa.Table:
    if sum(len(rows) for _, rows in parts) <= _FEW_ROWS:
        # Nearly every commit: without the detour that spares many rows their path.
        columns = [
            pa.array([path for path, rows in parts for _ in range(len(rows))], pa.string()),
            pa.array([position for _, rows in parts for position in rows.tolist()], pa.int64()),
        ]
        return pa.Table.from_arrays(columns, schema=_SCHEMA)
    numbers = np.repeat(np.arange(len(parts), dtype=np.int32), [len(rows) for _, rows in parts])
    paths = pa.DictionaryArray.from_arrays(pa.array(numbers), pa.array([path for path, _ in parts], pa.string()))
    return pa.table([paths.dictionary_decode(), pa.array(np.concatenate([rows for _, rows in parts]))], schema=_SCHEMA)


def read_position_deletes(
    files: Sequence[str], data_files: Collection[str], storage: StorageOptions
) -> dict[str, Positions]:
    """The rows of `data_files` that position-delete files of any engine delete: sorted row numbers by URI.

    Skips row groups that refer to none of these data files. Memory: one row group and the result. Raises LakeError.
    """
    rows_by_path: dict[str, list[Positions]] = {}
    data_files = frozenset(data_files)
    names = sorted(data_files)
    for file in files:
        with open_parquet(file, storage, ["file_path"]) as parquet:
            place = leaf_of(parquet, "file_path")
            groups = parquet.num_row_groups
            for group in range(groups):
                # Of one group they say what the file's bounds do. In a damaged footer Arrow aborts over some of them.
                if groups == 1 or _may_name(parquet.metadata.row_group(group).column(place), names):
                    # The columns are selected, since engines may add one with the deleted row.
                    table = parquet.read_row_group(group, columns=["file_path", "pos"], use_threads=False)
                    for path, rows in _by_path(table.select(["file_path", "pos"]), data_files):
                        rows_by_path.setdefault(path, []).append(rows)
    return {path: sorted_distinct(np.concatenate(parts)) for path, parts in rows_by_path.items()}


def leaf_of(parquet: pq.ParquetFile, name: str) -> int:
    """Index of a column, which must not be a struct or list, among the file's leaf columns, as row groups count."""
    return next(place for place in range(len(parquet.schema)) if parquet.schema.column(place).path == name)


def _may_name(chunk: pq.ColumnChunkMetaData, names: Sequence[str]) -> bool:
    """Whether one of the names, which are sorted, may be in a chunk of paths."""
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max:
        return True
    first = bisect_left(names, statistics.min)
    return first < len(names) and names[first] <= statistics.max


def _by_path(table: pa.Table, data_files: Collection[str]) -> Iterator[tuple[str, Positions]]:
    for batch in table.unify_dictionaries().to_batches():
        encoded = batch.column(0)
        if not isinstance(encoded, pa.DictionaryArray):
            encoded = encoded.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        rows = batch.column(1).to_numpy()
        order = np.argsort(codes, kind="stable")
        names = encoded.dictionary.to_pylist()
        limits = np.searchsorted(codes[order], np.arange(len(names) + 1))
        for number, name in enumerate(names):
            if name in data_files and limits[number] < limits[number + 1]:
                yield name, rows[order[limits[number] : limits[number + 1]]].astype(np.int64)
