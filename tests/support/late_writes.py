"""A stream of inserts into a table with heap retention, and late writes into the partitions that are leaving.

Each insert adds a row with the next tier key to `public.stream`, with the key as its value. Late writes change, delete,
add and move rows from two partitions below the cut-line to one above, where partitions are sealed, passed by the
cut-line, proven and dropped. `public.stream_model` is a plain table that gets the same changes in the same
transactions. Values of late writes come from a sequence, so that they all differ: a digest of keys and values per
partition shows a lost, duplicate or outdated row.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pyarrow as pa

from mirror_pump.testing.mirror import Mirror, Row, assert_same, normalised
from tests.support.retention_table import RetentionTable, at_once

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

STREAM = "public.stream"

_LATE_WRITES: LiteralString = """
CREATE SEQUENCE stamps START 1000000000;
CREATE FUNCTION late_writes(width bigint, writes int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    cut bigint;
    a bigint;
    b bigint;
    k bigint;
    s bigint;
    done int := 0;
    changed record;
BEGIN
    SELECT greatest(c.tier_key_hi, 0) INTO cut FROM modak.cutline c WHERE c.table_id = 'stream'::regclass::oid::bigint;
    FOR i IN 1..writes LOOP
        a := greatest(cut + ((random() * 3 - 2) * width)::bigint, 0);
        b := greatest(cut + ((random() * 3 - 2) * width)::bigint, 0);
        k := floor(random() * 3);
        s := nextval('stamps');
        CASE floor(random() * 6)::int
        WHEN 0 THEN
            INSERT INTO stream VALUES (a, s, s);
            INSERT INTO stream_model VALUES (a, s, s);
            done := done + 1;
        WHEN 1 THEN
            PERFORM modak.upsert('stream', jsonb_build_object('at', a, 'id', k, 'n', s));
            INSERT INTO stream_model VALUES (a, k, s) ON CONFLICT (at, id) DO UPDATE SET n = excluded.n;
            done := done + 1;
        WHEN 2 THEN
            PERFORM modak.delete('stream', jsonb_build_object('at', a, 'id', k));
            DELETE FROM stream_model WHERE at = a AND id = k;
            done := done + 1;
        WHEN 3 THEN
            FOR changed IN UPDATE stream SET n = s WHERE at BETWEEN a AND a + 2 RETURNING at, id LOOP
                UPDATE stream_model m SET n = s WHERE m.at = changed.at AND m.id = changed.id;
                done := done + 1;
            END LOOP;
        WHEN 4 THEN
            FOR changed IN DELETE FROM stream WHERE at = a RETURNING at, id LOOP
                DELETE FROM stream_model m WHERE m.at = changed.at AND m.id = changed.id;
                done := done + 1;
            END LOOP;
        ELSE
            -- Across the cut-line in either direction, or within a partition.
            SELECT at, id INTO changed FROM stream t WHERE at BETWEEN a AND a + 9
               AND NOT EXISTS (SELECT FROM stream_model m WHERE m.at = b AND m.id = t.id) LIMIT 1;
            IF FOUND THEN
                UPDATE stream t SET at = b, n = s WHERE t.at = changed.at AND t.id = changed.id;
                IF FOUND THEN
                    UPDATE stream_model m SET at = b, n = s WHERE m.at = changed.at AND m.id = changed.id;
                    done := done + 1;
                END IF;
            END IF;
        END CASE;
    END LOOP;
    RETURN done;
END $$
"""


@dataclass
class LateStream(RetentionTable):
    """The table, its model, and how much was written."""

    mirror: Mirror = field(kw_only=True)
    top: int = 0
    """The next tier key."""
    inserted: int = 0
    late: int = 0
    seconds: float = 0.0
    failures: list[BaseException] = field(default_factory=list)

    @classmethod
    def create(cls, mirror: Mirror, width: int) -> LateStream:
        """Creates and registers the table with four partitions of `width` tier keys, three of them filled. A pump has
        to copy it."""
        self = cls(mirror.database, 4, "stream", "stream_", width, mirror=mirror)
        self.create_tables("at bigint, id bigint, n bigint NOT NULL, PRIMARY KEY (at, id)", model="stream_model")
        with mirror.database.session() as connection:
            connection.execute(_LATE_WRITES)
            self._insert(connection, 3 * width)
        mirror.register(STREAM, retention=at_once(str(width)))
        return self

    @property
    def digest(self) -> str:
        """One row per partition: the number of rows, and sums that no other rows are likely to have. For Postgres and
        DuckDB; for Spark with backticks."""
        each = '("at" * 31 + id * 7) % 1000003'
        sums = {
            "part": f'("at" - "at" % {self.width}) / {self.width}',
            "amount": "count(*)",
            "stamps": "sum(n)",
            "mixed": f"sum(({each}) * (n % 999983))",
            "squares": f"sum(({each}) * ({each}))",
        }
        return "SELECT " + ", ".join(f"CAST({value} AS bigint) AS {name}" for name, value in sums.items())

    def model(self, connection: psycopg.Connection[Any]) -> list[Row]:
        """The model's digest, as the connection sees it."""
        return normalised(connection.execute(f"{self.digest} FROM stream_model GROUP BY 1".encode()).fetchall())

    @contextlib.contextmanager
    def writing(self, seed: int, inserts: int, late: int) -> Iterator[None]:
        """Writes that many inserts and late writes a second within the block, if the machine is fast enough. An error
        of a writer is raised at the end of the block."""
        stop = threading.Event()
        began = time.monotonic()
        turns = 20

        def insert(connection: psycopg.Connection[Any]) -> None:
            while self.top + 2 * self.width > self.partitions * self.width:
                self.make_partition(connection, self.partitions)
                self.partitions += 1
            self.inserted += self._insert(connection, inserts // turns)

        def change(connection: psycopg.Connection[Any]) -> None:
            row = connection.execute("SELECT late_writes(%s, %s)", (self.width, late // turns)).fetchone()
            assert row is not None
            self.late += row[0]

        threads = [
            threading.Thread(target=self._paced, args=(work, turns, stop, seed), daemon=True)
            for work in (insert, change)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
            self.seconds += time.monotonic() - began
        if self.failures:
            raise self.failures[0]

    def _paced(
        self, work: Callable[[psycopg.Connection[Any]], None], turns: int, stop: threading.Event, seed: int
    ) -> None:
        try:
            with self.mirror.database.session() as connection:
                connection.execute("SELECT setseed(%s)", (random.Random(seed).uniform(-1, 1),))
                due = time.monotonic()
                while not stop.wait(max(due - time.monotonic(), 0)):
                    # Writes that are late are not made up for.
                    due = max(due + 1 / turns, time.monotonic())
                    work(connection)
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block
            self.failures.append(error)
            stop.set()

    def _insert(self, connection: psycopg.Connection[Any], count: int) -> int:
        first, self.top = self.top, self.top + count
        with connection.transaction():
            for table in ("stream", "stream_model"):
                # Late writes reach up to one partition above the cut-line: that is below the rows that retention keeps.
                connection.execute(
                    f"INSERT INTO {table} SELECT g, 0, g FROM generate_series({first}, {self.top - 1}) g".encode()
                )
        return count

    def state_counts(self) -> dict[str, int]:
        """The number of partitions by state."""
        return dict(
            self.mirror.database.rows(
                "SELECT state, count(*) FROM modak.partitions"
                " WHERE table_id = 'stream'::regclass::oid::bigint GROUP BY 1"
            )
        )

    def read(self, duckdb: DuckDBPyConnection, *, pinned_for: float | None) -> bool:
        """One read by the protocol's statements, compared with the model. Returns whether the cut-line or the published
        snapshot had moved by its end.

        `pinned_for` None: unpinned. Otherwise the read begins after its pin, when the published snapshot has moved or
        this many seconds have passed.
        """
        pin: Row | None = None
        if pinned_for is not None:
            (pin,) = self.mirror.database.rows(
                "SELECT pin_id, t, metadata_location FROM modak.pin('stream', in_one_snapshot => true)"
            )
            deadline = time.monotonic() + pinned_for
            with self.mirror.database.session() as looker:
                moved = False
                while not moved and time.monotonic() < deadline:
                    looker.execute("SELECT pg_sleep(0.05)")
                    moved = self._seam(looker)[1] != pin[2]
        with self.mirror.database.session(autocommit=False) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cut, location = present = self._seam(connection)
            if pin is not None:
                _, cut, location = pin
            hot = connection.execute("SELECT at, id, n FROM stream WHERE at >= %s", (cut,)).fetchall()
            delta = connection.execute(
                "SELECT (payload -> 'at')::bigint, (payload -> 'id')::bigint, (payload -> 'n')::bigint, op::bigint"
                " FROM modak.delta WHERE table_id = 'stream'::regclass::oid::bigint AND tier_key < %s",
                (cut,),
            ).fetchall()
            wanted = self.model(connection)
        duckdb.register("hot", _arrow(hot, ("at", "id", "n")))
        duckdb.register("delta", _arrow(delta, ("at", "id", "n", "op")))
        cold = f"SELECT \"at\", id, n FROM iceberg_scan('{location}')"
        found = duckdb.execute(
            f'{self.digest} FROM (SELECT "at", id, n FROM hot'
            f' UNION ALL SELECT "at", id, n FROM ({cold}) c ANTI JOIN delta d USING ("at", id)'
            ' UNION ALL SELECT "at", id, n FROM delta WHERE op = 0) GROUP BY 1'
        ).fetchall()
        assert_same(
            wanted, normalised(found), f"digests by partition, {'un' if pin is None else ''}pinned, the cut-line {cut}"
        )
        if pin is not None:
            released = self.mirror.database.rows("SELECT modak.release(%s)", (pin[0],))
            assert released == [(True,)], "the pin was gone before its reader"
        return present != (cut, location)

    @staticmethod
    def _seam(connection: psycopg.Connection[Any]) -> tuple[int, str]:
        row = connection.execute(
            "SELECT tier_key_hi, lake_props ->> 'metadata_location' FROM modak.cutline"
            " WHERE table_id = 'stream'::regclass::oid::bigint"
        ).fetchone()
        assert row is not None
        return int(row[0]), str(row[1])


def _arrow(rows: list[Row], names: tuple[str, ...]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    return pa.table({name: pa.array(column, pa.int64()) for name, column in zip(names, columns, strict=True)})
