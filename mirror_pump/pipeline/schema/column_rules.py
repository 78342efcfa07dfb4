"""What a change of one column means for the rows in the lake: rules, the first that applies decides.

They are in the order of the table "Columns" of docs/schema-changes.md. Each is proven by what the notes report
(mirror_pump.pipeline.schema.decisions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Generic, TypeVar

from mirror_pump.lake.commit.schema_evolution import widens
from mirror_pump.lake.format.initial_defaults import default_of_text, holds_text
from mirror_pump.model import Column
from mirror_pump.source.relations.change_notes import WIDENINGS

_SAME_TEXT = frozenset({25, 1043})
"""The OIDs of text and varchar. They are binary coercible both ways and print alike, unlike other such pairs (cidr,
inet)."""


Facts = TypeVar("Facts")
Result = TypeVar("Result")


class RowOutcome(Enum):
    """What a change means for the rows in the lake."""

    FOLLOWED = auto()
    """They are right."""
    FILLED = auto()
    """They are right once they have the new column's one value."""
    COPIED = auto()
    """They may be wrong, except below the cut-line."""
    LOST = auto()
    """They may be wrong, also below the cut-line, which the heap cannot replace."""


@dataclass(frozen=True)
class Rule(Generic[Facts, Result]):
    """One rule of a list."""

    name: str
    applies: Callable[[Facts], bool]
    result: Result


def first_rule(rules: Iterable[Rule[Facts, Result]], facts: Facts) -> Rule[Facts, Result]:
    """The first rule that applies."""
    # Not a generator: a StopIteration of an invalid note has to stay one.
    return next(filter(lambda rule: rule.applies(facts), rules))


@dataclass(frozen=True)
class NewColumn:
    """A column that the mirror did not have."""

    column: Column
    existed: bool
    """The table had the column."""
    filled: bool
    """Existing rows may have values in it."""
    provable: bool
    """The note reports all that happened to rows."""
    rewritten: bool
    """The heap was rewritten, which may have given rows a value."""
    value_known: bool
    """Existing rows have one value."""
    value: str | None
    """That value; None if it is NULL or not known."""
    may_fill: bool
    """Files of the table may be filled."""
    may_default: bool
    """The lake's schema may name a value that files lack instead."""

    @property
    def can_be_filled(self) -> bool:
        return self.value is not None and self.may_fill and holds_text(self.column.type, self.value)

    @property
    def default(self) -> str | None:
        """The value that the lake's schema names, by which files need not be filled. None: it names none."""
        named = self.may_default and self.can_be_filled and self.value is not None
        return self.value if named and default_of_text(self.value or "", self.column.type) is not None else None

    @property
    def is_null(self) -> bool:
        """Whether it is NULL in all existing rows that had it from a command."""
        return self.value_known and self.value is None

    @property
    def rule(self) -> Rule[NewColumn, RowOutcome]:
        """The rule that decides."""
        return first_rule(NEW_COLUMN_RULES, self)

    @property
    def reason(self) -> str:
        """Why its rows are copied, if they are."""
        return f"column {self.column.name} is new and may have values in rows that exist"

    def lake_column(self, next_field_id: int) -> Column:
        """The lake's column."""
        initial = self.value if self.rule.result is RowOutcome.FILLED else None
        return replace(self.column, field_id=next_field_id, initial=initial, default=self.default)


@dataclass(frozen=True)
class ChangedColumn:
    """A column that the mirror has, perhaps under another name or with another type."""

    column: Column
    before: Column
    untouched: bool
    """No value was written again, or only by an exact cast to a wider type."""
    in_key: bool

    @property
    def has_same_type(self) -> bool:
        """Whether PostgreSQL's type is the same. Then so is the lake's, whatever else the mirror would take today."""
        before, now = self.before, self.column
        return (before.type_oid, before.type_modifier) == (now.type_oid, now.type_modifier)

    @property
    def reads_on(self) -> bool:
        """Whether the lake's values equal those that a new copy would read."""
        before, now = self.before, self.column
        comparable = (
            before.type_oid == now.type_oid
            or {before.type_oid, now.type_oid} <= _SAME_TEXT
            or (
                (before.type_oid, now.type_oid) in WIDENINGS
                and (before.older_value is None or not before.type.is_floating)
            )
        )
        return self.untouched and comparable and self.is_promoted

    @property
    def is_promoted(self) -> bool:
        """Whether files with the old type can be read with the new one. Key columns are not promoted."""
        before, now = self.before.type, self.column.type
        return before == now or (widens(before, now) and not self.in_key)

    @property
    def rule(self) -> Rule[ChangedColumn, RowOutcome]:
        """The rule that decides."""
        return first_rule(CHANGED_COLUMN_RULES, self)

    @property
    def reason(self) -> str:
        """Why its rows are copied, if they are."""
        return type_change(self.before, self.column)

    def lake_column(self, next_field_id: int) -> Column:
        """The lake's column. A type that cannot be read from old files gets another field ID."""
        before, now = self.before, self.column
        lake_type = before.type if self.has_same_type else now.type
        promoted = widens(before.type, lake_type)
        return replace(
            before,
            name=now.name,
            type_oid=now.type_oid,
            type_modifier=now.type_modifier,
            type_sql=now.type_sql,
            not_null=now.not_null,
            type=lake_type,
            field_id=before.field_id if promoted else next_field_id,
            default=before.default if promoted else None,
        )


NEW_COLUMN_RULES: tuple[Rule[NewColumn, RowOutcome], ...] = (
    Rule(
        "one value in all existing rows, and it is in the schema",
        lambda new: new.default is not None,
        RowOutcome.FOLLOWED,
    ),
    Rule("one value in all existing rows", lambda new: new.can_be_filled, RowOutcome.FILLED),
    Rule(
        "NULL in all existing rows",
        lambda new: new.provable and not new.existed and (new.is_null or not new.filled),
        RowOutcome.FOLLOWED,
    ),
    Rule("NULL, and more happened to the heap", lambda new: new.is_null, RowOutcome.COPIED),
    Rule("other values in existing rows", lambda new: new.rewritten or new.filled or new.existed, RowOutcome.LOST),
    Rule("no proof of its values", lambda _: True, RowOutcome.COPIED),
)
"""What a new column means, the first that applies."""
CHANGED_COLUMN_RULES: tuple[Rule[ChangedColumn, RowOutcome], ...] = (
    Rule("the same type", lambda now: now.has_same_type, RowOutcome.FOLLOWED),
    Rule("a type that old values read on as", lambda now: now.reads_on, RowOutcome.FOLLOWED),
    Rule("a wider type, and values may be others", lambda now: now.is_promoted, RowOutcome.COPIED),
    Rule("another type", lambda _: True, RowOutcome.LOST),
)
"""What another name or type of a column means, the first that applies."""


def type_change(before: Column, now: Column) -> str:
    """Describe another type of a column for people, on both sides of the mirror."""
    text = f"column {now.name} is {now.type_sql} now, and was {before.type_sql}"
    return text if before.type == now.type else f"{text} (in the lake {now.type}, and was {before.type})"
