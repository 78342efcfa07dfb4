"""A running mirror with a table whose old partitions keep moving to the lake, and a hand-written reader of the seam
protocol."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple

import psycopg
from pyiceberg.table import StaticTable

from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.retain.retention import resume
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror, RunningPump, Steps, assert_same, await_true, lake_rows, normalised
from tests.support.events_table import COLUMNS, EventsTable, RetentionTables
from tests.support.pipeline import writing
from tests.support.retention_table import WIDTH, Row, run

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

PIN: LiteralString = """
INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)
SELECT c.table_id, c.lake_snapshot_id, c.tier_key_hi, now() + interval '15 minutes'
  FROM modak.cutline c WHERE c.table_id = %(table_oid)s
RETURNING pin_id, pinned_tier_key_hi AS t, pinned_lake_snapshot_id AS s
"""
HANDLES: LiteralString = """
SELECT lake_props->>'metadata_location' AS metadata_location, lake_props->>'snapshot_id' AS snapshot_id
  FROM modak.cutline WHERE table_id = %(table_oid)s
"""
RELEASE: LiteralString = "DELETE FROM modak.read_pins WHERE pin_id = %(pin)s"
UNPINNED: LiteralString = (
    "SELECT tier_key_hi AS t, lake_snapshot_id AS s FROM modak.cutline WHERE table_id = %(table_oid)s"
)
"""The protocol's own statements, with `%(name)s` in place of `:name`."""

STORAGE = StorageOptions(fsync=False)


class SeamHandles(NamedTuple):
    """What a reader needs of a table, in the protocol's units."""

    t: int
    """The cut-line."""
    s: int
    """ID of the published snapshot."""
    location: str
    """Its metadata file."""
    snapshot: str
    """The snapshot that the metadata file is of, by `lake_props`."""


def read_handles(connection: psycopg.Connection[Any], table_id: int) -> SeamHandles:
    """Without a pin, as the connection sees them."""
    return _handles(connection, table_id, connection.execute(UNPINNED, {"table_oid": table_id}).fetchone())


def pin_handles(connection: psycopg.Connection[Any], table_id: int) -> tuple[int, SeamHandles]:
    """Pins the table. Returns the ID of the pin too, which is not committed."""
    pinned = connection.execute(PIN, {"table_oid": table_id}).fetchone()
    assert pinned is not None
    return int(pinned[0]), _handles(connection, table_id, pinned[1:])


def _handles(connection: psycopg.Connection[Any], table_id: int, seam: Sequence[Any] | None) -> SeamHandles:
    named = connection.execute(HANDLES, {"table_oid": table_id}).fetchone()
    assert seam is not None
    assert named is not None
    return SeamHandles(int(seam[0]), int(seam[1]), str(named[0]), str(named[1]))


_AUDIT = """
CREATE TABLE audit.cutlines (
    seen bigserial, xid xid8 DEFAULT pg_current_xact_id(), t bigint, s bigint, location text, snapshot text,
    line bigint);
CREATE FUNCTION audit.cutline() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO audit.cutlines (t, s, location, snapshot, line)
  VALUES (NEW.tier_key_hi, NEW.lake_snapshot_id, NEW.lake_props ->> 'metadata_location',
          NEW.lake_props ->> 'snapshot_id', NEW.retention_line);
  RETURN NULL; END $$;
CREATE TRIGGER audit AFTER UPDATE ON modak.cutline FOR EACH ROW EXECUTE FUNCTION audit.cutline();

CREATE TABLE audit.corrections (seen bigserial, pk text, version bigint, op smallint, payload jsonb);
CREATE FUNCTION audit.correction() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO audit.corrections (pk, version, op, payload) VALUES (NEW.pk, NEW.version, NEW.op, NEW.payload);
  RETURN NULL; END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE OF version ON modak.delta FOR EACH ROW
  EXECUTE FUNCTION audit.correction();

CREATE TABLE audit.misplaced (pk text, tier_key bigint, t bigint);
CREATE FUNCTION audit.misplaced() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO audit.misplaced SELECT NEW.pk, NEW.tier_key, c.tier_key_hi FROM modak.cutline c
   WHERE c.table_id = NEW.table_id AND NEW.tier_key >= c.tier_key_hi;
  RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER misplaced AFTER INSERT OR UPDATE ON modak.delta DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION audit.misplaced();
"""
"""The result of every transaction: the cut-line, the published snapshot and its file; each version of each correction,
in the order in which its row was locked; corrections that were at or above the cut-line when their transaction
ended."""


@dataclass
class SeamScene:
    """public.events and its model, with a running pump. The older two of four partitions have left the heap."""

    events: EventsTable
    running: RunningPump
    duckdb: DuckDBPyConnection
    table_oid: int

    @property
    def mirror(self) -> Mirror:
        return self.events.mirror

    @property
    def database(self) -> Database:
        return self.mirror.database

    def rows(self, query: LiteralString, **parameters: Any) -> list[Row]:
        """The rows of a query, in its own transaction."""
        with self.database.session() as connection:
            return connection.execute(query, parameters or None).fetchall()

    def advancing(self, partitions: int = 2, least: int = 10, seconds: float = 90) -> Iterator[int]:
        """Counts from 0 until the cut-line has passed that many more partitions, and at least so far."""
        target = self.events.cut + partitions * WIDTH
        for _ in range(partitions):
            self.events.grow()
        deadline = time.monotonic() + seconds
        turn = 0
        while turn < least or self.events.cut < target:
            assert time.monotonic() < deadline, f"the cut-line does not reach {target}: {self.events.explained()}"
            yield turn
            turn += 1

    def await_folded(self) -> None:
        """Returns once every correction is in the lake."""
        await_true(
            lambda: self.rows("SELECT count(*) FROM modak.delta WHERE folded_sequence IS NULL") == [(0,)], 30, "folds"
        )

    def await_cut(self) -> None:
        """Returns once the cut-line has passed the sealed partitions. It waits as long as a reader pins them."""
        sealed: LiteralString = "SELECT partition_id FROM modak.partitions WHERE state = 'sealing'"
        await_true(lambda: self.rows(sealed) == [], 60, "the cut-line passes what is sealed")

    def await_quiet(self) -> None:
        """Returns once everything due has left the heap, and no correction waits for a fold."""

        def gone() -> bool:
            states = list(self.events.states().values())
            return set(states) <= {"hot", "dropped"} and states.count("hot") == 2

        # What a pin or a lock held up waits longer with every attempt.
        resume(self.mirror.settings, ())
        try:
            await_true(gone, 60, "what is due has left the heap")
        except AssertionError as error:
            raise AssertionError(f"{error}; there is {self.events.explained()}") from None
        self.await_folded()

    def cold(self, connection: psycopg.Connection[Any], location: str, t: int) -> dict[str, Row]:
        """The lake's rows at the published snapshot by their canonical key, corrected by the delta as this connection
        sees it: the largest version of a key wins. The published snapshot is scanned without a filter."""
        scanned = lake_rows(location, self.duckdb)
        assert not [row for row in scanned if row[0] >= t], f"the snapshot holds rows at or above the cut-line {t}"
        cold = {canonical(row[0], row[1]): row for row in scanned}
        assert len(cold) == len(scanned), "the snapshot holds a key twice"
        candidates = connection.execute(
            "SELECT pk, version, op, payload FROM modak.delta WHERE table_id = %s AND tier_key < %s",
            (self.table_oid, t),
        ).fetchall()
        newest: dict[str, tuple[int, int, Any]] = {}
        for pk, version, op, payload in candidates:
            if pk not in newest or newest[pk][0] < version:
                newest[pk] = version, op, payload
        for pk, (_, op, payload) in newest.items():
            cold.pop(pk, None)
            if op == 0:
                cold[pk] = tuple(payload[name] for name in COLUMNS.split(", "))
        return cold

    def compare(self, connection: psycopg.Connection[Any], t: int, location: str, what: str) -> None:
        """Reads both branches in the connection's snapshot. Fails unless together they equal the model, with no key in
        both."""
        found = run(connection, f"SELECT {COLUMNS} FROM events WHERE at >= {t}").fetchall()
        hot = {canonical(row[0], row[1]): row for row in found}
        cold = self.cold(connection, location, t)
        both = hot.keys() & cold.keys()
        assert not both, f"in both: {sorted(both)[:5]}"
        model = run(connection, f"SELECT {COLUMNS} FROM model").fetchall()
        merged = normalised([*hot.values(), *cold.values()])
        assert_same(normalised(model), merged, f"{what} at the cut-line {t}")

    def read(self, what: str = "an unpinned read") -> None:
        """One whole read in its own snapshot, compared."""
        with self.database.session(autocommit=False) as connection:
            repeatable(connection)
            t, _, location, _ = self.seam(connection)
            self.compare(connection, t, location, what)

    def seam(self, connection: psycopg.Connection[Any]) -> SeamHandles:
        """What a reader of public.events needs, as the connection sees it."""
        return read_handles(connection, self.table_oid)

    def upsert(self, at: int, value: str) -> None:
        """Upserts a row with key (at, 1000), which no writer uses."""
        with self.database.session(autocommit=False) as connection:
            connection.execute(
                "SELECT modak.upsert('events',"
                " jsonb_build_object('at', %s::bigint, 'id', 1000, 'n', 1, 'v', %s::text))",
                (at, value),
            )
            connection.execute(
                "INSERT INTO model VALUES (%s, 1000, 1, %s) ON CONFLICT (at, id) DO UPDATE SET v = excluded.v",
                (at, value),
            )

    @contextmanager
    def busy(self, writers: int = 1) -> Iterator[None]:
        """Runs writers of rows above and below the cut-line, by every allowed path, within the block."""
        seeds = [random.getrandbits(32) for _ in range(writers)]
        print(f"writers' seeds {seeds}")
        with ExitStack() as stack:
            for seed in seeds:
                stack.enter_context(writing(self.database, self.events.write, seed))
            yield

    def seam_now(self) -> tuple[int, int, str, str]:
        """The same as of now."""
        with self.database.session(autocommit=False) as connection:
            repeatable(connection)
            return self.seam(connection)

    def snapshots(self) -> set[int]:
        """IDs of the snapshots in the lake table's history."""
        metadata = read_metadata(self.mirror.location("public.events"), STORAGE)
        return {int(snapshot.snapshot_id) for snapshot in metadata.snapshots}


def canonical(*parts: object) -> str:
    """The protocol's key: a single part unchanged; several parts, each escaped, joined by chr(31)."""
    if len(parts) == 1:
        return str(parts[0])
    return "\x1f".join(str(part).replace("\\", "\\\\").replace("\x1f", "\\\x1f") for part in parts)


def by_pyiceberg(location: str) -> list[Row] | None:
    """Every row as pyiceberg reads it, normalised; None while there are equality deletes, which it does not support."""
    try:
        scanned = StaticTable.from_metadata(location).scan().to_arrow()
    except ValueError as error:
        if "equality deletes" not in str(error):
            raise
        return None
    return normalised(list(zip(*scanned.to_pydict().values(), strict=True)))


def repeatable(connection: psycopg.Connection[Any]) -> None:
    """Everything that the transaction reads from here on is as of one point in time."""
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


@contextmanager
def scene(database: Database, warehouse: str) -> Iterator[SeamScene]:
    """The scene within the block. At its end, everything must have been right, and be right."""
    tables = RetentionTables(database, warehouse)
    events = tables.automatic(fold_age=0.1, reconnect_backoff_max=0.5, convert_age=0.5)
    mirror = events.mirror
    with database.session() as connection:
        connection.execute(_AUDIT)
    oid = int(database.rows("SELECT 'events'::regclass::oid::bigint")[0][0])
    with duckdb_connection() as duckdb, mirror.pumping(Steps()) as running:
        mirror.await_live("public.events")
        events.await_state(p0="dropped", p1="dropped")
        made = SeamScene(events, running, duckdb, oid)
        yield made
        made.await_quiet()
        made.read("the last read")
        mirror.assert_sound()
        assert made.rows("SELECT * FROM modak.read_pins") == []
        assert made.rows("SELECT retention_stopped FROM modak.status") == [(None,)], "a proof failed"
    tables.close()
