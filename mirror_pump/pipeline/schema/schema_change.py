"""What is known about a schema change of a table: the facts that decide what it means. Pure functions.

The facts come from the table's row in the catalog, from a note about the table, and from what the note describes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from mirror_pump.errors import TableError
from mirror_pump.lake.contents.kept_ranges import TierRanges, between, united
from mirror_pump.lake.contents.partition_bounds import PartitionBounds, bounds_of, is_default, tier_range
from mirror_pump.lake.format.partitioning import applies
from mirror_pump.lake.format.versions import VECTOR_VERSION
from mirror_pump.model import (
    Column,
    LakePartitioning,
    MirroredTable,
    PartitionedColumn,
    TableMode,
    TableState,
    Tier,
)
from mirror_pump.pipeline.schema.column_rules import ChangedColumn, NewColumn, RowOutcome
from mirror_pump.source.relations.change_notes import REWRITTEN_TYPE, REWRITTEN_VALUES, REWRITTEN_WIDENED, Note
from mirror_pump.source.relations.column_choices import still_chosen
from mirror_pump.source.relations.description import RelationDescription
from mirror_pump.source.relations.refusal import refuse


@dataclass(frozen=True)
class CopyReason:
    """Why rows in the lake may be wrong."""

    text: str
    everywhere: bool
    """Whether rows below the cut-line may be wrong as well, which the heap cannot replace."""


@dataclass(frozen=True)
class DecidedColumns:
    """What the rules say about the columns."""

    columns: tuple[Column, ...]
    """The columns from here on."""
    next_field_id: int
    tier: Tier | None
    reasons: tuple[CopyReason, ...]
    fills: bool
    """Whether files have to be filled with values of new columns."""


class SchemaChange:
    """The facts about a change. Any of them may raise one of INVALID_NOTE_ERRORS if the note is invalid."""

    def __init__(
        self,
        table: MirroredTable,
        note: Note,
        description: RelationDescription | None,
        *,
        defaults_in_metadata: bool = False,
    ) -> None:
        """`description`: what the note describes, None if it describes nothing. `defaults_in_metadata`: the policy."""
        self.table, self.note = table, note
        self._defaults_in_metadata = defaults_in_metadata
        self._described = description

    @property
    def is_described(self) -> bool:
        """Whether the note describes the table."""
        return self._described is not None and self.note.shape is not None

    @cached_property
    def description(self) -> RelationDescription:
        """The table as it is now, without the columns that the user excluded."""
        assert self._described is not None
        return still_chosen(self._described, self.table)

    @cached_property
    def shape(self) -> Mapping[str, Any]:
        """The table's shape as it is now."""
        return self.note.shape or {}

    @cached_property
    def former_shape(self) -> Mapping[str, Any]:
        """The shape that the mirror knows; empty if it knows none."""
        shape: dict[str, Any] = json.loads(self.table.shape) if self.table.shape else {}
        return shape

    @property
    def is_tiered(self) -> bool:
        return self.table.mode is TableMode.TIERED

    @property
    def has_old_rows(self) -> bool:
        """Whether the table may have rows below the cut-line, which exist only in the lake."""
        return self.table.tier is not None and self.table.tier.moved

    @cached_property
    def refusal(self) -> TableError | None:
        """Why such a table cannot be mirrored."""
        try:
            refuse(self.description, self.table.mode, append_only=self.table.append_only)
        except TableError as error:
            return error
        return None

    @property
    def is_keyless(self) -> bool:
        """Whether the stream does not say which rows it changes."""
        identity = self.description.identity
        if self.table.keyless:
            return False
        return not identity.key or not identity.immediate or (identity.setting == "n" and not self.is_tiered)

    @property
    def begins_copy(self) -> bool:
        """Whether a table without a key is copied from here on: the note was made for that, or rows that were deleted
        before their chunk landed would have to be found under other columns."""
        return (
            self.table.keyless
            and self.table.state is TableState.COPYING
            and (self.note.settled or self.table.whole_rows)
        )

    @property
    def former_key(self) -> set[int]:
        """Attribute numbers."""
        return {column.attnum for column in self.table.key_columns}

    @property
    def key(self) -> set[int]:
        """Attribute numbers."""
        return {column.attnum for column in self.decided.columns if column.name in self.description.key}

    @property
    def values_rewritten(self) -> bool:
        """Whether a rewrite of the heap that concerned values was announced."""
        return bool(self.note.rewritten & REWRITTEN_VALUES)

    @property
    def values_replaced(self) -> bool:
        """Whether existing columns may have other values: by USING, or by another expression of a generated one."""
        computed = {
            column["attnum"]
            for shape in (self.former_shape, self.shape)
            for column in shape.get("columns") or ()
            if column.get("computed")
        }
        recomputed = self.values_rewritten and not computed.isdisjoint(column.attnum for column in self.table.columns)
        return bool(self.note.rewritten & REWRITTEN_TYPE) or recomputed

    @cached_property
    def column_changes(self) -> tuple[NewColumn | ChangedColumn, ...]:
        """Each column, as the rules of `column_rules` see it."""
        former_columns = {column.attnum: column for column in self.table.columns}
        return tuple(
            self._changed_column(former_columns[column.attnum], column)
            if column.attnum in former_columns
            else self._new_column(column)
            for column in self.description.columns
        )

    @cached_property
    def decided(self) -> DecidedColumns:
        """The columns from here on, and what their rules say."""
        table = self.table
        next_field_id = table.next_field_id or max((column.field_id for column in table.columns), default=0) + 1
        columns: list[Column] = []
        for change in self.column_changes:
            columns.append(change.lake_column(next_field_id))
            if columns[-1].field_id == next_field_id:
                next_field_id += 1
        outcomes = [(change.rule.result, change.reason) for change in self.column_changes]
        return DecidedColumns(
            tuple(columns),
            next_field_id,
            _tier(table, columns),
            tuple(
                CopyReason(reason, everywhere=outcome is RowOutcome.LOST)
                for outcome, reason in outcomes
                if outcome in (RowOutcome.COPIED, RowOutcome.LOST)
            ),
            fills=any(outcome is RowOutcome.FILLED for outcome, _ in outcomes),
        )

    def _new_column(self, column: Column) -> NewColumn:
        note, former_shape = self.note, self.former_shape
        provable = note.exact and bool(former_shape) and not note.rewritten & (REWRITTEN_VALUES | REWRITTEN_WIDENED)
        # Rows below the cut-line are not in the heap: what else happened to it since did not reach them. A settled note
        # reports what earlier notes did, which may be lost with their slot.
        reported = (note.exact or note.settled) and bool(former_shape) and self.has_old_rows
        # A column that existed but is not mirrored was a generated column that was not published until now.
        existed = column.attnum in {former_column["attnum"] for former_column in former_shape.get("columns") or ()}
        filled = note.filled_columns.union(
            current_column["attnum"] for current_column in self.shape.get("columns") or () if current_column["filled"]
        )
        value_known = (provable or reported) and column.attnum in note.missing and not existed
        return NewColumn(
            column,
            existed=existed,
            filled=column.attnum in filled,
            provable=provable,
            # If no trigger reports the cause, a rewrite of the heap may have written a new column's values.
            rewritten=self.values_rewritten or bool(self.rewritten_heaps),
            value_known=value_known,
            value=note.missing[column.attnum] if value_known else None,
            may_fill=self._may_fill,
            may_default=self._may_default,
        )

    @property
    def _may_fill(self) -> bool:
        """Whether new columns may be filled. A table that is still being copied is filled only if it has rows below the
        cut-line, which are not copied: then it is filled afterwards. A tiered table has no other rows in the lake."""
        return (self.table.state.has_all_rows and not self.is_tiered) or self.has_old_rows

    @property
    def _may_default(self) -> bool:
        """Whether the lake's schema may name the values of new columns in older rows: if its format has defaults, and
        the table's owner wants them, since not all engines read them. Readers of a table with a cut-line combine rows
        of several schemas, and get the values from the catalog."""
        table = self.table
        return self._defaults_in_metadata and table.format_version >= VECTOR_VERSION and table.tier is None

    def _changed_column(self, before: Column, column: Column) -> ChangedColumn:
        untouched = self.note.exact and not self.note.rewritten & ~REWRITTEN_WIDENED
        return ChangedColumn(column, before, untouched=untouched, in_key=column.name in self.description.key)

    @cached_property
    def new_table(self) -> MirroredTable:
        """The table as it is from here on, but still with its old start LSN."""
        table, name, columns = self.table, self.description.name, self.decided.columns
        key = self.former_key if self.is_keyless else self.key
        return replace(
            table,
            name=name,
            lake_table=name.name,
            columns=columns,
            key=tuple(column.name for column in columns if column.attnum in key),
            next_field_id=self.decided.next_field_id,
            shape=json.dumps(self.note.shape, sort_keys=True),
            excluded=self.description.excluded,
            tier=self.decided.tier,
            kept_ranges=self.kept_ranges,
            partitioning=self._partitioning if self.lost_partition_columns else table.partitioning,
        )

    @property
    def _partitioning(self) -> LakePartitioning | None:
        """The layout without the fields that do not apply to the columns any more. Those of a column that gets another
        type stay, if they apply to it. Only a copy has it."""
        partitioning = self.table.partitioning
        if partitioning is None:
            return None
        numbers = {column.field_id: column.attnum for column in self.table.columns}
        columns = {column.attnum: column for column in self.decided.columns}
        fields = (
            PartitionedColumn(column.field_id, field.transform)
            for field in partitioning.fields
            if (column := columns.get(numbers.get(field.field_id, 0))) is not None
            and applies(field.transform, column.type)
        )
        return replace(partitioning, fields=tuple(fields)).or_none

    @property
    def lost_partition_columns(self) -> list[str]:
        """Names of columns by which the lake's files are divided, and that are gone or have another type in the lake.
        Iceberg reads the partitions of every file by the columns' present types, so all files are written anew."""
        partitioning = self.table.partitioning
        if partitioning is None or self.table.tier is not None:
            return []
        columns = {(column.field_id, column.type) for column in self.decided.columns}
        return [
            column.name
            for column in self.table.columns
            if column.field_id in partitioning.field_ids and (column.field_id, column.type) not in columns
        ]

    @property
    def adds_columns(self) -> bool:
        return not {column.attnum for column in self.decided.columns} <= {
            column.attnum for column in self.table.columns
        }

    @property
    def is_compared(self) -> bool:
        """Whether both shapes are compared. After a TRUNCATE of a partition it does not matter what else changed."""
        return bool(self.former_shape) and not self.note.truncated

    @cached_property
    def removed_rows(self) -> tuple[PartitionBounds, ...] | None:
        """The bounds of the rows of removed partitions. None if they cannot all be determined: a partition that came
        back may hold other rows now."""
        if self.table.tier is not None:
            return ()
        gone = self._former_leaves.keys() - (self._leaves.keys() if self.note.stayed is None else self.note.stayed)
        if not gone:
            return ()
        bounds = [rows_of(leaf, self.table) for leaf in sorted(gone)]
        if not self.note.exact or gone & self._leaves.keys():
            return None
        return tuple(rows for rows in bounds if rows is not None) if None not in bounds else None

    @cached_property
    def _leaves(self) -> dict[int, int | None]:
        return leaves_of(self.shape)

    @cached_property
    def _former_leaves(self) -> dict[int, int | None]:
        return leaves_of(self.former_shape) if self.former_shape else {}

    @property
    def _stayed(self) -> set[int]:
        """Leaf partitions that were there all the time."""
        stayed = self._leaves.keys() if self.note.stayed is None else self.note.stayed
        return self._former_leaves.keys() & self._leaves.keys() & stayed

    @property
    def partition_was_away(self) -> bool:
        """Whether a partition in both shapes, at any level, was attached again at an unknown moment."""
        before, now = self.former_shape.get("attached") or {}, self.shape.get("attached") or {}
        return not self.note.exact and any(
            before[partition] != now[partition] for partition in before.keys() & now.keys()
        )

    @property
    def partition_is_gone(self) -> bool:
        """Whether a partition took rows with it that cannot be told by its bounds."""
        gone = self._former_leaves.keys() - self._stayed
        return bool(gone) and self.table.tier is None and self.removed_rows is None

    @property
    def partition_came_with_rows(self) -> bool:
        """Whether a partition may have rows that are not in the stream. Not one below the cut-line, whose rows become
        corrections (sql/functions/late_partitions.sql)."""
        came = self.note.filled & self._leaves.keys()
        if not self.note.exact:
            came |= self._leaves.keys() - self._stayed
        tier = self.table.tier
        if tier is None:
            return bool(came)
        ranges = (tier_range(self.shape, leaf, tier.kind) for leaf in came)
        return any(bounds is None or bounds[1] > tier.cut for bounds in ranges)

    @property
    def kept_ranges(self) -> TierRanges:
        """Where the lake has rows from here on that the heap has not (mirror_pump.lake.contents.kept_ranges)."""
        table = self.table
        return (
            table.kept_ranges if table.tier is None else united((*table.kept_ranges, *self.gone_ranges), table.tier.cut)
        )

    @cached_property
    def gone_ranges(self) -> TierRanges:
        """The tier values of partitions that went, if only for a moment. What is not told adds none. The DEFAULT
        partition has those of no other: its owner's may have got rows before the mirror's trigger was on it."""
        table, shape = self.table, self.former_shape
        gone = self._former_leaves.keys() - self._stayed
        if table.tier is None or self.is_tiered or not gone:
            return ()
        others = {leaf: tier_range(shape, leaf, table.tier.kind) for leaf in self._former_leaves}
        defaults = {leaf for leaf in self._former_leaves if is_default(shape, leaf)}
        ranges = [bounds for leaf in gone if (bounds := others[leaf]) is not None]
        covered = [bounds for leaf, bounds in others.items() if leaf not in defaults]
        if defaults & gone and None not in covered:
            ranges += between([bounds for bounds in covered if bounds is not None])
        return united(ranges, table.tier.cut)

    @property
    def rewritten_heaps(self) -> set[int]:
        """Leaf partitions whose file node changed, or is watched only from now on, so that it may have changed before.
        Where the file node is no longer watched, the note itself reports the outcome (Note.filled)."""
        before, now = self._former_leaves, self._leaves
        return {leaf for leaf in before.keys() & now.keys() if now[leaf] is not None and before[leaf] != now[leaf]}

    @property
    def column_was_rewritten(self) -> bool:
        """Whether a column is unchanged except that its pg_attribute row was written again, as by ALTER TYPE to its own
        type with USING, and no trigger says why.

        A GRANT on the column, or the loss of a default whose function was dropped, does the same.
        """
        if self.note.exact:
            return False
        former_columns = {column["attnum"]: column for column in self.former_shape["columns"] or ()}
        for now in self.shape["columns"] or ():
            before = former_columns.get(now["attnum"], {})
            old, new = before.get("altered"), now.get("altered")
            if old and new and old[0] != new[0] and old[1] == new[1] and (now["filled"] or not before["filled"]):
                return True
        return False

    @cached_property
    def prints_differently(self) -> bool:
        """Whether values print differently than under the old types, or did so for part of the transaction."""
        before = self.former_shape.get("types") or {}
        return any(_other_texts(before, types) for types in (self.shape.get("types") or {}, *self.note.types))


def rows_of(leaf: int, table: MirroredTable) -> PartitionBounds | None:
    """The bounds of a partition's rows in the current table. None if they cannot be determined or the rows cannot be
    deleted."""
    if table.tier is not None or not table.state.has_all_rows or not table.shape:
        return None
    return bounds_of(table, json.loads(table.shape), leaf)


def leaves_of(shape: Mapping[str, Any]) -> dict[int, int | None]:
    """File nodes of the leaf partitions by OID. None where triggers make file nodes unnecessary."""
    return {leaf["id"]: leaf.get("file") for leaf in shape["leaves"] or ()}


def _tier(table: MirroredTable, columns: Sequence[Column]) -> Tier | None:
    """The tier with the key column's current name. Postgres prevents anyone from dropping this column or changing its
    type."""
    if table.tier is None:
        return None
    number = table.tier_column.attnum
    return replace(table.tier, column={column.attnum: column.name for column in columns}[number])


def _other_texts(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether values stored under the old types print differently. Labels may be added, attributes may not."""
    for oid in before.keys() & now.keys():
        old, new = before[oid] or {}, now[oid] or {}
        is_enum = all(isinstance(text, str) for text in (*old.values(), *new.values()))
        if any(new.get(part) != value for part, value in old.items()) or (not is_enum and len(new) != len(old)):
            return True
    return False
