"""Replays change feeds by DuckDB: what a feed says happened between two frontiers turns the mirror at the one into the
mirror at the other."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa

from mirror_pump.model import format_lsn
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, assert_same, normalised

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_STATE = """
SELECT t.schema_name || '.' || t.table_name, t.table_id, m.state = 'live', i.metadata_location, f.metadata_location
  FROM modak.mirror_tables m JOIN modak.tables t USING (table_id) LEFT JOIN modak.lake_pointers i USING (table_id)
  LEFT JOIN (SELECT c.feed_id, p.metadata_location FROM modak.change_feeds c JOIN modak.iceberg_tables p
               ON p.catalog_name = 'lake' AND p.table_namespace = c.namespace AND p.table_name = c.name) f
    ON f.feed_id = t.table_id
 WHERE m.slot_name = %s
"""

_REPLAY = """
CREATE OR REPLACE TEMP VIEW between_frontiers AS SELECT * FROM feed WHERE _lsn >= {since} AND _lsn < {until};
CREATE OR REPLACE TEMP VIEW truncated AS
SELECT _lsn, _seq FROM between_frontiers WHERE _op = 'truncate' ORDER BY _lsn DESC, _seq DESC LIMIT 1;
CREATE OR REPLACE TEMP VIEW last_changes AS
SELECT * FROM between_frontiers c
 WHERE _op IN ('insert', 'update', 'delete')
   AND NOT EXISTS (SELECT FROM truncated t WHERE (t._lsn, t._seq) > (c._lsn, c._seq))
QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY _lsn DESC, _seq DESC) = 1;
SELECT {columns} FROM before b
 WHERE NOT EXISTS (SELECT FROM truncated)
   AND NOT EXISTS (SELECT FROM last_changes c WHERE {same})
UNION ALL SELECT {columns} FROM last_changes WHERE _op <> 'delete'
"""


@dataclass(frozen=True)
class TableAt:
    """A table at a published frontier."""

    frontier: int
    is_live: bool
    mirror: str
    """Location of its metadata."""
    feed: str


@dataclass
class FrontierTrail:
    """An observer that notes where each table's metadata is, at each publish."""

    mirror: Mirror
    tables: dict[int, list[TableAt]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, step: Step, /, **_: object) -> None:
        if step is Step.PUBLISHED:
            self.note()

    def note(self) -> None:
        """Note the present publish. Called by the pump's thread, or while none runs."""
        with self._lock, self.mirror.database.session() as connection:
            frontier = self.mirror.frontier()
            for name, table_id, is_live, location, feed in connection.execute(_STATE, (self.mirror.settings.slot,)):
                trail = self.tables.setdefault(table_id, [])
                self.names[table_id] = name
                if feed is not None and (not trail or trail[-1].frontier < frontier):
                    trail.append(TableAt(frontier, is_live, location, feed))


class FeedReplay:
    """Compares by DuckDB."""

    def __init__(self) -> None:
        self._duckdb: DuckDBPyConnection = duckdb_connection()
        self.resets = self.compared = self.changes = 0

    def check(self, trail: Sequence[TableAt], key: Sequence[str], what: str) -> None:
        """Replays the feed from each published frontier to the next, and from the first to the last without a reset
        between: from any frontier to any later one follows."""
        live = [place for place in trail if place.is_live]
        for before, after in itertools.pairwise(live):
            self.compare(before, after, key, what)

    def compare(self, before: TableAt, after: TableAt, key: Sequence[str], what: str) -> bool:
        """Whether there is no reset between the two frontiers; then the replayed rows are those of the mirror."""
        duckdb = self._duckdb
        since, until = before.frontier, after.frontier
        duckdb.execute(f"CREATE OR REPLACE TEMP VIEW feed AS SELECT * FROM iceberg_scan('{after.feed}')")
        ops = dict(
            duckdb.execute(
                f"SELECT _op, count(*) FROM feed WHERE _lsn >= {since} AND _lsn < {until} GROUP BY 1"
            ).fetchall()
        )
        self.changes += sum(ops.values())
        if ops.get("reset"):
            self.resets += 1
            return False
        former = _read(duckdb, before.mirror)
        names, feed_columns = _names(after.mirror), set(_names(after.feed).values())
        columns = [name for name in names.values() if name in feed_columns]
        duckdb.register("before_rows", _as_in(former, _names(before.mirror), after.mirror, columns, duckdb))
        duckdb.execute("CREATE OR REPLACE TEMP VIEW before AS SELECT * FROM before_rows")
        quoted = [f'"{name}"' for name in columns]
        statements = _REPLAY.format(
            since=since,
            until=until,
            key=", ".join(f'"{name}"' for name in key),
            columns=", ".join(quoted),
            same=" AND ".join(f'b."{name}" = c."{name}"' for name in key),
        ).split(";")
        for statement in statements[:-1]:
            duckdb.execute(statement)
        replayed = duckdb.execute(statements[-1]).to_arrow_table()
        expected = _read(duckdb, after.mirror)
        missing = [name for name in expected.column_names if name not in columns]
        assert all(expected.column(name).null_count == expected.num_rows for name in missing), missing
        place = f"{what}, {format_lsn(since)} ({since}) to {format_lsn(until)} ({until}), {ops}"
        assert_same(_rows(expected.select(columns)), _rows(replayed), place)
        duckdb.unregister("before_rows")
        self.compared += 1
        return True


def _read(duckdb: DuckDBPyConnection, location: str) -> pa.Table:
    return duckdb.execute(f"SELECT * FROM iceberg_scan('{location}')").to_arrow_table()


def _rows(table: pa.Table) -> list[tuple[object, ...]]:
    return normalised(list(zip(*(column.to_pylist() for column in table.columns), strict=True)))


def _names(location: str) -> dict[int, str]:
    """Names of columns by field ID."""
    document = orjson.loads(Path(location.removeprefix("file://")).read_bytes())
    schema = next(one for one in document["schemas"] if one["schema-id"] == document["current-schema-id"])
    return {column["id"]: column["name"] for column in schema["fields"]}


def _as_in(
    rows: pa.Table, former: dict[int, str], location: str, columns: Sequence[str], duckdb: DuckDBPyConnection
) -> pa.Table:
    """Rows of an earlier state with the columns of the state at `location`."""
    types = duckdb.execute(f"SELECT * FROM iceberg_scan('{location}') LIMIT 0").to_arrow_table().schema
    ids = {name: field_id for field_id, name in _names(location).items()}
    return pa.table(
        {
            name: rows.column(former[ids[name]]).cast(types.field(name).type)
            if ids[name] in former
            else pa.nulls(rows.num_rows, types.field(name).type)
            for name in columns
        }
    )
