"""Decides what a schema change means for a table: follow the new columns, copy it again, or fail it. Pure functions.

The rule: the rows in the lake stay correct only if two things are proven. Every stored value still means what its field
ID says, and every row that was added or removed is in the stream. The notes of
`mirror_pump.source.relations.change_notes` prove the following:

- A column keeps its attribute number for life. So the same number under another name is a rename, and the same name
  under another number is another column, which gets a new field ID.
- A new column without default, identity or rewrite is NULL in every existing row. Readers see the same in a data file
  that lacks the field ID. Iceberg v2 has no initial defaults: with a volatile default the rows have to be read.
- With a constant default, an existing row shows the default as the command evaluated it. Postgres keeps this value in
  the catalog (attmissingval), and event triggers report it. So files are rewritten with that value.
- A type change without a rewrite of the heap leaves the stored bytes unchanged. They mean the same if only the type's
  modifier changed, or if both types are text or varchar. The lake follows if its own type stays the same or widens.
- A rewrite by ALTER TABLE for a new type may have changed any value (USING), even if the type widens. A rewrite for a
  default fills only the new columns, and generated ones (SET EXPRESSION).
- A partition that is attached without a page adds no row. A partition that is removed takes the rows within its bounds
  with it. They are deleted from the lake if the bounds determine them exactly. A partition that comes back in the same
  transaction may hold other rows. With heap retention no row is removed, no matter who dropped the partition: the lake
  is there to keep its rows.
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

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from mirror_pump.errors import TableError
from mirror_pump.lake.commit.schema_evolution import widens
from mirror_pump.lake.contents.partition_bounds import PartitionBounds, bounds_of
from mirror_pump.lake.format.initial_defaults import holds_text
from mirror_pump.model import Column, MirroredTable, TableMode, Tier
from mirror_pump.source.relations.change_notes import REWRITTEN_TYPE, REWRITTEN_VALUES, Note
from mirror_pump.source.relations.column_choices import still_chosen
from mirror_pump.source.relations.description import RelationDescription
from mirror_pump.source.relations.refusal import refuse

_SAME_TEXT = frozenset({25, 1043})
"""The OIDs of text and varchar. They are binary coercible both ways and print alike, unlike other such pairs (cidr,
inet)."""


class Action(Enum):
    """What to do about a table."""

    NOTHING = auto()
    FOLLOW = auto()
    """The rows in the lake are correct under the new columns."""
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
class _Reason:
    """Why rows in the lake may be wrong."""

    text: str
    everywhere: bool
    """Whether rows below the cut-line may be wrong as well, which the heap cannot replace."""


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


def decide(table: MirroredTable, note: Note, seen: RelationDescription | None) -> SchemaChangeDecision:
    """What to do about a table after a note. `seen` is what the note describes, None if it describes nothing."""
    if note.gone:
        return SchemaChangeDecision(Action.DROPPED, table, DROPPED)
    if seen is None or note.shape is None:
        # The note announces a rewrite but does not describe its result.
        return SchemaChangeDecision(Action.WAIT, table, "its rows were rewritten")
    seen = still_chosen(seen, table)
    tiered = table.mode is TableMode.TIERED
    keyless = not seen.identity.key or not seen.identity.immediate or (seen.identity.setting == "n" and not tiered)
    reason = ""
    try:
        refuse(seen, table.mode)
    except TableError as error:
        if not keyless or tiered:
            return SchemaChangeDecision(Action.FAIL, table, f"{error}. {error.remedy}; then unregister and register it")
        reason = str(error)
    former: dict[str, Any] = json.loads(table.shape) if table.shape else {}
    columns, reasons, next_field_id, fills = _columns(table, note, seen, former)
    key_before = {column.attnum for column in table.key_columns}
    key_now = {column.attnum for column in columns if column.name in seen.key}
    present = replace(
        table,
        name=seen.name,
        lake_table=seen.name.name,
        columns=columns,
        key=tuple(column.name for column in columns if column.attnum in (key_before if keyless else key_now)),
        next_field_id=next_field_id,
        shape=json.dumps(note.shape, sort_keys=True),
        excluded=seen.excluded,
        tier=_tier(table, columns),
    )
    if keyless:
        # The table has no key, for now or for good. Until it has one again, rows may repeat indistinguishably.
        reason = f"{reason or 'it has no key any more'}. {_UNTIL_KEYED}"
        return SchemaChangeDecision(Action.WAIT, replace(table, shape=present.shape), reason, waits_for_owner=True)
    if key_before != key_now:
        reasons.append(_Reason("its key changed", everywhere=True))
    dropped = _dropped(note, former, table)
    reasons += _other_reasons(note, former, table, gone_known=dropped is not None)
    if tiered:
        reasons = [reason for reason in reasons if reason.everywhere and _old_rows_left(table)]
    everywhere = ", ".join(reason.text for reason in reasons if reason.everywhere)
    if everywhere and _old_rows_left(table):
        reason = f"{everywhere}. Its old rows are in the lake alone and cannot be read again; they stay as they are"
        if any(column.attnum not in {known.attnum for known in table.columns} for column in columns):
            reason += _ADD_OTHERWISE
        return SchemaChangeDecision(Action.FAIL, table, reason)
    if not note.settled and not tiered and _prints_differently(former, note):
        # Transactions that are still writing to the table will send rows as the types printed them before.
        return SchemaChangeDecision(Action.WAIT, table, ", ".join(reason.text for reason in reasons))
    if reasons:
        if not _old_rows_left(table):
            # No old file stays, and the initial values may no longer be of the columns' types.
            present = replace(present, columns=tuple(replace(column, initial=None) for column in columns))
        return SchemaChangeDecision(Action.COPY_AGAIN, present, ", ".join(reason.text for reason in reasons))
    if fills or dropped:
        why = "a partition is gone" if dropped else "a column is new, with one value in all rows that exist"
        return SchemaChangeDecision(Action.FILL, present, why, dropped or ())
    if former == note.shape and replace(present, shape="") == replace(table, shape=""):
        return SchemaChangeDecision(Action.NOTHING, table)
    return SchemaChangeDecision(Action.FOLLOW, present, _what_changed(table, present, former, note))


def _columns(
    table: MirroredTable, note: Note, seen: RelationDescription, former: Mapping[str, Any]
) -> tuple[tuple[Column, ...], list[_Reason], int, bool]:
    """The columns from here on, the reasons to copy the rows for them, the next free field ID, and whether files have
    to be filled with values of new columns."""
    known = {column.attnum: column for column in table.columns}
    # A column that existed but is not mirrored was a generated column that was not published until now.
    existed = {column["attnum"] for column in former.get("columns") or ()}
    filled = note.filled_columns.union(
        column["attnum"] for column in (note.shape or {}).get("columns") or () if column["filled"]
    )
    provable = note.exact and bool(former) and not note.rewritten & REWRITTEN_VALUES
    next_field_id = table.next_field_id or max((column.field_id for column in table.columns), default=0) + 1
    columns: list[Column] = []
    reasons: list[_Reason] = []
    fills = False
    # If no trigger reports the cause, a rewrite of the heap may have written a new column's values.
    rewritten = bool(note.rewritten & REWRITTEN_VALUES) or bool(_heaps_rewritten(note, former))
    for column in seen.columns:
        before = known.get(column.attnum)
        if before is None:
            # Rows below the cut-line are not in the heap: what else happened to it since did not reach them. A settled
            # note reports what earlier notes did, which may be lost with their slot.
            reported = (note.exact or note.settled) and bool(former) and _old_rows_left(table)
            value_known = provable or reported
            value_known = value_known and column.attnum in note.missing and column.attnum not in existed
            initial = note.missing[column.attnum] if value_known else None
            if initial is not None and _may_fill(table) and holds_text(column.type, initial):
                columns.append(replace(column, field_id=next_field_id, initial=initial))
                next_field_id += 1
                fills = True
                continue
            columns.append(replace(column, field_id=next_field_id))
            next_field_id += 1
            known_null = value_known and initial is None
            if not provable or (column.attnum in filled and not known_null) or column.attnum in existed:
                text = f"column {column.name} is new and may have values in rows that exist"
                everywhere = not known_null and (rewritten or column.attnum in filled or column.attnum in existed)
                reasons.append(_Reason(text, everywhere))
            continue
        same = (before.type_oid, before.type_modifier) == (column.type_oid, column.type_modifier)
        kept = before.type if same else column.type
        field_id = before.field_id
        if not widens(before.type, kept):
            field_id, next_field_id = next_field_id, next_field_id + 1
        if not same and not _reads_on(before, column, note, in_key=column.name in seen.key):
            text = f"column {column.name} is {column.type_sql} now, and was {before.type_sql}"
            wider = field_id == before.field_id and (kept == before.type or column.name not in seen.key)
            reasons.append(_Reason(text, everywhere=not wider))
        columns.append(
            replace(
                before,
                name=column.name,
                type_oid=column.type_oid,
                type_modifier=column.type_modifier,
                type_sql=column.type_sql,
                not_null=column.not_null,
                type=kept,
                field_id=field_id,
            )
        )
    computed = {
        column["attnum"]
        for shape in (former, note.shape or {})
        for column in shape.get("columns") or ()
        if column.get("computed")
    }
    refilled = bool(note.rewritten & REWRITTEN_VALUES) and not computed.isdisjoint(known)
    if note.rewritten & REWRITTEN_TYPE or refilled:
        reasons.append(_Reason("its rows were rewritten", everywhere=False))
    return tuple(columns), reasons, next_field_id, fills


def _may_fill(table: MirroredTable) -> bool:
    """Whether new columns may be filled. A table that is still being copied is filled only if it has rows below the
    cut-line, which are not copied: then it is filled afterwards. A tiered table has no other rows in the lake."""
    return (table.state.has_all_rows and table.mode is TableMode.MIRRORED) or _old_rows_left(table)


def _old_rows_left(table: MirroredTable) -> bool:
    """Whether the table may have rows below the cut-line, which exist only in the lake."""
    return table.tier is not None and table.tier.moved


def _tier(table: MirroredTable, columns: tuple[Column, ...]) -> Tier | None:
    """The tier with the key column's current name. Postgres prevents anyone from dropping this column or changing its
    type."""
    if table.tier is None:
        return None
    number = next(column.attnum for column in table.columns if column.name == table.tier.column)
    return replace(table.tier, column=next(column.name for column in columns if column.attnum == number))


def _reads_on(before: Column, now: Column, note: Note, *, in_key: bool) -> bool:
    """Whether the lake's values of a column whose type changed equal the values that a new copy would read."""
    if note.rewritten or not note.exact:
        return False
    comparable = before.type_oid == now.type_oid or {before.type_oid, now.type_oid} <= _SAME_TEXT
    return comparable and (before.type == now.type or (widens(before.type, now.type) and not in_key))


def rows_of(leaf: int, table: MirroredTable) -> PartitionBounds | None:
    """The bounds of a partition's rows in the current table. None if they cannot be determined or the rows cannot be
    deleted."""
    if table.tier is not None or not table.state.has_all_rows or not table.shape:
        return None
    return bounds_of(table, json.loads(table.shape), leaf)


def _dropped(note: Note, former: Mapping[str, Any], table: MirroredTable) -> tuple[PartitionBounds, ...] | None:
    """The bounds of the rows of removed partitions. None if they cannot all be determined: a partition that came back
    may hold other rows now."""
    if note.shape is None or table.tier is not None:
        return ()
    before, now = _leaves(former) if former else {}, _leaves(note.shape)
    gone = before.keys() - (now.keys() if note.stayed is None else note.stayed)
    if not gone:
        return ()
    found = [rows_of(leaf, table) for leaf in sorted(gone)]
    if not note.exact or gone & now.keys():
        return None
    return tuple(bounds for bounds in found if bounds is not None) if None not in found else None


def _other_reasons(note: Note, former: Mapping[str, Any], table: MirroredTable, *, gone_known: bool) -> list[_Reason]:
    """The reasons to copy the rows that do not follow from the columns."""
    if note.truncated:
        return [_Reason("a partition was truncated", everywhere=False)]
    shape = note.shape
    if not former or shape is None:
        return []
    reasons = []
    before, now = _leaves(former), _leaves(shape)
    stayed = before.keys() & now.keys() & (now.keys() if note.stayed is None else note.stayed)
    if not note.exact and _attached_again(former, shape):
        reasons.append(_Reason("a partition was detached for a moment, and it is unknown when", everywhere=False))
    if before.keys() - stayed and table.tier is None and not gone_known:
        reasons.append(_Reason("a partition is gone", everywhere=False))
    if note.filled & now.keys() or (not note.exact and now.keys() - stayed):
        reasons.append(_Reason("a partition came with rows", everywhere=False))
    if _heaps_rewritten(note, former) or (not note.exact and _column_rewritten(former, shape)):
        reasons.append(_Reason("its heap may have been rewritten, and no trigger reported it", everywhere=False))
    if _prints_differently(former, note):
        reasons.append(_Reason("one of its types prints values differently now", everywhere=True))
    return reasons


def _what_changed(table: MirroredTable, present: MirroredTable, former: Mapping[str, Any], note: Note) -> str:
    """Describe for people what changed about a table whose rows in the lake stay correct."""
    changes = []
    if table.name != present.name:
        changes.append(f"it was {table.name}")
    before = {column.attnum: column for column in table.columns}
    for column in present.columns:
        known = before.pop(column.attnum, None)
        if known is None:
            changes.append(f"column {column.name} is new")
            continue
        if known.name != column.name:
            changes.append(f"column {column.name} was {known.name}")
        if known.type_sql != column.type_sql:
            changes.append(f"column {column.name} is {column.type_sql} now, and was {known.type_sql}")
        if known.not_null != column.not_null:
            changes.append(f"column {column.name} {'cannot' if column.not_null else 'can'} be NULL now")
    changes += [f"column {column.name} is gone" for column in before.values()]
    leaves, leaves_before = _leaves(note.shape or {}).keys(), _leaves(former).keys()
    if leaves - leaves_before:
        changes.append("a partition came")
    if leaves_before - leaves:
        changes.append("a partition is gone")
    return ", ".join(changes) or "its definition"


def _leaves(shape: Mapping[str, Any]) -> dict[int, int | None]:
    """File nodes of the leaf partitions by OID. None where triggers make file nodes unnecessary."""
    return {leaf["id"]: leaf.get("file") for leaf in shape["leaves"] or ()}


def _heaps_rewritten(note: Note, former: Mapping[str, Any]) -> set[int]:
    """Leaf partitions whose file node changed, or is watched only from now on, so that it may have changed before.
    Where the file node is no longer watched, the note itself reports the outcome (Note.filled)."""
    if not former or note.shape is None:
        return set()
    before, now = _leaves(former), _leaves(note.shape)
    return {leaf for leaf in before.keys() & now.keys() if now[leaf] is not None and before[leaf] != now[leaf]}


def _attached_again(former: Mapping[str, Any], shape: Mapping[str, Any]) -> bool:
    """Whether a partition in both shapes, at any level, was attached again between them."""
    before, now = former.get("attached") or {}, shape.get("attached") or {}
    return any(before[relation] != now[relation] for relation in before.keys() & now.keys())


def _column_rewritten(former: Mapping[str, Any], shape: Mapping[str, Any]) -> bool:
    """Whether a column is unchanged except that its pg_attribute row was written again, as by ALTER TYPE to its own
    type with USING.

    A GRANT on the column, or the loss of a default whose function was dropped, does the same.
    """
    before = {column["attnum"]: column for column in former["columns"] or ()}
    for now in shape["columns"] or ():
        was = before.get(now["attnum"], {})
        old, new = was.get("altered"), now.get("altered")
        if old and new and old[0] != new[0] and old[1] == new[1] and (now["filled"] or not was["filled"]):
            return True
    return False


def _prints_differently(former: Mapping[str, Any], note: Note) -> bool:
    """Whether values print differently than under the old types, or did so for part of the transaction."""
    before = former.get("types") or {}
    now = note.shape.get("types") if note.shape is not None else None
    return any(_other_texts(before, types) for types in (now or {}, *note.types))


def _other_texts(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether values stored under the old types print differently. Labels may be added, attributes may not."""
    for oid in before.keys() & now.keys():
        old, new = before[oid] or {}, now[oid] or {}
        is_enum = all(isinstance(text, str) for text in (*old.values(), *new.values()))
        if any(new.get(part) != value for part, value in old.items()) or (not is_enum and len(new) != len(old)):
            return True
    return False
