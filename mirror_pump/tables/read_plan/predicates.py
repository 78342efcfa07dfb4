"""Predicates of pyiceberg, bound to a schema once, and folded into tests of what is known of a file."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundIsNull,
    BoundNotNull,
    BoundPredicate,
    BoundReference,
    EqualTo,
    GreaterThan,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    NotEqualTo,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    SetPredicate,
    StartsWith,
    UnboundPredicate,
    UnboundTerm,
    parser,
)
from pyiceberg.expressions.literals import DoubleLiteral, FloatLiteral
from pyiceberg.expressions.visitors import BooleanExpressionVisitor, rewrite_not, visit
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, IcebergType

from mirror_pump.errors import UsageError
from mirror_pump.tables.metadata.variant_type import is_variant
from mirror_pump.tables.read_plan.fitted_literals import Between, Beyond, fitted_literal

Predicate: TypeAlias = BooleanExpression | str
"""An expression of pyiceberg, or its text, such as `day >= '2026-01-01' and region = 'eu'`."""

_Evidence = TypeVar("_Evidence")


def always(evidence: object) -> bool:  # noqa: ARG001 - a test
    """The test that rules nothing out."""
    return True


def never(evidence: object) -> bool:  # noqa: ARG001 - a test
    """The test that rules everything out."""
    return False


def bound_predicate(predicate: Predicate, schema: Schema) -> BooleanExpression:
    """The predicate on fields of the schema, without `not`, which is pushed down to the comparisons.

    A NULL matches none but `is null`, as in SQL, also where a literal is out of the column's range. Raises UsageError
    for a column that is not there, a literal that does not fit, or text that is no predicate.
    """
    try:
        expression = parser.parse(predicate) if isinstance(predicate, str) else predicate
        return visit(rewrite_not(expression), _Binder(schema))
    except UsageError:
        raise
    except Exception as error:
        # pyiceberg raises ValueError, TypeError, NotImplementedError, and its parser's own errors.
        raise UsageError(
            f"the predicate {predicate} does not apply: {error}",
            "compare columns of the table with values of their type",
        ) from error


class _Binder(BooleanExpressionVisitor[BooleanExpression]):
    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def visit_true(self) -> BooleanExpression:
        return AlwaysTrue()

    def visit_false(self) -> BooleanExpression:
        return AlwaysFalse()

    def visit_not(self, child_result: BooleanExpression) -> BooleanExpression:
        raise NotImplementedError(f"not {child_result}")

    def visit_and(self, left_result: BooleanExpression, right_result: BooleanExpression) -> BooleanExpression:
        return And(left_result, right_result)

    def visit_or(self, left_result: BooleanExpression, right_result: BooleanExpression) -> BooleanExpression:
        return Or(left_result, right_result)

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> BooleanExpression:
        for literal in _literals(predicate):
            if isinstance(literal, str) and not _is_text(literal):
                raise UsageError(f"{literal!r} is not text", "leave out lone surrogates, which no column can hold")
        if isinstance(predicate, IsNull | NotNull):
            return self._null_test(predicate.term, BoundIsNull if isinstance(predicate, IsNull) else BoundNotNull)
        if is_variant(self._type_of(predicate.term)):
            raise UsageError(
                f"{predicate}: variants do not compare", "ask `is null` or `is not null` of a variant column"
            )
        if isinstance(predicate, SetPredicate):
            return self._among(predicate)
        if isinstance(predicate, LiteralPredicate) and not isinstance(predicate, StartsWith | NotStartsWith):
            return self._compared(predicate)
        bound = predicate.bind(self._schema, case_sensitive=True)
        if bound is AlwaysTrue() and isinstance(predicate, NotNaN):
            return self._null_test(predicate.term, BoundNotNull)
        assert isinstance(bound, BooleanExpression)
        return bound

    def _compared(self, predicate: LiteralPredicate) -> BooleanExpression:
        kind = self._type_of(predicate.term)
        literal = fitted_literal(predicate.literal, kind)
        if isinstance(literal, Beyond):
            return self._beyond(predicate, literal, kind)
        if isinstance(literal, Between):
            return self._between(predicate, literal)
        return self._bound(type(predicate)(predicate.term, literal))

    def _between(self, predicate: LiteralPredicate, literal: Between) -> BooleanExpression:
        """A comparison with a number of more places than the column's."""
        term = predicate.term
        if isinstance(predicate, EqualTo):
            return AlwaysFalse()
        if isinstance(predicate, NotEqualTo):
            return self._null_test(term, BoundNotNull)
        less = isinstance(predicate, LessThan | LessThanOrEqual)
        comparison: Any = LessThanOrEqual if less else GreaterThan
        return self._bound(comparison(term, literal.below))

    def _beyond(self, predicate: LiteralPredicate, literal: Beyond, kind: IcebergType) -> BooleanExpression:
        """A comparison with what the column's type cannot hold. Of real numbers, infinity is beyond it, too."""
        term = predicate.term
        if isinstance(predicate, EqualTo):
            return AlwaysFalse()
        if isinstance(predicate, NotEqualTo):
            return self._null_test(term, BoundNotNull)
        above = literal is Beyond.ABOVE
        finite_match = isinstance(predicate, LessThan | LessThanOrEqual) is above
        if not isinstance(kind, FloatType | DoubleType):
            return self._null_test(term, BoundNotNull) if finite_match else AlwaysFalse()
        real = FloatLiteral if isinstance(kind, FloatType) else DoubleLiteral
        infinity = real(math.inf if above else -math.inf)
        comparison: Any = (LessThan if above else GreaterThan) if finite_match else EqualTo
        return self._bound(comparison(term, infinity))

    def _among(self, predicate: SetPredicate) -> BooleanExpression:
        """Without literals that the column's type cannot hold, which equal none of its values."""
        kind = self._type_of(predicate.term)
        fitted = {fitted_literal(literal, kind) for literal in predicate.literals}
        literals = {literal for literal in fitted if not isinstance(literal, Between | Beyond)}
        fitted_predicate: Any = type(predicate)(predicate.term, literals)
        if not isinstance(fitted_predicate, SetPredicate | LiteralPredicate):
            return AlwaysFalse() if isinstance(predicate, In) else self._null_test(predicate.term, BoundNotNull)
        return self._bound(fitted_predicate)

    def _type_of(self, term: UnboundTerm) -> IcebergType:
        return term.bind(self._schema, case_sensitive=True).ref().field.field_type

    def _bound(self, predicate: UnboundPredicate) -> BooleanExpression:
        bound = predicate.bind(self._schema, case_sensitive=True)
        assert isinstance(bound, BoundPredicate)
        return bound

    def _null_test(self, term: UnboundTerm, kind: type[Any]) -> BooleanExpression:
        reference = term.bind(self._schema, case_sensitive=True)
        # A field of a struct may be NULL although it is required: where the whole struct is.
        if reference.ref().accessor.inner is not None:
            field = reference.ref().field.model_copy(update={"required": False})
            reference = BoundReference(field, reference.ref().accessor)
        null_test: BooleanExpression = kind(reference)
        return null_test

    def visit_bound_predicate(self, predicate: BoundPredicate) -> BooleanExpression:
        raise TypeError(f"{predicate} is bound to a schema already")


def _literals(predicate: UnboundPredicate) -> list[object]:
    if isinstance(predicate, LiteralPredicate):
        return [predicate.literal.value]
    return [literal.value for literal in predicate.literals] if isinstance(predicate, SetPredicate) else []


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def folded(
    expression: BooleanExpression, test_of: Callable[[BoundPredicate], Callable[[_Evidence], bool]]
) -> Callable[[_Evidence], bool]:
    """One test for a bound expression from those of its comparisons. `always` and `never` themselves where nothing has
    to be looked at."""
    if isinstance(expression, And):
        left, right = folded(expression.left, test_of), folded(expression.right, test_of)
        if never in (left, right):
            return never
        if always in (left, right):
            return right if left is always else left
        return lambda evidence: left(evidence) and right(evidence)
    if isinstance(expression, Or):
        left, right = folded(expression.left, test_of), folded(expression.right, test_of)
        if always in (left, right):
            return always
        if never in (left, right):
            return right if left is never else left
        return lambda evidence: left(evidence) or right(evidence)
    if isinstance(expression, BoundPredicate):
        return test_of(expression)
    return never if expression is AlwaysFalse() else always


def columns_of(expression: BooleanExpression) -> frozenset[int]:
    """Field IDs that a bound expression refers to."""
    if isinstance(expression, And | Or):
        return columns_of(expression.left) | columns_of(expression.right)
    return frozenset({expression.term.ref().field.field_id}) if isinstance(expression, BoundPredicate) else frozenset()
