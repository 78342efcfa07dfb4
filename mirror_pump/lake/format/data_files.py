"""Writes Iceberg data and equality-delete files with pyarrow and describes them for the commit. Runs inside tasks."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from decoders.columns import Kind
from decoders.variant import VARIANT_ARROW
from mirror_pump.lake.format.bounds import ColumnStatistics, split_offsets
from mirror_pump.lake.format.columns import whole_variants
from mirror_pump.lake.format.footers import VariantFile
from mirror_pump.lake.format.gathered_rows import GatheredRows
from mirror_pump.lake.format.partitioning import UNPARTITIONED, PartitionTuple
from mirror_pump.lake.format.puffin import BlobPlace
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.storage import StorageOptions, join, open_output, write_all

# Compression measured on public.acct, 100,000 rows, one thread: zstd 1 without a dictionary for its four
# high-cardinality columns 21 ms and 3.4 MB; zstd 3 32 ms and 3.5 MB; zstd 1 with dictionaries everywhere 29 ms and
# 4.1 MB; lz4 17 ms and 6.0 MB.
_COMPRESSION: Mapping[str, Any] = {"compression": "zstd", "compression_level": 1}
# Preparing zstd takes 50 us for each column: most of the time of a file of some rows. Such a file is merged soon.
_SMALL_COMPRESSION: Mapping[str, Any] = {"compression": "snappy"}
_SMALL_BYTES = 16 << 10

ROW_GROUP_ROWS = 512 * 1024
ROW_GROUP_BYTES = 64 << 20
"""A row group closes at the first of these limits. This bounds a task's memory, and readers share work by row group."""

_SAMPLE_ROWS = 512
"""Rows sampled, evenly spread, to guess whether a column's values repeat. Smaller files are not worth a dictionary page
per column."""


_IN_MEMORY_BYTES = 1 << 20
"""Rows of at most so many bytes are encoded in memory, and written by one call: a stream to a file takes as long as
their encoding."""


class FileContent(IntEnum):
    """Kind of a file's content, as numbered in manifests (Iceberg spec, field 134)."""

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2


@dataclass(frozen=True)
class WrittenFile:
    """A file's description for its manifest entry. Picklable: it travels from the task to the driver."""

    content: FileContent
    path: str
    """URI."""
    record_count: int
    size_bytes: int
    column_sizes: Mapping[int, int]
    """Compressed bytes by field ID; for a list, by its element's field ID; of a variant, of its parts together."""
    value_counts: Mapping[int, int]
    """Values, including NULLs, by field ID. Lists are left out, as in Iceberg's own writers."""
    null_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    """Iceberg single-value serialisation by field ID; text and binary truncated to 16 characters or bytes."""
    upper_bounds: Mapping[int, bytes]
    equality_ids: tuple[int, ...] = ()
    """EQUALITY_DELETES only: the key's field IDs."""
    split_offsets: tuple[int, ...] = ()
    """Byte offsets of the row groups."""
    nan_counts: Mapping[int, int] = field(default_factory=dict)
    """NaN values of FLOAT and DOUBLE columns. A column with a NaN has no bounds: engines sort NaN differently."""
    referenced_data_file: str | None = None
    """POSITION_DELETES only: URI of the data file, if all positions are in one file."""
    partition: PartitionTuple = UNPARTITIONED
    """The lake partition that all rows, or all data files that the deletes concern, belong to."""
    spec_id: int | None = None
    """The partition spec of `partition`. None: that of the table's new files."""
    blob: BlobPlace | None = None
    """POSITION_DELETES only: of a deletion vector its place in the Puffin file `path`, which `size_bytes` is of."""
    first_row_id: int | None = None
    """DATA only: the ID of the file's first row, if it has been assigned (Iceberg spec, row lineage)."""

    @property
    def content_bytes(self) -> int:
        """Bytes of what the entry describes: of a vector those of its blob, as engines count them."""
        return self.size_bytes if self.blob is None else self.blob.size


def compression(size: int) -> Mapping[str, Any]:
    """The options of a Parquet writer for a whole file of so many bytes of Arrow data."""
    return _SMALL_COMPRESSION if size <= _SMALL_BYTES else _COMPRESSION


def write_data_file(
    table: pa.Table,
    schema: LakeSchema,
    location: str,
    storage: StorageOptions,
    partition: PartitionTuple = UNPARTITIONED,
) -> WrittenFile:
    """Writes rows as one file below `location`/data. Columns: `schema`'s order, exact `ColumnType.arrow` types. All
    rows must be in `partition`; `mirror_pump.lake.format.partitioned_files` divides rows by their partitions.

    Raises ValueError if the table does not have the schema or a key column holds NULL, and LakeError from the storage.
    """
    return _written_file(table, schema, location, storage, FileContent.DATA, partition)


def write_equality_deletes(
    keys: pa.Table,
    schema: LakeSchema,
    location: str,
    storage: StorageOptions,
    partition: PartitionTuple = UNPARTITIONED,
) -> WrittenFile:
    """Writes the keys whose older rows are deleted as one file. `keys` holds `schema`'s key columns only, in its order.
    All of them must be in `partition`.

    Raises the same errors as `write_data_file`.
    """
    return _written_file(keys, schema.key, location, storage, FileContent.EQUALITY_DELETES, partition)


def _written_file(
    rows: pa.Table,
    schema: LakeSchema,
    location: str,
    storage: StorageOptions,
    content: FileContent,
    partition: PartitionTuple,
) -> WrittenFile:
    in_memory = rows.nbytes <= _IN_MEMORY_BYTES
    options = compression(rows.nbytes)
    with DataFileWriter(
        schema, location, None if in_memory else storage, content, partition=partition, options=options
    ) as writer:
        writer.write(rows)
    if in_memory:
        write_all([(writer.path, memoryview(writer.content))], storage)
    return writer.written


@dataclass
class _FloatStatistics:
    """Bounds and NaN count of a float column. Parquet's own statistics do not tell whether a column is free of NaN."""

    nans: int = 0
    low: float = math.inf
    high: float = -math.inf

    def add(self, values: pa.ChunkedArray) -> None:
        """Adds one row group's values."""
        self.nans += pc.sum(pc.is_nan(values)).as_py() or 0
        extremes = pc.min_max(values)
        if extremes["min"].is_valid:
            # Engines treat 0 and -0 as equal, but some order bounds by IEEE 754: a bound of zero gets the wider sign.
            self.low = min(self.low, extremes["min"].as_py() or -0.0)
            self.high = max(self.high, extremes["max"].as_py() or 0.0)

    def of_column(self, footer: ColumnStatistics) -> ColumnStatistics:
        """What the footer says, with these bounds."""
        is_bounded = not self.nans and self.low <= self.high
        return replace(footer, minima=[self.low] if is_bounded else (), maxima=[self.high] if is_bounded else ())


def data_location(location: str, name: str) -> str:
    """URI of a data file, or of a delete file, of the table at this location."""
    return join(location, "data", name)


class DataFileWriter:
    """Streams record batches into one Parquet file; a context manager.

    `written` describes the file after the block has ended without error. If the block fails, no file remains. Memory:
    one row group, which closes at `row_group_rows` rows or `row_group_bytes` of Arrow data, and one batch.
    """

    def __init__(
        self,
        schema: LakeSchema,
        location: str,
        storage: StorageOptions | None,
        content: FileContent = FileContent.DATA,
        *,
        partition: PartitionTuple = UNPARTITIONED,
        path: str | None = None,
        row_group_rows: int = ROW_GROUP_ROWS,
        row_group_bytes: int = ROW_GROUP_BYTES,
        options: Mapping[str, Any] = _COMPRESSION,
    ) -> None:
        """`storage`: None for a file that is not written: `content` has it. `partition`: the lake partition of all
        rows. `path`: the file's URI, by default a new one. `options`: `compression` of the file, if its size is
        known."""
        self._schema = schema
        self._partition = partition
        self._storage = storage
        self._content = content
        self._options = options
        suffix = "" if content is FileContent.DATA else "-deletes"
        self._path = path or data_location(location, f"{uuid.uuid4().hex}{suffix}.parquet")
        self._file_schema = pa.schema([_file_field(arrow) for arrow in schema.arrow])
        self._floats = {
            index: _FloatStatistics() for index, column in enumerate(schema.fields) if column.type.is_floating
        }
        # NULLs are counted for all columns, since some have no statistics in the footer.
        self._nulls = [0] * len(schema.fields)
        self._variants = [column.name for column in schema.fields if column.type.is_document]
        self._stack = ExitStack()
        self._writer: pq.ParquetWriter | None = None
        self._variant_file: VariantFile | None = None
        self._gathered = GatheredRows(schema, row_group_rows, row_group_bytes)
        self._written: WrittenFile | None = None

    def __enter__(self) -> DataFileWriter:
        sink = pa.BufferOutputStream() if self._storage is None else open_output(self._path, self._storage)
        self._sink = self._stack.enter_context(sink)
        return self

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Appends rows. Raises ValueError if their schema differs, pyarrow's ArrowInvalid for a NULL key."""
        if self._gathered.add(rows):
            self._flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._gathered.clear()
            if self._writer is not None:
                # A writer left open would try to finish the file later, after its sink is gone.
                with suppress(OSError, pa.ArrowException):
                    self._writer.close()
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack:
            if self._gathered or self._writer is None:
                self._flush()
            assert self._writer is not None
            if self._variant_file is not None:
                self._variant_file.begin_footer()
            self._writer.close()
            if self._variant_file is not None:
                self._variant_file.end(self._variants)
            size = self._sink.tell()
            footer = self._writer.writer.metadata
        self._written = self._describe(footer, size)

    def flush(self) -> None:
        """Writes what waits in memory as a row group."""
        if self._gathered:
            self._flush()

    @property
    def path(self) -> str:
        """URI of the file, which is there once the block has ended without error."""
        return self._path

    @property
    def written(self) -> WrittenFile:
        """The file's description. Raises RuntimeError before the block has ended without error."""
        if self._written is None:
            raise RuntimeError("the file has no description yet: its block has not ended without error")
        return self._written

    @property
    def content(self) -> pa.Buffer:
        """The content of a file that is not written, after the block has ended without error."""
        return self._sink.getvalue()

    def _flush(self) -> None:
        table = self._gathered.take()
        if self._writer is None:
            if self._variants:
                self._variant_file = VariantFile(self._sink)
            self._writer = pq.ParquetWriter(
                self._sink if self._variant_file is None else pa.PythonFile(self._variant_file, "w"),
                self._file_schema,
                **self._options,
                use_dictionary=_columns_worth_a_dictionary(table, self._schema),
                # Iceberg spec, appendix A: decimals of up to 9 and 18 digits are INT32 and INT64.
                store_decimal_as_integer=True,
                write_statistics=_columns_with_statistics(self._schema),
                # The field IDs identify the columns; the embedded Arrow schema would only enlarge small files.
                store_schema=False,
            )
        for index, column in enumerate(table.columns):
            self._nulls[index] += column.null_count
        for index, floats in self._floats.items():
            floats.add(table.column(index))
        columns = [
            _file_column(column, target.type) for column, target in zip(table.columns, self._file_schema, strict=True)
        ]
        self._writer.write_table(
            pa.Table.from_arrays(columns, schema=self._file_schema), row_group_size=max(table.num_rows, 1)
        )

    def _describe(self, footer: pq.FileMetaData, size: int) -> WrittenFile:
        groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
        sizes: dict[int, int] = {}
        nulls: dict[int, int] = {}
        nans: dict[int, int] = {}
        bounds: dict[int, tuple[bytes | None, bytes | None]] = {}
        leaf = 0
        for index, column in enumerate(self._schema.fields):
            if column.children:
                # Neither counts nor bounds of what is in a struct: nothing is looked for by them.
                for inner in column.leaves:
                    sizes[inner.leaf_id] = ColumnStatistics.of(groups, leaf).size_bytes
                    leaf += 1
                continue
            if column.type.is_document:
                parts = range(leaf, leaf + VARIANT_ARROW.num_fields)
                sizes[column.field_id] = sum(ColumnStatistics.of(groups, part).size_bytes for part in parts)
                leaf = parts.stop
                nulls[column.field_id] = self._nulls[index]
                continue
            statistics = ColumnStatistics.of(groups, leaf)
            leaf += 1
            sizes[column.leaf_id] = statistics.size_bytes
            if column.type.element is not None:
                continue
            nulls[column.field_id] = self._nulls[index]
            if index in self._floats:
                nans[column.field_id] = self._floats[index].nans
                statistics = self._floats[index].of_column(statistics)
            bounds[column.field_id] = statistics.bounds(column.type)
        return WrittenFile(
            content=self._content,
            path=self._path,
            record_count=footer.num_rows,
            size_bytes=size,
            column_sizes=sizes,
            value_counts=dict.fromkeys(nulls, footer.num_rows),
            null_counts=nulls,
            lower_bounds={field_id: low for field_id, (low, _) in bounds.items() if low is not None},
            upper_bounds={field_id: high for field_id, (_, high) in bounds.items() if high is not None},
            equality_ids=self._schema.key_ids if self._content is FileContent.EQUALITY_DELETES else (),
            split_offsets=split_offsets([group for group in groups if group.num_rows]),
            nan_counts=nans,
            partition=self._partition,
        )


def _file_field(arrow: pa.Field) -> pa.Field:
    """The field as written to Parquet: 16-byte binaries are always UUIDs here, and are annotated as such."""
    if arrow.type == pa.binary(16):
        return arrow.with_type(pa.uuid())
    if pa.types.is_list(arrow.type):
        return arrow.with_type(pa.list_(_file_field(arrow.type.value_field)))
    if pa.types.is_struct(arrow.type):
        return arrow.with_type(pa.struct(list(map(_file_field, arrow.type))))
    return arrow


def _file_column(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """The column with the type that it is written as. Copies nothing except the validity of UUID lists."""
    if target == VARIANT_ARROW:
        return pa.chunked_array([whole_variants(chunk) for chunk in column.chunks], target)
    if isinstance(target, pa.UuidType):
        return pa.chunked_array([pa.ExtensionArray.from_storage(target, chunk) for chunk in column.chunks], target)
    if pa.types.is_struct(target):
        return pa.chunked_array([_file_struct(chunk, target) for chunk in column.chunks], target)
    if not pa.types.is_list(target):
        return column
    if not isinstance(target.value_type, pa.UuidType):
        return column.cast(target)
    return pa.chunked_array([_uuid_list(chunk, target) for chunk in column.chunks], target)


def _file_struct(chunk: pa.StructArray, target: pa.StructType) -> pa.StructArray:
    fields = [
        pa.concat_arrays(_file_column(pa.chunked_array([values]), inner.type).chunks)
        for values, inner in zip(chunk.flatten(), target, strict=True)
    ]
    return pa.StructArray.from_arrays(fields, fields=list(target), mask=chunk.is_null())


def _uuid_list(chunk: pa.ListArray, target: pa.ListType) -> pa.ListArray:
    elements = pa.ExtensionArray.from_storage(target.value_type, chunk.values)
    # `mask` rejects sliced offsets. Concatenating the single array makes its offsets begin at zero.
    whole = chunk if chunk.offset == 0 else pa.concat_arrays([chunk])
    if whole is not chunk:
        elements = pa.ExtensionArray.from_storage(target.value_type, whole.values)
    return pa.ListArray.from_arrays(whole.offsets, elements, type=target, mask=whole.is_null())


def _columns_with_statistics(schema: LakeSchema) -> list[str] | bool:
    """Parquet paths of the columns whose footer statistics are correct for every reader."""
    leaves = [leaf for column in schema.fields for leaf in _parquet_leaves(column)]
    paths = [path for path, leaf in leaves if (leaf.type.element or leaf.type).facts.has_statistics]
    return True if len(paths) == len(leaves) else paths or False


def _parquet_path(column: LakeField) -> str:
    return f"{column.name}.list.element" if column.type.element is not None else column.name


def _parquet_leaves(column: LakeField) -> list[tuple[str, LakeField]]:
    """The column's leaves with their Parquet paths."""
    if column.type.is_document:
        return [(f"{column.name}.{part.name}", column) for part in VARIANT_ARROW]
    if not column.children:
        return [(_parquet_path(column), column)]
    name = f"{column.name}.key_value" if column.type.kind is Kind.MAP else column.name
    return [(f"{name}.{path}", leaf) for child in column.children for path, leaf in _parquet_leaves(child)]


def _columns_worth_a_dictionary(table: pa.Table, schema: LakeSchema) -> list[str] | bool:
    """Parquet paths of the columns whose values repeat in a sample.

    For other columns pyarrow would fill a dictionary of 1 MiB before giving up, which takes half the writing time.
    """
    if table.num_rows < _SAMPLE_ROWS:
        return False
    names = []
    for column, values in zip(schema.fields, _sample(table).columns, strict=True):
        if column.type.kind is Kind.STRUCT or column.type.is_document:
            names += [
                path
                for (path, leaf), part in zip(_parquet_leaves(column), values.flatten(), strict=True)
                if leaf.type.element is None and _repeats(part)
            ]
            continue
        if column.type.kind is Kind.MAP:
            continue
        flat = pc.list_flatten(values) if column.type.element is not None else values
        if _repeats(flat):
            names.append(_parquet_path(column))
    return names or False


def _repeats(values: pa.Array) -> bool:
    # Of texts, `unique` takes half the time of `count_distinct`. NULL is one more value.
    return bool(len(values) and len(values.unique()) * 2 <= len(values))


def _sample(table: pa.Table) -> pa.RecordBatch:
    """Rows at even distances. Taken by batch: Arrow would first join a column's chunks, which copies all of it, and a
    call for each chunk of each column takes longer than a table of 200 columns is worth."""
    step = table.num_rows // _SAMPLE_ROWS
    sample, begin = [], 0
    for batch in table.to_batches():
        sample.append(batch.take(pa.array(np.arange(-begin % step, len(batch), step))))
        begin += len(batch)
    return pa.concat_batches(sample)
