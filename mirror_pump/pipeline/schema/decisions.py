"""What a changed table means for the mirror: go on under new columns, copy it again, or set it aside. Pure functions.

The rule: rows in the lake stay right only if the change provably left every stored value what its field ID says, and
every row that came or went did so in the stream. What is proven, by the notes of
`mirror_pump.source.relations.change_notes`:

- A column keeps its attribute number for life. So the same number under another name is a rename, and a name under
  another number is another column, whose field ID is new.
- A new column without default, identity or rewrite is NULL in every row that exists, which is how readers see a data
  file that lacks its field ID. Iceberg v2 has no initial defaults: with a volatile default the rows have to be read.
- With a constant default, a row that exists shows the default as it was worked out by the command, which Postgres keeps
  in the catalog (attmissingval), and event triggers tell. So files are written anew with that value.
- A type that changed without a rewrite of the heap left the bytes as they are. They mean the same if the type is the
  same but for its modifier, or one of text and varchar; the lake follows if its own type stays or widens.
- A rewrite by ALTER TABLE for a new type may have changed any value (USING), also in a widening; one for a default
  fills the new columns only, and generated ones (SET EXPRESSION).
- A partition that comes without a page brings no row; one that goes takes those along that are within its bounds, and
  they are deleted where the bounds tell them exactly. One that comes back in the same transaction may have others. With
  heap retention none goes, whoever dropped it: the lake is there to keep its rows.
- A partition that is unlogged for a part of a transaction is one that went and came with rows. So is one whose file is
  another while no trigger tells of TRUNCATE.
- Labels of an enum and attributes of a composite are part of the text that the lake holds, also if they are what they
  were again by the end of the transaction. They change without a lock on the table: transactions that wrote to it
  before are waited for, and the copy begins behind them.

Whatever is not proven is copied again. A change of the key is: the lake's pending deletes and required columns are the
former key's, and beginning anew needs no proof.

A table with heap retention has rows below the cut-line that only the lake has, and copying it again concerns those at
or above the cut-line. So what would make the former wrong or unreadable sets it aside: a new column whose values in
rows that exist nobody knows, a type that theirs does not read on as, another key, texts that are printed differently.
And a partition that goes, whoever dropped it, takes no row out of the lake.

A constant default is no such thing: rows below the cut-line have the value that was told, whatever else happened in
the same transaction, since none of it reached them. So the column keeps that value when the table is copied again for
another reason, and its files are filled behind the copy (mirror_pump.pipeline.schema.column_fill).
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
from mirror_pump.model import Column, MirroredTable, Tier
from mirror_pump.source.relations.change_notes import REWRITTEN_TYPE, REWRITTEN_VALUES, Note
from mirror_pump.source.relations.column_choices import still_chosen
from mirror_pump.source.relations.description import RelationDescription
from mirror_pump.source.relations.refusal import refuse

_SAME_TEXT = frozenset({25, 1043})
"""text and varchar: binary coercible both ways, and printed alike, as other such pairs (cidr, inet) are not."""


class Action(Enum):
    """What to do about a table."""

    NOTHING = auto()
    FOLLOW = auto()
    """Rows in the lake are right under the new columns."""
    FILL = auto()
    """Rows in the lake are right but for new columns, in which all of them have one known value each."""
    COPY_AGAIN = auto()
    """Rows in the lake may be wrong: the table's present content takes their place, once it is copied."""
    WAIT = auto()
    """As COPY_AGAIN, but not yet: the table has no key at the moment, or rows from before the change are to come."""
    SET_ASIDE = auto()
    DROPPED = auto()
    """It is gone: as SET_ASIDE, but nobody has to mend anything."""


@dataclass(frozen=True)
class _Reason:
    """Why rows in the lake may be wrong."""

    text: str
    everywhere: bool
    """Also those below the cut-line, of which the heap has no better."""


@dataclass(frozen=True)
class SchemaChangeDecision:
    course: Action
    table: MirroredTable
    """As it is from here on; its start LSN is still the former one."""
    reason: str = ""
    dropped: tuple[PartitionBounds, ...] = ()
    """FILL: rows that went with their partitions."""
    waits_for_owner: bool = False
    """WAIT: until the table's owner does what the reason says."""


DROPPED = (
    "it was dropped in Postgres. Its lake table stays readable as of its last frontier until it is unregistered, or"
    " another table of this name is registered"
)
"""What is said of a table that is gone."""
_ADD_OTHERWISE = (
    ". Unregister the table with --keep-lake. Another time, add such a column without a default, give it the default"
    " afterwards (ALTER COLUMN ... SET DEFAULT), and fill rows by UPDATE and, below the cut-line, by modak.upsert"
)
_UNTIL_KEYED = "Readers keep what it held before; give it a key again, and it is copied again by itself"


def decide(table: MirroredTable, note: Note, seen: RelationDescription | None) -> SchemaChangeDecision:
    """What to do about a table after a note; `seen` is what the note describes, None if it describes nothing."""
    if note.gone:
        return SchemaChangeDecision(Action.DROPPED, table, DROPPED)
    if seen is None or note.shape is None:
        # A rewrite was announced and what came of it was not told.
        return SchemaChangeDecision(Action.WAIT, table, "its rows were rewritten")
    seen = still_chosen(seen, table)
    keyless = not seen.identity.key or not seen.identity.immediate or seen.identity.setting == "n"
    reason = ""
    try:
        refuse(seen)
    except TableError as error:
        if not keyless:
            return SchemaChangeDecision(
                Action.SET_ASIDE, table, f"{error}. {error.remedy}; then unregister and register it"
            )
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
        # Keyless for a moment, or for good: rows may repeat until it has a key again, and cannot be told apart.
        said = f"{reason or 'it has no key any more'}. {_UNTIL_KEYED}"
        return SchemaChangeDecision(Action.WAIT, replace(table, shape=present.shape), said, waits_for_owner=True)
    if key_before != key_now:
        reasons.append(_Reason("its key changed", everywhere=True))
    dropped = _dropped(note, former, table)
    reasons += _other_reasons(note, former, table, gone_known=dropped is not None)
    everywhere = ", ".join(reason.text for reason in reasons if reason.everywhere)
    if everywhere and _old_rows_left(table):
        said = f"{everywhere}. Its old rows are in the lake alone and cannot be read again; they stay as they are"
        if any(column.attnum not in {known.attnum for known in table.columns} for column in columns):
            said += _ADD_OTHERWISE
        return SchemaChangeDecision(Action.SET_ASIDE, table, said)
    if not note.settled and _printed_otherwise(former, note):
        # Of transactions that were writing to the table, rows follow as they were printed before.
        return SchemaChangeDecision(Action.WAIT, table, ", ".join(reason.text for reason in reasons))
    if reasons:
        if not _old_rows_left(table):
            # No file from before stays, and their values may be none of the columns' types any more.
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
    """The columns from here on, why the rows have to be copied for them, the next free field ID, and whether files are
    to be filled with values of new columns."""
    known = {column.attnum: column for column in table.columns}
    # A column that is not mirrored although it existed: it was generated, and not published until now.
    existed = {column["attnum"] for column in former.get("columns") or ()}
    filled = note.filled_columns.union(
        column["attnum"] for column in (note.shape or {}).get("columns") or () if column["filled"]
    )
    provable = note.exact and bool(former) and not note.rewritten & REWRITTEN_VALUES
    next_field_id = table.next_field_id or max((column.field_id for column in table.columns), default=0) + 1
    columns: list[Column] = []
    reasons: list[_Reason] = []
    fills = False
    # Where no trigger tells why, a rewrite of the heap may have been one for a new column's values.
    rewritten = bool(note.rewritten & REWRITTEN_VALUES) or bool(_heaps_rewritten(note, former))
    for column in seen.columns:
        before = known.get(column.attnum)
        if before is None:
            told = provable or (note.exact and bool(former) and _old_rows_left(table))
            told = told and column.attnum in note.missing and column.attnum not in existed
            initial = note.missing[column.attnum] if told else None
            if initial is not None and _may_fill(table) and holds_text(column.type, initial):
                columns.append(replace(column, field_id=next_field_id, initial=initial))
                next_field_id += 1
                fills = True
                continue
            columns.append(replace(column, field_id=next_field_id))
            next_field_id += 1
            known_null = told and initial is None
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
    """Not while rows are still to be copied, unless it has others, which will not be: then it is filled afterwards."""
    return table.state.has_all_rows or _old_rows_left(table)


def _old_rows_left(table: MirroredTable) -> bool:
    """Whether rows may be below the cut-line, which the lake alone has."""
    return table.tier is not None and table.tier.moved


def _tier(table: MirroredTable, columns: tuple[Column, ...]) -> Tier | None:
    """The tier key under the name that it has now; Postgres lets nobody drop it or change its type."""
    if table.tier is None:
        return None
    number = next(column.attnum for column in table.columns if column.name == table.tier.column)
    return replace(table.tier, column=next(column.name for column in columns if column.attnum == number))


def _reads_on(before: Column, now: Column, note: Note, *, in_key: bool) -> bool:
    """Whether what the lake holds of a column whose type changed is what it would hold if it were read again."""
    if note.rewritten or not note.exact:
        return False
    comparable = before.type_oid == now.type_oid or {before.type_oid, now.type_oid} <= _SAME_TEXT
    return comparable and (before.type == now.type or (widens(before.type, now.type) and not in_key))


def rows_of(leaf: int, table: MirroredTable) -> PartitionBounds | None:
    """Which rows are in a partition of the table as it is; None if they cannot be told, or not be taken out."""
    if table.tier is not None or not table.state.has_all_rows or not table.shape:
        return None
    return bounds_of(table, json.loads(table.shape), leaf)


def _dropped(note: Note, former: Mapping[str, Any], table: MirroredTable) -> tuple[PartitionBounds, ...] | None:
    """The rows of partitions that are gone; None if they cannot all be told. One that came back may have others now."""
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
    """Why the rows have to be copied although no column says so."""
    if note.truncated:
        return [_Reason("a partition was truncated", everywhere=False)]
    shape = note.shape
    if not former or shape is None:
        return []
    reasons = []
    before, now = _leaves(former), _leaves(shape)
    stayed = before.keys() & now.keys() & (now.keys() if note.stayed is None else note.stayed)
    if not note.exact and _attached_untold(former, shape):
        reasons.append(_Reason("a partition was detached for a moment, and nothing says when", everywhere=False))
    if before.keys() - stayed and table.tier is None and not gone_known:
        reasons.append(_Reason("a partition is gone", everywhere=False))
    if note.filled & now.keys() or (not note.exact and now.keys() - stayed):
        reasons.append(_Reason("a partition came with rows", everywhere=False))
    if _heaps_rewritten(note, former) or (not note.exact and _altered_untold(former, shape)):
        reasons.append(_Reason("its heap may have been rewritten, and no trigger says why", everywhere=False))
    if _printed_otherwise(former, note):
        reasons.append(_Reason("a type of it prints its values differently now", everywhere=True))
    return reasons


def _what_changed(table: MirroredTable, present: MirroredTable, former: Mapping[str, Any], note: Note) -> str:
    """What is different about a table whose rows in the lake are right as they are, for people."""
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
    """File nodes by OID; None where triggers make them unnecessary."""
    return {leaf["id"]: leaf.get("file") for leaf in shape["leaves"] or ()}


def _heaps_rewritten(note: Note, former: Mapping[str, Any]) -> set[int]:
    """Leaves whose file node is another than it was, or is watched from here on: nobody knows since when it is what it
    is. Where it is not watched any more, the note itself says what it came to (Note.filled)."""
    if not former or note.shape is None:
        return set()
    before, now = _leaves(former), _leaves(note.shape)
    return {leaf for leaf in before.keys() & now.keys() if now[leaf] is not None and before[leaf] != now[leaf]}


def _attached_untold(former: Mapping[str, Any], shape: Mapping[str, Any]) -> bool:
    """Whether a partition of both shapes, at any level, was attached anew between them."""
    before, now = former.get("attached") or {}, shape.get("attached") or {}
    return any(before[relation] != now[relation] for relation in before.keys() & now.keys())


def _altered_untold(former: Mapping[str, Any], shape: Mapping[str, Any]) -> bool:
    """Whether a column is the same but for having been written anew in pg_attribute: as with its own type and USING.

    A GRANT on the column, or the loss of a default whose function was dropped, does the same.
    """
    before = {column["attnum"]: column for column in former["columns"] or ()}
    for now in shape["columns"] or ():
        was = before.get(now["attnum"], {})
        old, new = was.get("altered"), now.get("altered")
        if old and new and old[0] != new[0] and old[1] == new[1] and (now["filled"] or not was["filled"]):
            return True
    return False


def _printed_otherwise(former: Mapping[str, Any], note: Note) -> bool:
    """Whether values print otherwise than under the former types, or did for a part of the transaction."""
    before = former.get("types") or {}
    now = note.shape.get("types") if note.shape is not None else None
    return any(_other_texts(before, types) for types in (now or {}, *note.types))


def _other_texts(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether values stored under the former types print otherwise: labels may come, attributes may not."""
    for oid in before.keys() & now.keys():
        old, new = before[oid] or {}, now[oid] or {}
        is_enum = all(isinstance(text, str) for text in (*old.values(), *new.values()))
        if any(new.get(part) != value for part, value in old.items()) or (not is_enum and len(new) != len(old)):
            return True
    return False
