"""The functions that contain the statement of a partition's row trigger: who uses them, and what makes them outdated.

Transactions in READ COMMITTED call them, those in REPEATABLE READ compose the statement. Both have to write the same.
"""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg
import pytest

from tests.support.retention_sql import SqlTable, repeatable_read

pytestmark = pytest.mark.further

_CALLS: LiteralString = (
    "SELECT coalesce(sum(calls) FILTER (WHERE funcname ~ '^held_[0-9]+$'), 0)::int,"
    " coalesce(sum(calls) FILTER (WHERE funcname = 'as_owner'), 0)::int FROM pg_stat_xact_user_functions"
    " WHERE schemaname = 'modak'"
)
_FUNCTIONS: LiteralString = (
    "SELECT count(*) FROM pg_proc WHERE pronamespace = 'modak'::regnamespace AND proname ~ '^held_[0-9]+$'"
)

_CHANGES = (
    "INSERT INTO ev (id, at, v) VALUES (11, 11, 'new'), (12, 12, NULL)",
    "UPDATE ev SET v = 'again' WHERE id = 11",
    "UPDATE ev SET id = 21 WHERE id = 12",
    "UPDATE ev SET v = 'changed' WHERE id = 1",
    "DELETE FROM ev WHERE id = 11",
)


def counted(connection: psycopg.Connection[Any], statement: str) -> tuple[int, int]:
    """Runs a statement, and returns how often its triggers called functions, and composed statements."""
    with connection.transaction():
        connection.execute("SET LOCAL track_functions = 'pl'")
        # Counts of earlier transactions may be among them.
        before = connection.execute(_CALLS).fetchall()[0]
        connection.execute(statement.encode())
        after = connection.execute(_CALLS).fetchall()[0]
    return after[0] - before[0], after[1] - before[1]


def sweep(table: SqlTable) -> None:
    table.value("SELECT modak.sweep_held_functions('s')")


def test_triggers_write_the_same_with_their_function_and_without(table: SqlTable) -> None:
    table.pass_by("ev0", 100)
    with table.database.session() as connection:
        for change in _CHANGES:
            called, composed = counted(connection, change)
            assert called > 0
            assert composed == 0
    by_function = table.delta()
    assert {key: row[0] for key, row in by_function.items()} == {"11 11": 1, "12 12": 1, "21 12": 0, "1 50": 0}
    assert by_function["1 50"] == (0, 50, {"id": 1, "at": 50, "v": "changed", "n": 7})
    table.database.execute(
        "DELETE FROM modak.delta; DELETE FROM ev WHERE id = 21; UPDATE ev SET v = 'old' WHERE id = 1"
    )
    table.database.execute("DELETE FROM modak.delta")
    with repeatable_read(table) as connection:
        for change in _CHANGES:
            connection.execute(change.encode())
        connection.commit()
    assert table.delta() == by_function


@pytest.mark.parametrize(
    ("alteration", "row"),
    [
        ("ALTER TABLE ev RENAME COLUMN v TO w", {"id": 1, "at": 50, "w": "x", "n": 8}),
        (
            "ALTER TABLE ev RENAME v TO spare; ALTER TABLE ev ADD v text; ALTER TABLE ev DROP spare",
            {"id": 1, "at": 50, "v": None, "n": 8},
        ),
        # Each name exists, for the other column.
        (
            (
                "ALTER TABLE ev ADD v2 text DEFAULT 'second'; UPDATE ev SET v = 'x' WHERE id = 1;"
                " ALTER TABLE ev RENAME v TO v3; ALTER TABLE ev RENAME v2 TO v; ALTER TABLE ev RENAME v3 TO v2"
            ),
            {"id": 1, "at": 50, "v": "second", "n": 8, "v2": "x"},
        ),
        ("ALTER TABLE ev DROP COLUMN v", {"id": 1, "at": 50, "n": 8}),
        ("ALTER TABLE ev ALTER n TYPE text", {"id": 1, "at": 50, "v": "x", "n": "8"}),
        # Another table has the partition's name then.
        (
            "ALTER TABLE ev0 RENAME TO moved; CREATE TABLE ev0 (LIKE moved)",
            {"id": 1, "at": 50, "v": "x", "n": 8},
        ),
        ("CREATE SCHEMA s2; ALTER TABLE ev0 SET SCHEMA s2", {"id": 1, "at": 50, "v": "x", "n": 8}),
    ],
)
def test_a_function_is_not_used_for_another_shape(table: SqlTable, alteration: str, row: dict[str, Any]) -> None:
    table.pass_by("ev0", 100)
    with table.database.session() as connection:
        # The session keeps a plan.
        connection.execute("UPDATE ev SET v = 'x', n = 8 WHERE id = 1")
        table.database.execute("ALTER TABLE ev DROP COLUMN doubled")
        table.database.execute(alteration)
        called, composed = counted(connection, "UPDATE ev SET id = id WHERE id = 1")
        assert called == composed == 1
        assert table.delta()["1 50"] == (0, 50, row)
        sweep(table)
        table.database.execute("DELETE FROM modak.delta")
        assert counted(connection, "UPDATE ev SET id = id WHERE id = 1") == (1, 0)
        assert table.delta()["1 50"] == (0, 50, row)


def test_a_transaction_uses_no_function_for_a_shape_that_it_made_itself(table: SqlTable) -> None:
    table.pass_by("ev0", 100)
    with table.database.session(autocommit=False) as connection:
        connection.execute("UPDATE ev SET v = 'x' WHERE id = 1")
        connection.execute("ALTER TABLE ev RENAME v TO w")
        connection.execute("UPDATE ev SET w = 'y' WHERE id = 1")
        connection.execute("SAVEPOINT s")
        connection.execute("ALTER TABLE ev RENAME n TO m")
        connection.execute("ROLLBACK TO s")
        connection.execute("UPDATE ev SET n = 9 WHERE id = 1")
        connection.commit()
    assert table.delta()["1 50"][2] == {"id": 1, "at": 50, "w": "y", "n": 9}


def test_types_of_users_with_code_are_left_to_composed_statements(table: SqlTable) -> None:
    table.database.execute(
        "CREATE TYPE mood AS ENUM ('calm', 'wild')",
        "CREATE DOMAIN short AS text CHECK (length(VALUE) < 9)",
        "ALTER TABLE ev ADD m mood DEFAULT 'calm', ADD d short DEFAULT 'short'",
    )
    table.pass_by("ev0", 100)
    changes = (
        "UPDATE ev SET v = 'x' WHERE id = 1",
        (
            "ALTER TYPE mood RENAME VALUE 'calm' TO 'quiet'; ALTER TYPE mood RENAME TO temper;"
            " UPDATE ev SET v = 'y' WHERE id = 1"
        ),
    )
    with table.database.session() as connection:
        for change, mood in zip(changes, ("calm", "quiet"), strict=True):
            assert counted(connection, change) == (1, 0)
            assert table.delta()["1 50"][2].items() >= {"m": mood, "d": "short"}.items()
        table.database.execute(
            "CREATE FUNCTION mood_json(temper) RETURNS jsonb LANGUAGE sql AS $$SELECT '{}'::jsonb$$",
            "CREATE CAST (temper AS jsonb) WITH FUNCTION mood_json(temper)",
        )
        assert counted(connection, "UPDATE ev SET v = 'z' WHERE id = 1") == (0, 1)
    assert table.delta()["1 50"][2].items() >= {"m": "quiet", "d": "short", "v": "z"}.items()


def test_a_key_of_a_users_type_is_left_to_composed_statements(table: SqlTable) -> None:
    table.database.execute(
        "CREATE DOMAIN number AS int; ALTER TABLE ev DROP doubled; ALTER TABLE ev ALTER id TYPE number"
    )
    table.pass_by("ev0", 100)
    assert table.value(_FUNCTIONS) == 0
    sweep(table)
    assert table.value(_FUNCTIONS) == 0
    with table.database.session() as connection:
        assert counted(connection, "UPDATE ev SET v = 'x' WHERE id = 1") == (0, 1)
    assert table.delta()["1 50"][2]["v"] == "x"


def test_columns_are_not_mistaken_for_what_the_statement_names(table: SqlTable) -> None:
    """Columns with names that the statement and its function use for other things."""
    names = "c d f g h i k p r s t given image key keys latter op other payload pk present shape tier".split()  # noqa: SIM905
    table.database.execute(
        "ALTER TABLE ev " + ", ".join(f"ADD {name} timestamptz DEFAULT '2026-11-22 01:02:03+00'" for name in names)
    )
    table.pass_by("ev0", 100)
    wanted = {"id": 1, "at": 50, "v": "x", "n": 7} | dict.fromkeys(names, "2026-11-22T01:02:03+00:00")
    with table.database.session() as connection:
        assert counted(connection, "UPDATE ev SET v = 'x' WHERE id = 1") == (1, 0)
    assert table.delta()["1 50"] == (0, 50, wanted)
    with repeatable_read(table) as connection:
        connection.execute("UPDATE ev SET n = 8 WHERE id = 1")
        connection.commit()
    assert table.delta()["1 50"] == (0, 50, wanted | {"n": 8})


def test_functions_are_made_anew_and_removed(table: SqlTable) -> None:
    """After `init` has applied functions of another text, or somebody has dropped one; and with the trigger."""
    table.pass_by("ev0", 100)
    table.seal("ev1")
    assert table.value(_FUNCTIONS) == 2
    (name,) = table.database.rows("SELECT format('modak.held_%s', 'ev0'::regclass::oid)")[0]
    table.database.execute(f"DROP FUNCTION {name}")
    with table.database.session() as connection:
        assert counted(connection, "UPDATE ev SET v = 'x' WHERE id = 1") == (0, 1)
        sweep(table)
        assert counted(connection, "UPDATE ev SET v = 'y' WHERE id = 1") == (1, 0)
    # A user's command, which finds nothing in its way.
    table.database.execute("DROP TABLE ev1")
    sweep(table)
    assert table.value(_FUNCTIONS) == 1
    assert table.drop("ev0") is None
    sweep(table)
    assert table.value(_FUNCTIONS) == 0
