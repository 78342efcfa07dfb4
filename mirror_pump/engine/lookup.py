"""What runs inside a Spark task that looks rows up by key in data files of the lake."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirror_pump.lake.schema import LakeSchema
from mirror_pump.lake.storage import StorageOptions, open_input


@dataclass(frozen=True)
class LookupTask:
    """Keys to find in some files, and the columns wanted of their rows."""

    paths: tuple[str, ...]
    keys: pa.Table
    """The key columns, in the lake's types; one row for each key."""
    columns: tuple[str, ...]
    schema: LakeSchema
    storage: StorageOptions


def find_rows(task: LookupTask) -> list[pa.Table]:
    """For each file, its rows whose first key column is among the keys': key columns, then `columns`. May hold other
    keys' rows when the key has several columns; the caller compares whole keys."""
    return [_find(path, task) for path in task.paths]


def _find(path: str, task: LookupTask) -> pa.Table:
    first = task.keys.column_names[0]
    names = [*task.keys.column_names, *(name for name in task.columns if name not in task.keys.column_names)]
    wanted = pc.unique(task.keys.column(first))
    schema = pa.schema([task.schema.arrow.field(name).remove_metadata() for name in names])
    found = [schema.empty_table()]
    with open_input(path, task.storage) as source:
        for batch in pq.ParquetFile(source).iter_batches(columns=names):
            columns = [_plain(batch.column(name)).cast(schema.field(name).type) for name in names]
            table = pa.table(columns, schema=schema)
            found.append(table.filter(pc.is_in(table.column(first), value_set=wanted)))
    return pa.concat_tables(found)


def _plain(column: pa.Array) -> pa.Array:
    """Without the extension type that Parquet's UUID annotation is read as."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column
