"""The values of Arrow columns as texts that PostgreSQL's types read, without a loss."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from mirror_pump.ops.load.load_input import InputError, LoadBatch
from mirror_pump.ops.row_files.json_texts import array_text, parse_json
from mirror_pump.ops.row_files.value_texts import texts_of
from mirror_pump.source.loads.load_target import LoadColumn


def staged_rows(batch: LoadBatch, columns: Sequence[LoadColumn]) -> pa.Table:
    """The rows of a batch with their numbers and these columns of it, all texts. Raises InputError for a type that has
    no text in PostgreSQL."""
    values = [
        column_texts(batch.rows.column(batch.rows.schema.get_field_index(column.name)), column) for column in columns
    ]
    return pa.table([pa.array(batch.numbers, pa.int64()), *values], [str(place) for place in range(len(values) + 1)])


def column_texts(values: pa.Array, column: LoadColumn) -> pa.Array:
    """The texts of a column's values; null for null."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return column_texts(values.dictionary_decode(), column)
    if pa.types.is_null(kind):
        return pa.nulls(len(values), pa.string())
    if _is_text(kind):
        texts = values.cast(pa.string())
        return _each(texts, _array_of_json) if column.kind == "array" else texts
    if pa.types.is_nested(kind):
        return _each(values, _nested(column, kind))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _each(values, _bytes_text(column))
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        values = _in_microseconds(values, column)
    elif pa.types.is_duration(kind):
        return _each(values.cast(pa.duration("us")).cast(pa.int64()), lambda value: f"{value} microseconds")
    elif pa.types.is_float16(kind):
        values = values.cast(pa.float32())
    try:
        return texts_of(values)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InputError(
            f"column {column.name}: values of type {kind} cannot be loaded: {error}", "convert it"
        ) from error


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _each(values: pa.Array, text: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if value is None else text(value) for value in values.to_pylist()], pa.string())


def _in_microseconds(values: pa.Array, column: LoadColumn) -> pa.Array:
    """PostgreSQL's times have microseconds."""
    kind = values.type
    if kind.unit != "ns":
        return values
    finer = pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else pa.time64("us")
    try:
        return values.cast(finer)
    except pa.ArrowInvalid as error:
        raise InputError(
            f"column {column.name} has times with nanoseconds, which PostgreSQL cannot hold", "round them"
        ) from error


def _bytes_text(column: LoadColumn) -> Callable[[bytes], str]:
    if column.kind == "bytes":
        return lambda value: "\\x" + value.hex()
    if column.kind == "uuid":
        return bytes.hex
    raise InputError(
        f"column {column.name} has bytes in the input, and the type {column.type_sql} in the table",
        "convert it, or leave it out with --columns",
    )


def _nested(column: LoadColumn, kind: pa.DataType) -> Callable[[Any], str]:
    if column.kind == "json":
        return lambda value: json.dumps(value, default=_json_default)
    if column.kind == "array" and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return lambda value: array_text([None if item is None else _item_text(item) for item in value])
    raise InputError(
        f"column {column.name} has values of type {kind} in the input, and the type {column.type_sql} in the table",
        "convert it, or leave it out with --columns",
    )


def _json_default(value: object) -> object:
    if isinstance(value, bytes | Decimal):
        raise InputError(
            f"a value of type {type(value).__name__} within a JSON document cannot be loaded", "convert it"
        )
    return str(value)


def _item_text(item: object) -> str | list[Any]:
    if isinstance(item, list):
        return [None if part is None else _item_text(part) for part in item]
    return "\\x" + item.hex() if isinstance(item, bytes) else str(item)


def _array_of_json(text: str) -> str:
    """A JSON array as an array of PostgreSQL; other texts are PostgreSQL's own."""
    if not text.startswith("["):
        return text
    try:
        values = parse_json(text.encode())
    except ValueError:
        # `[0:1]={1,2}`: an array with bounds.
        return text
    return array_text(values)
