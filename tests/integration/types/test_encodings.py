"""Databases with other encodings than UTF8 work, or init refuses them by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql

from mirror_pump.errors import MirrorPumpError, SourceError
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified
from tests.support.german_server import german_server

WORDS = {
    "LATIN1": "grüße ÿ¡",
    "LATIN9": "€ Žž œ",
    "WIN1252": "€ „so“ …",
    "KOI8R": "привет ─",
    "EUC_JP": "日本語 ｶﾅ",
    "EUC_KR": "한국어",
}


@pytest.fixture
def encoded(postgres: EmbeddedPostgres) -> Iterator[Callable[[str], Database]]:
    made: list[str] = []

    def make(encoding: str) -> Database:
        name = f"t_encoding_{encoding.lower()}"
        postgres.create_database(name, encoding)
        made.append(name)
        return Database(postgres, name)

    yield make
    for name in made:
        postgres.drop_database(name)


@pytest.mark.further
@pytest.mark.parametrize(
    "encoding",
    # One with a byte for each character, one with several.
    [name if name in ("LATIN1", "EUC_JP") else pytest.param(name, marks=pytest.mark.soak) for name in WORDS],
)
def test_text_of_other_encodings(encoded: Callable[[str], Database], warehouse: str, encoding: str) -> None:
    database = encoded(encoding)
    word = WORDS[encoding]
    with psycopg.connect(database.dsn, autocommit=True, client_encoding="UTF8") as connection:
        column, label = sql.Identifier(word), sql.Literal(word)

        def insert(row: int) -> None:
            values = sql.SQL("INSERT INTO t VALUES ({}, {}, {}, to_json({}::text), {}, ARRAY[{}, NULL])")
            connection.execute(values.format(row, label, label, label, label, label))

        connection.execute(sql.SQL("CREATE TYPE mood AS ENUM ({}, 'ok')").format(label))
        connection.execute(
            sql.SQL(
                "CREATE TABLE t (id int, {} text, c char(9), j json, m mood, l text[], PRIMARY KEY (id, m))"
            ).format(column)
        )
        insert(1)
        mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
        with mirror.pumping():
            mirror.register("t")
            mirror.await_live("public.t")
            insert(2)
            insert(3)
            connection.execute("UPDATE t SET m = 'ok' WHERE id = 3")
            mirror.await_frontier()
            # Notes of schema changes are in the database's encoding, too.
            later = sql.Identifier(word + "2")
            connection.execute(sql.SQL("ALTER TABLE t RENAME COLUMN {} TO {}").format(column, later))
            connection.execute(sql.SQL("UPDATE t SET {} = 'x' WHERE id = 1").format(later))
            mirror.await_frontier()
            assert mirror.error("public.t") == ""
            assert mirror.state("public.t") == "live"
    assert assert_verified(database) == 1
    rows = read_duckdb(mirror.location("public.t"), "SELECT * FROM lake ORDER BY id").to_pylist()
    padded = word + " " * (9 - len(word))
    expected = {"c": padded, "j": f'"{word}"', "l": [word, None]}
    assert rows == [
        {"id": n, f"{word}2": "x" if n == 1 else word, **expected, "m": "ok" if n == 3 else word} for n in (1, 2, 3)
    ]


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "MULE_INTERNAL"])
def test_what_cannot_be_read_is_refused_by_name(
    encoded: Callable[[str], Database], warehouse: str, encoding: str
) -> None:
    database = encoded(encoding)
    with pytest.raises(SourceError, match=encoding) as refused:
        Mirror.create(database, warehouse, ThreadTaskRunner())
    assert isinstance(refused.value, MirrorPumpError)
    assert refused.value.remedy


@pytest.fixture
def odd(encoded: Callable[[str], Database], warehouse: str) -> Mirror:
    """Two tables of a database that holds characters which UTF-8 does not have, such as 0x81 in WIN1252."""
    database = encoded("WIN1252")
    database.execute(
        "CREATE TYPE mood AS ENUM ('ok')",
        "CREATE TABLE t (id int PRIMARY KEY, v text, m mood)",
        "CREATE TABLE u (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'one', 'ok')",
        "INSERT INTO u VALUES (1, 'one')",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("t", "u")
    mirror.catch_up()
    return mirror


@pytest.mark.further
@pytest.mark.parametrize("transactional", ["true", "false"])
def test_a_message_that_cannot_be_sent_is_passed_over(odd: Mirror, transactional: str) -> None:
    """Any role may emit one."""
    with odd.pumping(), odd.database.connect() as connection:
        with connection.transaction():
            connection.execute("UPDATE t SET v = 'beside it'")
            connection.execute(f"SELECT pg_logical_emit_message({transactional}, chr(129), 'x')".encode())
        connection.execute("UPDATE u SET v = 'behind it'")
        odd.await_frontier()
        odd.await_live("public.t", "public.u")
        odd.await_frontier()
        odd.assert_equal("public.t", "public.u")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("ALTER TABLE t RENAME v TO %I", id="column"),
        pytest.param("ALTER TYPE mood ADD VALUE %L", id="label", marks=pytest.mark.further),
        pytest.param("ALTER TABLE t RENAME TO %I", id="table", marks=pytest.mark.further),
    ],
)
def test_a_name_that_utf8_lacks_fails_that_table(odd: Mirror, change: str) -> None:
    before = odd.heap("t")
    with odd.pumping(), odd.database.connect() as connection:
        connection.execute(f"DO $$ BEGIN EXECUTE format('{change}', chr(129)); END $$".encode())
        connection.execute("UPDATE u SET v = 'later'")
        await_true(lambda: odd.state("public.t") == "failed", 30, "t fails")
        assert "UTF8" in odd.error("public.t")
        # If a type cannot be described, nobody knows which tables use it, so all tables are copied again.
        odd.await_frontier()
        odd.await_live("public.u")
        odd.await_frontier()
        odd.assert_equal("public.u")
        assert odd.lake("public.t") == before
    with odd.database.connect() as connection:
        connection.execute("UPDATE u SET v = 'at last'")
    odd.catch_up()
    odd.assert_equal("public.u")


def test_a_server_may_say_it_in_another_language(odd: Mirror) -> None:
    with (
        german_server(odd.database.dsn) as dsn,
        odd.with_options(dsn=dsn).pumping(),
        odd.database.connect() as connection,
    ):
        connection.execute("SELECT pg_logical_emit_message(false, chr(129), 'x')")
        connection.execute("INSERT INTO t VALUES (2, chr(129), 'ok')")
        connection.execute("UPDATE u SET v = 'later'")
        await_true(lambda: odd.state("public.t") == "failed", 30, "t fails")
        odd.await_frontier()
        odd.await_live("public.u")
        odd.assert_equal("public.u")
