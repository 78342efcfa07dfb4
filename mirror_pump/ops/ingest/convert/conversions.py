"""Converts input values of ordinary types to the lake's, where that certainly gives what an INSERT would.

A text that PostgreSQL might read differently, or refuse, is none of these: then the whole column of the batch is left
to PostgreSQL. A typed value that the column cannot hold unchanged is an error.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from decoders.columns import Kind
from decoders.pgtypes import NUMERIC
from decoders.text import parse_text
from mirror_pump.model import Column
from mirror_pump.ops.ingest.ingest_target import INT2, VARCHAR
from mirror_pump.ops.row_files.value_texts import Unfit, plain_values, texts_of
from mirror_pump.source.relations.target_columns import TargetColumn

_INTEGER = r"^-?[0-9]{1,19}$"
_FLOAT = r"^-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?$"
_DECIMAL = r"^-?[0-9]+(\.[0-9]+)?$"
_CANONICAL_NUMERIC = r"^(0|-?[1-9][0-9]{0,999}|-?[1-9][0-9]{0,999}\.[0-9]{1,1000}|-?0\.[0-9]*[1-9][0-9]*|0\.0+)$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_TIMESTAMP = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[ T]{_CLOCK}$"
_TIMESTAMPTZ = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[ T]{_CLOCK}(Z|[+-](0[0-9]|1[0-4])(:[0-5][0-9])?)$"
_PATTERNS = {
    Kind.INT: _INTEGER,
    Kind.LONG: _INTEGER,
    Kind.FLOAT: _FLOAT,
    Kind.DOUBLE: _FLOAT,
    Kind.DECIMAL: _DECIMAL,
    Kind.DATE: _DATE,
    Kind.TIMESTAMP: _TIMESTAMP,
    Kind.TIMESTAMPTZ: _TIMESTAMPTZ,
}
_BOOLEANS = pa.array(["t", "true", "f", "false"])
_TRUE = pa.array(["t", "true"])
_YEAR_ZERO = "0000-"
_VARHDRSZ = 4


class LeftToPostgres(Exception):
    """Some text of the column is for PostgreSQL to read."""


def converted(values: pa.Array, column: Column, target: TargetColumn) -> pa.Array:
    """The values in the column's Arrow type. Raises LeftToPostgres for texts, Unfit for typed values."""
    values = plain_values(values)
    if pa.types.is_string(values.type):
        return _from_texts(values, column, target)
    typed_values = _cast(values, column, target)
    if target.type_oid == INT2:
        _require_smallint(typed_values)
    return typed_values


def is_unfit(kind: pa.DataType, column: Column, target: TargetColumn) -> bool:
    """Whether no value of a type fits into a column, so that reading them need not begin."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()
    return not (texts or pa.types.is_null(kind) or _caster(kind, column, target) is not None)


def _from_texts(values: pa.Array, column: Column, target: TargetColumn) -> pa.Array:
    kind = column.type.kind
    if kind is Kind.STRING:
        return _text(values, target)
    if kind is Kind.BOOLEAN:
        if pc.all(pc.is_in(values, value_set=_BOOLEANS, skip_nulls=False)).as_py() is False and not _only(
            values, pc.is_in(values, value_set=_BOOLEANS)
        ):
            raise LeftToPostgres
        return pc.if_else(pc.is_null(values), pa.scalar(None, pa.bool_()), pc.is_in(values, value_set=_TRUE))
    pattern = _PATTERNS.get(kind)
    if pattern is not None and pc.all(pc.match_substring_regex(values, pattern)).as_py() is False:
        raise LeftToPostgres
    try:
        parsed = parse_text(values, column.type)
    except (ValueError, pa.ArrowInvalid):
        raise LeftToPostgres from None
    if parsed.unrepresentable is not None and pc.any(parsed.unrepresentable).as_py():
        raise LeftToPostgres
    typed_values = parsed.values
    if column.type.is_floating:
        _require_ordinary(values, typed_values)
    if column.type.is_temporal and pc.any(pc.starts_with(values, _YEAR_ZERO)).as_py():
        raise LeftToPostgres
    if target.type_oid == INT2:
        try:
            _require_smallint(typed_values)
        except Unfit:
            raise LeftToPostgres from None
    return typed_values


def _only(values: pa.Array, fits: pa.Array) -> bool:
    return pc.all(pc.or_(fits, pc.is_null(values))).as_py() is not False


def _text(values: pa.Array, target: TargetColumn) -> pa.Array:
    if target.type_oid == NUMERIC:
        if pc.all(pc.match_substring_regex(values, _CANONICAL_NUMERIC)).as_py() is False:
            raise LeftToPostgres
        return values
    if target.type_oid == VARCHAR and target.type_modifier >= _VARHDRSZ:
        longest = pc.max(pc.utf8_length(values)).as_py()
        if longest is not None and longest > target.type_modifier - _VARHDRSZ:
            raise LeftToPostgres
    if _has_zero_byte(values):
        # PostgreSQL says so.
        raise LeftToPostgres
    return values


def _has_zero_byte(values: pa.Array) -> bool:
    """Whether a text has the character U+0000, which PostgreSQL does not store."""
    data = values.buffers()[2] if len(values) else None
    if data is None:
        return False
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)
    content = np.frombuffer(data, np.uint8, int(offsets[-1] - offsets[0]), int(offsets[0]))
    return not bool(content.all())


def _require_ordinary(texts: pa.Array, numbers: pa.Array) -> None:
    """Raises LeftToPostgres for texts that are out of the type's range: Arrow reads these as infinity or zero."""
    zero = pc.and_(pc.equal(numbers, 0), pc.match_substring_regex(texts, "^[^eE]*[1-9]"))
    if pc.any(pc.or_(pc.is_inf(numbers), zero)).as_py():
        raise LeftToPostgres


def _require_smallint(values: pa.Array) -> None:
    if pc.any(pc.or_(pc.less(values, -32768), pc.greater(values, 32767))).as_py():
        raise Unfit("out of the range of smallint")


def _cast(values: pa.Array, column: Column, target: TargetColumn) -> pa.Array:
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), column.type.arrow)
    caster = _caster(values.type, column, target)
    if caster is None:
        raise Unfit(f"{values.type} does not fit into {target.type_sql} without loss")
    try:
        typed_values = caster(values)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Unfit(f"does not fit into {target.type_sql} without loss: {error}") from error
    if not typed_values.type.equals(column.type.arrow):
        raise Unfit(f"{values.type} does not fit into {target.type_sql}")
    return typed_values


def _caster(kind: pa.DataType, column: Column, target: TargetColumn) -> Callable[[pa.Array], pa.Array] | None:
    """How values of an Arrow type become the column's; None if they cannot, whatever they are."""
    arrow, column_kind = column.type.arrow, column.type.kind
    number = pa.types.is_integer(kind) or pa.types.is_decimal(kind)
    if column_kind in (Kind.INT, Kind.LONG) and (number or pa.types.is_floating(kind)):
        return lambda values: values.cast(arrow)
    if column_kind is Kind.DECIMAL and number:
        return lambda values: _as_decimal(values, arrow)
    if column_kind is Kind.STRING and target.type_oid == NUMERIC and number:
        return texts_of
    if column_kind in (Kind.FLOAT, Kind.DOUBLE) and (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        return lambda values: _as_float(values, arrow)
    if column_kind is Kind.BOOLEAN and pa.types.is_boolean(kind):
        return lambda values: values
    if column_kind is Kind.DATE and pa.types.is_date(kind):
        return lambda values: values.cast(arrow)
    if column_kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ) and pa.types.is_timestamp(kind):
        zone = "UTC" if column_kind is Kind.TIMESTAMPTZ else None
        return lambda values: _in_zone(values.cast(pa.timestamp("us", kind.tz)), zone)
    if column_kind is Kind.BINARY and (
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    ):
        return lambda values: values.cast(arrow)
    if column_kind is Kind.UUID and kind == pa.binary(16):
        return lambda values: values
    return None


def _as_decimal(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    """Through texts, since Arrow refuses to cast wide integers to narrow decimals whatever they are."""
    texts = texts_of(values)
    parsed = parse_text(texts, _decimal_type(arrow))
    if parsed.unrepresentable is not None and pc.any(parsed.unrepresentable).as_py():
        raise pa.ArrowInvalid(f"{texts.filter(parsed.unrepresentable)[0]} has too many digits")
    return parsed.values


def _decimal_type(arrow: pa.DataType):  # type: ignore[no-untyped-def]
    from decoders.columns import ColumnType

    return ColumnType(Kind.DECIMAL, arrow.precision, arrow.scale)


def _as_float(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    floats = values.cast(arrow, safe=pa.types.is_integer(values.type))
    if pa.types.is_floating(values.type) and values.type.bit_width > arrow.bit_width:
        again = floats.cast(values.type)
        same = pc.or_(pc.equal(again, values), pc.and_(pc.is_nan(again), pc.is_nan(values)))
        if pc.all(same).as_py() is False:
            raise pa.ArrowInvalid("a double has more digits than a real holds")
    return floats


def _in_zone(values: pa.Array, zone: str | None) -> pa.Array:
    """Times with a zone are moments; those without are taken as in UTC, as in a session of that time zone."""
    return values.view(pa.int64()).view(pa.timestamp("us", zone))
