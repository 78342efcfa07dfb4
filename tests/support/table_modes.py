"""One mirror with a table of every mode, for tests of what each mode promises.

All tables have the same columns and rows, and a plain table beside them, `<name>_model`, that gets every change in the
same transaction. Their older partitions have left, or been copied into the lake. Reads follow the seam protocol, by
plain SQL and DuckDB: no code of the product's own readers is in them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg

from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.ops.retain.retention import resume
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, RunningPump, Steps, assert_same, await_true, lake_rows, normalised
from tests.support.promise_table import COLUMNS, PromiseTable
from tests.support.retention_table import Row, at_once, run
from tests.support.seam_scene import RELEASE, canonical, pin_handles, read_handles
from tests.support.tiered import CHUNK_BYTES, tiered

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LAG = "100"
"""The two newest partitions are within it."""
LAKE_LAG = 150
"""Behind the cut-line: the retention line of `bounded` is amid a partition."""
FOREVER = 3600.0
"""A fold_age that no test reaches: corrections stay in the delta."""

_AUDIT: LiteralString = """
CREATE TABLE audit.cutlines (
    seen bigserial, xid xid8 DEFAULT pg_current_xact_id(), table_id bigint, t bigint, s bigint, location text,
    snapshot text, line bigint, f bigint);
CREATE FUNCTION audit.cutline() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO audit.cutlines (table_id, t, s, location, snapshot, line, f)
  VALUES (NEW.table_id, NEW.tier_key_hi, NEW.lake_snapshot_id, NEW.lake_props ->> 'metadata_location',
          NEW.lake_props ->> 'snapshot_id', NEW.retention_line, NEW.replicated_lsn);
  RETURN NULL; END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE ON modak.cutline FOR EACH ROW EXECUTE FUNCTION audit.cutline();

CREATE TABLE audit.partitions (seen bigserial, table_id bigint, partition_id text, state text);
CREATE FUNCTION audit.partition() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO audit.partitions (table_id, partition_id, state) VALUES (NEW.table_id, NEW.partition_id, NEW.state);
  RETURN NULL; END $$;
CREATE TRIGGER audit AFTER UPDATE OF state ON modak.partitions FOR EACH ROW WHEN (OLD.state <> NEW.state)
  EXECUTE FUNCTION audit.partition();
"""
"""Every state that a row of modak.cutline, or a partition, has had."""


@dataclass(frozen=True)
class TwoTiers:
    """A table as a reader by the protocol finds it: rows by their canonical keys."""

    t: int
    s: int
    location: str
    hot: dict[str, Row]
    """Of the heap, from the cut-line on."""
    lake: dict[str, Row]
    """Of the published snapshot, as it is."""
    cold: dict[str, Row]
    """The same, corrected by the delta."""

    @property
    def rows(self) -> list[Row]:
        return normalised([*self.hot.values(), *self.cold.values()])


@dataclass
class TableModes:
    """The mirror and its tables."""

    mirror: Mirror
    duckdb: DuckDBPyConnection
    plain: PromiseTable
    """Not registered: the mirror has nothing to do with it."""
    mirrored: PromiseTable
    retained: PromiseTable
    """Mirrored, with heap retention."""
    tiered: PromiseTable
    kept: PromiseTable
    """Tiered, and keeps its heap."""
    bounded: PromiseTable
    """Tiered, with lake retention."""
    keys: Iterator[int] = field(default_factory=lambda: itertools.count(1000))
    """Values of `id` that no row has."""

    @classmethod
    def create(
        cls,
        database: Database,
        warehouse: str,
        runner: TaskRunner,
        duckdb: DuckDBPyConnection,
        *,
        lake_partition: str | None = None,
    ) -> TableModes:
        """Creates and registers the tables, and returns when all that is due has left. No pump runs then.
        `lake_partition`: of all lake tables that can be partitioned."""
        options: dict[str, Any] = {"retention_interval": 0.1, "copy_chunk_bytes": CHUNK_BYTES, "fold_age": FOREVER}
        mirror = Mirror.create(database, warehouse, runner, **options)
        with database.session() as connection:
            connection.execute(_AUDIT)
        wishes: dict[str, RetentionOptions | None] = {
            "mirrored": None,
            "retained": at_once(LAG, lake_partition=lake_partition),
            "tiered": tiered(LAG, lake_partition=lake_partition),
            "kept": tiered(LAG, keep_heap=True, lake_partition=lake_partition),
            "bounded": tiered(LAG, lake_retention=str(LAKE_LAG), lake_partition=lake_partition),
        }
        tables = {
            name: PromiseTable(database, name=name, sheds=name in ("retained", "tiered", "bounded"))
            for name in ("plain", *wishes)
        }
        for name, table in tables.items():
            table.create(partitioned=wishes.get(name) is not None)
        for name, wish in wishes.items():
            mirror.register(name, retention=wish)
        made = cls(
            mirror,
            duckdb,
            tables["plain"],
            tables["mirrored"],
            tables["retained"],
            tables["tiered"],
            tables["kept"],
            tables["bounded"],
        )
        with made.pumping():
            made.await_settled()
        return made

    @property
    def database(self) -> Database:
        return self.mirror.database

    @property
    def registered(self) -> tuple[PromiseTable, ...]:
        return (self.mirrored, *self.divided)

    @property
    def divided(self) -> tuple[PromiseTable, ...]:
        """Tables with a cut-line."""
        return (self.retained, self.tiered, self.kept, self.bounded)

    @contextmanager
    def pumping(self, steps: Steps | None = None, **options: Any) -> Iterator[RunningPump]:
        """Runs a pump with these settings within the block."""
        with self.mirror.with_options(**options).pumping(steps) as running:
            yield running

    def folding(self) -> ExitStack:
        """A block in which a pump folds, at whose end the lake has every correction, and the delta none. Nobody may
        have pinned a table by then."""
        stack = ExitStack()
        stack.enter_context(self.pumping(fold_age=0.05))
        stack.callback(self.until, lambda: not any(table.delta() for table in self.divided), "corrections are cleared")
        return stack

    def await_folded(self) -> None:
        """Returns once the lake has every correction."""
        unfolded: LiteralString = "SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL"
        await_true(lambda: self.database.rows(unfolded) == [(0,)], 60, "all corrections are folded")

    def await_settled(self) -> None:
        """Returns once all that is due has left, rows have expired, and mirrored tables are at the present."""
        self.mirror.await_live(*(f"public.{table.name}" for table in self.registered))
        # What a pin or a lock held up waits longer with every attempt.
        resume(self.mirror.settings, ())
        for table in self.divided:
            self.until(table.settled, f"{table.name} is settled")
        self.until(lambda: self.bounded.line == self.bounded.cut - LAKE_LAG, "rows have expired")
        self.mirror.await_frontier()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Returns once the condition holds."""
        try:
            await_true(condition, 60, what)
        except AssertionError as error:
            partitions = self.database.rows(
                "SELECT partition_id, state, reason FROM modak.partitions ORDER BY table_id, tier_key_hi"
            )
            raise AssertionError(f"{error}; there is {partitions}") from None

    def read(self, table: PromiseTable) -> TwoTiers:
        """A pinned read of a table with a cut-line, by the protocol, each step in a transaction of its own."""
        with self.database.session(autocommit=False) as connection:
            pin, (t, s, location, snapshot) = pin_handles(connection, table.table_id)
            assert str(s) == snapshot
            connection.commit()
            found = self.tiers(connection, table, t, s, location)
            assert connection.execute(RELEASE, {"pin": pin}).rowcount == 1
        return found

    def tiers(
        self, connection: psycopg.Connection[Any], table: PromiseTable, t: int, s: int, location: str
    ) -> TwoTiers:
        """Both branches of a read at this cut-line and published snapshot."""
        heap = run(connection, f"SELECT {COLUMNS} FROM {table.name} WHERE at >= {t}").fetchall()
        delta = connection.execute(
            "SELECT pk, op, version, payload FROM modak.delta WHERE table_id = %s AND tier_key < %s ORDER BY version",
            (table.table_id, t),
        ).fetchall()
        lake = by_key(lake_rows(location, self.duckdb))
        cold = dict(lake)
        for pk, op, _, payload in delta:
            cold.pop(pk, None)
            if op == 0:
                cold[pk] = tuple(payload[name] for name in COLUMNS.split(", "))
        return TwoTiers(t, s, location, by_key(heap), lake, cold)

    def assert_exact(self, table: PromiseTable) -> TwoTiers:
        """Fails unless a read by the protocol finds each row of the table once. Nobody may write meanwhile."""
        found = self.read(table)
        assert not found.hot.keys() & found.cold.keys(), f"{table.name}: rows are in both tiers"
        assert all(int(row[0]) < found.t for row in found.cold.values()), f"{table.name}: the lake has rows of the heap"
        assert_same(table.model(), found.rows, f"{table.name}, read across the cut-line {found.t}")
        return found

    def compare(self, connection: psycopg.Connection[Any], table: PromiseTable) -> TwoTiers:
        """Reads both branches without a pin in the connection's database snapshot. Fails unless they have each row of
        the model, as of the same moment, once."""
        t, s, location, _ = read_handles(connection, table.table_id)
        found = self.tiers(connection, table, t, s, location)
        assert not found.hot.keys() & found.cold.keys(), f"{table.name}: rows are in both tiers"
        assert_same(table.model_on(connection), found.rows, f"{table.name}, read across the cut-line {found.t}")
        return found

    def assert_all_exact(self) -> None:
        """Fails unless every table is as its model: by the protocol, and where the heap is whole, in heap and lake."""
        for table in self.divided:
            self.assert_exact(table)
        for table in (self.plain, self.mirrored, self.kept):
            assert_same(table.model(), table.heap(), f"the heap of {table.name}")


def by_key(rows: list[Row]) -> dict[str, Row]:
    """Rows by their canonical key. Fails if two have the same one."""
    found = {canonical(row[0], row[1]): row for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found
