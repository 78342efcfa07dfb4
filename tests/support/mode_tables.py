"""Tables of all modes side by side in one mirror, each with a model: writes of every kind, and reads of every kind.

`plain` is mirrored, `shed` has heap retention, `aged` is tiered, `kept` keeps its heap, and rows of `bounded` expire.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

import psycopg

from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.table_reads import ReadMode
from mirror_pump.testing.lake import metadata_location_on
from mirror_pump.testing.mirror import Mirror, assert_same, normalised
from tests.support.events_table import COLUMNS, EventsTable
from tests.support.model_history import ModelHistory
from tests.support.retention_table import WIDTH, Row, at_once, run
from tests.support.tiered import tiered

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_BASE = tuple(COLUMNS.split(", "))
_LOWEST = -(2**63)
_SNAPSHOT = b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"


class ModeKind(StrEnum):
    """The mode of a table, which is its name, too."""

    PLAIN = "plain"
    SHED = "shed"
    AGED = "aged"
    KEPT = "kept"
    BOUNDED = "bounded"

    @property
    def streams(self) -> bool:
        """Whether its changes come by the replication slot, so that its lake has a frontier."""
        return self in (ModeKind.PLAIN, ModeKind.SHED)

    @property
    def whole(self) -> bool:
        """Whether the heap has all rows."""
        return self in (ModeKind.PLAIN, ModeKind.KEPT)

    @property
    def lag_key(self) -> str | None:
        """The option that says when partitions are due."""
        return {ModeKind.PLAIN: None, ModeKind.SHED: "heap_retention"}.get(self, "lag")


@dataclass
class ModeTable(EventsTable):
    """One of them. Its partitions are called `<kind>_0`, `<kind>_1`, and so on."""

    kind: ModeKind = ModeKind.AGED
    further: int = 0
    """Columns that were added."""
    format_version: int = 2
    """Of its lake table when it is registered."""

    @classmethod
    def of(cls, mirror: Mirror, kind: ModeKind, rows: int, history: ModelHistory) -> Self:
        """Creates it with four partitions of `rows` rows. It is not registered."""
        self = cls.automatic(mirror, 0, 0, lag=None, name=kind, model=f"{kind}_model", prefix=f"{kind}_")
        self.kind = kind
        history.watch(self.model)
        for _ in range(4):
            self.grow(rows)
        return self

    def register(self) -> None:
        """Registers it; partitions are due when they lie 100 behind the newest key."""
        wish = {
            ModeKind.PLAIN: None,
            ModeKind.SHED: at_once("100"),
            ModeKind.AGED: tiered(),
            ModeKind.KEPT: tiered(keep_heap=True),
            ModeKind.BOUNDED: tiered(lake_retention="150"),
        }[self.kind]
        self.mirror.register(f"public.{self.name}", retention=wish, format_version=self.format_version)

    def grow(self, rows: int = 20) -> None:
        """Adds a partition with rows above all others."""
        number = self.partitions
        with self.database.session(autocommit=False) as connection:
            connection.execute("SET LOCAL lock_timeout = '5s'")
            self.make_partition(connection, number)
            for table in (self.name, self.model):
                run(
                    connection,
                    f"INSERT INTO {table} (at, id, n, v) SELECT {number * WIDTH} + g * {WIDTH} / {rows}, g, 0, 'grown'"
                    f" FROM generate_series(0, {rows - 1}) g",
                )
        self.partitions += 1

    def add_column(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        """Adds a column in the open transaction; `column_added` after its commit."""
        definition = chance.choice(("int", "text", "int NOT NULL DEFAULT 17", "text NOT NULL DEFAULT 'web'"))
        for table in (self.name, self.model):
            run(connection, f"ALTER TABLE {table} ADD COLUMN c{self.further} {definition}")

    def column_added(self) -> None:
        """What `add_column` has added is there."""
        self.columns += f", c{self.further}"
        self.further += 1

    def write(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        match chance.randrange(12):
            case 0 | 1 | 2:
                self._insert(connection, chance)
            case 3 if self.further:
                self._update_further(connection, chance)
            case _:
                super().write(connection, chance)

    def _insert(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        """Some rows with keys that nobody has, anywhere."""
        ids = connection.execute("SELECT nextval('audit.ids') FROM generate_series(1, %s)", (chance.randrange(1, 8),))
        values = ", ".join(
            f"({chance.randrange(self.partitions * WIDTH)}, {id_}, {chance.randrange(99)}, 'late')" for (id_,) in ids
        )
        for table in (self.name, self.model):
            run(connection, f"INSERT INTO {table} (at, id, n, v) VALUES {values}")

    def _update_further(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        """Changes an added column of rows that the heap has."""
        at, column = chance.randrange(self.partitions * WIDTH), f"c{chance.randrange(self.further)}"
        value = chance.randrange(100)
        for where in run(
            connection,
            f"UPDATE {self.name} SET {column} = '{value}' WHERE at BETWEEN {at} AND {at + 9} RETURNING at, id",
        ).fetchall():
            run(connection, f"UPDATE {self.model} SET {column} = '{value}' WHERE (at, id) = {where}")

    def truncate(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        """Truncates a partition in the open transaction. Where the lake alone has old rows, a TRUNCATE does not reach
        them, so it is one that the cut-line has not passed. Raises UndefinedTable for others. Nobody may read
        meanwhile: to a snapshot from before, the partition is empty, too."""
        number = chance.randrange(self.partitions)
        run(connection, f"TRUNCATE {self.prefix}{number}")
        cut = run(connection, f"SELECT tier_key_hi FROM modak.cutline WHERE table_id = {self.table_id}").fetchone()
        if not self.kind.whole and cut is not None and cut[0] > number * WIDTH:
            raise psycopg.errors.UndefinedTable("the cut-line has passed it")
        run(connection, f"DELETE FROM {self.model} WHERE at >= {number * WIDTH} AND at < {(number + 1) * WIDTH}")

    @property
    def line(self) -> int:
        """The retention line."""
        rows = self.database.rows("SELECT retention_line FROM modak.cutline WHERE table_id = %s", (self.table_id,))
        return _LOWEST if not rows or rows[0][0] is None else int(rows[0][0])

    def lines_since(self, line: int) -> set[int]:
        """The retention lines that the table had since this one."""
        moved = self.database.rows(
            "SELECT (details ->> 'line')::bigint FROM modak.op_log"
            " WHERE table_id = %s AND details ->> 'kind' = 'expire'",
            (self.table_id,),
        )
        return {line, self.line, *(later for (later,) in moved if later >= line)}

    def leaving(self) -> dict[str, list[int]]:
        """Numbers of partitions by state."""
        found: dict[str, list[int]] = {}
        for state, name in self.database.rows(
            "SELECT state, partition_id FROM modak.partitions WHERE table_id = %s ORDER BY tier_key_hi",
            (self.table_id,),
        ):
            number = name.rpartition("_")[2]
            if number.isdecimal():
                found.setdefault(state, []).append(int(number))
        return found

    def assert_heap(self, *, whole: bool = False) -> None:
        """Fails unless the heap has exactly the rows of the partitions that are attached; `whole`: of all."""
        with self.database.session(autocommit=False) as connection:
            connection.execute("SET LOCAL lock_timeout = '20s'")
            connection.execute(_SNAPSHOT)
            # Before the snapshot is taken: no partition can leave from here on.
            run(connection, f"LOCK TABLE {self.name} IN ACCESS SHARE MODE")
            attached = connection.execute(
                "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::oid", (self.table_id,)
            ).fetchall()
            heap = run(connection, f"SELECT {self.columns} FROM {self.name}").fetchall()
            model = run(connection, f"SELECT {self.columns} FROM {self.model}").fetchall()
        there = {name.removeprefix(self.prefix) for (name,) in attached}
        wanted = [row for row in model if str(row[0] // WIDTH) in there]
        assert_same(wanted, heap, f"the heap of {self.name}, with partitions {sorted(there)}")
        if whole or self.kind.whole:
            assert_same(model, heap, f"the whole heap of {self.name}")

    def assert_main(self, history: ModelHistory, duckdb: DuckDBPyConnection) -> bool:
        """Fails unless the lake's current snapshot is the table at its frontier, with the published snapshot's rows
        below the cut-line. Returns whether there was anything to compare."""
        with self.database.session(autocommit=False) as connection:
            connection.execute(_SNAPSHOT)
            row = connection.execute(
                "SELECT c.tier_key_hi, c.replicated_lsn, c.lake_props ->> 'metadata_location'"
                "  FROM modak.cutline c JOIN modak.mirror_tables m USING (table_id)"
                " WHERE c.table_id = %s AND m.state = 'live'",
                (self.table_id,),
            ).fetchone()
            if row is None or (self.kind.streams and row[1] is None):
                return False
            main = metadata_location_on(connection, f"public.{self.name}")
        cut, frontier, published = row
        found = _base_rows(main, duckdb)
        if self.kind is ModeKind.PLAIN:
            assert_same(history.at(frontier, self.model), found, f"main of {self.name} at frontier {frontier}")
            return True
        below = [each for each in found if each[0] < cut]
        assert_same(_base_rows(published, duckdb), below, f"main of {self.name} below the cut-line {cut}")
        above = [each for each in found if each[0] >= cut]
        if self.kind is ModeKind.SHED:
            wanted = [each for each in history.at(frontier, self.model) if each[0] >= cut]
            assert_same(wanted, above, f"main of {self.name} from the cut-line {cut} on at frontier {frontier}")
        else:
            assert not above, f"main of {self.name} has rows from the cut-line {cut} on: {above[:5]}"
        return True

    def model_rows(self, columns: str = COLUMNS) -> list[Row]:
        """The model now."""
        with self.database.session() as connection:
            return normalised(run(connection, f"SELECT {columns} FROM {self.model}").fetchall())


def assert_products_read(tables: Sequence[ModeTable], mode: ReadMode) -> None:
    """Fails unless one statement of `mirror-pump sql` finds all of these tables as they are. Nobody writes meanwhile;
    pumps may do what they do. Mode `lake` is not for this: it lags."""
    before = {table.name: table.line for table in tables}
    # AT is a reserved word in DuckDB.
    each = [f"SELECT '{table.name}' AS t, \"at\", id, n, v FROM public.{table.name}" for table in tables]
    statement = " UNION ALL ".join(each)
    with open_query(tables[0].mirror.settings, Query(statement, mode, max_wait=30), lambda _: None) as duckdb:
        rows = duckdb.execute(statement).fetchall()
    for table in tables:
        found = normalised([row[1:] for row in rows if row[0] == table.name])
        _assert_one_of(table, found, table.lines_since(before[table.name]), f"{table.name} by the product, {mode}")


def _assert_one_of(table: ModeTable, found: list[Row], lines: set[int], what: str) -> None:
    """Fails unless the rows are the table's from one of the retention lines on."""
    model = table.model_rows()
    candidates = [[row for row in model if row[0] >= line] for line in sorted(lines)]
    if found not in candidates:
        assert_same(candidates[-1], found, what)


def _base_rows(location: str, duckdb: DuckDBPyConnection) -> list[Row]:
    """The rows of a metadata file, without columns that were added."""
    table = duckdb.execute(f"SELECT * FROM iceberg_scan('{location}')").to_arrow_table()
    return normalised(list(zip(*(table.column(name).to_pylist() for name in _BASE), strict=True)))
