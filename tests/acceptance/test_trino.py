"""Trino reads the mirror through its REST catalog, with the settings that `connect` prints. `make trino` runs these:
they need a gigabyte, which it fetches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from mirror_pump.model import format_lsn
from mirror_pump.testing.database import Database, keeping_connections
from mirror_pump.testing.mirror import Mirror, Row, RunningPump, assert_same, await_true, normalised
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.program import Program
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.events_table import EventsTable
from tests.support.rest_catalog import ServedMirror, served
from tests.support.retention_table import WIDTH
from tests.support.s3_server import s3_server
from tests.support.trino_package import NoTrino, trino_home
from tests.support.trino_server import TrinoFailed, TrinoServer, trino_server

pytestmark = [pytest.mark.trino, pytest.mark.timeout(600)]

_TOKEN = "correct-horse-battery-staple"
_ENVIRONMENT = {
    "MIRROR_PUMP_CATALOG_TOKEN": _TOKEN,
    "AWS_ACCESS_KEY_ID": "trino",
    "AWS_SECRET_ACCESS_KEY": "trino's secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Of Trino."""

_ALL_BYTES = "SELECT string_agg(decode(lpad(to_hex(g), 2, '0'), 'hex'), '') FROM generate_series(0, 255) g"
_TYPED = (
    ("boolean", "true", "false"),
    ("int2", "-32768", "32767"),
    ("int8", "'-9223372036854775808'", "9223372036854775807"),
    ("float4", "3.4028235e38", "'1e-45'", "'NaN'", "0.1"),
    ("float8", "1.7976931348623157e308", "'5e-324'", "'-Infinity'", "'-0'"),
    ("numeric(14,2)", "-999999999999.99", "0.01", "1.50"),
    ("numeric(38,10)", "-9999999999999999999999999999.9999999999", "0.0000000001"),
    ("numeric(38,0)", "99999999999999999999999999999999999999", "0"),
    ("numeric", "('1' || repeat('0', 100))::numeric", "1.50"),
    ("text", "'grüße 中文'", "''", r"E'tab\t \x01 \\ line\n'", "repeat('long ', 5000)"),
    ("char(5)", "'ab'", "''"),
    ("bytea", r"'\x00ff5c'", "''", _ALL_BYTES),
    ("date", "'0001-01-01'", "'1582-10-10'", "'9999-12-31'"),
    ("timestamp", "'1969-12-31 23:59:59.999999'", "'0001-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'"),
    ("timestamptz", "'2026-01-02 03:04:05.678901+05:30'", "'1883-11-18 12:03:58.000001-04:56:02'",
     "'9999-12-31 23:59:59.999999+00'"),
    ("uuid", "'00000000-0000-0000-0000-000000000001'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
     "'80000000-0000-4000-8000-000000000000'"),
    ("jsonb", """'{"a": [1.50, null], "b": "ü"}'""", "'null'"),
    ("interval", "'1 year -2 mons 04:05:06.000007'"),
    ("int4[]", "'{1,NULL,3}'", "'{}'", "'{NULL}'"),
    ("text[]", """ARRAY['x', NULL, 'y"z', '', 'NULL']""", "'{}'"),
    ("numeric(10,2)[]", "'{1.50,NULL,-99999999.99}'"),
    ("timestamptz[]", "ARRAY['2026-01-02 03:04:05.678901+00'::timestamptz, NULL]"),
    ("uuid[]", "ARRAY['80000000-0000-4000-8000-000000000000'::uuid]"),
    ("bytea[]", r"ARRAY['\x00ff'::bytea, '', NULL]"),
)  # fmt: skip
"""Types with values, in SQL."""
_ROWS = 1 + max(map(len, _TYPED))
"""The last row has NULL in each column."""
_AS_SEEN = {"jsonb": "text", "interval": "text", "numeric": "text", "float4": "float8"}
"""What the heap's values are compared as: the lake has texts of three."""


def _column(number: int) -> str:
    return f"c{number}"


@dataclass
class TrinoScene:
    """A mirror with a pump and `mirror-pump serve`, both running, and a Trino with the catalog `lake`."""

    database: Database
    mirror: Mirror
    running: RunningPump
    events: EventsTable
    program: Program
    catalog: ServedMirror
    directory: Path
    trino: TrinoServer

    def attach(self, name: str, warehouse: str) -> None:
        self.trino.attach(name, printed(self.program, self.catalog, warehouse))

    def heap(self, query: str) -> list[Row]:
        with self.database.session() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            return comparable(connection.execute(query.encode()).fetchall())

    def lake(self, query: str) -> list[Row]:
        return comparable(self.trino.rows(query))

    def files(self, table: str) -> set[Path]:
        """The files of a table's directory."""
        (directory,) = (self.directory / "warehouse" / "public").glob(f"{table}-*")
        return set(directory.rglob("*"))

    def change(self, value: int) -> int:
        """Both tables of moments get the value, in one transaction. Returns a frontier at which they have it."""
        with self.database.session(autocommit=False) as connection:
            for table in ("a", "b"):
                connection.execute(f"UPDATE {table} SET v = {value}".encode())
        return self.mirror.await_frontier()


def comparable(rows: list[Row]) -> list[Row]:
    """Normalised, in arrays as well."""

    def plain(value: Any) -> Any:
        return [normalised([(element,)])[0][0] for element in value] if isinstance(value, list) else value

    return normalised([tuple(map(plain, row)) for row in rows])


def printed(program: Program, catalog: ServedMirror, warehouse: str) -> str:
    """What `connect` prints."""
    return program.run("connect", "--engine", "trino", "--rest", catalog.uri, "--attach", warehouse)


def _make_tables(database: Database) -> None:
    with database.session() as connection:
        columns = ", ".join(f"{_column(number)} {kind}" for number, (kind, *_) in enumerate(_TYPED))
        connection.execute(f"CREATE TABLE typed (id int PRIMARY KEY, {columns})".encode())
        for row in range(_ROWS):
            values = ", ".join(
                "NULL" if row == _ROWS - 1 else f"({values[row % len(values)]})::{kind}" for kind, *values in _TYPED
            )
            connection.execute(f"INSERT INTO typed VALUES ({row}, {values})".encode())
        for table in ("a", "b"):
            connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)".encode())
            connection.execute(f"INSERT INTO {table} SELECT g, 0 FROM generate_series(1, 1000) g".encode())
        connection.execute("CREATE TABLE calm (id int PRIMARY KEY, v int)")
        connection.execute("INSERT INTO calm VALUES (1, 1)")
        connection.execute("CREATE TABLE changed (id int PRIMARY KEY, v text)")
        connection.execute("INSERT INTO changed SELECT g, 'first' FROM generate_series(1, 1000) g")


def _serve(stack: ExitStack, program: Program, slot: str, log: Path) -> ServedMirror:
    process = program.start("serve", "--slot", slot, "--listen", "127.0.0.1:0", log=log.name)
    stack.callback(program.kill, process)
    await_true(lambda: "/iceberg (warehouse" in log.read_text() or process.poll() is not None, 60, "serve serves")
    assert process.poll() is None, log.read_text()
    return ServedMirror(int(log.read_text().partition("/iceberg")[0].rpartition(":")[2]))


@pytest.fixture(scope="module")
def scene(
    postgres: EmbeddedPostgres, catalog_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TrinoScene]:
    try:
        trino_home()
    except NoTrino as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("trino")
    (directory / "warehouse").mkdir()
    database = Database(postgres, f"t_trino_{os.urandom(3).hex()}")
    postgres.create_database(database.name, template=catalog_template)
    with ExitStack() as stack:
        stack.callback(postgres.drop_database, database.name)
        runner = ThreadTaskRunner()
        stack.callback(runner.close)
        _make_tables(database)
        # Without merges position deletes stay, which Trino has to apply.
        mirror = Mirror.create(database, (directory / "warehouse").as_uri(), runner, merge_bytes=0)
        mirror.register("typed", "a", "b", "calm", "changed")
        events = EventsTable.manual(mirror)
        mirror.catch_up()
        program = Program(database.dsn, directory)
        catalog = _serve(stack, program, mirror.settings.slot, directory / "serve.log")
        properties = printed(program, catalog, "mirror")
        with (
            trino_server(directory, {"lake": properties}, **_ENVIRONMENT, PGPASSWORD=database.server.password) as trino,
            mirror.pumping() as running,
        ):
            yield TrinoScene(database, mirror, running, events, program, catalog, directory, trino)
        mirror.assert_sound()
        with keeping_connections():
            assert_verified(database)


def test_it_lists_what_is_mirrored(scene: TrinoScene) -> None:
    assert ("public",) in scene.trino.rows("SHOW SCHEMAS FROM lake")
    assert scene.lake("SHOW TABLES FROM lake.public") == [
        (name,) for name in ("a", "b", "calm", "changed", "events", "typed")
    ]
    found = scene.trino.rows("SELECT table_name FROM lake.information_schema.columns WHERE column_name = 'c0'")
    assert found == [("typed",)]
    with pytest.raises(TrinoFailed, match="does not exist"):
        scene.trino.rows("SELECT * FROM lake.public.nothing")


def test_every_value_is_that_of_the_heap(scene: TrinoScene) -> None:
    """Also if it is looked for, by the bounds of files and in them."""
    assert len(scene.trino.rows("SELECT * FROM lake.public.typed")) == _ROWS
    for number, (kind, *_) in enumerate(_TYPED):
        name = _column(number)
        heap = scene.heap(f"SELECT id, {name}::{_AS_SEEN.get(kind, kind)} FROM typed")
        assert_same(heap, scene.lake(f"SELECT id, {name} FROM lake.public.typed"), kind)
        # SQL says that an array with NULL in it equals none, and so does Trino.
        if not kind.endswith("[]"):
            query = "SELECT id FROM {0} WHERE {1} = (SELECT {1} FROM {0} WHERE id = 0)"
            found = scene.lake(query.format("lake.public.typed", name))
            assert found == scene.heap(query.format("typed", name)), kind
        nothing = scene.lake(f"SELECT id FROM lake.public.typed WHERE {name} IS NULL")
        assert nothing == [(_ROWS - 1,)], kind


def test_changes_show_with_the_next_publish(scene: TrinoScene) -> None:
    for turn in range(3):
        with scene.database.session(autocommit=False) as connection:
            connection.execute(f"UPDATE changed SET v = 'turn {turn}' WHERE id % 7 = {turn}".encode())
            connection.execute(f"DELETE FROM changed WHERE id % 11 = {turn}".encode())
            connection.execute(f"INSERT INTO changed VALUES ({turn - 10}, 'new')".encode())
            connection.execute(f"UPDATE changed SET id = {turn + 5000} WHERE id = {turn + 100}".encode())
        scene.mirror.await_frontier()
        assert_same(scene.heap("TABLE changed"), scene.lake("SELECT * FROM lake.public.changed"), f"turn {turn}")
    deletes = scene.trino.rows('SELECT count(*) FROM lake.public."changed$files" WHERE content <> 0')
    assert deletes[0][0] > 0, "there was nothing to apply"


def test_two_tables_are_of_one_frontier(scene: TrinoScene) -> None:
    """From the first query of a catalog on. By `mirror` they are not."""
    trino = scene.trino
    scene.change(10)
    scene.attach("latest", "mirror@latest")
    assert trino.rows("SELECT DISTINCT v FROM latest.public.a") == [(10,)]
    scene.change(11)
    assert trino.rows("SELECT DISTINCT v FROM latest.public.b") == [(10,)]
    assert trino.rows("SELECT DISTINCT a.v, b.v FROM latest.public.a JOIN latest.public.b USING (id)") == [(10, 10)]
    assert trino.rows("SELECT DISTINCT v FROM lake.public.b") == [(11,)]
    # One of the same name and settings may find what is left of the dropped one, and so its moment.
    trino.rows("DROP CATALOG latest")
    scene.attach("later", "mirror@latest")
    assert trino.rows("SELECT DISTINCT a.v, b.v FROM later.public.a JOIN later.public.b USING (id)") == [(11, 11)]
    trino.rows("DROP CATALOG later")


def test_a_past_moment(scene: TrinoScene) -> None:
    frontiers = {scene.change(value): value for value in (20, 21, 22)}
    for number, (frontier, value) in enumerate(frontiers.items()):
        name = f"past{number}"
        scene.attach(name, f"mirror@{format_lsn(frontier).replace('/', '-')}")
        query = f"SELECT DISTINCT a.v, b.v FROM {name}.public.a JOIN {name}.public.b USING (id)"
        assert scene.trino.rows(query) == [(value, value)]
        scene.trino.rows(f"DROP CATALOG {name}")


def test_a_table_with_heap_retention(scene: TrinoScene) -> None:
    """The rows below the cut-line, or all, by the warehouse."""
    query = 'SELECT "at", id, n, v FROM {}.public.events'
    scene.events.advance(scene.running)
    scene.mirror.await_frontier()
    scene.attach("whole", "mirror.main")
    below = scene.heap(f"SELECT at, id, n, v FROM model WHERE at < {WIDTH}")
    whole = scene.heap("SELECT at, id, n, v FROM model")
    assert 0 < len(below) < len(whole)
    assert_same(below, scene.lake(query.format("lake")), "below the cut-line")
    assert_same(whole, scene.lake(query.format("whole")), "the whole table")
    cut = scene.trino.rows("SELECT value FROM lake.public.\"events$properties\" WHERE key = 'mirror-pump.cut-line'")
    assert cut == [(str(WIDTH),)]
    scene.trino.rows("DROP CATALOG whole")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {} VALUES (9999, 9999)",
        "UPDATE {} SET v = 9999 WHERE id = 1",
        "DELETE FROM {} WHERE id = 1",
        "MERGE INTO {} USING (VALUES 1) AS t (id) ON calm.id = t.id WHEN MATCHED THEN DELETE",
        "TRUNCATE TABLE {}",
        "DROP TABLE {}",
        "ALTER TABLE {} ADD COLUMN w int",
        "ALTER TABLE {} RENAME TO c",
        "ALTER TABLE {} EXECUTE optimize",
        "ALTER TABLE {} EXECUTE expire_snapshots",
        "ALTER TABLE {} EXECUTE remove_orphan_files",
        "ANALYZE {}",
        "COMMENT ON TABLE {} IS 'ours'",
        "CREATE TABLE lake.public.c (id int)",
        "CREATE TABLE lake.public.c AS SELECT * FROM {}",
        "CREATE VIEW lake.public.c AS SELECT * FROM {}",
        "CREATE SCHEMA lake.other",
        "DROP SCHEMA lake.public CASCADE",
    ],
)
def test_writes_are_refused(scene: TrinoScene, statement: str) -> None:
    """And nothing is left behind."""
    before = scene.files("calm")
    with pytest.raises(TrinoFailed, match="Access Denied: "):
        scene.trino.rows(statement.format("lake.public.calm"))
    assert scene.files("calm") == before
    assert scene.heap("TABLE calm") == scene.lake("SELECT * FROM lake.public.calm") == [(1, 1)]


def test_writes_are_refused_by_the_catalog_as_well(scene: TrinoScene) -> None:
    """Without the setting by which Trino refuses them."""
    properties = printed(scene.program, scene.catalog, "mirror")
    assert "\niceberg.security=read_only\n" in properties
    scene.trino.attach("writer", properties.replace("iceberg.security=read_only\n", ""))
    for statement in ("INSERT INTO writer.public.calm VALUES (2, 2)", "DROP TABLE writer.public.calm"):
        with pytest.raises(TrinoFailed, match="Server does not support endpoint: "):
            scene.trino.rows(statement)
    assert scene.lake("SELECT * FROM writer.public.calm") == [(1, 1)]
    scene.trino.rows("DROP CATALOG writer")


def test_the_jdbc_catalog_shows_the_same_and_is_not_written(scene: TrinoScene) -> None:
    """With the settings for those who serve no REST catalog, of the role that could write."""
    owner = str(conninfo_to_dict(scene.database.dsn)["user"])
    scene.trino.attach("direct", scene.program.run("connect", "--engine", "trino", "--user", owner))
    assert ("changed",) in scene.trino.rows("SHOW TABLES FROM direct.public")
    scene.mirror.await_frontier()
    for table in ("typed", "changed"):
        found = scene.lake(f"SELECT * FROM direct.public.{table}")
        assert_same(scene.lake(f"SELECT * FROM lake.public.{table}"), found, table)
    before = scene.files("calm")
    for statement in ("INSERT INTO {} VALUES (2, 2)", "DROP TABLE {}", "ALTER TABLE {} EXECUTE optimize"):
        with pytest.raises(TrinoFailed, match="Access Denied: "):
            scene.trino.rows(statement.format("direct.public.calm"))
    assert scene.files("calm") == before
    scene.trino.rows("DROP CATALOG direct")


@pytest.mark.unverified("DuckDB, as it verifies other lakes, has no access to this one")
@pytest.mark.parametrize("token", [None, "of a session"])
def test_a_lake_in_s3(
    scene: TrinoScene, database: Database, tasks: ThreadTaskRunner, tmp_path: Path, token: str | None
) -> None:
    """With keys that the catalog vends if they have a session token, else with Trino's own."""
    with s3_server() as s3:
        mirror = Mirror.create(database, "s3://lake/shop", tasks, **s3.storage_settings)
        database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'read')")
        mirror.register("t")
        mirror.catch_up()
        update = {"vend_credentials": True, "storage_session_token": None if token is None else SecretStr(token)}
        with served(mirror.settings.model_copy(update=update)) as catalog:
            name = "own" if token is None else "vended"
            scene.trino.attach(name, printed(Program(database.dsn, tmp_path), catalog, "mirror"))
            assert scene.trino.rows(f"SELECT table_name FROM {name}.information_schema.tables"
                                    " WHERE table_schema = 'public'") == [("t",)]  # fmt: skip
            s3.keys.clear()
            assert scene.trino.rows(f"SELECT * FROM {name}.public.t") == [(1, "read")]
            assert s3.keys - ({"pump"} if token is None else set()) == {"trino" if token is None else "pump"}
            scene.trino.rows(f"DROP CATALOG {name}")


def test_a_catalog_with_a_token(scene: TrinoScene) -> None:
    """The two last lines of the settings, which are comments until there is one."""
    with ExitStack() as stack:
        program = Program(scene.database.dsn, scene.directory, {"MIRROR_PUMP_LISTEN_TOKEN": _TOKEN})
        guarded = _serve(stack, program, scene.mirror.settings.slot, scene.directory / "guarded.log")
        properties = printed(program, guarded, "mirror")
        scene.trino.attach("stranger", properties)
        with pytest.raises(TrinoFailed):
            scene.trino.rows("SHOW TABLES FROM stranger.public")
        scene.trino.attach("guest", properties.replace("#iceberg.", "iceberg."))
        wanted = scene.lake("SELECT * FROM lake.public.typed")
        assert_same(wanted, scene.lake("SELECT * FROM guest.public.typed"), "by a token")
        for name in ("stranger", "guest"):
            scene.trino.rows(f"DROP CATALOG {name}")
