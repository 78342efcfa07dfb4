"""Rows of the table of transactions: which tables' feeds have how many rows of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from mirror_pump.lake.format.feed_schema import TABLES, TRANSACTION_SCHEMA
from mirror_pump.pipeline.operations.append_changes import COUNT, COUNT_SCHEMA


def transaction_rows(counts: Sequence[tuple[str, pa.Table]]) -> pa.Table:
    """One row for each transaction, in commit order, in the columns of TRANSACTION_SCHEMA. `counts`: names of tables
    with counts of COUNT_SCHEMA; a transaction may be in several for a table.

    Without Arrow's own grouping, which takes longer to begin than a publish of a second has rows.
    """
    parts = [(name, table) for name, table in counts if len(table)]
    arrow = TRANSACTION_SCHEMA.arrow
    if not parts:
        return arrow.empty_table()
    rows = pa.concat_tables([table for _, table in parts]).combine_chunks()
    names = sorted({name for name, _ in parts})
    tables = np.repeat([names.index(name) for name, _ in parts], [len(table) for _, table in parts])
    lsns = rows.column("_lsn").to_numpy()
    order = np.lexsort((tables, lsns))
    lsns, tables = lsns[order], tables[order]
    entries = np.concatenate([[0], np.flatnonzero((lsns[1:] != lsns[:-1]) | (tables[1:] != tables[:-1])) + 1])
    begins = np.concatenate([[0], np.flatnonzero(np.diff(lsns[entries])) + 1])
    maps = pa.MapArray.from_arrays(
        pa.array(np.append(begins, len(entries)).astype(np.int32)),
        pa.array(names).take(pa.array(tables[entries])),
        pa.array(np.add.reduceat(rows.column(COUNT).to_numpy()[order], entries)),
    ).cast(arrow.field(TABLES).type)
    heads = rows.take(pa.array(order[entries[begins]]))
    return pa.table([*(heads.column(name) for name in COUNT_SCHEMA.names if name != COUNT), maps], schema=arrow)
