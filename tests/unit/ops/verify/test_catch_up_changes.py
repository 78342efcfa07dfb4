"""verify's own reading of the stream."""

from __future__ import annotations

import struct

from decoders.columns import ColumnType, Kind
from mirror_pump.model import Column, ExcludedColumn, Lsn
from mirror_pump.ops.catch_up_changes import CatchUpChanges, UnchangedValue
from tests.support.pgoutput_encoder import UNCHANGED, insert, update
from tests.support.table_values import live_table

TEXT = ColumnType(Kind.STRING)


def test_excluded_columns_count_for_nothing() -> None:
    # As the server numbers them: hidden, id, (dropped), secret, value.
    table = live_table(
        (
            Column(2, "id", 25, -1, "text", TEXT, 1, not_null=True),
            Column(5, "value", 25, -1, "text", TEXT, 2, not_null=False),
        ),
        excluded=(ExcludedColumn(1, "hidden"), ExcludedColumn(4, "secret")),
    )
    overlay = CatchUpChanges({table.table_id: table}, Lsn(10))
    begin = b"B" + struct.pack(">qqi", 20, 0, 7)
    commit = b"C" + struct.pack(">bqqq", 0, 20, 30, 0)
    changes = [insert(1, ["h", "1", "s", "v"]), update(1, [UNCHANGED, "2", UNCHANGED, UNCHANGED])]
    for message in (begin, *changes, commit):
        assert overlay.feed(message, Lsn(100))
    assert overlay.tables[1].rows == {("1",): ("1", "v"), ("2",): ("2", UnchangedValue(("2",)))}
