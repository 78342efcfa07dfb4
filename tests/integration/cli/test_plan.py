"""`mirror-pump doctor --plan`: what it says of every kind of table and server, by a role without any right, and that it
changes, locks and waits for nothing."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from mirror_pump.ops.plan.plan import LOCKS, make_plan, reading_session
from mirror_pump.settings.config import Settings
from mirror_pump.source.relations.matched_tables import matched_tables
from mirror_pump.source.relations.relations import describe, describe_all, resolve_name
from mirror_pump.source.relations.table_patterns import parse_pattern
from mirror_pump.testing.database import Database
from tests.support.cli import RunCommand
from tests.support.json_schema import mismatches
from tests.support.message_proxy import cutting_messages
from tests.support.replicas import backed_up, directories

pytestmark = pytest.mark.empty_database

_PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
_PASSWORD = "reads the catalog"

_KINDS = """
CREATE TABLE plain (id int PRIMARY KEY, v text);
INSERT INTO plain SELECT g, repeat('x', 100) FROM generate_series(1, 1000) g;
CREATE TABLE without_key (v text);
CREATE TABLE whole_rows (v text); ALTER TABLE whole_rows REPLICA IDENTITY FULL;
INSERT INTO whole_rows SELECT 'x' FROM generate_series(1, 100); UPDATE whole_rows SET v = 'y';
CREATE TABLE full_with_key (id int PRIMARY KEY, v text); ALTER TABLE full_with_key REPLICA IDENTITY FULL;
CREATE TABLE no_identity (id int PRIMARY KEY); ALTER TABLE no_identity REPLICA IDENTITY NOTHING;
CREATE TABLE by_index (id int NOT NULL, v text); CREATE UNIQUE INDEX by_index_key ON by_index (id);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_key;
CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE);
CREATE TABLE float_key (id float8 PRIMARY KEY);
CREATE TABLE reserved (id int PRIMARY KEY, _pos int);
CREATE TABLE twins (id int PRIMARY KEY, "Name" text, name text);
CREATE TABLE computed (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);
CREATE TABLE guarded (id int PRIMARY KEY); ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent);
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
CREATE TEMPORARY TABLE passing (id int PRIMARY KEY);
CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
CREATE FOREIGN TABLE elsewhere (id int) SERVER nowhere;
CREATE TABLE days (day date, id int, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);
CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE TABLE late (day date, id int, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);
CREATE TABLE late_default PARTITION OF late DEFAULT; INSERT INTO late VALUES ('2026-01-01', 1);
CREATE TABLE hashed (id int PRIMARY KEY) PARTITION BY HASH (id);
CREATE TABLE hashed_1 PARTITION OF hashed FOR VALUES WITH (MODULUS 1, REMAINDER 0);
CREATE TABLE nested (day date, id int, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);
CREATE TABLE nested_1 PARTITION OF nested FOR VALUES FROM ('2026-01-01') TO ('2026-02-01') PARTITION BY HASH (id);
CREATE TABLE nested_2 PARTITION OF nested_1 FOR VALUES WITH (MODULUS 1, REMAINDER 0);
CREATE TABLE mixed (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE mixed_1 PARTITION OF mixed FOR VALUES FROM (0) TO (9); ALTER TABLE mixed_1 REPLICA IDENTITY NOTHING;
CREATE SCHEMA "E;vil"; CREATE TABLE "E;vil"."a ""b"" .c %s {x} [y]" (id int PRIMARY KEY, "%(oids)s" text);
ANALYZE;
"""

Plan = dict[str, Any]
MakePlan = Callable[..., Plan]


@pytest.fixture
def stranger(database: Database) -> Iterator[str]:
    """The DSN of a role that owns nothing, and may read no table."""
    name = f"stranger_{os.urandom(4).hex()}"
    role = sql.Identifier(name)
    with database.connect() as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(_PASSWORD)))
        yield make_conninfo(database.dsn, user=name, password=_PASSWORD)
        connection.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", (name,))
        connection.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.fixture
def plan(run: RunCommand, stranger: str) -> MakePlan:
    """The plan that the command prints for that role, as JSON, without a measurement unless it is asked for."""

    def made(*arguments: str, dsn: str = stranger) -> Plan:
        result = run("doctor", "--plan", "--measure", "0", "--json", "--dsn", dsn, *arguments)
        assert result.exit_code == 0, result.output
        document: Plan = json.loads(result.stdout)
        assert mismatches(document, "plan") == []
        return document

    return made


def by_name(document: Plan) -> dict[str, Plan]:
    return {table["table"].removeprefix("public."): table for table in document["tables"]}


def test_every_kind_of_table(database: Database, plan: MakePlan) -> None:
    """By a role that may read the catalogs alone. The mirror's own roles are others, so their rights refuse nothing."""
    with database.connect() as connection:
        connection.execute(_KINDS.encode())
        document = plan()
    tables = by_name(document)
    mirrored = ["mirrored"]
    modes = {name: table["modes"] for name, table in tables.items()}
    assert modes.pop('"E;vil"."a ""b"" .c %s {x} [y]"') == mirrored
    partitions = ["mirrored", "heap retention", "tiered"]
    assert modes == {
        **dict.fromkeys(("plain", "whole_rows", "full_with_key", "by_index", "computed", "guarded"), mirrored),
        **{name: [] for name in ("no_identity", "deferred", "float_key", "reserved", "twins", "parent", "child")},
        "without_key": ["append-only"],
        "days": partitions,
        "late": mirrored,
        "hashed": mirrored,
        "nested": mirrored,
        "mixed": ["tiered"],
    }
    for name, table in tables.items():
        assert (table["refusal"] is None) == ("mirrored" in table["modes"]), name
        assert (table["remedy"] is None) == (table["refusal"] is None), name
    assert "REPLICA IDENTITY NOTHING" in tables["no_identity"]["refusal"]
    assert "DEFERRABLE" in tables["deferred"]["refusal"]
    assert "--append-only" in tables["without_key"]["remedy"]
    assert "another replica identity" in tables["mixed"]["refusal"]
    assert "holds rows" in tables["late"]["tiering"]
    assert "by range of one column" in tables["hashed"]["tiering"]
    assert "partitioned themselves" in tables["nested"]["tiering"]
    assert tables["plain"]["tiering"] is tables["days"]["tiering"] is None
    assert tables["guarded"]["row_security"]
    assert tables["by_index"]["key"] == ["id"]
    assert tables["by_index"]["replica_identity"] == "index"
    assert tables["plain"]["rows"] == 1000
    assert tables["plain"]["size_bytes"] >= 1000 * 100
    assert tables["plain"]["full_identity_bytes_per_hour"] is None
    assert {table["table"]: table["reason"] for table in document["left_out"]} == {
        "public.unlogged": "an unlogged table has no WAL",
        "public.elsewhere": "a foreign table has no WAL",
    }
    streamed = [table for table in document["tables"] if {"mirrored", "append-only"} & set(table["modes"])]
    assert document["copy"]["tables"] == len(streamed)
    assert document["copy"]["heap_bytes"] == sum(table["size_bytes"] for table in streamed)
    assert any("pg_read_all_stats" in text for text in document["unknown"])


def test_names_of_what_cannot_be_mirrored(database: Database, plan: MakePlan, run: RunCommand, stranger: str) -> None:
    """A name says why, a pattern leaves it out; what means no table is wrong usage."""
    with database.connect() as connection:
        connection.execute(_KINDS.encode())
        connection.execute(
            "CREATE VIEW shown AS SELECT * FROM plain; CREATE SCHEMA closed; CREATE TABLE closed.t (id int)"
        )
    document = plan("days_1", "shown", "unlogged", "public.h*", "closed.t", "public.plain", "pla*")
    tables = by_name(document)
    # The role may not use the schema `closed`.
    assert set(tables) == {"closed.t", "hashed", "plain", "days_1", "shown"}
    assert "register public.days instead" in tables["days_1"]["remedy"]
    assert "is a view" in tables["shown"]["refusal"]
    assert [left_out["table"] for left_out in document["left_out"]] == ["public.unlogged"]
    for arguments in (
        ("--plan", "nothing.like.it*"),
        ("--plan", "no_such_table"),
        ("--plan", "no_such_*"),
        ("--plan", "--measure", "soon"),
        ("plain",),
        ("--measure", "1s"),
    ):
        result = run("doctor", "--dsn", stranger, *arguments)
        assert result.exit_code == 2, arguments
        assert "Traceback" not in result.output


def test_locked_tables_are_not_waited_for(database: Database, plan: MakePlan) -> None:
    """No function that opens a table is called: an ALTER TABLE that waits, or lasts, does not hold up the plan."""
    database.execute(*_KINDS.split(";\n")[:2])
    database.execute(
        "CREATE TABLE days (day date PRIMARY KEY) PARTITION BY RANGE (day)",
        "CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
    )
    with database.connect() as connection, connection.transaction():
        connection.execute("LOCK TABLE plain, days IN ACCESS EXCLUSIVE MODE")
        assert set(by_name(plan())) == {"plain", "days"}
        assert set(by_name(plan("plain", "days"))) == {"plain", "days"}


def test_the_session_only_reads(database: Database, stranger: str) -> None:
    with reading_session(Settings(dsn=database.dsn)) as connection:
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("CREATE TABLE t (id int)")
        assert connection.execute("SHOW lock_timeout").fetchone() == ("2s",)


def test_a_plan_leaves_nothing(database: Database, plan: MakePlan) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    plan(dsn=database.dsn)
    assert database.rows("SELECT FROM pg_namespace WHERE nspname = 'modak'") == []
    assert database.rows("SELECT FROM pg_publication") == []
    assert database.rows("SELECT FROM pg_replication_slots WHERE database = current_database()") == []


def test_questions_do_not_grow_with_the_tables(database: Database) -> None:
    """Hundreds of tables take as many statements as one."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with cutting_messages(database.dsn, b"default_transaction_read_only = on") as proxy:

        def questions() -> int:
            proxy.cut_at(10**6)
            make_plan(Settings(dsn=proxy.proxied), (), 0)
            return sum(message in ("client Q", "client E") for message in proxy.passed)

        for_one = questions()
        database.execute(
            "DO $$ BEGIN FOR i IN 1..300 LOOP EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, v text)', i);"
            " END LOOP; END $$"
        )
        assert questions() == for_one > 5


def test_descriptions_of_many_are_those_of_each(database: Database) -> None:
    """A plan describes tables as `register` does, but for the size."""
    with database.connect() as connection:
        connection.execute(_KINDS.encode())
        table_ids = list(matched_tables(connection, [parse_pattern("*.*")], ()).tables.values())
        assert len(table_ids) > 15
        assert describe_all(connection, table_ids) == {each: describe(connection, each) for each in table_ids}
        plain = describe(connection, resolve_name(connection, "plain")[1])
        (estimated,) = describe_all(connection, [plain.table_id], measured=False).values()
        # ANALYZE has just counted.
        assert estimated.bytes == plain.bytes > 0


def test_open_transactions_delay_the_slot(database: Database, plan: MakePlan) -> None:
    """Those that have written, prepared ones too; what only reads does not."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    name = f"prepared_{os.urandom(4).hex()}"
    with database.connect(autocommit=False) as writer, database.connect(autocommit=False) as reader:
        reader.execute("SELECT FROM t")
        writer.execute("INSERT INTO t VALUES (1)")
        database.execute(f"BEGIN; INSERT INTO t VALUES (2); PREPARE TRANSACTION '{name}'")
        try:
            for dsn in (None, database.dsn):
                document = plan(**({} if dsn is None else {"dsn": dsn}))
                here = [each for each in document["transactions"] if each["database"] == database.name]
                assert {(each["pid"], each["prepared_as"]) for each in here} == {
                    (writer.info.backend_pid, ""),
                    (0, name),
                }
                (open_transaction,) = (each for each in here if each["pid"])
                # A role of no rights sees that it is open, and not since when.
                assert (open_transaction["seconds"] is None) == (dsn is None)
        finally:
            database.execute(f"ROLLBACK PREPARED '{name}'")


def test_a_measured_plan_says_when_the_slot_is_lost(database: Database, stranger: str, run: RunCommand) -> None:
    """WAL an hour, of as long as is asked; and in the text all that there is to say."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "ANALYZE")
    document = json.loads(run("doctor", "--plan", "--measure", "1s", "--json", "--dsn", stranger).stdout)
    assert mismatches(document, "plan") == []
    assert document["load"]["seconds"] >= 1
    assert document["load"]["wal_bytes_per_hour"] >= 0
    assert document["slot"]["limit_bytes"] is document["slot"]["hours_until_lost"] is None
    assert document["server"]["restart"] == []
    result = run("doctor", "--plan", "--measure", "0", "--dsn", stranger)
    assert result.exit_code == 0
    for section in ("server", "write-ahead log and slot", "first copy", "locks", "tables", "not known"):
        assert f"\n{section}" in result.stdout


def test_the_locks_are_those_of_the_page() -> None:
    """What the plan says of locks is what docs/operations.md says."""
    page = _PAGE.read_text(encoding="utf-8").replace("`", "")
    for lock in LOCKS:
        assert f"\n| {lock.what} | {lock.lock} | {lock.waits} | {lock.holds} |\n" in page


def test_the_example_of_the_page(database: Database, stranger: str, run: RunCommand) -> None:
    """docs/operations.md shows what the command prints, but for the measurement and the digits."""
    database.execute(
        "CREATE SCHEMA sales",
        "CREATE TABLE sales.orders (id int PRIMARY KEY, v text)",
        "INSERT INTO sales.orders SELECT g, repeat('x', 20) FROM generate_series(1, 1000) g",
        "CREATE TABLE sales.clicks (v text)",
        "INSERT INTO sales.clicks SELECT 'x' FROM generate_series(1, 1000) g",
        "CREATE TABLE sales.events (day date, id int, PRIMARY KEY (day, id)) PARTITION BY RANGE (day)",
        "CREATE TABLE sales.events_1 PARTITION OF sales.events FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
        "CREATE TABLE sales.events_2 PARTITION OF sales.events FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')",
        "INSERT INTO sales.events SELECT day, g FROM unnest(ARRAY[date '2026-01-01', '2026-02-01']) day,"
        " generate_series(1, 1000) g",
        "CREATE UNLOGGED TABLE sales.scratch (id int PRIMARY KEY)",
        "ANALYZE",
    )
    chapter = _PAGE.read_text(encoding="utf-8").partition("\n## Before the first table\n")[2]
    _, command, _, shown, _ = chapter.split("```", 4)
    words = shlex.split(command.removeprefix("sh").partition(">")[0])
    assert words[:3] == ["mirror-pump", "doctor", "--plan"]
    arguments = ["0" if before == "--measure" else word for before, word in pairwise(words)]
    result = run(*arguments, "--dsn", stranger)
    assert result.exit_code == 0, result.output
    printed = re.sub("; [^;]* rows an hour", "", result.stdout)
    assert re.sub("[0-9.,]+", "#", shown) in re.sub("[0-9.,]+", "#", printed)


@pytest.mark.further
def test_a_standby(database: Database) -> None:
    """Its catalogs are those of the primary. What is written is counted there."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CHECKPOINT")
    with directories() as root, backed_up(database.server, root / "s", {}, signal="standby.signal") as standby:
        document = make_plan(Settings(dsn=standby.dsn(database.name)), (), 0).to_json()
    assert mismatches(json.loads(json.dumps(document)), "plan") == []
    assert document["server"]["standby"]
    assert any("standby" in finding["message"] for finding in document["findings"])
    assert any("Ask the primary" in text for text in document["unknown"])
    (table,) = document["tables"]
    assert table["modes"] == ("mirrored",)
    assert table["changes_per_hour"] is None
