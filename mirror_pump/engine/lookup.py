"""What runs inside a Spark task that looks rows up by key in data files of the lake; and how the driver takes them.

Large values are why rows are looked up at all. A task's result goes through the Java heap, more than once: what is
large goes by a file in the table's storage instead, which the driver removes as soon as it has read it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirror_pump.lake.format.columns import column_names, names_by_id, plain
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions, discard, join, open_input, open_output


@dataclass(frozen=True)
class LookupTask:
    """Keys to find in some files, and the columns wanted of their rows."""

    paths: tuple[str, ...]
    keys: pa.Table
    """The key columns, in the lake's types; one row for each key."""
    columns: tuple[str, ...]
    schema: LakeSchema
    storage: StorageOptions
    location: str
    """Root URI of the table's files."""


@dataclass(frozen=True)
class Found:
    """The rows of one file; `rows_of` gives them."""

    rows: pa.Table | None
    path: str = ""
    """URI of an Arrow IPC file with the rows, if they are not here."""


_LARGEST_RESULT = 4 << 20
"""Bytes."""
_BATCH_ROWS = 4096
"""Read at once: rows that are looked up are large."""


def rows_of(found: Found, storage: StorageOptions) -> pa.Table:
    """The rows; their file, if they came by one, is gone then. Raises LakeError."""
    if found.rows is not None:
        return found.rows
    with open_input(found.path, storage) as source, pa.ipc.open_file(source) as file:
        rows = file.read_all()
    discard([found.path], storage)
    return rows


def find_rows(task: LookupTask) -> list[Found]:
    """For each file, its rows whose first key column is among the keys': key columns, then `columns`. May hold other
    keys' rows when the key has several columns; the caller compares whole keys. Columns are the schema's: found by
    field ID, NULL where a file is older than the column, and widened where the column was."""
    written: list[str] = []
    try:
        return [_handed_over(_find(path, task), task, written) for path in task.paths]
    except BaseException:
        discard(written, task.storage)
        raise


def _handed_over(rows: pa.Table, task: LookupTask, written: list[str]) -> Found:
    if rows.nbytes <= _LARGEST_RESULT:
        return Found(rows)
    path = join(task.location, "data", f"{uuid.uuid4().hex}-found.arrow")
    with open_output(path, task.storage) as sink, pa.ipc.new_file(sink, rows.schema) as file:
        file.write_table(rows)
    written.append(path)
    return Found(None, path)


def _find(path: str, task: LookupTask) -> pa.Table:
    first = task.keys.column_names[0]
    names = [*task.keys.column_names, *(name for name in task.columns if name not in task.keys.column_names)]
    wanted = pc.unique(task.keys.column(first))
    schema = pa.schema([task.schema.arrow.field(name).remove_metadata() for name in names])
    ids = {one.name: one.field_id for one in task.schema.fields}
    found = [schema.empty_table()]
    with open_input(path, task.storage) as source:
        file = pq.ParquetFile(source)
        column_names(file, [ids[name] for name in task.keys.column_names], path)
        own = names_by_id(file)
        stored = [own.get(ids[name]) for name in names]
        kind = schema.field(first).type
        # Keys first: the large values of row groups that hold none of the rows are never read.
        holding = [
            group
            for group in range(file.num_row_groups)
            if any(
                pc.any(pc.is_in(_typed(batch, own.get(ids[first]), kind), value_set=wanted)).as_py()
                for batch in file.iter_batches(row_groups=[group], columns=[own[ids[first]]])
            )
        ]
        present = [name for name in stored if name is not None]
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=holding, columns=present) if holding else ():
            columns = [
                _typed(batch, source_name, schema.field(name).type)
                for source_name, name in zip(stored, names, strict=True)
            ]
            table = pa.table(columns, schema=schema)
            found.append(table.filter(pc.is_in(table.column(first), value_set=wanted)))
    return pa.concat_tables(found)


def _typed(batch: pa.RecordBatch, name: str | None, arrow: pa.DataType) -> pa.Array:
    return pa.nulls(batch.num_rows, arrow) if name is None else plain(batch.column(name)).cast(arrow)
