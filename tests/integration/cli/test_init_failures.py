"""An init that fails at any step leaves nothing behind. Once the cause is fixed, the next init succeeds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from mirror_pump.errors import MirrorPumpError
from mirror_pump.ops.setup.initialisation import initialise
from mirror_pump.settings.config import Settings, load_settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.postgres import EmbeddedPostgres
from tests.support.cli import RunCommand
from tests.support.memory import in_memory

pytestmark = pytest.mark.empty_database

_LEFT = """
SELECT 'schema', nspname FROM pg_namespace WHERE nspname = 'modak'
UNION ALL SELECT 'publication', pubname FROM pg_publication
UNION ALL SELECT 'slot', slot_name FROM pg_replication_slots WHERE database = current_database() OR slot_name = %s
UNION ALL SELECT 'event trigger', evtname FROM pg_event_trigger
ORDER BY 1, 2
"""


def state(database: Database, slot: str) -> list[tuple[object, ...]]:
    """The objects that an init creates in a database."""
    return database.rows(_LEFT, (slot,))


def execute(database: Database, *statements: str) -> None:
    """Like Database.execute, with identifiers in the statements."""
    with database.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())


def assert_fails_and_leaves_nothing(run: RunCommand, database: Database, slot: str, tmp_path: Path, why: str) -> None:
    before = state(database, slot)
    result = run("init", "--warehouse", str(tmp_path / "lakes" / "mine"), "--slot", slot)
    assert result.exit_code == 1, result.output
    assert why in result.stderr
    assert state(database, slot) == before
    assert not (tmp_path / "lakes").exists()


def assert_works(run: RunCommand, database: Database, slot: str, tmp_path: Path) -> None:
    result = run("init", "--warehouse", str(tmp_path / "lakes" / "mine"), "--slot", slot)
    assert result.exit_code == 0, result.output
    made = state(database, slot)
    assert [name for kind, name in made if kind == "slot"] == [slot]
    assert ("schema", "modak") in made
    assert run("status", "--json").exit_code == 0


@contextlib.contextmanager
def refused_by_the_server(database: Database, tag: str) -> Iterator[None]:
    """A database whose owner forbids one kind of command, such as `CREATE PUBLICATION`."""
    execute(
        database,
        "CREATE FUNCTION public.forbid() RETURNS event_trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'forbidden here: %', tg_tag; END $$",
        f"CREATE EVENT TRIGGER forbid ON ddl_command_end WHEN TAG IN ('{tag}') EXECUTE FUNCTION public.forbid()",
    )
    try:
        yield
    finally:
        database.execute("DROP EVENT TRIGGER forbid", "DROP FUNCTION public.forbid")


@pytest.mark.further
@pytest.mark.parametrize("tag", ["CREATE PUBLICATION", "CREATE SCHEMA", "CREATE TABLE", "CREATE FUNCTION"])
def test_a_command_that_the_server_refuses(
    run: RunCommand, database: Database, slot: str, tmp_path: Path, tag: str
) -> None:
    with refused_by_the_server(database, tag):
        assert_fails_and_leaves_nothing(run, database, slot, tmp_path, f"forbidden here: {tag}")
    assert_works(run, database, slot, tmp_path)


def test_a_publication_of_that_name_that_publishes_all_tables(
    run: RunCommand, database: Database, slot: str, tmp_path: Path
) -> None:
    database.execute("CREATE PUBLICATION mirror_pump FOR ALL TABLES")
    assert_fails_and_leaves_nothing(run, database, slot, tmp_path, "publishes all tables")
    database.execute("DROP PUBLICATION mirror_pump")
    assert_works(run, database, slot, tmp_path)


def test_a_publication_that_was_there_stays(run: RunCommand, database: Database, slot: str, tmp_path: Path) -> None:
    database.execute("CREATE PUBLICATION mirror_pump WITH (publish_via_partition_root = true)")
    with refused_by_the_server(database, "CREATE TABLE"):
        assert_fails_and_leaves_nothing(run, database, slot, tmp_path, "forbidden here")
    assert_works(run, database, slot, tmp_path)


def test_a_slot_of_that_name_of_another_kind(run: RunCommand, database: Database, slot: str, tmp_path: Path) -> None:
    with database.connect() as connection:
        connection.execute("SELECT pg_create_physical_replication_slot(%s)", (slot,))
    try:
        assert_fails_and_leaves_nothing(run, database, slot, tmp_path, "is a physical slot")
    finally:
        with database.connect() as connection:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    assert_works(run, database, slot, tmp_path)


@pytest.mark.parametrize("character", ["#", pytest.param("?", marks=pytest.mark.further), '"'])
def test_a_warehouse_that_engines_cannot_read(
    run: RunCommand, database: Database, slot: str, tmp_path: Path, character: str
) -> None:
    warehouse = tmp_path / f"lake{character}1"
    result = run("init", "--warehouse", str(warehouse), "--slot", slot)
    assert result.exit_code == 2, result.output
    assert "in its path, which pyiceberg, DuckDB or Spark take for something else" in result.stderr
    assert state(database, slot) == []
    assert not warehouse.exists()


def test_an_unwritable_warehouse(run: RunCommand, database: Database, slot: str, tmp_path: Path) -> None:
    before = state(database, slot)
    (tmp_path / "file").write_text("in the way")
    result = run("init", "--warehouse", str(tmp_path / "file" / "lake"), "--slot", slot)
    assert result.exit_code == 1
    assert "cannot write" in result.stderr
    assert state(database, slot) == before
    assert_works(run, database, slot, tmp_path)


def test_a_role_that_may_not_create(
    run: RunCommand, database: Database, slot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if an administrator has created the schema for the role: then the publication fails, and the schema
    stays."""
    role = f"r_{slot}"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'secret'")
    try:
        monkeypatch.setenv(
            "MIRROR_PUMP_DSN", psycopg.conninfo.make_conninfo(database.dsn, user=role, password="secret")
        )
        assert_fails_and_leaves_nothing(run, database, slot, tmp_path, "GRANT CREATE")
        execute(database, f"CREATE SCHEMA modak AUTHORIZATION {role}")
        assert_fails_and_leaves_nothing(run, database, slot, tmp_path, "creating publication mirror_pump")
        execute(database, f"GRANT CREATE ON DATABASE {database.name} TO {role}")
        assert_works(run, database, slot, tmp_path)
    finally:
        execute(database, f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def test_settings_of_the_server(
    database: Database, slot: str, tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting that only a restart changes: the number of slots. Without wal_level = logical, `init` makes a mirror
    without a stream (tests/integration/without_stream)."""
    settings = {"max_replication_slots": "1", "fsync": "off", "shared_buffers": "16MB"}
    with EmbeddedPostgres(settings=settings, temporary_in=in_memory()) as server:
        server.create_database("own")
        own = Database(server, "own")
        monkeypatch.setenv("MIRROR_PUMP_DSN", own.dsn)
        own.execute("SELECT pg_create_physical_replication_slot('theirs')")
        assert_fails_and_leaves_nothing(run, own, slot, tmp_path, "all 1 replication slots")
        own.execute("SELECT pg_drop_replication_slot('theirs')")
        assert_works(run, own, slot, tmp_path)


_STEPS = (
    "publication mirror_pump: created",
    "slot {}: creating",
    "slot {}: created",
    "schema modak",
    "warehouse:",
    "event",
)


@pytest.mark.parametrize("step", _STEPS)
def test_a_connection_that_is_lost_between_two_steps(database: Database, slot: str, tmp_path: Path, step: str) -> None:
    """Also an interrupt at that point: then the connection is alive, in the middle of a transaction."""
    settings = load_settings({"dsn": database.dsn, "slot": slot, "warehouse": str(tmp_path / "lakes" / "mine")})
    before = state(database, slot)
    moment = step.format(slot)

    def kill() -> None:
        ended = database.rows(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE application_name = 'mirror-pump-init' AND datname = current_database()"
        )
        assert ended == [(True,)]

    def interrupt() -> None:
        raise KeyboardInterrupt

    for fault, raised in ((kill, MirrorPumpError), (interrupt, KeyboardInterrupt)):
        lines: list[str] = []

        def say(line: str, lines: list[str] = lines, fault: object = fault) -> None:
            lines.append(line)
            if line.startswith(moment):
                assert callable(fault)
                fault()

        with pytest.raises(raised):
            initialise(settings, say)
        assert any(line.startswith(moment) for line in lines), lines
        assert lines[-1].startswith("taken back: "), lines
        assert state(database, slot) == before
        assert not (tmp_path / "lakes").exists()

    assert initialise(settings, print).slot == slot
    assert state(database, slot) != before


def test_two_inits_at_once(database: Database, slot: str, tmp_path: Path) -> None:
    """The second init neither helps nor harms the first one."""
    settings = Settings(dsn=database.dsn, slot=slot, warehouse=str(tmp_path / "lake"))
    refused: list[str] = []

    def say(line: str) -> None:
        if line.startswith("slot") and not refused:
            with pytest.raises(MirrorPumpError) as error:
                initialise(settings, print)
            refused.append(str(error.value))

    initialise(settings, say)
    assert refused == ["another `mirror-pump init` is at work in this database"]
    assert ("slot", slot) in state(database, slot)
