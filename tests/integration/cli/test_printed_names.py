"""Every command accepts a table's name as `status` prints it, whatever characters it contains."""

from __future__ import annotations

import subprocess
from functools import partial

import orjson
import pytest
from psycopg import sql
from typer.testing import Result

from mirror_pump.errors import TableError
from mirror_pump.model import TableName
from mirror_pump.ops.verify import compare_duckdb
from mirror_pump.ops.verify.comparison_engines import ComparisonEngine
from mirror_pump.ops.verify.verification import verify
from mirror_pump.source.retention.retention_plan import RetentionOptions
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.cli import RunCommand

pytestmark = pytest.mark.further

NAMES = (
    TableName("public", "plain"),
    TableName("public", "MyTable"),
    TableName("S-1", "My Table"),
    TableName("S-1", "größe 🐘"),
    TableName("a.b", "c.d.e"),
    TableName("public", "quo\"te, it's"),
    TableName("public", "select"),
    TableName("public", "json_table"),
    TableName("public", "$HOME"),
    TableName("public", " --help"),
    TableName("public", "100% back\\slash`tick [bold]"),
    TableName("user", "table"),
)
SHED = TableName("S-1", "Ev.ents")
"""A partitioned table with heap retention."""
PARTITIONS = ['"S-1"."Part 0"', '"S-1"."Part 100"', '"S-1"."Part 200"']


@pytest.fixture
def mirror(database: Database, warehouse: str, monkeypatch: pytest.MonkeyPatch, tasks: ThreadTaskRunner) -> Mirror:
    """The mirror that `run` uses too."""
    mirror = Mirror.create(database, warehouse, tasks)
    monkeypatch.setenv("MIRROR_PUMP_SLOT", mirror.settings.slot)
    return mirror


@pytest.fixture
def tables(database: Database) -> tuple[TableName, ...]:
    with database.connect() as connection:
        for schema in ("S-1", "a.b", "user"):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        for number, name in enumerate(NAMES):
            identifier = sql.Identifier(name.schema, name.name)
            connection.execute(sql.SQL("CREATE TABLE {} (id int PRIMARY KEY)").format(identifier))
            connection.execute(sql.SQL("INSERT INTO {} VALUES ({})").format(identifier, sql.Literal(number)))
        parent = sql.Identifier(SHED.schema, SHED.name)
        connection.execute(sql.SQL("CREATE TABLE {} (id bigint PRIMARY KEY) PARTITION BY RANGE (id)").format(parent))
        for low in (0, 100, 200):
            connection.execute(
                sql.SQL("CREATE TABLE {} PARTITION OF {} FOR VALUES FROM ({}) TO ({})").format(
                    sql.Identifier(SHED.schema, f"Part {low}"), parent, sql.Literal(low), sql.Literal(low + 100)
                )
            )
        connection.execute(sql.SQL("INSERT INTO {} SELECT generate_series(0, 299)").format(parent))
    return (*NAMES, SHED)


def test_a_name_is_printed_as_postgres_prints_it(database: Database) -> None:
    with database.connect() as connection:
        for name in (*NAMES, SHED, *(TableName("s", word) for (word,) in connection.execute(_KEYWORDS).fetchall())):
            printed = connection.execute("SELECT quote_ident(%s) || '.' || quote_ident(%s)", (name.schema, name.name))
            parsed = connection.execute("SELECT parse_ident(%s)", (str(name),))
            assert parsed.fetchone() == ([name.schema, name.name],)
            if connection.info.server_version >= 180000:
                assert printed.fetchone() == (str(name),)


_KEYWORDS = "SELECT word FROM pg_get_keywords()"


def done(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.further
def test_what_status_prints_can_be_given_to_every_command(
    run: RunCommand, database: Database, mirror: Mirror, tables: tuple[TableName, ...]
) -> None:
    with mirror.pumping(), duckdb_connection() as duckdb:
        mirror.register(*(name.quoted for name in NAMES))
        mirror.register(SHED.quoted, retention=RetentionOptions(lag="50"))
        mirror.await_live(*(str(name) for name in tables))

        status = orjson.loads(done(run("status", "--json")))["tables"]
        assert sorted(table["table"] for table in status) == sorted(map(str, tables))
        printed = [str(name) for name in tables]
        engine = ComparisonEngine(mirror.runner, partial(compare_duckdb.compare, duckdb))
        verified = verify(mirror.settings, printed, engine=engine).to_json()["tables"]
        assert [(table["table"], table["equal"]) for table in verified] == [(name, True) for name in printed]

    # The commands' output contains the same names.
    assert done(run("maintain", "--no-wait", "--", *printed)).splitlines() == [f"{name}: requested" for name in printed]
    (retained,) = orjson.loads(done(run("retain", "--dry-run", "--json", str(SHED))))
    assert retained["table"] == str(SHED)
    assert [partition["partition"] for partition in retained["partitions"]] == PARTITIONS
    done(run("reader", "postgres", "--print", "--", *printed))
    for name in printed:
        done(run("policy", "set", "--", name, "rewrite_target_bytes", "1MiB"))
    queries = " UNION ALL ".join(f"SELECT id FROM {name} WHERE id < 100" for name in printed[:-1])
    rows = orjson.loads(done(run("sql", "--format", "json", f"{queries} ORDER BY id")))
    assert [row["id"] for row in rows] == list(range(len(NAMES)))

    # Tables that no longer exist are found by the same names.
    database.execute(*(f"DROP TABLE {name.quoted}" for name in NAMES[::2]))
    for name in printed[:-1]:
        assert done(run("unregister", "--", name)).startswith(f"{name} is no longer mirrored")
    done(run("unregister", "--keep-lake", str(SHED)))
    assert orjson.loads(done(run("status", "--json")))["tables"] == []


def test_a_command_in_an_error_can_be_pasted_into_a_shell(run: RunCommand, database: Database, mirror: Mirror) -> None:
    name = TableName("public", "It's $HOME")
    create = f"CREATE TABLE {name.quoted} (id int PRIMARY KEY)"
    database.execute(create)
    mirror.register(str(name))
    database.execute(f"ALTER TABLE {name.quoted} RENAME TO renamed", create)

    with pytest.raises(TableError, match="another table was registered as") as refused:
        mirror.register(str(name))

    command = refused.value.remedy.partition("mirror-pump ")[2]
    pasted = subprocess.run(["sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True)
    assert pasted.stdout.splitlines() == ["unregister", str(name)]
    done(run(*pasted.stdout.splitlines()))
