"""A Parquet file that gets a column has it beside all that it had, for every reader."""

from __future__ import annotations

import io
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirror_pump.lake.format.joined_columns import with_column
from mirror_pump.lake.format.row_lineage import ROW_ID_FIELD

FIELD = pa.field("_row_id", pa.int64(), metadata={b"PARQUET:field_id": str(ROW_ID_FIELD).encode()})


def content_of(table: pa.Table, rows: int, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=rows, store_schema=False, **options)
    return sink.getvalue()


@pytest.mark.parametrize(("columns", "rows"), [(1, 20), (13, 1000), (14, 100), (15, 100_000), (200, 1000)])
def test_the_column_comes_to_the_others(tmp_path: Path, columns: int, rows: int) -> None:
    arrays = [pa.array([f"{number} {place % 7}" for place in range(1000)]) for number in range(columns)]
    arrays[0] = pa.array([[place, None] if place % 3 else None for place in range(1000)], pa.list_(pa.int32()))
    table = pa.table(arrays, names=[f"c{number}" for number in range(columns)])
    values = pa.array([None if place % 4 == 0 else place << 40 for place in range(1000)], pa.int64())
    content = content_of(table, rows, write_page_index=columns == 1, compression="zstd")
    joined = with_column(content, FIELD, values)
    file = pq.ParquetFile(io.BytesIO(joined))
    assert file.read().remove_column(columns).equals(pq.read_table(io.BytesIO(content)))
    assert file.read(["_row_id"]).column(0).combine_chunks() == values
    assert file.schema_arrow.field("_row_id").metadata[b"PARQUET:field_id"] == str(ROW_ID_FIELD).encode()
    group = file.metadata.row_group(file.num_row_groups - 1)
    chunks = [group.column(number) for number in range(group.num_columns)]
    assert group.total_byte_size == sum(chunk.total_uncompressed_size for chunk in chunks)
    path = tmp_path / "joined.parquet"
    path.write_bytes(joined)
    read = duckdb.sql(f"SELECT sum(_row_id), count(_row_id), count(*) FROM '{path}' WHERE _row_id > 5").fetchone()
    expected = [value for value in values.to_pylist() if value is not None and value > 5]
    assert read == (sum(expected), len(expected), len(expected))
    twice = with_column(joined, FIELD.with_name("again"), values)
    assert pq.read_table(io.BytesIO(twice)).column("again").combine_chunks() == values


def test_what_does_not_fit_is_refused() -> None:
    content = content_of(pa.table({"a": [1, 2]}), 10)
    with pytest.raises(ValueError, match="has 2 rows, the column 3"):
        with_column(content, FIELD, pa.array([1, 2, 3]))
    with pytest.raises(ValueError, match="no Parquet file"):
        with_column(content[:-1], FIELD, pa.array([1, 2]))
