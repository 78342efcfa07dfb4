"""Rows of the table of transactions: which tables' feeds have how many rows of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from mirror_pump.lake.format.feed_schema import TABLES, TRANSACTION_SCHEMA
from mirror_pump.pipeline.operations.append_changes import COUNT, COUNT_SCHEMA

_TABLE = "table"


def transaction_rows(counts: Sequence[tuple[str, pa.Table]]) -> pa.Table:
    """One row for each transaction, in commit order, in the columns of TRANSACTION_SCHEMA. `counts`: names of tables
    with counts of COUNT_SCHEMA; a transaction may be in several for a table."""
    parts = [
        table.append_column(_TABLE, pa.repeat(pa.scalar(name), table.num_rows)) for name, table in counts if len(table)
    ]
    arrow = TRANSACTION_SCHEMA.arrow
    if not parts:
        return arrow.empty_table()
    heads = [name for name in COUNT_SCHEMA.names if name != COUNT]
    grouped = pa.concat_tables(parts).group_by([*heads, _TABLE]).aggregate([(COUNT, "sum")])
    grouped = grouped.sort_by([("_lsn", "ascending"), (_TABLE, "ascending")]).combine_chunks()
    lsns = grouped.column("_lsn").to_numpy()
    begins = np.concatenate([[0], np.flatnonzero(lsns[1:] != lsns[:-1]) + 1])
    offsets = np.concatenate([begins, [len(lsns)]]).astype(np.int32)
    maps = pa.MapArray.from_arrays(
        pa.array(offsets),
        pa.concat_arrays(grouped.column(_TABLE).chunks),
        pa.concat_arrays(grouped.column(f"{COUNT}_sum").chunks),
    ).cast(arrow.field(TABLES).type)
    firsts = grouped.take(pa.array(begins))
    return pa.table([*(firsts.column(name) for name in heads), maps], schema=arrow)
