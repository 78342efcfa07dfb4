"""Which rows of an Arrow batch match a bound predicate."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundIsNaN,
    BoundIsNull,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundNotEqualTo,
    BoundNotIn,
    BoundNotNaN,
    BoundNotNull,
    BoundNotStartsWith,
    BoundPredicate,
    BoundSetPredicate,
    BoundStartsWith,
    Or,
)

from mirror_pump.lake.format.columns import plain

_COMPARISONS = {
    BoundEqualTo: pc.equal,
    BoundNotEqualTo: pc.not_equal,
    BoundLessThan: pc.less,
    BoundLessThanOrEqual: pc.less_equal,
    BoundGreaterThan: pc.greater,
    BoundGreaterThanOrEqual: pc.greater_equal,
}


def matching(batch: pa.RecordBatch, predicate: BooleanExpression) -> pa.RecordBatch:
    """The rows that match. The batch has the columns that the predicate names, in the types of its schema. As in SQL, a
    NULL matches none but `is null`; NaN equals nothing, and is neither less nor greater."""
    if predicate is AlwaysTrue() or not batch.num_rows:
        return batch
    return batch.filter(_mask(batch, predicate))


def _mask(batch: pa.RecordBatch, predicate: BooleanExpression) -> pa.Array:
    """True for rows that match; False, or NULL, for others."""
    if isinstance(predicate, And):
        return pc.and_kleene(_mask(batch, predicate.left), _mask(batch, predicate.right))
    if isinstance(predicate, Or):
        return pc.or_kleene(_mask(batch, predicate.left), _mask(batch, predicate.right))
    if isinstance(predicate, BoundPredicate):
        return _compared(_column(batch, predicate), predicate)
    return pa.repeat(pa.scalar(predicate is not AlwaysFalse()), batch.num_rows)


def _column(batch: pa.RecordBatch, predicate: BoundPredicate) -> pa.Array:
    """The column, or the field of a struct, that the predicate names."""
    reference = predicate.term.ref()
    accessor = reference.accessor
    column = batch.column(_top_level(batch, predicate))
    while accessor.inner is not None:
        accessor = accessor.inner
        column = pc.struct_field(column, [accessor.position])
    return plain(column)


def _top_level(batch: pa.RecordBatch, predicate: BoundPredicate) -> int:
    position = str(predicate.term.ref().accessor.position)
    for place, field in enumerate(batch.schema):
        if field.metadata and field.metadata.get(POSITION) == position.encode():
            return place
    raise LookupError(f"the batch lacks the column of {predicate}")


POSITION = b"position"
"""Key of an Arrow field's metadata: the column's place in the schema that predicates are bound to."""


def _compared(column: pa.Array, predicate: BoundPredicate) -> pa.Array:
    match predicate:
        case BoundIsNull():
            return column.is_null()
        case BoundNotNull():
            return column.is_valid()
        case BoundIsNaN():
            return pc.is_nan(column)
        case BoundNotNaN():
            return pc.invert(pc.is_nan(column))
        case BoundIn() | BoundNotIn():
            is_among = _among(column, predicate)
            return is_among if isinstance(predicate, BoundIn) else pc.invert(is_among)
        case BoundStartsWith():
            return pc.starts_with(column, predicate.literal.value)
        case BoundNotStartsWith():
            return pc.invert(pc.starts_with(column, predicate.literal.value))
    literal: Any = predicate.literal.value  # type: ignore[attr-defined]
    return _COMPARISONS[type(predicate)](column, pa.scalar(literal, column.type))  # type: ignore[index]


def _among(column: pa.Array, predicate: BoundSetPredicate) -> pa.Array:
    """Whether each value is one of the literals; NULL for NULL, which pyarrow takes for a value that is not."""
    literals = pa.array([literal.value for literal in predicate.literals], column.type)
    valid = column.is_valid()
    if pa.types.is_floating(column.type):
        # By its hash, -0.0 is not 0.0.
        zero = pa.scalar(0.0, column.type)
        column, literals = pc.add(column, zero), pc.add(literals, zero)
    return pc.if_else(valid, pc.is_in(column, value_set=literals), pa.scalar(None, pa.bool_()))
