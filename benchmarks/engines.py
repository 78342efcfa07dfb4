"""How each engine reads the table: one scan and one look-up, with its default settings.

Runs in one process per engine (reader_process.py). A scan is reduced to CHECKS, a few sums that tie every column to the
key: they are equal in every engine and in Postgres only if the rows are.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

CHDB = Path(__file__).resolve().parents[1] / "build" / "chdb"
"""Where `make bench` installs ClickHouse: half a gigabyte that no test needs."""

Value = int | str | None
Checks = dict[str, Value]
Row = list[Value]
"""id, branch, balance in hundredths, note, updated in microseconds since 1970."""

CHECKS = (
    "rows", "ids", "branches", "cents", "note_bytes", "first_note", "last_note", "latest",
    "cents_by_id", "updated_by_id", "notes_by_id",
)  # fmt: skip
_TEXTS = ("first_note", "last_note")

_SCAN = """
SELECT count(*), sum(id), sum(branch), sum({cents}), sum(length(note)), min(note), max(note), max({micros}),
       sum({cents} * (id % 997)), sum(({micros} % 1000003) * (id % 31)), sum(ascii(substr(note, 20, 1)) * (id % 61))
  FROM {table}
"""
_POINT = "SELECT id, branch, {cents}, note, {micros} FROM {table} WHERE id = {key}"


@dataclass(frozen=True)
class Dialect:
    """The two expressions of _SCAN and _POINT that differ by engine."""

    cents: str
    micros: str

    def scan(self, table: str) -> str:
        return _SCAN.format(table=table, cents=self.cents, micros=self.micros)

    def point(self, table: str, key: int) -> str:
        return _POINT.format(table=table, key=key, cents=self.cents, micros=self.micros)


POSTGRES = Dialect("(balance * 100)::bigint", "(extract(epoch FROM updated) * 1000000)::bigint")
SPARK = Dialect("CAST(balance * 100 AS BIGINT)", "unix_micros(updated)")
DUCKDB = Dialect("CAST(balance * 100 AS BIGINT)", "epoch_us(updated)")


class Engine(Protocol):
    """A started engine. `location` is a metadata file's URI, `snapshot` the current snapshot in it."""

    @property
    def version(self) -> str:
        """Its name and version."""

    def scan(self, location: str, snapshot: int) -> object:
        """Reads every column of every row. The result is passed to `checks`, which is not measured."""

    def checks(self, scanned: Any) -> Checks:
        """CHECKS of what a scan returned."""

    def point(self, location: str, snapshot: int, key: int) -> Row | None:
        """The row with this key, if there is one. ValueError if there are several."""


@dataclass(frozen=True)
class SqlEngine:
    """An engine that reads SQL."""

    version: str
    dialect: Dialect
    table: Callable[[str, int], str]
    """How a query names the snapshot, by location and snapshot."""
    rows: Callable[[str], Sequence[Sequence[Any]]]
    """Runs a query."""

    def scan(self, location: str, snapshot: int) -> object:
        return self.rows(self.dialect.scan(self.table(location, snapshot)))

    def checks(self, scanned: Any) -> Checks:
        return checks(scanned[0])

    def point(self, location: str, snapshot: int, key: int) -> Row | None:
        found = self.rows(self.dialect.point(self.table(location, snapshot), key))
        return _single([row(values) for values in found])


def spark(dsn: str, warehouse: str, log: Path) -> Engine:
    """Spark SQL with Iceberg's runtime. JdbcCatalog looks up the table in each query."""
    from mirror_pump.engine.spark_runtime.session import ICEBERG_PACKAGE, SparkSettings, jdbc_catalog, spark_session

    session = spark_session(SparkSettings(app_name="bench-read", log=log), jdbc_catalog("lake", dsn, warehouse))
    return SqlEngine(
        f"Spark {session.version} with Iceberg {ICEBERG_PACKAGE.rpartition(':')[2]}",
        SPARK,
        lambda _, snapshot: f"lake.public.acct VERSION AS OF {snapshot}",
        lambda query: session.sql(query).collect(),
    )


def duckdb() -> Engine:
    """iceberg_scan of the metadata file: DuckDB cannot read a JDBC catalog."""
    from mirror_pump.testing.lake import duckdb_connection

    connection = duckdb_connection()
    return SqlEngine(
        f"DuckDB {importlib.metadata.version('duckdb')}",
        DUCKDB,
        lambda location, _: f"iceberg_scan('{location}')",
        lambda query: connection.execute(query).fetchall(),
    )


def clickhouse(warehouse: str) -> Engine:
    """ClickHouse inside Python: icebergLocal of the table's directory, with the metadata file named."""
    sys.path.append(str(CHDB))
    # It reads no file outside of its user_files_path, which is the working directory here.
    os.chdir(url2pathname(urlsplit(warehouse).path))
    chdb = importlib.import_module("chdb")

    def rows(query: str) -> list[list[Any]]:
        return [json.loads(line) for line in bytes(chdb.query(query, "JSONCompactEachRow").bytes()).splitlines()]

    def table(location: str, _snapshot: int) -> str:
        directory, _, file = url2pathname(urlsplit(location).path).rpartition("/metadata/")
        return f"icebergLocal('{directory}', SETTINGS iceberg_metadata_file_path = 'metadata/{file}')"

    return SqlEngine(
        f"ClickHouse {rows('SELECT version()')[0][0]} (chdb)",
        Dialect("toInt64(balance * 100)", "toUnixTimestamp64Micro(updated)"),
        table,
        rows,
    )


class PyIceberg:
    """scan().to_arrow(), which alone is measured."""

    def __init__(self) -> None:
        self.version = f"pyiceberg {importlib.metadata.version('pyiceberg')}"

    def scan(self, location: str, snapshot: int) -> object:  # noqa: ARG002 - the location says it
        from pyiceberg.table import StaticTable

        return StaticTable.from_metadata(location).scan().to_arrow()

    def checks(self, scanned: pa.Table) -> Checks:
        notes = pc.min_max(scanned["note"]).as_py()
        sums: dict[str, int] = {}
        for batch in scanned.to_batches():
            for name, value in _sums(batch).items():
                sums[name] = sums.get(name, 0) + int(value)
        latest = pc.max(scanned["updated"]).cast(pa.int64()).as_py()
        found = {"rows": scanned.num_rows, "first_note": notes["min"], "last_note": notes["max"], "latest": latest}
        return {name: {**found, **sums}[name] for name in CHECKS}

    def point(self, location: str, snapshot: int, key: int) -> Row | None:  # noqa: ARG002 - as above
        from pyiceberg.table import StaticTable

        found = StaticTable.from_metadata(location).scan(row_filter=f"id = {key}").to_arrow()
        return _single([_arrow_row(one) for one in found.to_pylist()])


def checks(values: Sequence[Any]) -> Checks:
    """CHECKS of a scan's row; sums returned as decimals or text become integers."""
    named = dict(zip(CHECKS, values, strict=True))
    return {name: value if name in _TEXTS else int(value) for name, value in named.items()}


def row(values: Sequence[Any]) -> Row:
    """A look-up's row; ClickHouse's JSON has 64-bit integers as text."""
    key, branch, cents, note, micros = values
    return [int(key), int(branch), int(cents), str(note), int(micros)]


def _sums(batch: pa.RecordBatch) -> dict[str, np.int64 | int]:
    ids = batch["id"].to_numpy()
    cents = _unscaled(batch["balance"])
    updated = batch["updated"].cast(pa.int64()).to_numpy()
    letters = pc.utf8_slice_codeunits(batch["note"], 19, 20).cast(pa.string())
    codes = np.frombuffer(letters.buffers()[2], np.uint8, len(letters), letters.offset).astype(np.int64)
    return {
        "ids": ids.sum(),
        "branches": batch["branch"].to_numpy().sum(dtype=np.int64),
        "cents": cents.sum(),
        "note_bytes": pc.sum(pc.binary_length(batch["note"])).as_py(),
        "cents_by_id": (cents * (ids % 997)).sum(),
        "updated_by_id": (updated % 1000003 * (ids % 31)).sum(),
        "notes_by_id": (codes * (ids % 61)).sum(),
    }


def _unscaled(column: pa.Array) -> npt.NDArray[np.int64]:
    """A decimal128 column's integers; all fit 64 bits, so the low words are enough."""
    words: npt.NDArray[np.int64] = np.frombuffer(column.buffers()[1], np.int64)[::2]
    return words[column.offset : column.offset + len(column)]


def _arrow_row(one: Mapping[str, Any]) -> Row:
    micros = (one["updated"] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return [one["id"], one["branch"], int(one["balance"] * Decimal(100)), one["note"], micros]


def _single(rows: list[Row]) -> Row | None:
    """A second row with the key is a wrong result that must not go unnoticed."""
    if len(rows) > 1:
        raise ValueError(f"{len(rows)} rows have the key {rows[0][0]}")
    return rows[0] if rows else None
