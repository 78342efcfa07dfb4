"""What the owner of a table plants in it runs with the owner's rights, or with those of whoever writes to the table.

Never with those of the owner of schema modak, who is a superuser here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from mirror_pump.errors import UsageError
from mirror_pump.model import TableId, TableName
from mirror_pump.ops.where.searched_rows import searched_row
from mirror_pump.source.connect import connect
from mirror_pump.testing.database import Database
from tests.support.retention_sql import SqlTable

PLANTED = (
    "CREATE TABLE loot (via text, who name)",
    "GRANT INSERT ON loot TO PUBLIC",
    "CREATE SCHEMA trap",
    "GRANT USAGE ON SCHEMA trap TO PUBLIC",
    # Everything below ends here. From then on, the session finds the operators of schema trap first.
    """CREATE FUNCTION note(via text) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.loot VALUES (via, current_user);
        PERFORM pg_catalog.set_config('search_path', 'trap, pg_catalog, public', false);
        RETURN true;
    END $$""",
    (
        "CREATE FUNCTION trap.same(text, text) RETURNS boolean LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM public.note(''operator''); RETURN pg_catalog.texteq($1, $2); END'"
    ),
    (
        "CREATE FUNCTION trap.less(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM public.note(''operator''); RETURN pg_catalog.int8lt($1, $2); END'"
    ),
    "CREATE OPERATOR trap.= (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.same)",
    "CREATE OPERATOR trap.< (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = trap.less)",
    (
        "CREATE FUNCTION note_trigger() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM public.note(TG_ARGV[0]); RETURN OLD; END'"
    ),
    (
        "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS"
        " 'BEGIN UPDATE public.ev_default SET v = ''touched'' WHERE id = NEW.id; RETURN NULL; END'"
    ),
    (
        "CREATE FUNCTION constant(via text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS"
        " 'BEGIN RETURN public.note(via); END'"
    ),
    "CREATE DOMAIN checked AS text CHECK (public.note('domain'))",
    "CREATE TYPE mood AS ENUM ('calm', 'wild')",
    (
        "CREATE FUNCTION mood_json(mood) RETURNS jsonb LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM public.note(''cast''); RETURN ''{}''; END'"
    ),
    "CREATE CAST (mood AS jsonb) WITH FUNCTION mood_json(mood)",
    (
        "CREATE FUNCTION row_text(ev0) RETURNS text LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM public.note('cast'); RETURN ''; END $$"
    ),
    "CREATE FUNCTION row_text(ev1) RETURNS text LANGUAGE sql AS 'SELECT row_text(NULL::public.ev0)'",
    "CREATE FUNCTION row_text(ev_default) RETURNS text LANGUAGE sql AS 'SELECT row_text(NULL::public.ev0)'",
    "CREATE CAST (ev0 AS text) WITH FUNCTION row_text(ev0)",
    "CREATE CAST (ev1 AS text) WITH FUNCTION row_text(ev1)",
    "CREATE CAST (ev_default AS text) WITH FUNCTION row_text(ev_default)",
    "ALTER TABLE ev ADD COLUMN d checked, ADD COLUMN m mood DEFAULT 'calm'",
    # The planner evaluates a condition without columns, whoever plans a statement about the table.
    "CREATE INDEX ON ev (n) WHERE constant('index')",
    "CREATE TRIGGER aa_touch AFTER INSERT ON ev_default FOR EACH ROW EXECUTE FUNCTION touch()",
    "CREATE TRIGGER note BEFORE DELETE ON ev_default FOR EACH ROW EXECUTE FUNCTION note_trigger('trigger')",
    (
        "CREATE CONSTRAINT TRIGGER late AFTER DELETE ON ev_default DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION note_trigger('deferred')"
    ),
)


class Attacked:
    """A table with heap retention whose owner plants code, and a role that writes to it."""

    def __init__(self, table: SqlTable) -> None:
        self.table = table
        token = os.urandom(4).hex()
        self.owner, self.writer = f"owner-{token}", f"writer-{token}"

    def as_role(self, role: str, *statements: str) -> None:
        """Runs statements as this role, each in a transaction of its own and in a session of its own."""
        for statement in statements:
            with self.table.database.connect() as connection:
                connection.execute(sql.SQL("SET SESSION AUTHORIZATION {}").format(sql.Identifier(role)))
                connection.execute(statement.encode())

    def as_superuser(self, text: str) -> None:
        names = {"owner": sql.Identifier(self.owner), "writer": sql.Identifier(self.writer)}
        with self.table.database.connect() as connection:
            connection.execute(sql.SQL(text).format(**names))

    @property
    def runner(self) -> str:
        """The function that runs statements as the owner."""
        name: str = self.table.value("SELECT 'modak.owner_' || oid FROM pg_roles WHERE rolname = %s", self.owner)
        return name

    def loot(self) -> set[tuple[str, str]]:
        return {(via, who) for via, who in self.table.database.rows("SELECT via, who::text FROM loot")}


@pytest.fixture
def attacked(database: Database) -> Iterator[Attacked]:
    attacked = Attacked(SqlTable(database))
    for role in ("{owner}", "{writer}"):
        attacked.as_superuser(f"CREATE ROLE {role}")
    try:
        for relation in ("ev", "ev0", "ev1", "ev2", "ev_default"):
            attacked.as_superuser(f"ALTER TABLE {relation} OWNER TO {{owner}}")
        attacked.as_superuser(f'GRANT CREATE ON DATABASE "{database.name}" TO {{owner}}')
        attacked.as_superuser("GRANT CREATE, USAGE ON SCHEMA public TO {owner}")
        attacked.as_superuser("GRANT USAGE ON SCHEMA public, modak TO {writer}")
        attacked.as_superuser("GRANT SELECT, INSERT, UPDATE, DELETE ON ev TO {writer}")
        attacked.table.pass_by("ev0", 100)
        attacked.table.seal("ev1")
        yield attacked
    finally:
        attacked.as_superuser("DROP OWNED BY {owner}, {writer} CASCADE; DROP ROLE {owner}, {writer}")


def test_planted_code_never_runs_as_the_owner_of_the_catalog(attacked: Attacked) -> None:
    attacked.as_role(attacked.owner, *PLANTED, "DELETE FROM loot")
    attacked.as_role(
        attacked.writer,
        # Below the cut-line, in a partition that is being sealed, and without a partition.
        "INSERT INTO ev (id, at, d, m) VALUES (5, 55, 'x', 'wild'), (6, 160, 'x', 'wild'), (7, -5, 'x', 'wild')",
        "UPDATE ev SET d = 'y', m = 'calm' WHERE id IN (5, 6)",
        "DELETE FROM ev WHERE id IN (5, 6)",
        """SELECT modak.delete('ev', '{"id": 9, "at": -7}')""",
        """SELECT modak.upsert('ev', '{"id": 10, "at": -8, "d": "z", "m": "wild"}')""",
        # All of it by a load. The owner's code may have changed search_path.
        """DO $$ BEGIN
            PERFORM modak.begin_load('public.ev', 'a', '{}');
            INSERT INTO public.ev (id, at, d, m) VALUES (15, 55, 'x', 'wild'), (16, 160, 'x', 'wild');
            INSERT INTO public.ev (id, at, d, m) VALUES (17, -5, 'x', 'wild');
            UPDATE public.ev SET d = 'y', m = 'calm' WHERE id IN (15, 16);
            DELETE FROM public.ev WHERE id IN (15, 16);
            PERFORM modak.bury_all('public.ev', '[{"id": 19, "at": -7}]');
            PERFORM modak.finish_load('public.ev', 'a', '{}');
        END $$""",
    )
    ops = {key: row[0] for key, row in attacked.table.delta().items()}
    assert ops == {"5 55": 1, "7 -5": 0, "9 -7": 1, "10 -8": 0, "15 55": 1, "17 -5": 0, "19 -7": 1}
    assert {key.partition(" ")[0] for key in attacked.table.captured()} == {"6", "16"}
    added = "ALTER TABLE ev ADD COLUMN e checked"
    attacked.as_role(attacked.owner, added)
    attacked.as_superuser(
        "SELECT modak.complete_corrections(a.attrelid::bigint, jsonb_build_array(jsonb_build_object('attnum', a.attnum,"
        " 'type', a.atttypid::bigint, 'modifier', -1, 'text', 'old')), true)"
        " FROM pg_attribute a WHERE a.attrelid = 'ev'::regclass AND a.attname = 'e'"
    )
    assert attacked.table.delta()["7 -5"][2]["e"] == "old"
    attacked.as_superuser("SELECT modak.holds_rows('ev1'::regclass), modak.newest_tier('ev1'::regclass, 'at')")
    loot = attacked.loot()
    assert {who for _, who in loot} <= {attacked.owner, attacked.writer}, sorted(loot)
    # Its casts and operators are not even called.
    assert {via for via, _ in loot} == {"domain", "index", "trigger", "deferred"}


def test_who_looks_for_a_row_runs_no_planted_code(attacked: Attacked) -> None:
    """But for functions of indexes, which PostgreSQL calls for every reader of the table."""
    planted = [
        *(one for one in PLANTED if "INDEX" not in one),
        "CREATE DOMAIN short AS varchar(4) CHECK (note('domain'))",
        "CREATE DOMAIN twice AS short",
        "CREATE TYPE pair AS (d checked)",
        "CREATE TYPE span AS RANGE (SUBTYPE = checked)",
        "ALTER TABLE ev ADD COLUMN t twice, ADD COLUMN p pair, ADD COLUMN r span, ADD COLUMN l checked[]",
        "CREATE VIEW gone AS SELECT 'x'::text AS d FROM (SELECT note('view') OFFSET 0) n",
    ]
    attacked.as_role(attacked.owner, *planted)
    attacked.as_role(
        attacked.writer,
        """SELECT modak.upsert('ev', '{"id": 5, "at": -8, "d": "x", "m": "wild", "t": "four"}')""",
        """SELECT modak.upsert('ev', '{"id": 15, "at": -7, "d": "y", "m": "wild"}')""",
        """SELECT modak.delete('ev', '{"id": 5, "at": -9}')""",
        """SELECT modak.delete('ev', '{"id": 6, "at": -8}')""",
    )
    attacked.as_role(
        attacked.owner,
        "CREATE FUNCTION to_mood(text) RETURNS mood LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM public.note(''cast''); RETURN NULL; END'",
        "CREATE CAST (text AS mood) WITH FUNCTION to_mood(text)",
    )
    attacked.as_superuser("INSERT INTO ev (id, at, d, m) VALUES (9, 250, 'x', 'wild')")
    attacked.as_superuser("TRUNCATE loot")

    def rows_of(relation: str, **given: str) -> tuple[int | None, int]:
        table = TableName("public", relation)
        with connect(attacked.table.database.dsn, autocommit=True) as connection:
            oid = TableId(attacked.table.value("SELECT %s::regclass::oid::bigint", relation))
            row = searched_row(connection, table, oid, given)
            assert row.texts == given
            return row.in_heap(connection), row.in_delta(connection, ("id", "at"))

    assert rows_of("ev", d="x") == (1, 1)
    assert rows_of("ev", m="wild") == (1, 2)
    assert rows_of("ev", t="four") == (0, 1)
    assert rows_of("ev", d="x", m="wild", id="5") == (0, 1)
    for column in ("p", "r", "l"):
        with pytest.raises(UsageError, match="do not compare"):
            rows_of("ev", **{column: "{x}"})
    with pytest.raises(UsageError, match="does not fit"):
        rows_of("ev", t="fives")
    # Of a tombstone there is the key alone.
    assert rows_of("ev", id="5") == (0, 2)
    assert rows_of("ev", at="-8") == (0, 2)
    assert rows_of("ev", at="-9", id="5") == (0, 1)
    assert rows_of("ev", at="-9", id="6") == (0, 0)
    assert rows_of("gone", d="x") == (0, 0)
    assert attacked.loot() == set()


def test_the_function_that_runs_as_the_owner_is_of_no_use_to_others(attacked: Attacked) -> None:
    call = f"SELECT {attacked.runner}('SELECT 1::bigint', 0)"
    replaced = (
        f"CREATE OR REPLACE FUNCTION {attacked.runner}(statement text, given anyelement) RETURNS int LANGUAGE sql"
    )
    for role, statement in (
        (attacked.writer, call),
        (attacked.owner, f"{replaced} AS 'SELECT 1'"),
        (attacked.owner, "CREATE FUNCTION modak.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'"),
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            attacked.as_role(role, statement)
    # Its owner may alter it: it runs as nobody else, and is made anew when a statement is composed.
    attacked.as_role(
        attacked.owner,
        f"ALTER FUNCTION {attacked.runner}(text, anyelement) SECURITY INVOKER SET search_path = public",
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="as its owner only"):
        attacked.as_superuser(call)
    attacked.as_role(attacked.writer, "INSERT INTO ev (id, at) VALUES (5, -6)")
    attacked.as_superuser(call)
    attacked.as_role(attacked.owner, f"DROP FUNCTION {attacked.runner}(text, anyelement)")
    attacked.as_role(attacked.writer, "INSERT INTO ev (id, at) VALUES (7, -5)")
    assert attacked.table.delta().keys() == {"5 -6", "7 -5"}


def test_the_function_of_a_partition_runs_as_its_owner_only(attacked: Attacked) -> None:
    """The one that contains the statement of the partition's trigger, however its owner alters it."""
    planted = [one for one in PLANTED if "DOMAIN" not in one and "mood" not in one and "ADD COLUMN" not in one]
    attacked.as_role(attacked.owner, *planted)
    name = attacked.table.value("SELECT 'modak.held_' || 'ev0'::regclass::oid || '(anyelement, anyelement, text)'")
    other = attacked.table.value("SELECT 'modak.held_' || 'ev1'::regclass::oid")
    for number, alteration in enumerate(("SET search_path = trap, pg_catalog", "SECURITY INVOKER", None)):
        if alteration is not None:
            attacked.as_role(attacked.owner, f"ALTER FUNCTION {name} {alteration}")
        else:
            attacked.as_role(attacked.owner, f"DROP FUNCTION {name}")
        attacked.as_role(attacked.writer, f"INSERT INTO ev (id, at) VALUES ({number}, 55)")
        loot = attacked.loot()
        assert ("index", attacked.owner) in loot
        assert {who for _, who in loot} <= {attacked.owner, attacked.writer}, sorted(loot)
        assert attacked.table.delta()[f"{number} 55"][:2] == (0, 55)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        attacked.as_role(attacked.writer, f"SELECT {other}(t, t, '') FROM ev1 t")


def test_a_new_owner_is_known_at_once(attacked: Attacked) -> None:
    """The function of a table's new owner is made by the first row that needs it."""
    for relation in ("ev", "ev0", "ev1", "ev2", "ev_default"):
        attacked.as_superuser(f"ALTER TABLE {relation} OWNER TO {{writer}}")
    attacked.as_role(attacked.writer, "INSERT INTO ev (id, at) VALUES (5, 55), (7, -5)")
    assert attacked.table.delta().keys() == {"5 55", "7 -5"}
    assert attacked.table.value("SELECT has_schema_privilege(%s, 'modak', 'CREATE')", attacked.writer) is False
