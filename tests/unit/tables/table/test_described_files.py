"""A file is described by its footer as its writer described it, whoever that was."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoders.columns import ColumnType, Kind
from mirror_pump.lake.format.data_files import DataFileWriter
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.tables import MemoryCatalog, StorageOptions, Table
from mirror_pump.tables.table.described_files import FileDescriber
from mirror_pump.tables.table.file_footers import FooterReader

STORAGE = StorageOptions(fsync=False)
TYPES = (
    ColumnType(Kind.LONG),
    ColumnType(Kind.INT),
    ColumnType(Kind.STRING),
    ColumnType(Kind.BINARY),
    ColumnType(Kind.DECIMAL, 9, 2),
    ColumnType(Kind.DECIMAL, 38, 4),
    ColumnType(Kind.BOOLEAN),
    ColumnType(Kind.DATE),
    ColumnType(Kind.TIMESTAMP),
)
SCHEMA = LakeSchema(0, tuple(LakeField(n, f"c{n}", kind, required=n == 1) for n, kind in enumerate(TYPES, 1)), (1,))
ROWS = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    *(
        st.none() | values
        for values in (
            st.integers(-(2**31), 2**31 - 1),
            st.text(max_size=40),
            st.binary(max_size=40),
            st.integers(-(10**9) + 1, 10**9 - 1).map(lambda number: Decimal(number).scaleb(-2)),
            st.integers(-(10**28) + 1, 10**28 - 1).map(lambda number: Decimal(number).scaleb(-4)),
            st.booleans(),
            st.dates(),
            st.datetimes(),
        )
    ),
)


@settings(max_examples=60)
@given(groups=st.lists(st.lists(ROWS, min_size=1, max_size=4), min_size=1, max_size=4))
def test_by_its_footer_a_file_is_what_its_writer_said(
    groups: list[list[tuple[object, ...]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In every row group, one that is all NULL too; the order of wide decimals is that of numbers."""
    table = Table.create(MemoryCatalog(tmp_path_factory.mktemp("t").as_uri(), STORAGE), "a.b", SCHEMA.arrow)
    with DataFileWriter(SCHEMA, table.location, STORAGE) as writer:
        for group in groups:
            columns = [
                pa.array(values, field.type)
                for values, field in zip(zip(*group, strict=True), SCHEMA.arrow, strict=True)
            ]
            writer.write(pa.table(columns, schema=SCHEMA.arrow))
            writer.flush()
    described = FileDescriber(STORAGE)
    described.read([writer.path], FooterReader(STORAGE))
    (file,) = described.describe(table.metadata).files
    assert file == writer.written
    assert Path(file.path.removeprefix("file://")).stat().st_size == file.size_bytes
