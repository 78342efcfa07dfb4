"""Turns batches of input rows into rows of the lake: what an INSERT of each would store, as the mirror stores it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from decoders.text import parse_text
from mirror_pump.database.errors import is_connection_loss
from mirror_pump.errors import one_line_of
from mirror_pump.model import Column
from mirror_pump.ops.ingest.convert.conversions import LeftToPostgres, converted
from mirror_pump.ops.ingest.convert.postgres_values import PostgresValues, ValueRounded
from mirror_pump.ops.ingest.ingest_target import IngestTarget, is_plain
from mirror_pump.ops.row_files.row_batch import RefusedRow, RowBatch, RowRefused, one_array
from mirror_pump.ops.row_files.value_texts import Unfit, column_texts, texts_of

_Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LakeRows:
    """Rows as the lake has them."""

    table: pa.Table
    """The mirrored columns, in their exact types."""
    raw: Mapping[str, pa.ChunkedArray]
    """Texts of values that their column's type cannot hold."""
    unmirrored: Mapping[str, pa.Array]
    """Texts of given columns that the lake does not have."""
    batch: RowBatch
    """The rows that they were made of, in the same order."""


class Normaliser:
    """Used by one thread at a time."""

    def __init__(self, target: IngestTarget, postgres: PostgresValues) -> None:
        self._target = target
        self._postgres = postgres

    def normalise(self, batch: RowBatch) -> tuple[LakeRows, list[RefusedRow]]:
        """The rows that the table can hold, and the others."""
        refused = list(batch.refused)
        try:
            return self._rows(batch), refused
        except RowRefused:
            pass
        good, bad = self._parted(batch, np.arange(batch.rows))
        refused += [RefusedRow(error.place, error.reason, _texts(batch, row)) for row, error in bad]
        return self._rows(batch.take(np.array(good, np.int64))), refused

    def _parted(self, batch: RowBatch, rows: _Places) -> tuple[list[int], list[tuple[int, RowRefused]]]:
        """The indexes of the good rows among `rows`, and each bad one with its error, by halving."""
        try:
            self._rows(batch.take(rows))
            return rows.tolist(), []
        except RowRefused as error:
            if len(rows) <= 1:
                return [], [(int(rows[0]), RowRefused(batch.place(int(rows[0])), error.reason))]
        half = len(rows) // 2
        first, second = self._parted(batch, rows[:half]), self._parted(batch, rows[half:])
        return [*first[0], *second[0]], [*first[1], *second[1]]

    def _rows(self, batch: RowBatch) -> LakeRows:
        """All rows of the batch. Raises RowRefused if one of them cannot be held, whichever."""
        target = self._target
        values: dict[str, pa.Array] = {}
        raw: dict[str, pa.ChunkedArray] = {}
        left: set[str] = set()
        for column in target.lake_columns:
            if column.name in target.by_postgres or column.name not in target.given:
                continue
            try:
                values[column.name] = self._converted(batch, column)
            except LeftToPostgres:
                left.add(column.name)
        for name, texts in self._by_postgres(batch, target.by_postgres | left).items():
            lake_column = next((column for column in target.lake_columns if column.name == name), None)
            if lake_column is not None:
                _parse(lake_column, texts, values, raw)
        for name, text in target.constants:
            column = next(column for column in target.lake_columns if column.name == name)
            _parse(column, pa.array([text] * batch.rows, pa.string()), values, raw)
        self._require_present(batch, values, raw)
        table = pa.table([values[column.name] for column in target.lake_columns], [c.name for c in target.lake_columns])
        others = {name: self._column_texts(batch, name) for name in target.unmirrored}
        return LakeRows(table, raw, others, batch)

    def _converted(self, batch: RowBatch, column: Column) -> pa.Array:
        given = batch.columns[column.name]
        if given.type.equals(column.type.arrow) and not pa.types.is_string(given.type):
            return given
        try:
            return converted(given, column, self._target.column(column.name))
        except Unfit as error:
            raise RowRefused(batch.place(0), f"column {column.name}: {error}") from error

    def _by_postgres(self, batch: RowBatch, names: frozenset[str]) -> dict[str, pa.Array]:
        """The texts of columns that PostgreSQL reads. Raises RowRefused if it refuses one of the rows."""
        if not names or not batch.rows:
            return {name: pa.array([], pa.string()) for name in names}
        given = {name: self._texts(batch, name) for name in names if name in self._target.given}
        try:
            return self._postgres.read(names, given, batch.rows)
        except ValueRounded as error:
            raise RowRefused(batch.place(0), str(error)) from error
        except psycopg.Error as error:
            if is_connection_loss(error) or isinstance(error, psycopg.InterfaceError | psycopg.ProgrammingError):
                raise
            raise RowRefused(batch.place(0), _refusal(error)) from error

    def _texts(self, batch: RowBatch, name: str) -> pa.Array:
        """The texts from which PostgreSQL reads a column. Typed values of ordinary types must fit without loss: it
        would round them."""
        values = batch.columns[name]
        column = next((column for column in self._target.lake_columns if column.name == name), None)
        if column is not None and not pa.types.is_string(values.type) and is_plain(self._target.column(name), column):
            with suppress(LeftToPostgres):
                return texts_of(self._converted(batch, column))
        return self._column_texts(batch, name)

    def _column_texts(self, batch: RowBatch, name: str) -> pa.Array:
        try:
            return column_texts(batch.columns[name], self._target.column(name))
        except Unfit as error:
            raise RowRefused(batch.place(0), f"column {name}: {error}") from error

    def _require_present(
        self, batch: RowBatch, values: Mapping[str, pa.Array], raw: Mapping[str, pa.ChunkedArray]
    ) -> None:
        """Raises RowRefused for NULL where the table has none, and for keys that the lake cannot hold."""
        target = self._target
        for column in target.lake_columns:
            in_key = column.name in target.table.key
            if in_key and column.name in raw:
                text = next(text for text in raw[column.name].to_pylist() if text is not None)
                raise RowRefused(batch.place(0), f"key column {column.name}: {text} cannot be a key in the lake")
            has_null = values[column.name].null_count and column.name not in raw
            if has_null and (in_key or target.column(column.name).not_null):
                raise RowRefused(batch.place(0), f"column {column.name} must not be NULL")


def _parse(column: Column, texts: pa.Array, values: dict[str, pa.Array], raw: dict[str, pa.ChunkedArray]) -> None:
    parsed = parse_text(texts, column.type)
    values[column.name] = parsed.values
    if parsed.unrepresentable is not None and pc.any(parsed.unrepresentable).as_py():
        raw_texts = pc.if_else(parsed.unrepresentable, texts, pa.scalar(None, pa.string()))
        raw[column.name] = pa.chunked_array([raw_texts])


def _refusal(error: psycopg.Error) -> str:
    """PostgreSQL's message, with the column that it was about."""
    diagnosis = error.diag
    text = diagnosis.message_primary or str(error)
    _, separator, rest = (diagnosis.context or "").partition(", column ")
    name = rest.partition(":")[0].strip() if separator else diagnosis.column_name
    return f"column {name}: {text}" if name and name not in text else text


def _texts(batch: RowBatch, row: int) -> dict[str, str | None]:
    """The values of one row as texts, for the file of refused rows."""
    texts = {}
    for name, column in batch.columns.items():
        value = column.slice(row, 1)
        try:
            texts[name] = texts_of(value)[0].as_py()
        except (Unfit, pa.ArrowException):
            # As Arrow prints it: Python has no value of a time with nanoseconds.
            texts[name] = one_line_of(value.to_string())
    return texts


def row_texts(rows: LakeRows, names: Sequence[str]) -> pa.Table:
    """Texts of the columns `names`, from which PostgreSQL reads the same values."""
    columns = []
    for name in names:
        if name in rows.unmirrored:
            columns.append(rows.unmirrored[name])
            continue
        texts = texts_of(one_array(rows.table.column(name)))
        if name in rows.raw:
            texts = pc.coalesce(texts, one_array(rows.raw[name]))
        columns.append(texts)
    return pa.table(columns, list(names))
