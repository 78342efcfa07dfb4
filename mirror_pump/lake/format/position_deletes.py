"""Writes and reads Iceberg position-delete files, which tell the deleted rows of data files. Runs inside tasks."""

from __future__ import annotations

import struct
import uuid
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mirror_pump.lake.format.bounds import split_offsets
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.data_files import FileContent, WrittenFile, compression
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
_NUMBERED_SCHEMA = _SCHEMA.set(0, _SCHEMA.field(0).with_type(pa.dictionary(pa.int32(), pa.string())))
"""The same columns of a file, with a number for each path."""
_WRITER_OPTIONS: Mapping[str, Any] = {
    "use_dictionary": ["file_path"],
    "column_encoding": {"pos": "DELTA_BINARY_PACKED"},
    "store_schema": False,
}
_LONG = struct.Struct("<q")

_FEW_ROWS = 100

ROW_GROUP_ROWS = 512 * 1024
"""Maximum rows per row group. Files are sorted by path, so readers skip groups by their paths."""


def encoded_position_deletes(
    positions: Iterable[tuple[str, Positions]],
    location: str,
    partition: PartitionTuple = UNPARTITIONED,
    *,
    row_group_rows: int = ROW_GROUP_ROWS,
) -> tuple[WrittenFile, bytes]:
    """A file for `location`/data, with its content: nothing is written yet. `positions`: URIs of data
    files, as in manifests, with sorted row numbers, in the order of the URIs. All these data files must be in
    `partition`. Memory: two row groups, the rows of one data file, and the content.

    The bounds on file_path are whole paths, never truncated. Equal bounds tell engines that the file refers to a single
    data file (field 143 says so too); truncated ones would name another file. Raises ValueError without positions,
    since readers cannot handle an empty file.
    """
    tables = _row_groups(positions, row_group_rows)
    table = next(tables, None)
    if table is None:
        raise ValueError("a position-delete file needs at least one position")
    first_path: str = table.column(0)[0].as_py()
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, **_WRITER_OPTIONS, **compression(table.nbytes)) as writer:
        writer.write_table(table, row_group_size=table.num_rows)
        for table in tables:
            writer.write_table(table, row_group_size=table.num_rows)
    last_path: str = table.column(0)[-1].as_py()
    content = sink.getvalue().to_pybytes()
    footer = writer.writer.metadata
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    numbers = [group.column(1).statistics for group in groups]
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
            PATH_ID: first_path.encode(),
            POSITION_ID: _LONG.pack(min(statistics.min for statistics in numbers)),
        },
        upper_bounds={
            PATH_ID: last_path.encode(),
            POSITION_ID: _LONG.pack(max(statistics.max for statistics in numbers)),
        },
        split_offsets=split_offsets(groups),
        referenced_data_file=first_path if first_path == last_path else None,
        partition=partition,
    )
    return file, content


def _row_groups(positions: Iterable[tuple[str, Positions]], most_rows: int) -> Iterator[pa.Table]:
    """The rows, sorted by file_path, then pos, as the Iceberg spec requires, in row groups of one schema."""
    waiting: list[tuple[str, Positions]] = []
    rows = 0
    numbered = False
    for path, remaining in positions:
        while len(remaining):
            part, remaining = remaining[: most_rows - rows], remaining[most_rows - rows :]
            waiting.append((path, part))
            rows += len(part)
            if rows == most_rows:
                numbered = True
                yield _table(waiting, numbered=True)
                waiting, rows = [], 0
    if waiting:
        yield _table(waiting, numbered=numbered or rows > _FEW_ROWS)


def _table(parts: Sequence[tuple[str, Positions]], *, numbered: bool) -> pa.Table:
    """`numbered`: the writer gets a number for each path. Of many rows a hash of each path would take most of the time;
    of few, as nearly every commit has, it takes less than the numbers do."""
    positions = pa.array(np.concatenate([rows for _, rows in parts]))
    if not numbered:
        paths = pa.array([path for path, rows in parts for _ in rows], pa.string())
        return pa.Table.from_arrays([paths, positions], schema=_SCHEMA)
    numbers = np.repeat(np.arange(len(parts), dtype=np.int32), [len(rows) for _, rows in parts])
    numbered_paths = pa.DictionaryArray.from_arrays(
        pa.array(numbers), pa.array([path for path, _ in parts], pa.string())
    )
    return pa.Table.from_arrays([numbered_paths, positions], schema=_NUMBERED_SCHEMA)


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
