"""Clients that read all tables, each by one door, and note what they saw."""

from __future__ import annotations

import json
import random
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from pyiceberg.catalog.rest import RestCatalog

from mirror_pump.database.catalog_cursor import CatalogCursor
from mirror_pump.model import parse_lsn
from mirror_pump.ops.duckdb_connection import open_duckdb
from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.settings.config import Settings
from mirror_pump.testing.mirror import await_true
from mirror_pump.testing.program import Program, ProgramFailed
from proofs.histories.recorder import Recorder
from proofs.histories.writers import values_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

PATIENCE = 30
"""Seconds for which a reader waits for the mirror to be where it wants it."""
PLAIN = "abxy"
"""The tables that are wholly in the lake."""


@dataclass(frozen=True)
class Doors:
    """Where the mirror can be read, and where it is noted."""

    dsn: str
    uri: str
    """Of the REST catalog."""
    program: Program
    settings: Settings
    recorder: Recorder

    def config(self, warehouse: str) -> Mapping[str, str]:
        """What the catalog says of a warehouse."""
        address = f"{self.uri}/v1/config?warehouse={warehouse}"
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
            return dict(json.load(answer)["defaults"])

    def exact(self, warehouse: str) -> str:
        """The warehouse, with the position in place of `latest`."""
        return warehouse.replace("latest", self.config(warehouse)["mirror-pump.frontier"].replace("/", "-"))

    def connect(self) -> psycopg.Connection[Any]:
        """A connection in autocommit; the caller closes it."""
        return psycopg.connect(self.dsn, autocommit=True, connect_timeout=5, cursor_factory=CatalogCursor)

    @contextmanager
    def attached(self, duckdb: DuckDBPyConnection, warehouse: str) -> Iterator[None]:
        """The warehouse is `lake` in DuckDB."""
        options = f"TYPE iceberg, ENDPOINT '{self.uri}', AUTHORIZATION_TYPE 'none', ACCESS_DELEGATION_MODE 'none'"
        duckdb.execute(f"ATTACH '{warehouse}' AS lake ({options})")
        try:
            yield
        finally:
            duckdb.execute("DETACH lake")

    def await_live(self, seconds: float) -> None:
        """Returns once all tables can be read."""
        states = "SELECT state FROM modak.mirror_tables WHERE state <> 'live'"

        def all_live() -> bool:
            with closing(self.connect()) as connection:
                return not connection.execute(states.encode()).fetchall()

        await_true(all_live, seconds, "all tables are live")

    def wait(self) -> None:
        """Returns once the mirror has what is committed now. Raises TimeoutError."""
        with closing(self.connect()) as connection:
            if connection.execute("SELECT modak.wait_for(NULL, make_interval(secs => %s))", (PATIENCE,)).fetchone() != (
                True,
            ):
                raise TimeoutError("the mirror is behind")

    def tables(self, duckdb: DuckDBPyConnection, warehouse: str) -> dict[str, Any]:
        """What DuckDB reads of the tables without heap retention."""
        with self.attached(duckdb, warehouse):
            query = " UNION ALL ".join(_select(table, f"lake.public.{table}") for table in PLAIN)
            return seen(duckdb.execute(query).fetchall(), PLAIN)


def _select(table: str, source: str) -> str:
    return f"SELECT '{table}' AS t, k, {'n' if table in 'xy' else 'v'}::VARCHAR AS v FROM {source}"


def seen(rows: list[tuple[str, int, str]], tables: str, **fields: Any) -> dict[str, Any]:
    """The fields of a read, of rows of (table, key, value as text)."""
    lists = [["r", f"{table}/{key}", values_of(value)] for table, key, value in rows if table not in "xy"]
    balances = {f"{table}/{key}": int(value) for table, key, value in rows if table in "xy"}
    return {"value": sorted(lists), "balances": balances, "tables": list(tables), **fields}


class Reader:
    """A client that reads by one door, again and again."""

    door: str
    notes: tuple[str, ...] = ()
    """Doors of the parts of what it reads; by default it reads all by its own."""

    def __init__(self, doors: Doors, seed: str) -> None:
        self._doors = doors
        self._chance = random.Random(f"{seed} {self.door}")
        self._duckdb = open_duckdb("httpfs")

    def read(self) -> list[dict[str, Any]]:
        """The fields of what is read, for each of `notes`."""
        raise NotImplementedError

    def work(self, stop: threading.Event, pause: float) -> None:
        """Reads until it is stopped. A read that fails has shown nothing: it is noted, and given again."""
        while not stop.is_set():
            self.once()
            stop.wait(self._chance.uniform(0, 2 * pause))

    def once(self) -> bool:
        """Reads once, and notes it. Whether it did not fail."""
        recorder = self._doors.recorder
        doors = self.notes or (self.door,)
        processes = [f"{self.door} reader, {door}" for door in doors]
        for process in processes:
            recorder.note(process, "invoke", value=[])
        try:
            parts = self.read()
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever an engine says: it has shown nothing
            for process, door in zip(processes, doors, strict=True):
                text = f"{type(error).__name__}: {error}"[:300]
                recorder.note(process, "fail", value=[], door=door, error=text)
            return False
        for process, door, part in zip(processes, doors, parts, strict=True):
            recorder.note(process, "ok", **{"door": door, **part})
        return True


class Latest(Reader):
    """DuckDB, `mirror@latest`."""

    door = "latest"

    def read(self) -> list[dict[str, Any]]:
        return [self._doors.tables(self._duckdb, "mirror@latest")]


class Waited(Reader):
    """The same, after `modak.wait_for()`."""

    door = "wait"

    def read(self) -> list[dict[str, Any]]:
        self._doors.wait()
        return [self._doors.tables(self._duckdb, "mirror@latest")]


class AtFrontier(Reader):
    """`mirror@F`: the present frontier, or one that it has read before."""

    door = "frontier"

    def __init__(self, doors: Doors, seed: str) -> None:
        super().__init__(doors, seed)
        self._read: list[str] = []

    def read(self) -> list[dict[str, Any]]:
        warehouse = self._doors.exact("mirror@latest")
        if self._read and self._chance.random() < 0.5:
            warehouse = self._chance.choice(self._read)
        self._read = [*self._read, warehouse][-20:]
        frontier = parse_lsn(warehouse.partition("@")[2].replace("-", "/"))
        return [{**self._doors.tables(self._duckdb, warehouse), "frontier": frontier}]


class ByPyiceberg(Reader):
    """pyiceberg, `mirror@latest`. It refuses tables with equality deletes."""

    door = "pyiceberg"

    def read(self) -> list[dict[str, Any]]:
        catalog = RestCatalog("lake", uri=self._doors.uri, warehouse="mirror@latest")
        rows = []
        for table in PLAIN:
            arrow = catalog.load_table(("public", table)).scan().to_arrow()
            values = arrow["n" if table in "xy" else "v"].to_pylist()
            rows += [(table, key, str(value)) for key, value in zip(arrow["k"].to_pylist(), values, strict=True)]
        return [seen(rows, PLAIN)]


class _BySql(Reader):
    """`mirror-pump sql`, all tables in one statement."""

    mode: ReadMode

    def read(self) -> list[dict[str, Any]]:
        statement = " UNION ALL ".join(_select(table, f"public.{table}") for table in "abcxy")
        warnings: list[str] = []
        query = Query(statement, self.mode, max_wait=PATIENCE)
        with open_query(self._doors.settings, query, warnings.append) as duckdb:
            rows = duckdb.execute(statement).fetchall()
        if any("heap" in warning for warning in warnings) and self.mode is ReadMode.HYBRID:
            raise TimeoutError(warnings[0])
        return [seen([row for row in rows if row[0] in tables], tables) for tables in (PLAIN, "c")]


class BySeam(_BySql):
    """The lake at its frontier, and `c` as it is now."""

    door, notes, mode = "seam", ("lake", "seam"), ReadMode.SEAM


class ByHybrid(_BySql):
    """Lake and heap, at a frontier that the read waits for, and `c` as it is now."""

    door, notes, mode = "hybrid", ("hybrid", "seam"), ReadMode.HYBRID


class ByHand(Reader):
    """Plain SQL and DuckDB, across the cut-line, as docs/reading.md has it."""

    door = "hand"

    def read(self) -> list[dict[str, Any]]:
        while True:
            with closing(self._doors.connect()) as connection:
                pinned = connection.execute(
                    "SELECT pin_id, t, s, metadata_location FROM modak.pin('public.c', in_one_snapshot => true)"
                ).fetchone()
                assert pinned is not None
                rows = self._rows(connection, *pinned[1:])
                connection.execute("SELECT modak.release(%s)", pinned[:1])
            if rows is not None:
                return [seen([("c", key, value) for key, value in rows.items()], "c")]

    def _rows(self, connection: psycopg.Connection[Any], cut: int, snapshot: int, file: str) -> dict[int, str] | None:
        """The rows of both sides. None if the cut-line has moved since the pin."""
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            heap = connection.execute("SELECT k, v FROM public.c WHERE k >= %s", (cut,)).fetchall()
            corrections = connection.execute(
                "SELECT pk::bigint, op, payload ->> 'v' FROM modak.delta"
                " WHERE table_id = 'public.c'::regclass::oid::bigint AND tier_key < %s ORDER BY version",
                (cut,),
            ).fetchall()
            state = connection.execute(
                "SELECT tier_key_hi, lake_snapshot_id FROM modak.cutline"
                " WHERE table_id = 'public.c'::regclass::oid::bigint"
            ).fetchone()
        if state != (cut, snapshot):
            return None
        rows = dict(self._duckdb.execute(f"SELECT k, v FROM iceberg_scan('{file}')").fetchall())
        for key, op, value in corrections:
            rows.pop(key, None)
            if op == 0:
                rows[key] = value
        assert not rows.keys() & dict(heap).keys(), "a row is on both sides of the cut-line"
        return rows | dict(heap)


class InPostgres(Reader):
    """PostgreSQL alone, in one snapshot: a control, which shows that the judge accepts what is right."""

    door = "postgres"

    def read(self) -> list[dict[str, Any]]:
        query = " UNION ALL ".join(_select(table, f"public.{table}") for table in PLAIN)
        with closing(self._doors.connect()) as connection:
            return [seen(connection.execute(query.encode()).fetchall(), PLAIN)]


class OfMoments(Reader):
    """Keeps moments, reads each several times, later too, and drops it."""

    door = "moment"

    def __init__(self, doors: Doors, seed: str) -> None:
        super().__init__(doors, seed)
        self._kept: dict[str, int] = {}
        self._number = 0

    def read(self) -> list[dict[str, Any]]:
        if self._chance.random() < 0.3:
            self._keep()
        if not self._kept:
            raise LookupError("no moment is kept")
        name = self._chance.choice(list(self._kept))
        return [{**self._doors.tables(self._duckdb, f"mirror@{name}"), "frontier": self._kept[name]}]

    def _keep(self) -> None:
        self._number += 1
        name = f"m{self._number}"
        with suppress(ProgramFailed):
            words = self._doors.program.run("moment", "keep", name).partition(" at frontier ")[2].split()
            self._kept = {**self._kept, name: parse_lsn(words[0])}
        if len(self._kept) > 4:
            oldest = next(iter(self._kept))
            with suppress(ProgramFailed):
                self._doors.program.run("moment", "drop", oldest, "--yes")
            self._kept = {name: frontier for name, frontier in self._kept.items() if name != oldest}


class OfFeeds(Reader):
    """`mirror@A..B`, then `mirror@B..C`, and sometimes all of the last ones at once."""

    door = "feed"

    def __init__(self, doors: Doors, seed: str) -> None:
        super().__init__(doors, seed)
        self._ends: list[str] = []

    def read(self) -> list[dict[str, Any]]:
        if not self._ends:
            self._ends = [self._doors.exact("mirror@latest").partition("@")[2]]
            raise LookupError("this is where the first feed begins")
        if len(self._ends) > 3 and self._chance.random() < 0.3:
            since, until = self._ends[-4], self._ends[-1]
            return [self._changes(since, until, is_whole=True)]
        since = self._ends[-1]
        until = self._doors.exact(f"mirror@{since}..latest").partition("..")[2]
        fields = self._changes(since, until, is_whole=False)
        self._ends = [*self._ends, until][-4:]
        return [fields]

    def _changes(self, since: str, until: str, *, is_whole: bool) -> dict[str, Any]:
        rows: list[list[Any]] = []
        with self._doors.attached(self._duckdb, f"mirror@{since}..{until}"):
            for table in PLAIN:
                column = "n" if table in "xy" else "v"
                for op, key, value, *place in self._duckdb.execute(
                    f"SELECT _op, k, {column}, _lsn, _seq, _xid FROM lake.public.{table}"
                ).fetchall():
                    is_list = table not in "xy" and value is not None
                    rows.append([table, op, key, values_of(value) if is_list else value, *place])
        ends = {"since": parse_lsn(since.replace("-", "/")), "until": parse_lsn(until.replace("-", "/"))}
        return {"value": [], "rows": rows, "whole": is_whole, **ends}


READERS: tuple[type[Reader], ...] = (
    Latest, Waited, AtFrontier, ByPyiceberg, BySeam, ByHybrid, ByHand, InPostgres, OfMoments, OfFeeds,
)  # fmt: skip
