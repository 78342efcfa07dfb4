"""Shapes of a table as notes bring them, and what is decided about them: for tests of schema changes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from decoders.columns import ColumnType
from mirror_pump.model import Lsn, MirroredTable, TableId
from mirror_pump.pipeline.schema.decisions import SchemaChangeDecision, decide
from mirror_pump.source.relations.change_notes import Note, describe_shape
from tests.support.table_values import live_table

TYPES = {
    (20, -1): ("bigint", "long"),
    (23, -1): ("integer", "int"),
    (25, -1): ("text", "string"),
    (26, -1): ("oid", "long"),
    (1043, 24): ("character varying(20)", "string"),
    (1700, 655366): ("numeric(10,2)", "decimal(10,2)"),
    (1700, 917510): ("numeric(14,2)", "decimal(14,2)"),
    (1700, -1): ("numeric", "string"),
    (650, -1): ("cidr", "string"),
    (869, -1): ("inet", "string"),
}
RESOLVED = {key: ColumnType.parse(kind) for key, (_, kind) in TYPES.items()}


def column_shape(attnum: int, name: str, type_: tuple[int, int], **facts: bool) -> dict[str, Any]:
    flags = {"not_null": name == "id", "generated": False, "filled": False} | facts
    return {"attnum": attnum, "name": name, "type": type_[0], "modifier": type_[1], "sql": TYPES[type_][0], **flags}


IDENTITY = {"setting": "d", "immediate": True, "index": 99, "key": ["id"]}


def leaf(number: int, file: int | None = None) -> dict[str, Any]:
    return {
        "id": number, "schema": "public", "name": f"t{number}", "kind": "r", "persistence": "p", "identity": IDENTITY,
        "row_security": False, "readable": True, "file": file,
    }  # fmt: skip


SHAPE: dict[str, Any] = {
    "schema": "public", "name": "t", "kind": "r", "persistence": "p", "partition_of": None, "inherits": False,
    "owned": True, "row_security": False, "identity": IDENTITY, "leaves": [leaf(20000)], "types": {},
    "columns": [
        column_shape(1, "id", (23, -1)), column_shape(3, "v", (1043, 24)), column_shape(4, "n", (1700, 655366)),
        column_shape(5, "net", (650, -1)), column_shape(6, "g", (23, -1), generated=True),
        column_shape(2, "m", (23, -1)),
    ],
}  # fmt: skip
TABLE = live_table(
    describe_shape(SHAPE, TableId(20000), RESOLVED).columns,
    number=20000,
    start_lsn=Lsn(5),
    next_field_id=9,
    shape=json.dumps(SHAPE),
)
TABLE = replace(
    TABLE, columns=tuple(replace(column, field_id=place) for place, column in enumerate(TABLE.columns, start=1))
)


def decided(shape: dict[str, Any], table: MirroredTable = TABLE, **note: Any) -> SchemaChangeDecision:
    told = Note(table.table_id, **{"exact": True, **note}, shape=shape)
    return decide(table, told, describe_shape(shape, table.table_id, RESOLVED))


def with_column(place: int, **changed: Any) -> dict[str, Any]:
    columns = list(SHAPE["columns"])
    columns[place] = {**columns[place], **changed}
    return {**SHAPE, "columns": columns}


def adding(**facts: Any) -> dict[str, Any]:
    return {**SHAPE, "columns": [*SHAPE["columns"], column_shape(7, "z", (25, -1), **facts)]}
