"""Receipts of moments: what each table's rows were, signed with a key of the user's.

A receipt is a JSON document. Its signature is HMAC-SHA256 over the document without the signature, as UTF-8 JSON with
sorted keys and without blanks. It shows that who had the key wrote it; who has the key can write another one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirror_pump.engine.lake_storage import lake_storage, reachable_warehouses
from mirror_pump.errors import LakeError, TableError, UsageError
from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import format_lsn
from mirror_pump.ops.duckdb_connection import lake_relation, open_duckdb, reach_storage
from mirror_pump.ops.moments.digests import (
    DigestColumn,
    RangeDigest,
    RowsDigest,
    lake_columns,
    range_bounds,
    rows_digest,
)
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.kept_moments import KeptMoment, KeptTable

if TYPE_CHECKING:
    import duckdb

METHOD = "sha256-sum-4x64"
"""How digests are made. Another way gets another name."""
_ALGORITHM = "HMAC-SHA256"
_SHORTEST_KEY = 16
"""Bytes."""


@dataclass(frozen=True)
class MomentReader:
    """Reads the rows of moments. A context manager would close nothing but memory: `connection` is DuckDB's."""

    connection: duckdb.DuckDBPyConnection
    storage: StorageOptions

    @classmethod
    def open(cls, settings: Settings) -> MomentReader:
        """Raises UsageError if DuckDB is not installed."""
        connection = open_duckdb()
        storage = lake_storage(settings, fsync=False)
        reach_storage(connection, reachable_warehouses(storage))
        return cls(connection, storage)

    def digest(self, table: KeptTable, like: RowsDigest | None = None) -> RowsDigest:
        """The digest of a table's rows, with the ranges of `like`. Raises LakeError."""
        import duckdb

        try:
            source = lake_relation(self.connection, table.main_location, self.storage)
            columns = lake_columns(self.connection, source)
            key = self._key(table)
            if like is None:
                bounds = range_bounds(self.connection, source, columns, key)
            else:
                bounds = tuple(part.begin for part in like.ranges if part.begin is not None)
                columns, key = like.columns, like.key
            return rows_digest(self.connection, source, columns, key, bounds)
        except duckdb.Error as error:
            raise LakeError(f"the rows of {table.table} cannot be read: {error}") from error

    def _key(self, table: KeptTable) -> str | None:
        schema = read_metadata(table.main_location, self.storage).current_schema
        names = {field.field_id: field.name for field in schema.fields}
        return names.get(schema.key_ids[0]) if schema.key_ids else None


def read_key(path: Path | None) -> bytes | None:
    """A key for signatures, without white space at its end. Raises UsageError."""
    if path is None:
        return None
    try:
        key = path.read_bytes().rstrip()
    except OSError as error:
        raise UsageError(f"cannot read the key {path}: {error.strerror}", "name another file") from error
    if len(key) < _SHORTEST_KEY:
        raise UsageError(
            f"the key in {path} has {len(key)} bytes", f"take {_SHORTEST_KEY} or more: openssl rand -hex 32 > {path}"
        )
    return key


def receipt_of(
    moment: KeptMoment, digests: Sequence[tuple[KeptTable, RowsDigest]], key: bytes | None
) -> dict[str, Any]:
    """The receipt of a moment, signed if there is a key."""
    document: dict[str, Any] = {
        "receipt": 1,
        "method": METHOD,
        "moment": moment.name,
        "frontier": format_lsn(moment.frontier),
        "kept_at": moment.kept_at.isoformat(),
        "kept_by": moment.kept_by,
        "tables": [_table_json(table, digest) for table, digest in digests],
    }
    if key is not None:
        document["signature"] = {"algorithm": _ALGORITHM, "value": _signature(document, key)}
    return document


def _table_json(table: KeptTable, digest: RowsDigest) -> dict[str, Any]:
    return {
        "table": str(table.table),
        "snapshot_id": str(table.main_snapshot_id),
        "columns": [{"name": column.name, "type": column.type, "raw": column.raw} for column in digest.columns],
        "key": digest.key,
        "rows": digest.rows,
        "digest": digest.digest,
        "ranges": [part.to_json() for part in digest.ranges],
    }


def _signature(document: dict[str, Any], key: bytes) -> str:
    signed = {name: value for name, value in document.items() if name != "signature"}
    text = json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class Receipt:
    """A receipt that was read."""

    moment: str
    frontier: str
    tables: dict[str, RowsDigest]
    """By the table's name."""
    is_signed: bool


def read_receipt(path: Path, key: bytes | None) -> Receipt:
    """Read a receipt, and check its signature if there is a key. Raises UsageError for what is no receipt, and
    TableError if it was changed since it was signed, or by another key."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        tables = {table["table"]: _digest_of(table) for table in document["tables"]}
        receipt = Receipt(document["moment"], document["frontier"], tables, "signature" in document)
        method = document["method"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "name a file of `mirror-pump moment keep NAME --receipt FILE`"
        raise UsageError(f"{path} is no receipt: {error}", remedy) from error
    if method != METHOD:
        raise UsageError(f"the digests of {path} were made by {method}", "check it with the release that wrote it")
    if key is None:
        return receipt
    if not receipt.is_signed:
        raise TableError(f"{path} is not signed", "leave out --key to compare it as it is")
    if not hmac.compare_digest(str(document["signature"].get("value")), _signature(document, key)):
        raise TableError(f"the signature of {path} is wrong: it was changed, or signed with another key")
    return receipt


def _digest_of(table: dict[str, Any]) -> RowsDigest:
    columns = tuple(DigestColumn(column["name"], column["type"], column["raw"]) for column in table["columns"])
    ranges = tuple(RangeDigest(part["from"], int(part["rows"]), str(part["digest"])) for part in table["ranges"])
    digest = RowsDigest(columns, table["key"], ranges)
    if (digest.rows, digest.digest) != (table["rows"], table["digest"]):
        raise ValueError(f"the ranges of {table['table']} do not add up to its digest")
    return digest
