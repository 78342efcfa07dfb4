"""The table with heap retention that most tests use: its model, a writer, and reads across the cut-line."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import psycopg

from mirror_pump.engine.spark_runtime.runner import TaskRunner
from mirror_pump.partition_life import Refused
from mirror_pump.pipeline.flow.events import PublishWanted
from mirror_pump.pipeline.operations.advance_cutline import AdvanceCutline
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import connect
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, RunningPump, assert_same, await_true, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.retention_table import WIDTH, RetentionTable, Row, at_once, run

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

COLUMNS = "at, id, n, v"


@dataclass
class EventsTable(RetentionTable):
    """public.events (at bigint, id bigint, n int, v text) in a mirror, and public.model, a plain table that gets every
    change in the same transaction. Both may have other names."""

    mirror: Mirror = field(kw_only=True)
    model: str = "model"
    columns: str = COLUMNS
    passed: int = 0
    """Partitions that the cut-line has passed by `advance`."""

    @classmethod
    def automatic(
        cls,
        mirror: Mirror,
        partitions: int = 4,
        rows: int = 40,
        *,
        lag: str | None = "100",
        premake: int = 0,
        computed: str | None = None,
        lake_partition: str | None = None,
        name: str = "events",
        model: str = "model",
        prefix: str = "p",
    ) -> Self:
        """Creates a table whose partitions the pump seals and drops, and whose cut-line it moves. A pump has to copy
        it. It is not registered if `lag` is None. `computed` is the expression of an additional stored column `g
        bigint`."""
        self = cls(mirror.database, partitions, name, prefix, mirror=mirror, model=model)
        definitions = "at bigint, id bigint, n int, v text"
        if computed is not None:
            self.columns += ", g"
            definitions += f", g bigint GENERATED ALWAYS AS ({computed}) STORED"
        self.create_tables(f"{definitions}, PRIMARY KEY (at, id)", model=model)
        self._fill(rows, "g, 0, 'first'")
        if lag is not None:
            mirror.register(f"public.{name}", retention=at_once(lag, premake, lake_partition=lake_partition))
        return self

    @classmethod
    def manual(cls, mirror: Mirror, partitions: int = 3, rows: int = 50) -> EventsTable:
        """Creates and registers a table whose partitions the test seals, and whose cut-line it moves through a pump,
        which has to copy it first. It has a DEFAULT partition, and a column `big text` with values that Postgres stores
        out of line."""
        self = cls(mirror.database, partitions, mirror=mirror, columns=f"{COLUMNS}, big")
        self.create_tables(
            "at bigint, id bigint, n int, v text, big text, PRIMARY KEY (at, id)", model="model", default=True
        )
        self._fill(rows, "g, 0, 'first', repeat(md5(g::text), 80)")
        mirror.register("public.events")
        self.record_retention()
        return self

    def _fill(self, rows: int, values: str) -> None:
        """Inserts `rows` rows per partition, evenly spread."""
        with self.database.session(autocommit=False) as connection:
            for table in (self.name, self.model):
                run(
                    connection,
                    f"INSERT INTO {table} SELECT p * {WIDTH} + g * {WIDTH} / {rows}, {values}"
                    f" FROM generate_series(0, {self.partitions - 1}) p, generate_series(0, {rows - 1}) g",
                )

    def grow(self) -> None:
        """Adds another partition with rows above all others, so that one more below becomes due."""
        number = self.partitions
        with self.database.session(autocommit=False) as connection:
            self.make_partition(connection, number)
            for table in (self.name, self.model):
                run(
                    connection,
                    f"INSERT INTO {table} SELECT {number * WIDTH} + g * 5, g, 0, 'grown' FROM generate_series(0, 19) g",
                )
        self.partitions += 1

    def seal(self) -> None:
        """Seals the partition that the cut-line passes next."""
        self.begin_seal(f"p{self.passed}")

    def try_advance(self, running: RunningPump) -> str | None:
        """Asks the pump once to move the cut-line past the sealed partition. Returns why it did not, or None."""
        with connect(self.database.dsn, autocommit=True) as connection:
            table = load_table(connection, self.table_id)
        assert table is not None
        name = f"p{self.passed}"
        wanted = PublishWanted(table, AdvanceCutline(name, (self.passed + 1) * WIDTH))
        running.pump.submit(wanted)
        await_true(wanted.answer.done, 30, "an answer to the advance")
        if wanted.answer.cancelled():
            return "the session ended"
        result = wanted.answer.result()
        return result.reason if isinstance(result, Refused) else None

    def advance(self, running: RunningPump) -> None:
        """Has the pump move the cut-line past the next partition."""
        self.seal()
        self.finish_advance(running)

    def finish_advance(self, running: RunningPump) -> None:
        """Has the pump move the cut-line past the sealed partition."""
        self.mirror.await_frontier()
        await_true(lambda: self.try_advance(running) is None, 30, "the cut-line moved")
        self.passed += 1

    def seam(
        self, duckdb: DuckDBPyConnection | None = None, pin: tuple[int, str] | None = None
    ) -> tuple[list[Row], list[Row]]:
        """The table as a seam read finds it, and the model from the retention line on, both as of one Postgres
        snapshot. The published snapshot is scanned without a filter. `pin`: the cut-line and the metadata file of a pin
        that is held, to be read instead of the present ones."""
        with self.database.session(autocommit=False) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            row = connection.execute(
                "SELECT tier_key_hi, lake_props ->> 'metadata_location', coalesce(retention_line, -9223372036854775808)"
                " FROM modak.cutline WHERE table_id = %s",
                (self.table_id,),
            ).fetchone()
            assert row is not None
            present, location, line = row
            cut = present
            if pin is not None:
                cut, location = pin
            delta = connection.execute(
                "SELECT op, tier_key, payload FROM modak.delta"
                " WHERE table_id = %s AND tier_key >= %s AND (tier_key < %s OR tier_key >= %s) ORDER BY version",
                (self.table_id, line, cut, present),
            ).fetchall()
            initial = connection.execute("SELECT * FROM modak.initial_values(%s)", (self.name,)).fetchall()
            hot = run(connection, f"SELECT {self.columns} FROM {self.name} WHERE at >= {cut}").fetchall()
            model = run(connection, f"SELECT {self.columns} FROM {self.model} WHERE at >= {line}").fetchall()
        cold = cold_rows(location, self.columns, initial, duckdb)
        if pin is not None:
            # The line may have moved since.
            cold = {key: row for key, row in cold.items() if key[0] >= line}
        for op, tier_key, payload in delta:
            assert tier_key < cut, "every delta row targets a cold row"
            key = (payload["at"], payload["id"])
            cold.pop(key, None)
            if op == 0:
                cold[key] = tuple(payload[name] for name in self.columns.split(", "))
        assert all(key[0] < cut for key in cold), f"the snapshot holds a row at or above the cut-line {cut}"
        assert all(key[0] >= line for key in cold), f"the snapshot holds a row below the retention line {line}"
        return normalised([*hot, *cold.values()]), normalised(model)

    def assert_exact(self, duckdb: DuckDBPyConnection | None = None) -> None:
        """Fails unless a seam read finds exactly the rows of the table."""
        found, wanted = self.seam(duckdb)
        assert_same(wanted, found, f"the read of {self.name} across the cut-line {self.cut}")

    def write(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        """The changes of one transaction, anywhere in the table, also applied to the model."""
        top = self.partitions * WIDTH
        at, key, value = chance.randrange(top), chance.randrange(60), f"{chance.random()}"
        match chance.randrange(6):
            case 0 | 1:
                upsert(connection, at, key, value, self.name, self.model)
            case 2:
                delete(connection, at, key, self.name, self.model)
            case 3:
                for where in run(
                    connection, f"DELETE FROM {self.name} WHERE at BETWEEN {at} AND {at + 3} RETURNING at, id"
                ).fetchall():
                    run(connection, f"DELETE FROM {self.model} WHERE (at, id) = {where}")
            case 4:
                for where in run(
                    connection, f"UPDATE {self.name} SET n = n + 1 WHERE at BETWEEN {at} AND {at + 9} RETURNING at, id"
                ).fetchall():
                    run(connection, f"UPDATE {self.model} SET n = n + 1 WHERE (at, id) = {where}")
            case 5:
                # Moves a row, also across the cut-line in either direction. Not one of an ingest, whose IDs begin at
                # 1000: a correction that is committed while an ingest commits counts as later, in whatever order the
                # two reach the model.
                to = chance.randrange(top)
                row = run(
                    connection,
                    f"SELECT at, id FROM {self.name} WHERE at BETWEEN {at} AND {at + 9} AND id < 1000 AND NOT EXISTS"
                    f" (SELECT FROM {self.model} m WHERE m.at = {to} AND m.id = {self.name}.id) LIMIT 1",
                ).fetchone()
                if row is not None:
                    moving = f"SET at = {to}, v = '{value}' WHERE (at, id) = {row}"
                    if run(connection, f"UPDATE {self.name} {moving}").rowcount:
                        run(connection, f"UPDATE {self.model} {moving}")


class RetentionTables:
    """Creates mirrors with a table with heap retention in one database; the fixture `retention_tables`.

    Both methods take fields of Settings as further arguments. `runner` runs the pump's tasks: by default in threads,
    which end with the test.
    """

    def __init__(self, database: Database, warehouse: str) -> None:
        self._database = database
        self._warehouse = warehouse
        self._runners: list[ThreadTaskRunner] = []

    def automatic(
        self,
        partitions: int = 4,
        rows: int = 40,
        *,
        lag: str | None = "100",
        premake: int = 0,
        computed: str | None = None,
        lake_partition: str | None = None,
        runner: TaskRunner | None = None,
        **settings: Any,
    ) -> EventsTable:
        """A table whose partitions the pump seals and drops (EventsTable.automatic). Retention looks for work ten times
        a second."""
        mirror = self._mirror(runner, {"retention_interval": 0.1, **settings})
        return EventsTable.automatic(
            mirror, partitions, rows, lag=lag, premake=premake, computed=computed, lake_partition=lake_partition
        )

    def manual(
        self, partitions: int = 3, rows: int = 50, *, runner: TaskRunner | None = None, **settings: Any
    ) -> EventsTable:
        """A table whose cut-line the test moves (EventsTable.manual)."""
        return EventsTable.manual(self._mirror(runner, settings), partitions, rows)

    def _mirror(self, runner: TaskRunner | None, settings: dict[str, Any]) -> Mirror:
        if runner is None:
            runner = ThreadTaskRunner()
            self._runners.append(runner)
        return Mirror.create(self._database, self._warehouse, runner, **settings)

    def close(self) -> None:
        """Ends the threads."""
        for runner in self._runners:
            runner.close()


def cold_rows(location: str, columns: str, initial: Sequence[Row], duckdb: DuckDBPyConnection | None) -> dict[Row, Row]:
    """Rows of the published snapshot by their first two columns, without a filter. `initial` (names, field IDs, texts)
    gives the values of int or text columns that the published snapshot does not have yet."""
    if duckdb is None:
        table = read_duckdb(location)
    else:
        table = duckdb.execute(f"SELECT * FROM iceberg_scan('{location}')").to_arrow_table()
    values = {name: int(text) if text.lstrip("-").isdecimal() else text for name, _, text in initial}
    found = normalised(
        list(
            zip(
                *(
                    table.column(name).to_pylist()
                    if name in table.column_names
                    else [values.get(name)] * table.num_rows
                    for name in columns.split(", ")
                ),
                strict=True,
            )
        )
    )
    by_key = {(row[0], row[1]): row for row in found}
    assert len(by_key) == len(found), "the snapshot holds a row twice"
    return by_key


def upsert(
    connection: psycopg.Connection[Any], at: int, key: int, value: str, table: str = "events", model: str = "model"
) -> None:
    """Upserts a whole row, wherever its key is."""
    connection.execute(
        "SELECT modak.upsert(%s::text::regclass,"
        " jsonb_build_object('at', %s::bigint, 'id', %s::bigint, 'n', 7, 'v', %s::text))",
        (table, at, key, value),
    )
    run(connection, f"DELETE FROM {model} WHERE (at, id) = ({at}, {key})")
    run(connection, f"INSERT INTO {model} (at, id, n, v) VALUES ({at}, {key}, 7, '{value}')")


def delete(connection: psycopg.Connection[Any], at: int, key: int, table: str = "events", model: str = "model") -> None:
    """Deletes the row of a key, wherever it is."""
    connection.execute(
        "SELECT modak.delete(%s::text::regclass, jsonb_build_object('at', %s::bigint, 'id', %s::bigint))",
        (table, at, key),
    )
    run(connection, f"DELETE FROM {model} WHERE (at, id) = ({at}, {key})")
