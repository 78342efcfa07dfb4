"""Rows of a heap at the frontier, looked up by their keys."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from decoders.printing import print_values
from mirror_pump.engine.comparison.differing_rows import DifferingRows
from mirror_pump.engine.comparison.live_rows import KeySet
from mirror_pump.lake.contents.cutline import CutLine
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.packed_keys import KeyPacking, PackedKeys, unique_last
from mirror_pump.model import Lsn, MirroredTable
from mirror_pump.ops.catch_up_changes import CatchUpStream, CatchUpTable, ChangedRow, Key
from mirror_pump.ops.verify.heap_copy import Disturbed, changed_rows, typed_rows
from mirror_pump.source.connect import PgConnection, source_errors
from mirror_pump.source.heap.row_lookup import read_rows


class FollowedHeap:
    """The rows that the heap has at the frontier: those of the consistent point, with the stream's changes on top."""

    def __init__(
        self,
        table: MirroredTable,
        schema: LakeSchema,
        following: CatchUpStream,
        reader: PgConnection,
        frontier: Callable[[], Lsn],
    ) -> None:
        self.table = table
        self.reader = reader
        packing = KeyPacking.of(schema, secrets.token_bytes(32))
        assert packing is not None
        self.packing = packing
        self.schema = schema
        self._following = following
        self._frontier = frontier

    def follow(self, until: Lsn | None = None) -> Lsn:
        """Applies the stream up to the frontier, or to `until`. Returns the position. Raises Disturbed if the rows
        cannot be derived from it."""
        until = self._frontier() if until is None else until
        self._following.follow(until)
        if self._changes.altered:
            raise Disturbed(f"it was altered: {self._changes.altered}")
        if self._changes.truncated:
            raise Disturbed("it was truncated")
        return until

    @property
    def _changes(self) -> CatchUpTable:
        return self._following.changes.tables[self.table.table_id]

    @property
    def changes(self) -> dict[Key, ChangedRow]:
        """What the stream has changed: by key, the row, or None if it was deleted."""
        return dict(self._changes.rows)

    def pack(self, typed: pa.Table) -> PackedKeys:
        """The packed keys of typed rows."""
        return self.packing.pack([typed.column(name) for name in self.schema.key.arrow.names])

    def packed(self, keys: Sequence[Key]) -> PackedKeys:
        """The packed keys, given as texts."""
        return self.pack(typed_rows(list(keys), self.table.key_columns, self.schema))

    def among(self, differing: DifferingRows, changes: Mapping[Key, ChangedRow]) -> dict[Key, ChangedRow]:
        """The changes of these keys."""
        if not changes:
            return {}
        chosen = KeySet(differing.keys).among(self.packed(list(changes))).tolist()
        return {key: row for (key, row), is_chosen in zip(changes.items(), chosen, strict=True) if is_chosen}

    def taken(self, differing: DifferingRows, changed: Mapping[Key, ChangedRow]) -> DifferingRows:
        """Those of the keys that are `changed`."""
        places = np.flatnonzero(KeySet(self.packed(list(changed))).among(differing.keys))
        columns = tuple(column.take(pa.array(places)) for column in differing.key_columns)
        return replace(differing, keys=differing.keys.take(places), key_columns=columns)

    def changed(self, changes: Mapping[Key, ChangedRow]) -> pa.Table:
        """The present rows of keys that the stream has changed, at or above the cut-line."""
        rows = changed_rows(CatchUpTable(self.table, dict(changes)), self.reader)
        typed = typed_rows(rows, self.table.columns, self.schema)
        line = CutLine.of(self.table)
        return typed if line is None else typed.filter(pc.invert(line.below(typed.column(line.name))))

    def rows(self, differing: DifferingRows, changes: Mapping[Key, ChangedRow]) -> pa.Table:
        """The present rows of these keys. `changes`: what the stream has changed of them."""
        parts = [self.changed(changes)]
        among = np.ones(len(differing), np.bool_)
        if changes:
            among = ~KeySet(self.packed(list(changes))).among(differing.keys)
        if among.any():
            texts = [
                print_values(keys.filter(pa.array(among)), column.type, trimmed=column.chosen).to_pylist()
                for keys, column in zip(differing.key_columns, self.table.key_columns, strict=True)
            ]
            with source_errors(f"reading rows of {self.table.name}"):
                keys_of_rows = list(zip(*texts, strict=True))
                rows = read_rows(self.reader, self.table, self.table.columns, keys_of_rows, self.table.row_filter)
            typed = typed_rows(rows, self.table.columns, self.schema)
            # The key's operator may call several keys equal (citext): a row that has another key is left out.
            packed = self.pack(typed)
            places = unique_last(packed)
            places = places[KeySet(differing.keys.take(among)).among(packed.take(places))]
            parts.append(typed.take(pa.array(places)))
        return pa.concat_tables(parts)
