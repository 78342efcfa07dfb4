"""Files are left out only if their bounds say that they have none of the rows."""

from __future__ import annotations

import datetime
import random
from pathlib import Path

import pyarrow as pa

from decoders.columns import ColumnType
from mirror_pump.lake.format.data_files import WrittenFile, write_data_file
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.lake.key_index.row_ranges import RowRanges
from mirror_pump.lake.key_index.whole_rows import RemovedRows
from mirror_pump.lake.storage import StorageOptions
from tests.support.error_bounds import printed_seed

_COLUMNS = {"n": "int", "big": "long", "day": "date", "at": "timestamp", "zoned": "timestamptz", "v": "string"}
SCHEMA = LakeSchema(
    0,
    tuple(
        LakeField(place, name, ColumnType.parse(kind), required=False)
        for place, (name, kind) in enumerate(_COLUMNS.items(), 1)
    ),
    (),
)
_BEGIN = datetime.datetime(1969, 12, 1, tzinfo=datetime.UTC)


def drawn(chance: random.Random, count: int) -> pa.Table:
    """Rows of a narrow range of values, anywhere. Some columns are NULL, some of them in all rows."""
    begin = chance.randrange(100)
    nulls = chance.choice([0, 0, 0.3])
    empty = chance.choice([None, *_COLUMNS])

    def rows_of(name: str, value: object) -> object:
        return None if name == empty or chance.random() < nulls else value

    rows = []
    for _ in range(count):
        number = begin + chance.randrange(20)
        moment = _BEGIN + datetime.timedelta(days=number, microseconds=chance.choice([0, 1]))
        values = (
            number - 50,
            (number - 50) * 10**12,
            moment.date(),
            moment.replace(tzinfo=None),
            moment.replace(tzinfo=None),
            str(number),
        )
        rows.append({name: rows_of(name, value) for name, value in zip(_COLUMNS, values, strict=True)})
    return pa.Table.from_pylist(rows, schema=SCHEMA.arrow)


def written(rows: pa.Table, tmp_path: Path) -> WrittenFile:
    return write_data_file(rows, SCHEMA, f"file://{tmp_path}", StorageOptions(fsync=False))


def test_a_file_that_has_a_row_is_never_left_out(tmp_path: Path) -> None:
    chance = random.Random(printed_seed())
    left_out = 0
    for _ in range(150):
        stored, removed = drawn(chance, chance.randrange(1, 30)), drawn(chance, chance.randrange(1, 5))
        if chance.random() < 0.5:
            removed = pa.concat_tables([removed, stored.slice(chance.randrange(stored.num_rows), 1)])
        may = RowRanges(RemovedRows(SCHEMA, removed)).may_be_in(written(stored, tmp_path))
        rows = stored.to_pylist()
        assert may or not any(row in rows for row in removed.to_pylist())
        left_out += not may
    assert left_out > 20


def test_of_many_rows_only_the_extremes_count(tmp_path: Path) -> None:
    def rows(*numbers: int) -> pa.Table:
        return pa.Table.from_pylist([{"n": number} for number in numbers], SCHEMA.arrow)

    file = written(rows(5, 6), tmp_path)
    for count, may_be in ((1, False), (6000, True)):
        assert RowRanges(RemovedRows(SCHEMA, rows(*[1, 9] * count))).may_be_in(file) is may_be
    assert not RowRanges(RemovedRows(SCHEMA, rows(*[7, 9] * 6000))).may_be_in(file)
