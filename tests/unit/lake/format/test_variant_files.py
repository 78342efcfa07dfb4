"""Data files with variants: annotated, whatever else they hold, and read back as they were written."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from decoders.columns import ColumnType, Kind
from decoders.variant import VARIANT_ARROW, document_texts, encoded_documents
from mirror_pump.errors import ForeignTable
from mirror_pump.lake.format.columns import cast_to
from mirror_pump.lake.format.data_files import write_data_file
from mirror_pump.lake.format.footers import split_footer, with_variants
from mirror_pump.lake.format.joined_columns import with_column
from mirror_pump.lake.format.row_lineage import ROW_ID_FIELD
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.storage import StorageOptions

LONG, TEXT = ColumnType(Kind.LONG), ColumnType(Kind.STRING)
VARIANT, TEXTS = ColumnType(Kind.VARIANT), ColumnType(Kind.LIST, element=TEXT)
DOCUMENTS = ['{"a": [1, 2.50], "b": null}', None, "null", "5"]


def variants(content: bytes | Path) -> list[str]:
    """Names of the columns that a file says are variants."""
    source = io.BytesIO(content) if isinstance(content, bytes) else content
    return re.findall(r"optional group field_id=\d+ (.*) \(Variant\(1\)\)", str(pq.ParquetFile(source).schema))


@pytest.mark.parametrize("further", [0, 9, 200])
@pytest.mark.parametrize("rows", [0, 4, 2000])
def test_only_the_variants_are_annotated(tmp_path: Path, further: int, rows: int) -> None:
    fields = (
        LakeField(1, "id", LONG, required=True),
        LakeField(2, "element", TEXTS, required=False),
        LakeField(3, "doc", VARIANT, required=False),
        LakeField(4, "a b.c", VARIANT, required=False),
        LakeField(5, "metadata", TEXT, required=False),
        *(LakeField(10 + number, f"c{number}", LONG, required=False) for number in range(further)),
    )
    schema = LakeSchema(0, fields, (1,))
    documents, _ = encoded_documents(pa.array((DOCUMENTS * rows)[:rows], pa.string()))
    # As joins and takes leave them: the parts of a NULL are NULL too.
    other = documents.take(pa.array([None if place % 3 else place for place in range(rows)], pa.int64()))
    numbers = pa.array(range(rows), pa.int64())
    lists = pa.array([["x"]] * rows, TEXTS.arrow)
    texts = pa.array(["m"] * rows, pa.string())
    table = pa.table([numbers, lists, documents, other, texts, *[numbers] * further], schema=schema.arrow)
    written = write_data_file(table, schema, str(tmp_path), StorageOptions(fsync=False))
    path = Path(written.path)
    assert variants(path) == ["doc", "a b.c"]
    assert path.stat().st_size == written.size_bytes
    assert (written.value_counts[3], written.null_counts[3]) == (rows, documents.null_count)
    assert written.null_counts[4] == other.null_count
    assert written.column_sizes[3] > 0 or not rows
    assert not {3, 4} & (written.lower_bounds.keys() | written.upper_bounds.keys())
    file = pq.ParquetFile(path)
    read = file.read()
    for name, expected in (("doc", documents), ("a b.c", other)):
        column = read[name].combine_chunks() if rows else pa.array([], VARIANT_ARROW)
        assert document_texts(column).to_pylist() == document_texts(expected).to_pylist()
    assert file.read(["doc"]).schema.names == ["doc"]
    if rows:
        group = file.metadata.row_group(0)
        chunks = {(chunk := group.column(number)).path_in_schema: chunk for number in range(group.num_columns)}
        assert not any(chunks[f"doc.{part}"].is_stats_set for part in ("metadata", "value"))
        assert chunks["metadata"].is_stats_set
    # A column that is joined to the file leaves it as it is.
    row_ids = pa.field("_row_id", pa.int64(), metadata={b"PARQUET:field_id": str(ROW_ID_FIELD).encode()})
    joined = with_column(path.read_bytes(), row_ids, numbers)
    assert variants(joined) == ["doc", "a b.c"]
    assert pq.read_table(io.BytesIO(joined))["_row_id"].to_pylist() == numbers.to_pylist()


def test_variants_of_other_writers() -> None:
    """Their parts may come in another order. A shredded one is refused."""
    documents, _ = encoded_documents(pa.array(DOCUMENTS))
    metadata, value = documents.flatten()
    turned = pa.StructArray.from_arrays([value, metadata], ["value", "metadata"], mask=documents.is_null())
    assert cast_to(turned, VARIANT_ARROW).equals(documents)
    shredded = pa.StructArray.from_arrays([metadata, value, value], ["metadata", "value", "typed_value"])
    with pytest.raises(ForeignTable, match="shredded"):
        cast_to(shredded, VARIANT_ARROW)


def test_what_comes_before_a_footer_stays() -> None:
    """Such as the indexes of pages, and here all rows."""
    documents, _ = encoded_documents(pa.array(DOCUMENTS))
    field = pa.field("doc", VARIANT_ARROW, metadata={b"PARQUET:field_id": b"7"})
    sink = io.BytesIO()
    pq.write_table(pa.table([documents], schema=pa.schema([field])), sink, write_page_index=True, store_schema=False)
    plain = sink.getvalue()
    annotated = with_variants(plain, ["doc"])
    assert (variants(plain), variants(annotated)) == ([], ["doc"])
    end, _ = split_footer(plain)
    assert annotated[:end] == plain[:end]
    assert pq.read_table(io.BytesIO(annotated)).equals(pq.read_table(io.BytesIO(plain)))
