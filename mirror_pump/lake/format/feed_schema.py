"""The columns of a change feed: those that say what happened, then those of the mirrored table.

Field IDs of the former are fixed, beyond the IDs of columns, list elements and raw text columns, so a feed follows the
table's schema by the same IDs as the mirror does. The old row is a struct, whose fields have the IDs of their columns
plus a constant.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pyarrow as pa

from decoders.columns import ColumnType, Kind
from mirror_pump.column_names import folded, free_name
from mirror_pump.lake.format.raw_text_columns import RAW_TEXT_IDS_FROM, is_raw_text, with_raw_text, without_raw_text
from mirror_pump.lake.format.schema import LakeField, LakeSchema
from mirror_pump.model import FeedMode, LakePartitioning, MirroredTable

FEED_SUFFIX = "__changes"
"""The feed of a table has its name with this."""

_FIRST_ID = 1_000_000
OLD_IDS_FROM = 2_000_000
"""A field of the old row has the ID of its column plus this."""
OP, LSN, SEQ, XID, COMMITTED_AT, ORIGIN, OLD = (
    "_op",
    "_lsn",
    "_seq",
    "_xid",
    "_committed_at",
    "_origin",
    "_old",
)
FEED_COLUMNS = (OP, LSN, SEQ, XID, COMMITTED_AT, ORIGIN, OLD)
"""Names of the columns that say what happened."""
LSN_ID = _FIRST_ID + 1 + FEED_COLUMNS.index(LSN)
SEQ_ID = _FIRST_ID + 1 + FEED_COLUMNS.index(SEQ)
COMMITTED_AT_ID = _FIRST_ID + 1 + FEED_COLUMNS.index(COMMITTED_AT)
BEGINS_PROPERTY = "mirror-pump.feed-begins"
"""Property of a feed: the frontier of its first reset, in Postgres's notation. It says nothing about earlier
frontiers."""
FEED_PARTITIONING = LakePartitioning.by(COMMITTED_AT_ID, "day")
"""Of every feed: by the day of commit."""

_TYPES = {
    OP: ColumnType(Kind.STRING),
    LSN: ColumnType(Kind.LONG),
    SEQ: ColumnType(Kind.LONG),
    XID: ColumnType(Kind.LONG),
    COMMITTED_AT: ColumnType(Kind.TIMESTAMPTZ),
    ORIGIN: ColumnType(Kind.STRING),
    OLD: ColumnType(Kind.STRUCT),
}
_REQUIRED = (OP, LSN, SEQ)

TRANSACTION_NAMESPACE, TRANSACTION_TABLE = "modak", "transactions"
TABLES = "tables"
_TABLES_ID = _FIRST_ID + 11
TRANSACTION_SCHEMA = LakeSchema(
    0,
    (
        LakeField(LSN_ID, LSN, ColumnType(Kind.LONG), required=True),
        *(
            LakeField(_FIRST_ID + 1 + FEED_COLUMNS.index(name), name, _TYPES[name], required=False)
            for name in (XID, COMMITTED_AT, ORIGIN)
        ),
        LakeField(
            _TABLES_ID,
            TABLES,
            ColumnType(Kind.MAP),
            required=False,
            children=(
                LakeField(_TABLES_ID + 1, "key", ColumnType(Kind.STRING), required=True),
                LakeField(_TABLES_ID + 2, "value", ColumnType(Kind.LONG), required=False),
            ),
        ),
    ),
    (),
)
"""The columns of the table of transactions."""


def feed_schema(
    table: MirroredTable,
    mode: FeedMode,
    raw_text: Collection[int] = (),
    old_raw_text: Collection[int] = (),
    schema_id: int = 0,
) -> LakeSchema:
    """The columns of the table's feed. `raw_text` and `old_raw_text`: field IDs of the table's columns that have a raw
    text column, as new and as old values."""
    return feed_schema_of(LakeSchema.of_table(table), mode, raw_text, old_raw_text, schema_id)


def feed_schema_of(
    plain: LakeSchema,
    mode: FeedMode,
    raw_text: Collection[int] = (),
    old_raw_text: Collection[int] = (),
    schema_id: int = 0,
) -> LakeSchema:
    """As `feed_schema`, of a table with the lake schema `plain`, without raw text columns. Feeds have Iceberg's
    format version 2, which has no variants: documents are text there."""
    names = _names_in_feed(plain.fields)
    optional = replace(
        plain,
        fields=tuple(
            replace(field, name=names[field.field_id], type=field.type.as_text, required=False)
            for field in plain.without_defaults.fields
        ),
        key_ids=(),
    )
    fields = []
    for number, name in enumerate(FEED_COLUMNS, 1):
        if name == OLD and mode is not FeedMode.ROWS:
            continue
        children = _old_fields(with_raw_text(optional, old_raw_text)) if name == OLD else ()
        field_type = _TYPES[name]
        fields.append(LakeField(_FIRST_ID + number, name, field_type, name in _REQUIRED, children=children))
    return LakeSchema(schema_id, (*fields, *with_raw_text(optional, raw_text).fields), ())


def is_feed_column(name: str) -> bool:
    """Whether engines would take the name of a table's column for that of a column that says what happened."""
    return folded(name) in FEED_COLUMNS


def _names_in_feed(columns: Collection[LakeField]) -> dict[int, str]:
    """What the table's columns are called in its feed, by their field IDs: by their own names, but for those that
    would meet a column that says what happened."""
    taken = {*FEED_COLUMNS, *(folded(column.name) for column in columns)}
    names = {}
    for column in sorted(columns, key=lambda column: column.field_id):
        name = column.name
        if is_feed_column(name):
            name = free_name(f"{name}__column", taken)
            taken.add(folded(name))
        names[column.field_id] = name
    return names


def raw_text_of_feed(schema: LakeSchema) -> tuple[frozenset[int], frozenset[int]]:
    """Field IDs of the table's columns that have a raw text column in a feed of this schema, as new and as old
    values."""
    new = _raw_text(schema.fields)
    old = next((field.children for field in schema.fields if field.name == OLD and field.children), ())
    return new, _raw_text([replace(field, field_id=field.field_id - OLD_IDS_FROM) for field in old])


def table_fields(schema: LakeSchema) -> tuple[LakeField, ...]:
    """The columns of a feed that are columns of the table, raw text columns included."""
    return tuple(field for field in schema.fields if field.field_id <= _FIRST_ID)


def table_part(schema: LakeSchema) -> LakeSchema:
    """The columns of a feed that are columns of the table, without raw text columns."""
    return without_raw_text(replace(schema, fields=table_fields(schema)))


def old_type(schema: LakeSchema) -> pa.StructType:
    """The Arrow type of the old rows. Raises StopIteration for a feed that has none."""
    return next(field for field in schema.fields if field.name == OLD and field.children).arrow.type


def _old_fields(schema: LakeSchema) -> tuple[LakeField, ...]:
    return tuple(replace(field, field_id=OLD_IDS_FROM + field.field_id) for field in schema.fields)


def _raw_text(fields: Collection[LakeField]) -> frozenset[int]:
    return frozenset(field.field_id - RAW_TEXT_IDS_FROM for field in fields if is_raw_text(field))
