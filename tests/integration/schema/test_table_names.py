"""A name in the catalog, in the lake and in `sql` means the table that PostgreSQL calls so, whatever was dropped,
renamed and created."""

from __future__ import annotations

import json
import random
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from mirror_pump.errors import TableError
from mirror_pump.lake.commit.catalog import insert_pointer
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.integration.feeds.test_feed_rows import KEYS, feed
from tests.support.cli import RunCommand
from tests.support.error_bounds import printed_seed


@pytest.fixture
def mirror(database: Database, warehouse: str, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    database.execute("CREATE SCHEMA s")
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    monkeypatch.setenv("MIRROR_PUMP_SLOT", mirror.settings.slot)
    return mirror


def create(name: str, owner: str, *, partitioned: bool = False) -> str:
    """A table whose row says which table it belongs to."""
    partition = f'CREATE TABLE public."rows of {owner}" PARTITION OF {name} DEFAULT; ' if partitioned else ""
    return (
        f'CREATE TABLE {name} (id int CONSTRAINT "key of {owner}" PRIMARY KEY, owner text)'
        f"{' PARTITION BY RANGE (id)' if partitioned else ''};"
        f" {partition}INSERT INTO {name} VALUES (1, '{owner}')"
    )


def owners(run: RunCommand, *names: str) -> dict[str, list[str]]:
    """By `sql`, what the rows of each name say."""
    parts = [f"SELECT '{name}' AS name, owner FROM {name}" for name in names]
    result = run("sql", " UNION ALL ".join(parts), "--format", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, list[str]] = {name: [] for name in names}
    for row in json.loads(result.stdout):
        found[row["name"]].append(row["owner"])
    return {name: sorted(rows) for name, rows in found.items()}


def states(mirror: Mirror) -> dict[str, str]:
    """The state of each registered table, by its name in the catalog."""
    query = "SELECT t.lake_table_ref, m.state FROM modak.tables t JOIN modak.mirror_tables m USING (table_id)"
    return dict(mirror.database.rows(query))


def settle(mirror: Mirror, run: RunCommand, *names: str) -> None:
    """Waits until the tables are live, and compares by name."""
    mirror.await_frontier()
    await_true(lambda: all(states(mirror).get(name) == "live" for name in names), 60, f"{names} are live")
    mirror.await_frontier()
    mirror.assert_equal(*names)
    expected = {name: [row[1] for row in mirror.heap(name)] for name in names}
    assert owners(run, *names) == {name: sorted(rows) for name, rows in expected.items()}


_ROTATION = "DROP TABLE t_old; ALTER TABLE t RENAME TO t_old; CREATE TABLE t (LIKE t_old INCLUDING ALL)"


@pytest.mark.parametrize("pumps", [True, pytest.param(False, marks=pytest.mark.further)])
def test_a_rotation(mirror: Mirror, database: Database, run: RunCommand, pumps: bool) -> None:
    """The new table is registered before or after the pump has followed."""
    database.execute(create("t", "first"), create("t_old", "oldest"))
    mirror.register("t", "t_old", feed=KEYS)
    mirror.catch_up()
    if not pumps:
        database.execute(f"{_ROTATION}; INSERT INTO t VALUES (1, 'second')")
        mirror.register("t", feed=KEYS)
    with mirror.pumping():
        if pumps:
            database.execute(f"{_ROTATION}; INSERT INTO t VALUES (1, 'second')")
            mirror.await_frontier()
            assert owners(run, "public.t_old") == {"public.t_old": ["first"]}
            mirror.register("t", feed=KEYS)
        settle(mirror, run, "public.t", "public.t_old")
        assert states(mirror) == {"public.t": "live", "public.t_old": "live", "public.t_old__former": "dropped"}
        assert owners(run, "public.t_old__former") == {"public.t_old__former": ["oldest"]}
        database.execute("INSERT INTO t VALUES (2, 'second')", "INSERT INTO t_old VALUES (2, 'first')")
        settle(mirror, run, "public.t", "public.t_old")
        for name, owner in (("public.t", "second"), ("public.t_old", "first"), ("public.t_old__former", "oldest")):
            assert {row["owner"] for row in feed(mirror, name)} <= {owner, None}
            assert feed(mirror, name)[-1]["owner"] == (None if owner == "oldest" else owner)
        mirror.unregister("t")
        assert states(mirror) == {"public.t_old": "live", "public.t_old__former": "dropped"}
        mirror.unregister("public.t_old__former")
    mirror.assert_sound()


def test_lake_tables_that_are_not_mirrored(mirror: Mirror, database: Database, run: RunCommand) -> None:
    """Another engine's, and one of a former registration, which `unregister --former` removes under its new name."""
    database.execute(create("a", "first"), create("b", "second"), create("c", "third"))
    mirror.register("a", "b")
    mirror.catch_up()
    mirror.unregister("a")
    with database.session() as connection:
        insert_pointer(connection, "public", "c", "file:///elsewhere/metadata/1.json")
    with pytest.raises(TableError, match="that no registration made"):
        mirror.register("c")
    database.execute("DROP TABLE a", "ALTER TABLE b RENAME TO a")
    mirror.catch_up()
    mirror.assert_equal("public.a")
    assert mirror.lake("public.a__former") == [(1, "first")]
    database.execute("DROP TABLE c", "ALTER TABLE a RENAME TO c")
    mirror.catch_up()
    mirror.assert_equal("public.c")
    assert mirror.location("public.c__former") == "file:///elsewhere/metadata/1.json"
    assert run("unregister", "--former", "public.a__former").exit_code == 0
    with pytest.raises(LookupError):
        mirror.location("public.a__former")


@pytest.mark.further
def test_schemas_swap_their_names(mirror: Mirror, database: Database, run: RunCommand) -> None:
    database.execute("CREATE SCHEMA r", create("s.a", "first"), create("r.a", "second"), create("r.b", "third"))
    mirror.register("s.a", "r.a", "r.b", feed=KEYS)
    mirror.catch_up()
    database.execute(
        "BEGIN; ALTER SCHEMA s RENAME TO x; ALTER SCHEMA r RENAME TO s; ALTER SCHEMA x RENAME TO r; DROP TABLE r.a;"
        f" ALTER TABLE s.b SET SCHEMA r; ALTER TABLE r.b RENAME TO a; {create('s.b', 'fourth')}; COMMIT"
    )
    mirror.register("s.b")
    with mirror.pumping():
        settle(mirror, run, "s.a", "s.b", "r.a")
    assert {name: mirror.heap(name) for name in ("s.a", "s.b", "r.a")} == {
        "s.a": [(1, "second")],
        "s.b": [(1, "fourth")],
        "r.a": [(1, "third")],
    }
    assert feed(mirror, "s.a")
    assert feed(mirror, "r.a")
    mirror.assert_sound()


@pytest.mark.further
def test_tables_that_the_stream_does_not_rename(mirror: Mirror, database: Database, run: RunCommand) -> None:
    """One has failed, one waits for a key, one is paused; others take their names."""
    database.execute(create("a", "failed"), create("b", "waiting"), create("c", "paused"), create("d", "live"))
    mirror.register("a", "b", "c", "d")
    with mirror.pumping():
        mirror.await_live("public.a", "public.b", "public.c", "public.d")
        database.execute('ALTER TABLE b DROP CONSTRAINT "key of waiting"', "CREATE TABLE child () INHERITS (a)")
        assert run("pause", "c").exit_code == 0
        await_true(lambda: mirror.state("public.a") == "failed", 60, "a has failed")
        await_true(lambda: mirror.state("public.b") == mirror.state("public.c") == "waiting", 60, "b and c wait")
        for number, name in enumerate("abc"):
            database.execute(f"ALTER TABLE {name} RENAME TO former_{name}")
            if number:
                database.execute(create(name, f"new {name}"))
                mirror.register(name)
        database.execute("ALTER TABLE d RENAME TO a")
        settle(mirror, run, "public.a", "public.b", "public.c")
        await_true(lambda: mirror.state("public.former_a") == "failed", 60, "the failed table has its name")
        await_true(lambda: mirror.state("public.former_b") == "waiting", 60, "the table without a key has its name")
        database.execute("ALTER TABLE former_b ADD PRIMARY KEY (id)")
        assert run("resume", "former_c").exit_code == 0
        settle(mirror, run, "public.a", "public.b", "public.c", "public.former_b", "public.former_c")
    mirror.assert_sound()


@dataclass
class _NamedOwners:
    """Tables of three names, some of which do not exist, as random statements leave them."""

    chance: random.Random
    names: dict[str, str] = field(default_factory=dict)
    """By name, what the rows of its table say."""
    created: int = 0

    def statement(self) -> str:
        """A statement, or a few, that change what the names mean."""
        free = sorted({"public.a", "public.b", "s.a"} - self.names.keys())
        used = sorted(self.names)
        kinds = ["create"] * bool(free) + ["drop"] * bool(used) + ["move"] * bool(free and used)
        match self.chance.choice([*kinds, "swap", "swap"] if len(used) > 1 else kinds):
            case "create":
                name = self.chance.choice(free)
                self.created += 1
                self.names[name] = f"table {self.created}"
                return create(name, self.names[name], partitioned=self.chance.random() < 0.3)
            case "drop":
                name = self.chance.choice(used)
                del self.names[name]
                return f"DROP TABLE {name}"
            case "move":
                return self._move(self.chance.choice(used), self.chance.choice(free))
            case _:
                first, second = self.chance.sample(used, 2)
                return "; ".join(
                    (
                        self._move(first, "public.passing"),
                        self._move(second, first),
                        self._move("public.passing", second),
                    )
                )

    def _move(self, name: str, new_name: str) -> str:
        self.names[new_name] = self.names.pop(name)
        (schema, _), (new_schema, new_table) = name.split("."), new_name.split(".")
        # By way of a name that no table has: the other schema may have either.
        return (
            f"ALTER TABLE {name} RENAME TO moving; ALTER TABLE {schema}.moving SET SCHEMA {new_schema};"
            f" ALTER TABLE {new_schema}.moving RENAME TO {new_table}"
        )


@pytest.mark.further
@pytest.mark.parametrize(("seed", "rounds"), [(1, 5), *((seed, 12) for seed in range(2, 8))])
def test_random_names(mirror: Mirror, database: Database, run: RunCommand, seed: int, rounds: int) -> None:
    """Tables are dropped, renamed, moved, created and registered while the pump runs, or before it has followed."""
    chance = random.Random(printed_seed(seed))
    tables = _NamedOwners(chance)
    registered: set[str] = set()
    for number in range(rounds):
        with ExitStack() as pumps:
            if pumped := chance.random() < 0.6:
                pumps.enter_context(mirror.pumping())
            for _ in range(chance.randrange(1, 4)):
                statements = [tables.statement() for _ in range(chance.randrange(1, 5))]
                print(number, pumped, statements, file=sys.stderr)
                database.execute("BEGIN; " + "; ".join(statements) + "; COMMIT")
                new = sorted(name for name, owner in tables.names.items() if owner not in registered)
                if chance.random() < 0.7:
                    mirror.register(*new, feed=KEYS if chance.random() < 0.5 else None)
                    registered.update(tables.names[name] for name in new)
        names = sorted(name for name, owner in tables.names.items() if owner in registered)
        if names:
            with mirror.pumping():
                settle(mirror, run, *names)
                for name, owner in tables.names.items():
                    if owner in registered:
                        assert mirror.heap(name) == [(1, owner)]
        _check_feeds(mirror, tables, registered)
    mirror.assert_sound()


def _check_feeds(mirror: Mirror, tables: _NamedOwners, registered: set[str]) -> None:
    """Each feed of a table that exists is called after it, and has no rows of another."""
    query = (
        "SELECT f.namespace || '.' || f.name, t.lake_table_ref"
        " FROM modak.change_feeds f JOIN modak.tables t ON feed_id = table_id"
    )
    for feed_name, table in mirror.database.rows(query):
        if tables.names.get(table) in registered:
            assert feed_name == f"{table}__changes"
            assert {row["owner"] for row in feed(mirror, table)} <= {tables.names[table], None}
