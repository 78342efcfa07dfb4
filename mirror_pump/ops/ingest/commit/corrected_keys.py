"""Ingested rows whose key has a correction in modak.delta: readers would see the correction in their place.

Such a row is also written to the table, where it becomes a newer correction, as any INSERT of an old row does. A fold
of the older correction that is under way does not matter then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from decoders.text import parse_rows
from mirror_pump.database.quoting import identifier, in_query
from mirror_pump.lake.format.columns import names_by_id, plain
from mirror_pump.lake.format.damaged_files import open_parquet
from mirror_pump.lake.format.raw_text_columns import raw_text_id
from mirror_pump.lake.key_index.key_index import files_of, positions_of
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import MirroredTable
from mirror_pump.ops.ingest.commit.existing_rows import ExistingRows
from mirror_pump.ops.ingest.ingest_target import IngestTarget
from mirror_pump.ops.row_files.row_batch import one_array
from mirror_pump.ops.row_files.value_texts import texts_of
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.retention.corrections import TOMBSTONE
from sql.mirror_names import SCHEMA

_Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CorrectedRows:
    """Ingested rows that have a correction."""

    places: _Places
    tombstones: npt.NDArray[np.bool_]
    """Whether each one's correction says that the row is deleted."""
    versions: Sequence[int]
    """Those of all corrections that were looked at."""


def find_corrected(
    connection: PgConnection, target: IngestTarget, existing: ExistingRows, except_versions: Sequence[int]
) -> CorrectedRows:
    """The ingested rows that have a correction, of another version than these. Raises psycopg.Error.

    Versions are drawn when a correction is written, not when it is committed: one that becomes visible later may have a
    lower version than others that were looked at before.
    """
    key_columns = target.table.key_columns
    texts = ", ".join(f"format('%%s', r.{in_query(identifier(column.name))})" for column in key_columns)
    query = (
        f"SELECT d.version, d.op, {texts} FROM {SCHEMA}.delta d CROSS JOIN LATERAL"
        f" jsonb_populate_record(NULL::{in_query(target.relation)}, d.payload) r"
        " WHERE d.table_id = %s AND d.tier_key BETWEEN %s AND %s"
        " AND d.version <> ALL (%s::bigint[])"
    )
    span = existing.range
    parameters = (target.table.table_id, *(span or ()), list(except_versions))
    # The server hashes the versions of a plan for these parameters, not of a general one.
    rows = connection.execute(query.encode(), parameters, prepare=False).fetchall() if span else []
    if not rows:
        return CorrectedRows(np.zeros(0, np.int64), np.zeros(0, np.bool_), ())
    versions, tombstones, texts_of_keys = [], [], []
    for version, operation, *key in rows:
        versions.append(version)
        tombstones.append(operation == TOMBSTONE)
        texts_of_keys.append(key)
    parsed, _ = parse_rows(texts_of_keys, {column.name: column.type for column in key_columns})
    places = existing.keys.find(existing.packing.pack([parsed[column.name] for column in key_columns]))
    hit = places >= 0
    return CorrectedRows(places[hit], np.array(tombstones, np.bool_)[hit], versions)


def rows_at(places: _Places, paths: list[str], table: MirroredTable, storage: StorageOptions) -> Mapping[str, pa.Array]:
    """The texts of all mirrored columns of some ingested rows, read from the data files. Raises LakeError."""
    columns: dict[str, list[pa.Array]] = {column.name: [] for column in table.columns}
    for number in np.unique(files_of(places)):
        positions = np.sort(positions_of(places[files_of(places) == number]))
        with open_parquet(paths[int(number)], storage) as file:
            names = names_by_id(file)
            for rows in _taken(file, positions):
                for column in table.columns:
                    texts = texts_of(plain(one_array(rows.column(names[column.field_id]))))
                    raw = names.get(raw_text_id(column.field_id))
                    if raw is not None:
                        texts = pa.compute.coalesce(texts, plain(one_array(rows.column(raw))))
                    columns[column.name].append(texts)
    return {name: pa.concat_arrays(parts) if parts else pa.array([], pa.string()) for name, parts in columns.items()}


def _taken(file: pq.ParquetFile, positions: _Places):  # type: ignore[no-untyped-def]
    """The rows with these numbers, row group by row group."""
    begin = 0
    for group in range(file.num_row_groups):
        end = begin + file.metadata.row_group(group).num_rows
        inside = positions[(positions >= begin) & (positions < end)] - begin
        if len(inside):
            yield file.read_row_group(group, use_threads=False).take(pa.array(inside))
        begin = end
