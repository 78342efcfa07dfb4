"""Looks for the values of some columns in data and delete files. Rows that deletes hide count: they are there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from decoders.columns import ColumnType, Kind
from decoders.text import parse_text
from mirror_pump.errors import UsageError
from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.format.bounds import ordered
from mirror_pump.lake.format.columns import plain
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.feed_schema import OLD_IDS_FROM
from mirror_pump.lake.format.raw_text_columns import raw_text_id
from mirror_pump.lake.format.schema import FIELD_ID, LakeField, LakeSchema
from mirror_pump.lake.key_index.packed_keys import as_numbers
from mirror_pump.lake.storage import StorageOptions

_BATCH_ROWS = 64 * 1024
_TEXT = ColumnType(Kind.STRING)


@dataclass(frozen=True)
class _Literal:
    """A value in the type of one field that may have it."""

    field_id: int
    type: ColumnType
    values: pa.Array
    """The one value."""

    def may_be_in(self, file: LiveFile) -> bool:
        """Whether the bounds of the file allow it. Those of numbers, dates, times and texts count."""
        low = ordered(self.type, file.lower_bounds.get(self.field_id))
        high = ordered(self.type, file.upper_bounds.get(self.field_id))
        is_text = pa.types.is_string(self.values.type)
        if low is None or high is None or not (is_text or self.type.is_ordinal):
            return True
        value: Any = self.values[0].as_py().encode() if is_text else int(as_numbers(self.values)[0])
        return bool(low <= value <= high)

    def among(self, column: pa.Array) -> pa.Array:
        """Which values of a file's column are this one."""
        column = plain(column)
        if self.type.is_floating and math.isnan(self.values[0].as_py()):
            return pc.fill_null(pc.is_nan(column), fill_value=False)
        try:
            (value,) = self.values.cast(column.type)
        except pa.ArrowException:
            # The file is older than the column's type, which has got wider.
            return pa.repeat(pa.scalar(value=False), len(column))
        return pc.fill_null(pc.equal(column, value), fill_value=False)


class SearchedValues:
    """The values of some columns, as the files of one table may have them. Thread-safe."""

    def __init__(self, texts: Mapping[str, str], naming: Sequence[LakeSchema], schemas: Sequence[LakeSchema]) -> None:
        """`texts`: values by column, as PostgreSQL prints them. `schemas`: all that the lake table has had, since a
        file may be as old; those of a feed have columns of old rows besides. `naming`: those in which columns have the
        names of the mirrored table. Raises UsageError for a column that none of these has, or whose values do not
        compare."""
        fields = {field.field_id: field for schema in schemas for field in _all_fields(schema.fields)}
        by_column: list[list[int]] = []
        for name in texts:
            named = {field.field_id for schema in naming for field in schema.fields if field.name == name}
            if not named:
                raise UsageError(f"the lake has no column {name}", "name columns that are mirrored")
            by_column.append(sorted(named))
        self._images = [
            image
            for offset in (0, OLD_IDS_FROM)
            if all(
                image := [
                    [literal for field_id in ids for literal in _literals(text, fields, offset, field_id)]
                    for ids, text in zip(by_column, texts.values(), strict=True)
                ]
            )
        ]
        """For each form in which a file has a row (a feed has old rows, too), and for each column, what to look for."""

    @property
    def field_ids(self) -> frozenset[int]:
        """The fields whose bounds count."""
        return frozenset(literal.field_id for image in self._images for column in image for literal in column)

    def may_be_in(self, file: LiveFile) -> bool:
        """Whether the bounds of the file allow that it has such a row."""
        return any(
            all(any(literal.may_be_in(file) for literal in column) for column in image) for image in self._images
        )

    def is_in(self, location: str, storage: StorageOptions) -> bool:
        """Whether a Parquet file has such a row. Reads these columns, some rows at a time. Raises FileMissing,
        FileDamaged and LakeError."""
        with open_parquet(location, storage) as file:
            paths = dict(_paths(file.schema_arrow))
            images = [
                [
                    [(literal, paths[literal.field_id]) for literal in column if literal.field_id in paths]
                    for column in image
                ]
                for image in self._images
            ]
            images = [image for image in images if all(image)]
            columns = sorted({".".join(path) for image in images for column in image for _, path in column})
            if not columns:
                return False
            batches = file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False)
            return any(_has_row(batch, image) for batch in batches for image in images)


def _has_row(batch: pa.RecordBatch, image: Sequence[Sequence[tuple[_Literal, tuple[str, ...]]]]) -> bool:
    rows = pa.repeat(pa.scalar(value=True), batch.num_rows)
    for column in image:
        matches = pa.repeat(pa.scalar(value=False), batch.num_rows)
        for literal, (first, *inner) in column:
            values = batch.column(first)
            matches = pc.or_(matches, literal.among(pc.struct_field(values, inner) if inner else values))
        rows = pc.and_(rows, matches)
    return bool(pc.any(rows).as_py())


def _literals(text: str, fields: Mapping[int, LakeField], offset: int, field_id: int) -> Iterator[_Literal]:
    """The value in a field, and in its raw text column: nothing if the field is not there, or cannot have the value.
    Raises UsageError."""
    field = fields.get(offset + field_id)
    if field is None:
        return
    if field.type.element is not None or field.type.is_document or field.children:
        raise UsageError(f"values of column {field.name} do not compare", "choose a column of another type")
    texts = pa.array([text], pa.string())
    with suppress(ValueError):
        values = plain(parse_text(texts, field.type.unmasked).values)
        if not values.null_count:
            yield _Literal(field.field_id, field.type, values)
    raw = fields.get(offset + raw_text_id(field_id))
    if raw is not None:
        yield _Literal(raw.field_id, _TEXT, texts)


def _all_fields(fields: Sequence[LakeField]) -> Iterator[LakeField]:
    for field in fields:
        yield field
        yield from _all_fields(field.children)


def _paths(schema: pa.Schema | pa.StructType, above: tuple[str, ...] = ()) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The columns of a file, and the fields of its structs, by field ID."""
    for field in schema:
        path = (*above, field.name)
        if field.metadata and FIELD_ID in field.metadata:
            yield int(field.metadata[FIELD_ID]), path
        if pa.types.is_struct(field.type):
            yield from _paths(field.type, path)
