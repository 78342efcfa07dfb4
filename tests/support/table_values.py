"""Mirrored tables as values, for tests without a server."""

from __future__ import annotations

from typing import Any

from mirror_pump.model import Column, Lsn, MirroredTable, SequenceNumber, TableId, TableName, TableState


def live_table(
    columns: tuple[Column, ...] = (), key: tuple[str, ...] = ("id",), *, number: int = 1, name: str = "t", **fields: Any
) -> MirroredTable:
    """The live table public.`name` with the OID `number`. `fields`: of MirroredTable, where they differ from those of
    a table that was mirrored from the beginning of the WAL on."""
    usual: dict[str, Any] = {
        "state": TableState.LIVE,
        "start_lsn": Lsn(0),
        "data_sequence_number": SequenceNumber(1),
        "generation": 0,
        "lake_table": name,
        "location": f"file:///lake/{name}",
        "live_after_lsn": None,
    }
    return MirroredTable(
        table_id=TableId(number), name=TableName("public", name), columns=columns, key=key, **{**usual, **fields}
    )
