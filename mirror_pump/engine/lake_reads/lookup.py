"""Spark task that looks up rows by key in data files of the lake, and the driver's side that receives them.

Rows are mostly looked up for their large values. A task's result passes through the Java heap more than once. So a
large result goes through a file in the table's storage, which the driver removes as soon as it has read it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from mirror_pump.lake.format.columns import absent_column, cast_to, column_names, names_by_id
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.storage import StorageOptions, discard, join, open_input, open_output


@dataclass(frozen=True)
class LookupTask:
    """Keys to find in some files, and the columns to return."""

    paths: tuple[str, ...]
    keys: pa.Table
    """The key columns, in the lake's types; one row per key."""
    columns: tuple[str, ...]
    schema: LakeSchema
    storage: StorageOptions
    location: str
    """Root URI of the table's files."""
    urgent: ClassVar[bool] = True
    """The frontier waits for it (TaskRunner)."""


@dataclass(frozen=True)
class LookedUpRows:
    """Rows found in one file; read them with `rows_of`."""

    rows: pa.Table | None
    path: str = ""
    """URI of an Arrow IPC file with the rows, if `rows` is None."""


_LARGEST_RESULT = 4 << 20
"""Largest result, in bytes, that is returned through the Java heap."""
_BATCH_ROWS = 4096
"""Rows read at a time; few, since rows that are looked up are large."""


def rows_of(found_rows: LookedUpRows, storage: StorageOptions) -> pa.Table:
    """The rows. If they came in a file, that file is removed. Raises LakeError."""
    if found_rows.rows is not None:
        return found_rows.rows
    with open_input(found_rows.path, storage) as source, pa.ipc.open_file(source) as file:
        rows = file.read_all()
    discard([found_rows.path], storage)
    return rows


def find_rows(task: LookupTask) -> list[LookedUpRows]:
    """For each file, the rows whose first key column matches one of the keys: key columns, then `columns`.

    With several key columns, rows of other keys may be included; the caller compares whole keys. Columns follow the
    schema: found by field ID, NULL or the default if the file is older than the column, and promoted if the column was
    widened. Raises LakeError.
    """
    written: list[str] = []
    try:
        return [_as_result(_find(path, task), task, written) for path in task.paths]
    except BaseException:
        discard(written, task.storage)
        raise


def _as_result(rows: pa.Table, task: LookupTask, written: list[str]) -> LookedUpRows:
    if rows.nbytes <= _LARGEST_RESULT:
        return LookedUpRows(rows)
    path = join(task.location, "data", f"{uuid.uuid4().hex}-found.arrow")
    with open_output(path, task.storage) as sink, pa.ipc.new_file(sink, rows.schema) as file:
        file.write_table(rows)
    written.append(path)
    return LookedUpRows(None, path)


def _find(path: str, task: LookupTask) -> pa.Table:
    first = task.keys.column_names[0]
    names = [*task.keys.column_names, *(name for name in task.columns if name not in task.keys.column_names)]
    key_values = pc.unique(task.keys.column(first))
    schema = pa.schema([task.schema.arrow.field(name).remove_metadata() for name in names])
    fields = {column.name: column for column in task.schema.fields}
    ids = {name: column.field_id for name, column in fields.items()}
    tables = [schema.empty_table()]
    with open_parquet(path, task.storage) as file:
        column_names(file, [ids[name] for name in task.keys.column_names], path)
        by_id = names_by_id(file)
        stored = [by_id.get(ids[name]) for name in names]
        # Keys are read first, so that large values of row groups without any match are never read.
        holding = [
            group
            for group in range(file.num_row_groups)
            if any(
                pc.any(pc.is_in(_typed(batch, by_id.get(ids[first]), fields[first]), value_set=key_values)).as_py()
                for batch in file.iter_batches(row_groups=[group], columns=[by_id[ids[first]]])
            )
        ]
        stored_names = [name for name in stored if name is not None]
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=holding, columns=stored_names) if holding else ():
            columns = [
                _typed(batch, source_name, fields[name]) for source_name, name in zip(stored, names, strict=True)
            ]
            table = pa.table(columns, schema=schema)
            tables.append(table.filter(pc.is_in(table.column(first), value_set=key_values)))
    return pa.concat_tables(tables)


def _typed(batch: pa.RecordBatch, name: str | None, field: LakeField) -> pa.Array:
    return absent_column(field, batch.num_rows) if name is None else cast_to(batch.column(name), field.arrow.type)
