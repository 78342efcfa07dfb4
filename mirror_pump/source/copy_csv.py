"""Arrow tables as COPY reads them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.csv as pacsv


def csv_bytes(table: pa.Table) -> bytes:
    """Rows of strings and integers as COPY ... (FORMAT csv) reads them: values in quotes, NULL as an empty field
    without."""
    sink = pa.BufferOutputStream()
    pacsv.write_csv(table, sink, pacsv.WriteOptions(include_header=False, quoting_style="all_valid"))
    return bytes(sink.getvalue())
