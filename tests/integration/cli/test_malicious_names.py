"""Names, comments, messages and values that try to be statements: nothing of them is executed, wherever they go."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from psycopg import sql
from pydantic import ValidationError

from mirror_pump.database.quoting import printed_identifier
from mirror_pump.model import TableName
from mirror_pump.ops.reads.reader_roles import grant
from mirror_pump.settings.config import Settings
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, assert_same, await_true, lake_rows, normalised
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand

pytestmark = pytest.mark.empty_database

_ATTACKS = (
    # PostgreSQL, whose statements would be seen in the table.
    "INSERT INTO public.c VALUES(1)",
    # DuckDB, and a shell, whose commands would be seen in the current directory.
    "COPY(SELECT 1)TO'f'",
    "$(touch f)",
    "`touch f`",
)
_QUOTES = (
    '"',
    "'",
    "''",
    '""',
    "$$",
    "`",
    "\\",
    "\\'",
    "*/",
    "\n",
    ")",
    "%",
    "%s",
    "%(x)s",
    "{0}",
    "${HOME}",
    "[b]",
    "",
)
_ENDS = ("--", "/*", "'", '"', ";", "#", "\\", "")

_STRANGE = (
    "",
    "é",
    "İ",
    "漢字",
    "🂡",
    "\u202e",
    "\u00a0",
    "\u200b",
    "\t",
    "\x01",
    "\x7f",
    "\r\n",
    "/../",
    "A b",
    ",",
    "=",
)

payloads = st.builds(
    lambda strange, quote, attack, end: f"{strange}{quote};{attack};{end}",
    st.sampled_from(_STRANGE),
    st.sampled_from(_QUOTES),
    st.sampled_from(_ATTACKS),
    st.sampled_from(_ENDS),
)
"""Texts that leave their quotes, run something, and have the rest ignored, with characters that programs lose."""


_COLUMNS = ("text", "json", "kind", "tier", "event_text")


class _MaliciousNames:
    """Different malicious names, of at most 63 bytes each, from a few texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._numbered = enumerate(cycle(texts))

    def __call__(self) -> str:
        number, text = next(self._numbered)
        return f"{number}{text}"


def _json(payload: str) -> str:
    return orjson.dumps({payload: [payload, {"shape": None, payload: payload}]}).decode()


class _MaliciousTables:
    """A plain table and a partitioned one, all of whose names and comments are malicious."""

    def __init__(self, connection: psycopg.Connection[Any], names: _MaliciousNames) -> None:
        self._connection = connection
        self._names = names
        self.schema, self.type, self.label = names(), names(), names()
        self.orders = TableName(self.schema, names())
        self.events = TableName(self.schema, names())
        self.text, self.json, self.kind = names(), names(), names()
        self.tier, self.event_text = names(), names()
        run = self.run
        run("CREATE SCHEMA {schema}")
        run("CREATE TYPE {schema}.{type} AS ENUM ({label})")
        run(
            "CREATE TABLE {orders} (id int PRIMARY KEY, {text} text DEFAULT {value}, {json} jsonb,"
            " {kind} {schema}.{type} DEFAULT {label})"
        )
        run("COMMENT ON TABLE {orders} IS {value}")
        run("COMMENT ON COLUMN {orders}.{text} IS {value}")
        run(
            "CREATE TABLE {events} ({tier} bigint, id int, {event_text} text, PRIMARY KEY ({tier}, id))"
            " PARTITION BY RANGE ({tier})"
        )
        for low in (0, 100):
            run(
                "CREATE TABLE {schema}.{name} PARTITION OF {events} FOR VALUES FROM ({low}) TO ({high})",
                low=low,
                high=low + 100,
            )
        run("INSERT INTO {events} SELECT g, g, {value} FROM generate_series(0, 190, 10) g")
        self.write(0)

    def run(self, text: str, **values: Any) -> None:
        """A statement; {value} and {name} are drawn."""
        parts: dict[str, sql.Composable] = {
            "schema": sql.Identifier(self.schema),
            "type": sql.Identifier(self.type),
            "orders": sql.Identifier(self.orders.schema, self.orders.name),
            "events": sql.Identifier(self.events.schema, self.events.name),
            **{name: sql.Identifier(getattr(self, name)) for name in _COLUMNS},
            "label": sql.Literal(self.label),
            "value": sql.Literal(self._names()),
            "document": sql.Literal(_json(self._names())),
            "name": sql.Identifier(self._names()),
            "plain_name": sql.Literal(self._names()),
        }
        parts |= {
            key: value if isinstance(value, sql.Composable) else sql.Literal(value) for key, value in values.items()
        }
        self._connection.execute(sql.SQL(text).format(**parts))

    def write(self, first: int) -> None:
        for key in range(first, first + 3):
            self.run("INSERT INTO {orders} (id, {text}, {json}) VALUES ({key}, {value}, {document})", key=key)

    def change(self) -> None:
        """By the stream: rows, messages of others and some that pretend to be ours, schema changes."""
        self.write(10)
        self.run("UPDATE {orders} SET {text} = {value}, {json} = {document} WHERE id = 1")
        self.run("DELETE FROM {orders} WHERE id = 2")
        for transactional in (True, False):
            self.run("SELECT pg_logical_emit_message({t}, {plain_name}, {document})", t=transactional)
            forged = '{"table": %d, "shape": null}'
            self.run(
                "SELECT pg_logical_emit_message({t}, 'mirror-pump',"
                " repeat('0', 64) || format({forged}, {orders_name}::regclass::oid))",
                t=transactional, forged=forged.replace("%d", "%s"), orders_name=self.orders.quoted,
            )  # fmt: skip
        renamed = self._names()
        self.run("ALTER TABLE {orders} RENAME {text} TO {renamed}", renamed=sql.Identifier(renamed))
        self.text = renamed
        self.run("ALTER TABLE {orders} ADD COLUMN {name} text DEFAULT {value}")
        self.run("COMMENT ON TABLE {orders} IS {value}")
        self.run("ALTER TYPE {schema}.{type} ADD VALUE {plain_name}")
        self.write(20)

    def heap(self) -> list[tuple[Any, ...]]:
        shown = sql.SQL("SELECT t.*, {json}::text, {kind}::text FROM {orders} t").format(
            json=sql.Identifier(self.json), kind=sql.Identifier(self.kind), orders=sql.Identifier(*self._orders)
        )
        rows = self._connection.execute(shown).fetchall()
        return normalised([(*row[:2], row[-2], row[-1], *row[4:-2]) for row in rows])

    @property
    def _orders(self) -> tuple[str, str]:
        return self.orders.schema, self.orders.name


def _objects(database: Database) -> list[tuple[Any, ...]]:
    """What a statement that slipped through could have made or removed."""
    return database.rows(
        "SELECT 'schema', nspname FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp'"
        " UNION ALL SELECT 'function', proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        " UNION ALL SELECT 'role', rolname FROM pg_roles UNION ALL SELECT 'publication', pubname FROM pg_publication"
        " UNION ALL SELECT 'relation', relname FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1, 2"
    )


# A failure shows its names; to shrink them would take minutes.
@settings(max_examples=2, phases=(Phase.reuse, Phase.generate))
@given(texts=st.lists(payloads, min_size=12, max_size=12, unique=True))
def test_nothing_is_executed(
    new_database: Callable[[], Database],
    run: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
) -> None:
    names = _MaliciousNames(texts)
    database = new_database()
    directory = tmp_path_factory.mktemp("current")
    warehouse = tmp_path_factory.mktemp("lake")
    monkeypatch.setenv("MIRROR_PUMP_DSN", database.dsn)
    monkeypatch.chdir(directory)
    with pytest.raises(ValidationError, match="a slot name has 1 to 63 characters"):
        Settings(dsn=database.dsn, slot=names())
    database.execute("CREATE TABLE public.c (n int)")
    options = {"publication": names()}
    mirror = _mirror(database, warehouse, options)
    monkeypatch.setenv("MIRROR_PUMP_SLOT", mirror.settings.slot)
    role = names()
    quoted_role = sql.Identifier(role)
    with database.connect() as connection:
        target = _MaliciousTables(connection, names)
        connection.execute(sql.SQL("CREATE ROLE {}").format(quoted_role))
        try:
            before = _objects(database)
            _life(mirror, target, role, run)
            assert _objects(database) == before
        finally:
            connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(quoted_role))
    assert database.rows("SELECT * FROM public.c") == []
    assert list(directory.iterdir()) == []


def _mirror(database: Database, warehouse: Path, options: dict[str, str]) -> Mirror:
    from mirror_pump.ops.setup.initialisation import initialise

    chosen = Settings(
        dsn=database.dsn,
        warehouse=warehouse.as_uri(),
        slot=f"s_{os.urandom(4).hex()}",
        storage_fsync=False,
        retention_interval=0.2,
        **options,  # type: ignore[arg-type]
    )
    initialise(chosen, lambda _: None)
    return Mirror(database, chosen, ThreadTaskRunner())


def _life(mirror: Mirror, target: _MaliciousTables, role: str, run: RunCommand) -> None:
    """Registers, copies, streams, alters, sheds, reads, verifies and unregisters."""
    orders, events = (
        ".".join(map(printed_identifier, (table.schema, table.name))) for table in (target.orders, target.events)
    )

    def command(*arguments: str) -> str:
        result = run(*arguments)
        assert result.exit_code == 0, (arguments, result.output)
        return result.stdout

    mirror.register(orders)
    mirror.register(events, retention=RetentionOptions(lag="50", premake=1, width="100", drop_grace="0"))
    with mirror.pumping():
        mirror.await_live(orders, events)
        target.change()
        gone = "SELECT count(*) FROM modak.partitions WHERE state = 'dropped'"
        await_true(lambda: mirror.database.rows(gone) == [(1,)], 60, "a partition has left")
        target.run("INSERT INTO {events} VALUES (10, 11, {value})")
        target.run("SELECT modak.upsert({table}, jsonb_build_object({tier_name}, 20, 'id', 20, {text_name}, {value}))",
                   table=target.events.quoted, tier_name=target.tier, text_name=target.event_text)  # fmt: skip
        with pytest.raises(psycopg.errors.UndefinedColumn):
            target.run("SELECT modak.upsert({table}, {document})", table=target.events.quoted)
        mirror.await_frontier()
        # The column with a default had the files of `orders` filled.
        mirror.await_live(orders)
        pointer = "SELECT metadata_location FROM modak.lake_pointers WHERE table_id = %s::regclass::oid::bigint"
        ((location,),) = mirror.database.rows(pointer, (target.orders.quoted,))
        heap = target.heap()
        assert_same(heap, lake_rows(location), "orders")
        grant(mirror.settings, role, [orders, events])
        assert command("sql", f"SELECT count(*) FROM {orders}", "--format", "csv").split()[1] == str(len(heap))
        assert command("sql", f"SELECT count(*) FROM {events}", "--format", "csv").split()[1] == "21"
        status = orjson.loads(command("status", "--json"))
        assert {table["state"] for table in status["tables"]} == {"live"}, status
        command("verify")
    for table in (orders, events):
        command("unregister", table, "--drop-lake", "--yes")
