"""Replays change feeds by DuckDB: what a feed says happened between two frontiers turns the mirror at the one into the
mirror at the other."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, assert_same, normalised

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_STATE = """
SELECT s.applied_lsn, t.schema_name || '.' || t.table_name, t.table_id, m.state = 'live', m.key, i.metadata_location,
       f.metadata_location
  FROM modak.mirror_tables m JOIN modak.tables t USING (table_id) JOIN modak.mirror_slots s ON s.slot_name = m.slot_name
  LEFT JOIN modak.lake_pointers i USING (table_id)
  LEFT JOIN (SELECT c.feed_id, p.metadata_location FROM modak.change_feeds c JOIN modak.iceberg_tables p
               ON p.catalog_name = 'lake' AND p.table_namespace = c.namespace AND p.table_name = c.name) f
    ON f.feed_id = t.table_id
 WHERE m.slot_name = %s
"""

_REPLAY = """
CREATE OR REPLACE TEMP VIEW truncated AS
SELECT _lsn, _seq FROM between_frontiers WHERE _op = 'truncate' ORDER BY _lsn DESC, _seq DESC LIMIT 1;
CREATE OR REPLACE TEMP VIEW last_changes AS
SELECT * FROM between_frontiers c
 WHERE _op IN ('insert', 'update', 'delete')
   AND NOT EXISTS (SELECT 1 FROM truncated t WHERE (t._lsn, t._seq) > (c._lsn, c._seq))
QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY _lsn DESC, _seq DESC) = 1;
SELECT {columns} FROM before b
 WHERE NOT EXISTS (SELECT 1 FROM truncated)
   AND NOT EXISTS (SELECT 1 FROM last_changes c WHERE {same})
UNION ALL SELECT {columns} FROM last_changes WHERE _op <> 'delete'
"""

_REPLAY_ROWS = """
CREATE OR REPLACE TEMP VIEW truncated AS
SELECT _lsn, _seq FROM between_frontiers WHERE _op = 'truncate' ORDER BY _lsn DESC, _seq DESC LIMIT 1;
CREATE OR REPLACE TEMP VIEW later AS
SELECT * FROM between_frontiers c
 WHERE NOT EXISTS (SELECT 1 FROM truncated t WHERE (t._lsn, t._seq) > (c._lsn, c._seq));
CREATE OR REPLACE TEMP VIEW present AS
SELECT {columns} FROM before WHERE NOT EXISTS (SELECT 1 FROM truncated)
UNION ALL SELECT {columns} FROM later WHERE _op IN ('insert', 'update');
SELECT * FROM present EXCEPT ALL SELECT {old_columns} FROM later WHERE _op IN ('update', 'delete')
"""
"""Of a feed with old rows: what came, without what went. The order does not matter."""


@dataclass(frozen=True)
class TableAt:
    """A table at a published frontier."""

    frontier: int
    name: str
    is_live: bool
    key: tuple[str, ...]
    mirror: str
    """Location of its metadata."""
    feed: str


@dataclass
class FrontierTrail:
    """Notes where each table's metadata is at published frontiers. An observer of a pump, or called from time to
    time."""

    mirror: Mirror
    tables: dict[int, list[TableAt]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, step: Step, _: dict[str, object]) -> None:
        if step is Step.PUBLISHED:
            self.note()

    def note(self) -> None:
        """Note the present publish."""
        with self._lock, self.mirror.database.session() as connection:
            for frontier, name, table_id, is_live, key, location, feed in connection.execute(
                _STATE, (self.mirror.settings.slot,)
            ):
                trail = self.tables.setdefault(table_id, [])
                if feed is not None and (not trail or trail[-1].frontier < frontier):
                    trail.append(TableAt(frontier, name, is_live, tuple(key), location, feed))


class FeedReplay:
    """Compares by DuckDB."""

    def __init__(self) -> None:
        self._duckdb: DuckDBPyConnection = duckdb_connection()
        self._latest: dict[str, pa.Table] = {}
        """Rows of the two mirrors that were read last, by location."""
        self.resets = self.compared = self.changes = 0

    def check(self, trail: FrontierTrail) -> None:
        """Replays each feed from each published frontier to the next: from any frontier to any later one follows.
        Those from the first after each reset to the last before the next one are replayed, too."""
        for places in trail.tables.values():
            first: TableAt | None = None
            last: TableAt | None = None
            for after in (place for place in places if place.is_live):
                if last is not None and not self.compare(last, after):
                    if first is not None and first is not last:
                        self.compare(first, last)
                    first = after
                first, last = first or after, after
            if first is not None and last is not None and first is not last:
                self.compare(first, last)

    def compare(self, before: TableAt, after: TableAt) -> bool:
        """Whether there is no reset between the two frontiers; then the replayed rows are those of the mirror."""
        duckdb = self._duckdb
        since, until = before.frontier, after.frontier
        names, feed_columns = _names(after.mirror), set(_names(after.feed).values())
        columns = list(names.values())
        # A copy may have brought values that only a raw text column holds, and the stream none.
        absent = "".join(f', NULL AS "{name}"' for name in columns if name not in feed_columns)
        # Scanned once: to plan a scan costs more than to read these rows.
        duckdb.execute(
            f"CREATE OR REPLACE TEMP TABLE scanned AS SELECT * FROM iceberg_scan('{after.feed}')"
            f" WHERE _lsn >= {since} AND _lsn < {until}"
        )
        duckdb.execute(f"CREATE OR REPLACE TEMP VIEW between_frontiers AS SELECT *{absent} FROM scanned")
        ops = dict(duckdb.execute("SELECT _op, count(*) FROM scanned GROUP BY 1").fetchall())
        self.changes += sum(ops.values())
        if ops.get("reset"):
            self.resets += 1
            return False
        former, expected = self._read(before.mirror), self._read(after.mirror)
        duckdb.register("before_rows", _as_in(former, _names(before.mirror), expected.schema, names))
        duckdb.execute("CREATE OR REPLACE TEMP VIEW before AS SELECT * FROM before_rows")
        has_old = "_old" in feed_columns
        for query in ([_REPLAY] if after.key else []) + ([_REPLAY_ROWS] if has_old else []):
            self._replay(query, after, expected.select(columns), f"{after.name}, {before} to {after}, {ops}")
        duckdb.unregister("before_rows")
        self.compared += 1
        return True

    def _replay(self, query: str, after: TableAt, expected: pa.Table, what: str) -> None:
        duckdb, columns = self._duckdb, expected.column_names
        old_fields = _old_names(after.feed)
        statements = query.format(
            key=", ".join(f'"{name}"' for name in after.key),
            columns=", ".join(f'"{name}"' for name in columns),
            # A raw text column may have come with new rows alone.
            old_columns=", ".join(f'_old."{name}"' if name in old_fields else "NULL" for name in columns),
            same=" AND ".join(f'b."{name}" = c."{name}"' for name in after.key),
        ).split(";")
        for statement in statements[:-1]:
            duckdb.execute(statement)
        replayed = duckdb.execute(statements[-1]).to_arrow_table()
        assert_same(_rows(expected), _rows(replayed), what)

    def _read(self, location: str) -> pa.Table:
        """The rows of the mirror there. The latest are kept: most frontiers are the end of a replay and the beginning
        of the next."""
        rows = self._latest.pop(location, None)
        if rows is None:
            rows = self._duckdb.execute(f"SELECT * FROM iceberg_scan('{location}')").to_arrow_table()
        self._latest = {**dict(list(self._latest.items())[-1:]), location: rows}
        return rows


def _rows(table: pa.Table) -> list[tuple[object, ...]]:
    return normalised(list(zip(*(column.to_pylist() for column in table.columns), strict=True)))


def _names(location: str) -> dict[int, str]:
    """Names of columns by field ID."""
    document = orjson.loads(Path(location.removeprefix("file://")).read_bytes())
    schema = next(one for one in document["schemas"] if one["schema-id"] == document["current-schema-id"])
    return {column["id"]: column["name"] for column in schema["fields"]}


def _old_names(location: str) -> set[str]:
    document = orjson.loads(Path(location.removeprefix("file://")).read_bytes())
    schema = next(one for one in document["schemas"] if one["schema-id"] == document["current-schema-id"])
    old = next((column for column in schema["fields"] if column["name"] == "_old"), None)
    return set() if old is None else {column["name"] for column in old["type"]["fields"]}


def _as_in(rows: pa.Table, former: Mapping[int, str], schema: pa.Schema, names: Mapping[int, str]) -> pa.Table:
    """Rows of an earlier state with the columns `names` (by field ID) of a state that has `schema`."""
    return pa.table(
        {
            name: rows.column(former[field_id]).cast(schema.field(name).type)
            if field_id in former
            else pa.nulls(rows.num_rows, schema.field(name).type)
            for field_id, name in names.items()
        }
    )
