"""verify's own reading of the stream."""

from __future__ import annotations

import struct

from decoders.columns import ColumnType, Kind
from mirror_pump.model import Column, ExcludedColumn, Lsn, MirroredTable, SequenceNumber, TableId, TableName, TableState
from mirror_pump.ops.verify.catch_up_changes import CatchUpChanges, UnchangedValue
from tests.support.pgoutput_encoder import UNCHANGED, insert, update

TEXT = ColumnType(Kind.STRING)


def test_excluded_columns_count_for_nothing() -> None:
    # As the server numbers them: hidden, id, (dropped), secret, value.
    table = MirroredTable(
        table_id=TableId(1),
        name=TableName("public", "t"),
        columns=(
            Column(2, "id", 25, -1, "text", TEXT, 1, not_null=True),
            Column(5, "value", 25, -1, "text", TEXT, 2, not_null=False),
        ),
        key=("id",),
        state=TableState.LIVE,
        start_lsn=Lsn(0),
        data_sequence_number=SequenceNumber(1),
        generation=0,
        lake_table="t",
        location="file:///t",
        live_after_lsn=None,
        excluded=(ExcludedColumn(1, "hidden"), ExcludedColumn(4, "secret")),
    )
    overlay = CatchUpChanges({table.table_id: table}, Lsn(10))
    begin = b"B" + struct.pack(">qqi", 20, 0, 7)
    commit = b"C" + struct.pack(">bqqq", 0, 20, 30, 0)
    changes = [insert(1, ["h", "1", "s", "v"]), update(1, [UNCHANGED, "2", UNCHANGED, UNCHANGED])]
    for message in (begin, *changes, commit):
        assert overlay.feed(message, Lsn(100))
    assert overlay.tables[1].rows == {("1",): ("1", "v"), ("2",): ("2", UnchangedValue(("2",)))}
