"""Reads the rows of planned files that no delete hides and that match what the plan left to ask of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysFalse, And, BooleanExpression, BoundPredicate, Or
from pyiceberg.io.pyarrow import _to_requested_schema, pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table.name_mapping import NameMapping, parse_mapping_from_json
from pyiceberg.types import LongType, NestedField

from decoders.variant import VARIANT_ARROW
from mirror_pump.errors import ForeignTable, LakeError
from mirror_pump.lake.contents.delete_index import DeleteFile
from mirror_pump.lake.format.columns import plain, whole_variants
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.deletion_vectors import VectorPlace, read_deletion_vectors
from mirror_pump.lake.format.position_deletes import Positions, read_position_deletes
from mirror_pump.lake.format.row_batches import live_rows, row_batches
from mirror_pump.lake.format.schema import FIELD_ID
from mirror_pump.lake.format.sorted_numbers import found_among
from mirror_pump.tables.metadata.table_view import partition_specs
from mirror_pump.tables.metadata.variant_type import is_variant, variants_of, without_variants
from mirror_pump.tables.read_plan.metadata_columns import (
    FIELDS,
    FILE_COLUMN,
    LINEAGE,
    LINEAGE_FIELDS,
    POSITION_COLUMN,
    lineage_column,
    numbers_from,
)
from mirror_pump.tables.read_plan.planned_files import PlannedFile, ReadPlan
from mirror_pump.tables.read_plan.row_filter import POSITION, matching
from mirror_pump.tables.read_plan.row_groups import chosen_groups

_MOST_ROWS = 128 * 1024
"""Rows of a batch at most."""
_KEPT_DELETES = 16
"""Delete files, or sets of them, whose content is kept, since files that follow each other often share them."""

_POSITIONS = NestedField(POSITION_COLUMN.field_id, "\0pos", LongType(), required=True)
"""The numbers of rows, as a column that a file has. No column of a table has this name."""

_VARIANT_EXTENSION = {b"ARROW:extension:name": b"arrow.parquet.variant", b"ARROW:extension:metadata": b""}

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class FileRows:
    """Reads planned files. Threads may share it."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan
        self._storage = plan.storage
        self._specs = partition_specs(plan.metadata)
        mapping = plan.metadata.properties.get("schema.name-mapping.default")
        self._mapping: NameMapping | None = None if mapping is None else parse_mapping_from_json(mapping)
        projected = {field.field_id for field in plan.projection.fields}
        self._computed = projected & FIELDS
        self._positions: _Recent[str, Mapping[str, Positions]] = _Recent()
        self._keys: _Recent[tuple[str, ...], DeletedRows] = _Recent()
        self._names: frozenset[str] | None = None
        self.schema = _arrow_schema(plan.projection)
        """Of the batches."""

    def batches(self, file: PlannedFile) -> Iterator[pa.RecordBatch]:
        """Rows of one file, in their order. Raises LakeError, FileMissing and FileDamaged."""
        if file.residual is AlwaysFalse():
            return
        if file.format != "PARQUET":
            raise ForeignTable(f"{file.path} is a file of {file.format}", "rewrite the table's files as Parquet")
        hidden = self._hidden(file)
        deleted = self._deleted(file)
        required_schema = self._required_schema(file)
        with open_parquet(file.path, self._storage) as parquet:
            opened = _OpenedRows(parquet, required_schema, self._plan.schema, self._mapping, file.path)
            missing = self._partition_values(file, opened.file_schema)
            for first, batch in opened.batches(file.residual):
                if opened.has_positions:
                    batch = batch.append_column(_POSITIONS.name, numbers_from(first, batch.num_rows))
                rows = _without(batch, hidden, first)
                shaped = opened.shaped(rows, missing)
                for ids, keys in deleted:
                    mask = keys.among([shaped.column(opened.place(field)) for field in ids])
                    if mask.any():
                        shaped = shaped.filter(pa.array(~mask))
                matching_rows = matching(shaped, file.residual)
                if matching_rows.num_rows:
                    yield self._projected(matching_rows, opened, file)

    def _projected(self, batch: pa.RecordBatch, opened: _OpenedRows, file: PlannedFile) -> pa.RecordBatch:
        columns = [
            values if values.type == column.type else values.cast(column.type)
            for field, column in zip(self._plan.projection.fields, self.schema, strict=True)
            for values in [self._column(field.field_id, batch, opened, file)]
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _column(self, field_id: int, batch: pa.RecordBatch, opened: _OpenedRows, file: PlannedFile) -> pa.Array:
        if field_id == FILE_COLUMN.field_id:
            return pa.repeat(file.path, batch.num_rows)
        column = batch.column(opened.place(field_id))
        if field_id in LINEAGE_FIELDS:
            positions = batch.column(opened.place(POSITION_COLUMN.field_id))
            return lineage_column(field_id, column, positions, file)
        return column

    def _required_schema(self, file: PlannedFile) -> Schema:
        """The columns that are read of a file: those of the result, of what is asked, and of its deletes' keys."""
        ids = {field.field_id for field in self._plan.projection.fields} - FIELDS
        ids |= _top_level_columns(file.residual, self._plan.schema)
        for delete in file.equality_deletes:
            ids |= set(delete.equality_ids)
        table_ids = {field.field_id for field in self._plan.schema.fields}
        if unknown := ids - table_ids - set(self._plan.projection.field_ids):
            raise ForeignTable(
                f"a delete of {file.path} compares fields {sorted(unknown)}, which are no columns of the table",
                "rewrite the table's files with the engine that wrote them",
            )
        columns = [field for field in self._plan.schema.fields if field.field_id in ids]
        columns += [field for field in LINEAGE if field.field_id in self._computed]
        # Without any column a batch would not know how many rows it has.
        needs_positions = self._computed - {FILE_COLUMN.field_id} or not without_variants(columns)
        return Schema(*columns, *([_POSITIONS] if needs_positions else []))

    def _hidden(self, file: PlannedFile) -> Positions | None:
        """Deleted row numbers, in order."""
        if not file.position_deletes:
            return None
        if (blob := file.position_deletes[0].blob) is not None:
            delete = file.position_deletes[0]
            (vector,) = read_deletion_vectors([VectorPlace(delete.path, blob, delete.records)], self._storage)
            return vector.positions
        if self._names is None:
            self._names = frozenset(self._plan.paths)
        names = self._names
        parts = []
        for delete in file.position_deletes:
            _require_parquet(delete)
            one = delete.path
            positions = self._positions.get(one, lambda one=one: read_position_deletes([one], names, self._storage))  # type: ignore[misc]
            if file.path in positions:
                parts.append(positions[file.path])
        return np.unique(np.concatenate(parts)) if parts else None

    def _deleted(self, file: PlannedFile) -> list[tuple[tuple[int, ...], DeletedRows]]:
        """The keys that hide rows of the file, by the columns that they compare."""
        by_columns: dict[tuple[int, ...], list[DeleteFile]] = {}
        for delete in file.equality_deletes:
            _require_parquet(delete)
            by_columns.setdefault(tuple(sorted(delete.equality_ids)), []).append(delete)
        deleted_rows = []
        for ids, deletes in by_columns.items():
            paths = tuple(delete.path for delete in deletes)
            deleted_rows.append((ids, self._keys.get(paths, lambda ids=ids, paths=paths: self._read_keys(paths, ids))))  # type: ignore[misc]
        return deleted_rows

    def _read_keys(self, paths: Sequence[str], ids: Sequence[int]) -> DeletedRows:
        key_schema = Schema(*(field for field in self._plan.schema.fields if field.field_id in ids))
        if len(key_schema.fields) != len(ids):
            raise ForeignTable(
                f"{paths[0]} compares fields {sorted(ids)}, which are not all columns of the table",
                "rewrite the table's files with the engine that wrote it",
            )
        parts: list[list[pa.Array]] = [[] for _ in ids]
        for path in paths:
            with open_parquet(path, self._storage) as parquet:
                opened = _OpenedRows(parquet, key_schema, self._plan.schema, self._mapping, path)
                for _, batch in opened.batches(None):
                    shaped = opened.shaped(batch, {})
                    for place, field in enumerate(ids):
                        parts[place].append(shaped.column(opened.place(field)))
        return DeletedRows([pa.concat_arrays(part) for part in parts])

    def _partition_values(self, file: PlannedFile, file_schema: Schema) -> dict[int, Any]:
        """Values of columns that the file lacks since they are its partition's (Iceberg spec, column projection)."""
        return {
            field.source_id: value
            for field, value in zip(self._specs[file.spec_id], file.partition, strict=False)
            if field.is_identity and field.source_id not in file_schema.field_ids and value is not None
        }


class _OpenedRows:
    """An open Parquet file as rows of the table's schema."""

    def __init__(
        self, parquet: pq.ParquetFile, required_schema: Schema, whole: Schema, mapping: NameMapping | None, path: str
    ) -> None:
        self._parquet = parquet
        self._required_schema = required_schema
        self._whole = whole
        variants = variants_of(whole)
        stored = {
            field_id: name
            for field_id, name in _stored_names(parquet.schema_arrow, mapping).items()
            if field_id in variants
        }
        self._variants = {
            field.field_id: stored.get(field.field_id) for field in required_schema.fields if field.field_id in variants
        }
        """By field ID, what the file calls those of the columns that are variants. None: it lacks the column."""
        columns = pa.schema([field for field in parquet.schema_arrow if field.name not in stored.values()])
        try:
            everything = pyarrow_to_schema(columns, mapping, downcast_ns_timestamp_to_us=True)
        except ValueError as error:
            raise LakeError(
                f"the columns of {path} cannot be identified: {error}",
                "set the table property schema.name-mapping.default, by which columns without field IDs are found",
            ) from error
        pruned = prune_columns(everything, {field.field_id for field in required_schema.fields}, select_full_types=True)
        self._names = [*(field.name for field in pruned.fields), *filter(None, self._variants.values())]
        self.has_positions = _POSITIONS in required_schema.fields
        self.file_schema = Schema(*pruned.fields, _POSITIONS) if self.has_positions else pruned
        self._leaves = {
            field.field_id: place
            for place, field in enumerate(everything.fields)
            if field.field_type.is_primitive and field.name == parquet.schema_arrow.names[place]
        }
        places = {field.field_id: place for place, field in enumerate(whole.fields)}
        self._metadata = [
            {POSITION: str(places[field.field_id]).encode()} if field.field_id in places else None
            for field in required_schema.fields
        ]
        self._places = {field.field_id: place for place, field in enumerate(required_schema.fields)}

    def place(self, field_id: int) -> int:
        """The index of a wanted column in shaped batches."""
        return self._places[field_id]

    def batches(self, predicate: BooleanExpression | None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The number of the first row, and rows as they are in the file, of the row groups that may match."""
        groups = None
        if predicate is not None:
            groups = set(chosen_groups(self._parquet, self._leaves, predicate, self._whole))
        return row_batches(self._parquet, _MOST_ROWS, columns=self._names, groups=groups, use_threads=True)

    def shaped(self, batch: pa.RecordBatch, missing: Mapping[int, Any]) -> pa.RecordBatch:
        """The rows in the wanted columns and the table's types: a column that the file lacks is NULL, or its initial
        default, or its partition's value."""
        projected = _to_requested_schema(
            Schema(*without_variants(self._required_schema.fields)),
            self.file_schema,
            batch,
            downcast_ns_timestamp_to_us=True,
            projected_missing_fields=dict(missing),
            allow_timestamp_tz_mismatch=True,
        )
        columns = dict(zip(projected.schema.names, projected.columns, strict=True))
        for field in self._required_schema.fields:
            if field.field_id in self._variants:
                name = self._variants[field.field_id]
                stored = pa.nulls(batch.num_rows, VARIANT_ARROW) if name is None else batch.column(name)
                columns[field.name] = whole_variants(stored)
        fields = [
            pa.field(field.name, columns[field.name].type, metadata=metadata)
            for field, metadata in zip(self._required_schema.fields, self._metadata, strict=True)
        ]
        return pa.RecordBatch.from_arrays([columns[field.name] for field in fields], schema=pa.schema(fields))


class _Recent(Generic[_Key, _Value]):
    """The values that were last used. Two threads may make the same one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: OrderedDict[_Key, _Value] = OrderedDict()

    def get(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            self._values[key] = value
            while len(self._values) > _KEPT_DELETES:
                self._values.popitem(last=False)
        return value


def _stored_names(arrow: pa.Schema, mapping: NameMapping | None) -> dict[int, str]:
    """What a file calls its columns, by field ID."""
    names = {
        int(field.metadata[FIELD_ID]): field.name for field in arrow if field.metadata and FIELD_ID in field.metadata
    }
    if names or mapping is None:
        return names
    return {
        entry.field_id: name
        for entry in mapping.root
        if entry.field_id is not None
        for name in entry.names
        if name in arrow.names
    }


def _arrow_schema(projection: Schema) -> pa.Schema:
    """The types of a scan's columns. A variant is the struct that Parquet has, named as Arrow's extension type."""
    plain_columns = schema_to_pyarrow(Schema(*without_variants(projection.fields)), include_field_ids=False)
    return pa.schema(
        [
            pa.field(field.name, VARIANT_ARROW, nullable=not field.required, metadata=_VARIANT_EXTENSION)
            if is_variant(field.field_type)
            else plain_columns.field(field.name)
            for field in projection.fields
        ]
    )


def _top_level_columns(expression: BooleanExpression, schema: Schema) -> set[int]:
    if isinstance(expression, And | Or):
        return _top_level_columns(expression.left, schema) | _top_level_columns(expression.right, schema)
    if isinstance(expression, BoundPredicate):
        return {schema.fields[expression.term.ref().accessor.position].field_id}
    return set()


def _without(batch: pa.RecordBatch, hidden: Positions | None, first: int) -> pa.RecordBatch:
    """The batch without deleted rows. `first`: the number of its first row."""
    if hidden is None:
        return batch
    live = live_rows(hidden, first, batch.num_rows)
    return batch if live.all() else batch.filter(pa.array(live))


def _require_parquet(delete: DeleteFile) -> None:
    if delete.format != "PARQUET":
        raise ForeignTable(f"{delete.path} is a file of {delete.format}", "rewrite the table's deletes as Parquet")


class DeletedRows:
    """The keys of equality deletes on the same columns: a set of rows, in which NULL equals NULL.

    Each column's values are numbered; a row's numbers are then combined column by column, and numbered anew each time,
    so that they never outgrow 64 bits.
    """

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        """`keys`: the columns, all of one length."""
        self._values = [pc.unique(plain(column)) for column in keys]
        self._combined: list[npt.NDArray[np.int64]] = []
        numbers = self._numbers(0, keys[0])
        for place in range(1, len(keys)):
            pairs = numbers * len(self._values[place]) + self._numbers(place, keys[place])
            unique_pairs, numbers = np.unique(pairs, return_inverse=True)
            self._combined.append(unique_pairs)

    def among(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """A mask of the rows that are in the set. `columns` have the types of the keys."""
        numbers = self._numbers(0, columns[0])
        matches: npt.NDArray[np.bool_] = numbers >= 0
        for place, unique_pairs in enumerate(self._combined, 1):
            others = self._numbers(place, columns[place])
            pairs = numbers * len(self._values[place]) + others
            numbers, equal = found_among(unique_pairs, pairs)
            matches &= (others >= 0) & equal
        return matches

    def _numbers(self, place: int, column: pa.Array) -> npt.NDArray[np.int64]:
        """The place of each value among the distinct ones of the keys; -1 for one that is not there."""
        places = pc.index_in(plain(column), value_set=self._values[place])
        numbers: npt.NDArray[np.int64] = pc.fill_null(places, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        return numbers
