"""Reads the rows of a moment's tables in the lake, for their digests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mirror_pump.engine.lake_storage import lake_storage, reachable_warehouses
from mirror_pump.errors import LakeError
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.format.raw_text_columns import is_raw_text, raw_text_id
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.duckdb_connection import confine, lake_relation, open_duckdb, reach_storage
from mirror_pump.ops.moments.digests import (
    DigestColumn,
    RowsDigest,
    RowText,
    are_bounds_of,
    lake_columns,
    range_bounds,
    rows_digest,
    values_text,
)
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.kept_moments import KeptMoment, KeptTable

if TYPE_CHECKING:
    import duckdb

    from mirror_pump.lake.format.schema import LakeSchema

FORMER_SUFFIX = "__raw"
"""The end of a name by which the former method of digests took a column for a raw text column."""


@dataclass(frozen=True)
class MomentRows:
    """The rows of one table of a moment, as DuckDB reads them."""

    source: str
    """SQL of a relation."""
    columns: tuple[DigestColumn, ...]
    key: str | None
    """The first column of the key; None if the table has none."""


@dataclass(frozen=True)
class MomentReader:
    """Reads the rows of one moment, and of files in its directory. Its DuckDB opens nothing else."""

    connection: duckdb.DuckDBPyConnection
    storage: StorageOptions
    directory: Path
    """For files of its user. It goes when the reader is closed."""

    @classmethod
    @contextmanager
    def open(cls, settings: Settings, moment: KeptMoment) -> Iterator[MomentReader]:
        """Raises UsageError if DuckDB is not installed, LakeError."""
        storage = lake_storage(settings, fsync=False)
        with open_duckdb() as connection, tempfile.TemporaryDirectory(prefix="mirror-pump-check-") as directory:
            warehouses = reachable_warehouses(storage)
            reach_storage(connection, warehouses)
            # A metadata file is in a directory of its table's.
            tables = {table.main_location.rsplit("/", 2)[0] for table in moment.tables}
            confine(connection, [directory, *(warehouse.root for warehouse in warehouses), *tables])
            yield cls(connection, storage, Path(directory))

    def rows(self, table: KeptTable, *, by_names: bool = False) -> MomentRows:
        """The rows of a table. Raw text columns are known by their field IDs; `by_names`: by what they are called,
        as the former method did. Raises LakeError."""
        schema = read_metadata(table.main_location, self.storage).current_schema
        raw = _paired_names(schema) if by_names else _raw_text_names(schema)
        names = {field.field_id: field.name for field in schema.fields}
        with _explained(table):
            source = lake_relation(self.connection, table.main_location, self.storage)
            columns = lake_columns(self.connection, source, raw)
        return MomentRows(source, columns, names.get(schema.key_ids[0]) if schema.key_ids else None)

    def bounds(self, table: KeptTable, rows: MomentRows, digest: RowsDigest | None) -> Sequence[str]:
        """Where ranges begin: of a new digest, or as in `digest`, as far as these are values of the key. Raises
        LakeError."""
        with _explained(table):
            if digest is None:
                return range_bounds(self.connection, rows.source, rows.columns, rows.key)
            bounds = [part.begin for part in digest.ranges if part.begin is not None]
            return bounds if are_bounds_of(self.connection, rows.columns, rows.key, bounds) else ()

    def digest(
        self, table: KeptTable, rows: MomentRows, bounds: Sequence[str], row_text: RowText = values_text
    ) -> RowsDigest:
        """The digest of a table's rows. Raises LakeError."""
        with _explained(table):
            return rows_digest(self.connection, rows.source, rows.columns, rows.key, bounds, row_text)


@contextmanager
def _explained(table: KeptTable) -> Iterator[None]:
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise LakeError(f"the rows of {table.table} cannot be read: {error}") from error


def _raw_text_names(schema: LakeSchema) -> Mapping[str, str]:
    """The names of raw text columns, by those of their columns."""
    names = {field.field_id: field.name for field in schema.fields if is_raw_text(field)}
    return {
        field.name: names[raw_text_id(field.field_id)]
        for field in schema.fields
        if raw_text_id(field.field_id) in names
    }


def _paired_names(schema: LakeSchema) -> Mapping[str, str]:
    names = {field.name for field in schema.fields}
    return {name: name + FORMER_SUFFIX for name in names if name + FORMER_SUFFIX in names}
