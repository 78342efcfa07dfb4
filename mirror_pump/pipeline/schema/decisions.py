"""Decides what a schema change means for a table: follow the new columns, copy it again, or fail it. Pure functions.

The rule: the rows in the lake stay correct only if two things are proven. Every stored value still means what its field
ID says, and every row that was added or removed is in the stream. The notes of
`mirror_pump.source.relations.change_notes` prove the following:

- A column keeps its attribute number for life. So the same number under another name is a rename, and the same name
  under another number is another column, which gets a new field ID.
- A new column without default, identity or rewrite is NULL in every existing row. Readers see the same in a data file
  that lacks the field ID. With a volatile default the rows have to be read.
- With a constant default, an existing row shows the default as the command evaluated it. Postgres keeps this value in
  the catalog (attmissingval), and event triggers report it. So files are rewritten with that value; or, where the
  table's policy wants that and the format has defaults, the lake's schema names it, and older files stay as they are.
- A type change without a rewrite of the heap leaves the stored bytes unchanged. They mean the same if only the type's
  modifier changed, or if both types are text or varchar. The lake follows if its own type stays the same or widens.
- A rewrite by ALTER TABLE for a new type may have changed any value (USING), even if the type widens. A rewrite for a
  default fills only the new columns, and generated ones (SET EXPRESSION).
- A partition that is attached without a page adds no row. A partition that is removed takes the rows within its bounds
  with it. They are deleted from the lake if the bounds determine them exactly. A partition that comes back in the same
  transaction may hold other rows. With heap retention no row is removed, no matter who dropped the partition: the lake
  is there to keep its rows. What comes again in its range replaces them by key (mirror_pump.lake.contents.kept_ranges).
- A partition that is unlogged for part of a transaction counts as removed and attached again with rows. So does a
  partition whose file node changed while no trigger reports TRUNCATE.
- Labels of an enum and attributes of a composite type are part of the text in the lake. This matters even if they are
  changed back by the end of the transaction. They change without a lock on the table, so the mirror waits for the
  transactions that wrote to the table before, and the copy begins after them.

If anything is not proven, the table is copied again. So is a table whose key changed: the lake's pending deletes and
required columns belong to the old key, and a new copy needs no proof.

In a table with heap retention, the rows below the cut-line exist only in the lake, and a new copy reads only the rows
at or above the cut-line. So a change that would make the rows below the cut-line wrong or unreadable fails the table: a
new column whose values in existing rows are unknown, a type that cannot read the old type's values, another key, or
values that print differently. Removing a partition removes no row from the lake, no matter who dropped it.

The lake has no row of a tiered table at or above its cut-line. So nothing is ever copied again: a change that leaves
the rows below it right is followed, and any other fails the table. Its notes come from a comparison of the catalogs
(mirror_pump.pipeline.schema.tiered_changes).

A constant default does not fail the table: rows below the cut-line have the reported value. Nothing else in the same
transaction reached them. So the column keeps that value when the table is copied again for another reason, and its
files are filled after the copy (mirror_pump.pipeline.schema.column_fill).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from mirror_pump.lake.contents.kept_ranges import TierRanges
from mirror_pump.lake.contents.partition_bounds import PartitionBounds
from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.schema.column_rules import RowOutcome, Rule, first_rule, type_change
from mirror_pump.pipeline.schema.schema_change import CopyReason, SchemaChange, leaves_of
from mirror_pump.source.options.option_values import choices_text
from mirror_pump.source.relations.change_notes import Note
from mirror_pump.source.relations.column_choices import decimal_option, is_number_as_text
from mirror_pump.source.relations.description import RelationDescription
from mirror_pump.source.relations.partition_choices import layout_text, partition_choices


class Action(Enum):
    """What to do about a table."""

    NOTHING = auto()
    FOLLOW = auto()
    """The rows in the lake are correct under the new columns. Without a reason nothing changed but how types are
    spelled."""
    FILL = auto()
    """The rows in the lake are correct except for new columns. Each new column has one known value in all of them."""
    COPY_AGAIN = auto()
    """The rows in the lake may be wrong: the table's current content replaces them once it is copied."""
    WAIT = auto()
    """Like COPY_AGAIN, but later: the table has no key at the moment, or rows from before the change are still to
    come."""
    FAIL = auto()
    """The table cannot be mirrored any further."""
    DROPPED = auto()
    """The table was dropped. Like FAIL, but nothing has to be fixed."""


@dataclass(frozen=True)
class SchemaChangeDecision:
    """What the mirror does about a change of a table."""

    action: Action
    table: MirroredTable
    """The table as it is from here on, but still with its old start LSN."""
    reason: str = ""
    dropped: tuple[PartitionBounds, ...] = ()
    """For FILL: the bounds of the rows that were removed with their partitions."""
    waits_for_owner: bool = False
    """For WAIT: whether the table waits until its owner does what the reason says."""
    remedy: str = ""
    """For COPY_AGAIN: what to do about columns that get another lake type. Empty if there are none."""
    kept_ranges: TierRanges = ()
    """Ranges of the tier key whose partitions went: SchemaChange.gone_ranges."""


DROPPED = (
    "it was dropped in Postgres. Its lake table stays readable as of its last frontier until it is unregistered, or"
    " another table of this name is registered"
)
"""The error text of a table that was dropped."""
_ADD_OTHERWISE = (
    ". Unregister the table with --keep-lake. Another time, add such a column without a default, give it the default"
    " afterwards (ALTER COLUMN ... SET DEFAULT), and fill rows by UPDATE and, below the cut-line, by modak.upsert"
)
_UNTIL_KEYED = "Readers keep what it held before; give it a key again, and it is copied again by itself"


COPY_RULES: tuple[Rule[SchemaChange, RowOutcome], ...] = (
    Rule("its rows were rewritten", lambda change: change.values_replaced, RowOutcome.COPIED),
    Rule("its copy begins here, as it has no key", lambda change: change.begins_copy, RowOutcome.COPIED),
    Rule("its key changed", lambda change: change.former_key != change.key, RowOutcome.LOST),
    Rule(
        "a column by which its lake table is partitioned is gone or has another type",
        lambda change: bool(change.lost_partition_columns),
        RowOutcome.COPIED,
    ),
    Rule("a partition was truncated", lambda change: change.note.truncated, RowOutcome.COPIED),
    Rule(
        "a partition was detached for a moment, and it is unknown when",
        lambda change: change.is_compared and change.partition_was_away,
        RowOutcome.COPIED,
    ),
    Rule("a partition is gone", lambda change: change.is_compared and change.partition_is_gone, RowOutcome.COPIED),
    Rule(
        "a partition came with rows",
        lambda change: change.is_compared and change.partition_came_with_rows,
        RowOutcome.COPIED,
    ),
    Rule(
        "its heap may have been rewritten, and no trigger reported it",
        lambda change: change.is_compared and (bool(change.rewritten_heaps) or change.column_was_rewritten),
        RowOutcome.COPIED,
    ),
    Rule(
        "one of its types prints values differently now",
        lambda change: change.is_compared and change.prints_differently,
        RowOutcome.LOST,
    ),
)
"""Why rows in the lake may be wrong, besides columns (`column_rules`): each that applies. In the order of
docs/schema-changes.md, but for the types, which are named last."""


def decide(
    table: MirroredTable,
    note: Note,
    description: RelationDescription | None,
    *,
    defaults_in_metadata: bool = False,
) -> SchemaChangeDecision:
    """What to do about a table after a note. `description` is what the note describes, None if it describes nothing.
    `defaults_in_metadata`: the key of the table's policy."""
    change = SchemaChange(table, note, description, defaults_in_metadata=defaults_in_metadata)
    decision = first_rule(DECISION_RULES, change).result(change)
    return replace(decision, kept_ranges=change.gone_ranges) if change.is_described else decision


def copy_reasons(change: SchemaChange) -> tuple[CopyReason, ...]:
    """Why rows in the lake may be wrong. Of a tiered table, those at or above the cut-line are not there."""
    applying = [rule for rule in COPY_RULES if rule.applies(change)]
    rule_reasons = (CopyReason(rule.name, everywhere=rule.result is RowOutcome.LOST) for rule in applying)
    reasons = (*change.decided.reasons, *rule_reasons)
    if change.is_tiered:
        return tuple(reason for reason in reasons if reason.everywhere and change.has_old_rows)
    return reasons


def _text(reasons: tuple[CopyReason, ...]) -> str:
    return ", ".join(reason.text for reason in reasons)


def _refused(change: SchemaChange) -> SchemaChangeDecision:
    error = change.refusal
    assert error is not None
    reason = f"{error}. {error.remedy}; then unregister and register it"
    return SchemaChangeDecision(Action.FAIL, change.table, reason)


def _keyless(change: SchemaChange) -> SchemaChangeDecision:
    """The table has no key, for now or for good. Until it has one again, rows may repeat indistinguishably."""
    reason = f"{change.refusal or 'it has no key any more'}. {_UNTIL_KEYED}"
    table = replace(change.table, shape=change.new_table.shape)
    return SchemaChangeDecision(Action.WAIT, table, reason, waits_for_owner=True)


def _concerns_old_rows(change: SchemaChange) -> bool:
    return change.has_old_rows and any(reason.everywhere for reason in copy_reasons(change))


def _old_rows_wrong(change: SchemaChange) -> SchemaChangeDecision:
    everywhere = _text(tuple(reason for reason in copy_reasons(change) if reason.everywhere))
    reason = f"{everywhere}. Its old rows are in the lake alone and cannot be read again; they stay as they are"
    return SchemaChangeDecision(Action.FAIL, change.table, reason + (_ADD_OTHERWISE if change.adds_columns else ""))


def _unsettled(change: SchemaChange) -> SchemaChangeDecision:
    """Transactions that are still writing to the table will send rows as the types printed them before."""
    return SchemaChangeDecision(Action.WAIT, change.table, _text(copy_reasons(change)))


def _copied(change: SchemaChange) -> SchemaChangeDecision:
    table = change.new_table
    if not change.has_old_rows:
        # No old file stays, and the initial values may no longer be of the columns' types.
        table = replace(table, columns=tuple(replace(column, initial=None) for column in table.columns))
    remedy = " ".join(filter(None, (_lake_types_remedy(change.table, table), _partitions_remedy(change))))
    return SchemaChangeDecision(Action.COPY_AGAIN, table, _text(copy_reasons(change)), remedy=remedy)


def _partitions_remedy(change: SchemaChange) -> str:
    """What to do about a lake table that is partitioned otherwise by a copy; empty if it is not."""
    if not change.lost_partition_columns:
        return ""
    fields = layout_text(partition_choices(change.new_table))
    text = f"Its lake table is {f'partitioned by {fields}' if fields else 'not partitioned'} once it is copied."
    command = f"mirror-pump register {change.new_table.name.shell} --alter --partition-by FIELDS"
    return f"{text} `{command}` chooses otherwise"


def _filled(change: SchemaChange) -> SchemaChangeDecision:
    removed = change.removed_rows or ()
    reason = "a partition is gone" if removed else "a column is new, with one value in all rows that exist"
    return SchemaChangeDecision(Action.FILL, change.new_table, reason, removed)


def _is_the_same(change: SchemaChange) -> bool:
    return change.former_shape == change.shape and replace(change.new_table, shape="") == replace(
        change.table, shape=""
    )


def _followed(change: SchemaChange) -> SchemaChangeDecision:
    reason = _what_changed(change.table, change.new_table, change.former_shape, change.shape)
    return SchemaChangeDecision(Action.FOLLOW, change.new_table, reason, remedy=_left_out_remedy(change))


def _left_out_remedy(change: SchemaChange) -> str:
    """What to do about columns that came and are left out; empty if none is."""
    left_out = _new_left_out(change.table, change.new_table)
    if not left_out:
        return ""
    name, choices = change.new_table.name.shell, choices_text(change.table, also_listed=left_out)
    return (
        f"Nothing, if {', '.join(left_out)} is to stay out of the lake, like all that is new in a table with masks or a"
        f" column list. Otherwise register the table again, which copies it: `mirror-pump unregister {name}`, then"
        f" `mirror-pump register {name} {choices}`, with a --mask if readers must not see its values"
    )


DECISION_RULES: tuple[Rule[SchemaChange, Callable[[SchemaChange], SchemaChangeDecision]], ...] = (
    Rule(
        "dropped",
        lambda change: change.note.gone,
        lambda change: SchemaChangeDecision(Action.DROPPED, change.table, DROPPED),
    ),
    Rule(
        "a rewrite that is only announced",
        lambda change: not change.is_described,
        lambda change: SchemaChangeDecision(Action.WAIT, change.table, "its rows were rewritten"),
    ),
    Rule(
        "it cannot be mirrored",
        lambda change: change.refusal is not None and (change.is_tiered or not change.is_keyless),
        _refused,
    ),
    Rule("no key", lambda change: change.is_keyless, _keyless),
    Rule("old rows may be wrong", _concerns_old_rows, _old_rows_wrong),
    Rule(
        "rows that print as before are to come",
        lambda change: not change.note.settled and not change.is_tiered and change.prints_differently,
        _unsettled,
    ),
    Rule("rows may be wrong", lambda change: bool(copy_reasons(change)), _copied),
    Rule("new values or removed rows", lambda change: change.decided.fills or bool(change.removed_rows), _filled),
    Rule("nothing changed", _is_the_same, lambda change: SchemaChangeDecision(Action.NOTHING, change.table)),
    Rule("rows are right", lambda _: True, _followed),
)
"""What a change means for the table, the first that applies."""


def _what_changed(
    table: MirroredTable, new_table: MirroredTable, former_shape: Mapping[str, Any], shape: Mapping[str, Any]
) -> str:
    """Describe for people what changed about a table whose rows in the lake stay correct."""
    changes = []
    if table.name != new_table.name:
        changes.append(f"it was {table.name}")
    before = {column.attnum: column for column in table.columns}
    for column in new_table.columns:
        former_column = before.pop(column.attnum, None)
        if former_column is None:
            changes.append(f"column {column.name} is new")
            continue
        if former_column.name != column.name:
            changes.append(f"column {column.name} was {former_column.name}")
        if not _same_type_name(former_column.type_sql, column.type_sql):
            changes.append(type_change(former_column, column))
        if former_column.not_null != column.not_null:
            changes.append(f"column {column.name} {'cannot' if column.not_null else 'can'} be NULL now")
    changes += [f"column {column.name} is gone" for column in before.values()]
    changes += [f"column {name} is new, and left out" for name in _new_left_out(table, new_table)]
    leaves, leaves_before = leaves_of(shape).keys(), leaves_of(former_shape).keys()
    if leaves - leaves_before:
        changes.append("a partition came")
    if leaves_before - leaves:
        changes.append("a partition is gone")
    if not changes and _without_type_names(former_shape) == _without_type_names(shape):
        return ""
    return ", ".join(changes) or "its definition"


def _new_left_out(table: MirroredTable, new_table: MirroredTable) -> list[str]:
    """Names of the columns that are left out, and were not there before."""
    left_out = {column.attnum for column in table.excluded}
    return [column.name for column in new_table.excluded if column.attnum not in left_out]


def _lake_types_remedy(table: MirroredTable, new_table: MirroredTable) -> str:
    """What to do about columns that get another lake type by a copy; empty if none does."""
    types = {column.attnum: column.type for column in table.columns}
    changed = [column for column in new_table.columns if types.get(column.attnum, column.type) != column.type]
    if not changed:
        return ""
    named = ", ".join(f"{column.name} is {column.type} instead of {types[column.attnum]}" for column in changed)
    remedy = f"Adapt queries of the lake table: once it is copied, {named}."
    options = " ".join(decimal_option(column) for column in changed if is_number_as_text(column))
    return f"{remedy} To keep numbers, unregister the table, and register it with {options}." if options else remedy


def _same_type_name(first: str, second: str) -> bool:
    """Whether two texts name a type alike, but that a search path left out its schema in one of them."""
    return first == second or first.endswith(f".{second}") or second.endswith(f".{first}")


def _without_type_names(shape: Mapping[str, Any]) -> dict[str, Any]:
    """A shape without what a search path may change: how its columns' types are spelled."""
    columns = [{**column, "sql": ""} for column in shape.get("columns") or ()]
    return {**shape, "columns": columns}
