"""A reader as another project would write it: it follows the published algorithm of the seam protocol, and nothing
else.

It pins with the two statements, in READ COMMITTED. It queries the delta twice, without a filter by the cut-line: for
the keys that replace rows of the lake, and seconds later for the rows that replace them. It reads the heap with a plain
SELECT, in whatever order, and the lake at the pinned snapshot with DuckDB. Each query is a separate transaction, or all
of them are one, which is rolled back instead of releasing the pin.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

import pyarrow as pa

from mirror_pump.testing.database import Database
from tests.support.seam_scene import RELEASE, pin_handles

if TYPE_CHECKING:
    import psycopg
    from duckdb import DuckDBPyConnection

HISTORY: LiteralString = """
CREATE TABLE stream_history (
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(), at bigint NOT NULL, id bigint NOT NULL, n bigint);
CREATE FUNCTION stream_history() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO stream_history (at, id) VALUES (OLD.at, OLD.id);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO stream_history (at, id, n) VALUES (NEW.at, NEW.id, NEW.n);
    END IF;
    RETURN NULL; END $$;
CREATE TRIGGER history AFTER INSERT OR UPDATE OR DELETE ON stream_model
    FOR EACH ROW EXECUTE FUNCTION stream_history();
"""
"""Every version that a key of the model has had from here on; `n` is NULL if the key was deleted."""

_DELTA: LiteralString = "SELECT pk, op, version, payload FROM modak.delta WHERE table_id = %(table_oid)s"
_ROWS = pa.schema([("pk", pa.string()), ("n", pa.int64())])
_KEY = '"at" || chr(31) || id'
"""The protocol's key of a row in DuckDB: two integers need no escaping."""


@dataclass
class Read:
    """The result of one read: for each row its canonical key and its value, in no order."""

    rows: pa.Table
    cut_moved: bool
    """The table's cut-line was no longer the pinned one when the read was done."""
    snapshot_moved: bool
    """The same for the snapshot."""


@dataclass
class ForeignReader:
    """Reads public.stream. `duckdb`: a connection that nobody else uses."""

    database: Database
    duckdb: DuckDBPyConnection
    chance: random.Random

    def read(self, pause: float, *, one_transaction: bool) -> Read:
        """One read, with pauses of up to `pause` seconds between its queries."""
        with self.database.session(autocommit=False) as connection:
            row = connection.execute("SELECT 'stream'::regclass::oid::bigint").fetchone()
            assert row is not None
            where = {"table_oid": row[0]}
            connection.commit()
            pin, (cut, snapshot, location, _) = pin_handles(connection, where["table_oid"])

            def look(query: LiteralString, **parameters: Any) -> list[Any]:
                if not one_transaction:
                    connection.commit()
                threading.Event().wait(self.chance.uniform(pause / 3, pause))
                return connection.execute(query, parameters).fetchall()

            heap_looks = self.chance.randrange(3)
            heap: list[Any] = []
            if heap_looks == 0:
                heap = self._heap(look, cut)
            replaced = look(_DELTA, **where)
            lake = self._lake(location, [row[0] for row in replaced])
            if heap_looks == 1:
                heap = self._heap(look, cut)
            upserts = _newest(look(_DELTA, **where))
            if heap_looks == 2:
                heap = self._heap(look, cut)
            now = connection.execute(
                "SELECT tier_key_hi, lake_snapshot_id FROM modak.cutline WHERE table_id = %(table_oid)s", where
            ).fetchone()
            assert now is not None
            if one_transaction:
                connection.rollback()
            else:
                assert connection.execute(RELEASE, {"pin": pin}).rowcount == 1, "the pin was gone before its reader"
                connection.commit()
        found = pa.Table.from_pylist([{"pk": pk, "n": n} for pk, n in (*heap, *upserts)], schema=_ROWS)
        return Read(pa.concat_tables([lake, found]), now[0] != cut, now[1] != snapshot)

    @staticmethod
    def _heap(look: Any, cut: int) -> list[tuple[str, int]]:
        rows = look("SELECT at, id, n FROM stream WHERE at >= %(cut)s", cut=cut)
        return [(f"{at}\x1f{key}", n) for at, key, n in rows]

    def _lake(self, location: str, replaced: list[str]) -> pa.Table:
        """The rows at the pinned snapshot, without those whose key is in the delta."""
        self.duckdb.register("replaced", pa.table({"pk": pa.array(replaced, pa.string())}))
        found = self.duckdb.execute(
            f"SELECT {_KEY} AS pk, n FROM iceberg_scan('{location}') WHERE {_KEY} NOT IN (SELECT pk FROM replaced)"
        ).to_arrow_table()
        return found.cast(_ROWS)


def _newest(delta: list[Any]) -> list[tuple[str, int]]:
    """The rows of the upserts: of several candidates for a key, the largest version."""
    newest: dict[str, tuple[int, int, Any]] = {}
    for pk, op, version, payload in delta:
        if pk not in newest or newest[pk][1] < version:
            newest[pk] = op, version, payload
    return [(pk, payload["n"]) for pk, (op, _, payload) in newest.items() if op == 0]


@dataclass
class Judge:
    """Compares the results of readers with the model of the table and its history."""

    database: Database
    duckdb: DuckDBPyConnection

    def before(self) -> tuple[pa.Table, str]:
        """The model now, and the database snapshot in which it was read."""
        with self.database.session(autocommit=False) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
            assert row is not None
            return self._table(connection, "SELECT at, id, n FROM stream_model"), row[0]

    def judge(self, read: Read, before: tuple[pa.Table, str], what: str) -> int:
        """Fails unless every row is as it was at some time between `before` and now, and every key without a change in
        between is there once, unchanged. Returns the number of keys with a change: 0 means that the read had to equal
        the model."""
        model, snapshot = before
        with self.database.session() as connection:
            versions = self._table(
                connection,
                "SELECT at, id, n FROM stream_history WHERE NOT pg_visible_in_snapshot(xid, %(snapshot)s::pg_snapshot)",
                snapshot=snapshot,
            )
        for name, table in (("model", model), ("versions", versions), ("found", read.rows)):
            self.duckdb.register(name, table)
        wrong = self.duckdb.execute(
            """
            WITH touched AS (SELECT DISTINCT pk FROM versions),
            wanted AS (FROM model WHERE pk NOT IN (FROM touched)),
            calm AS (FROM found WHERE pk NOT IN (FROM touched)),
            stirred AS (FROM found WHERE pk IN (FROM touched))
            SELECT 'missing or outdated' AS what, * FROM (FROM wanted EXCEPT ALL FROM calm)
            UNION ALL SELECT 'too many, or never so', * FROM (FROM calm EXCEPT ALL FROM wanted)
            UNION ALL SELECT 'never so meanwhile', * FROM (FROM stirred EXCEPT (FROM model UNION FROM versions))
            """
        ).fetchall()
        assert not wrong, f"{what}: {len(wrong)} rows are wrong: {sorted(wrong)[:8]}"
        count = self.duckdb.execute("SELECT count(DISTINCT pk) FROM versions").fetchone()
        assert count is not None
        return int(count[0])

    @staticmethod
    def _table(connection: psycopg.Connection[Any], query: LiteralString, **parameters: Any) -> pa.Table:
        rows = connection.execute(query, parameters or None).fetchall()
        keys = [f"{at}\x1f{key}" for at, key, _ in rows]
        return pa.table({"pk": keys, "n": [n for _, _, n in rows]}, schema=_ROWS)
