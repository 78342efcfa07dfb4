"""A commit through Iceberg's JDBC catalog whose answer was lost is never taken for one that failed.

The statements are those of Iceberg's Java client, as its driver sends them. tests/integration/maintenance/
test_lost_answers.py shows that Spark sends these, and what it does with the answers.
"""

from __future__ import annotations

import threading

import pytest
from psycopg import errors

from mirror_pump.lake.commit.catalog import insert_pointer, load_pointer, swap_pointer
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner

OLD, NEW, OTHER, NEWEST = (f"file:///it's \\ a/lake/{name}.metadata.json" for name in ("old", "new", "other", "newest"))

_COMMIT = (
    "UPDATE iceberg_tables SET metadata_location = %s , previous_metadata_location = %s"
    " WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s"
    " AND metadata_location = %s AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)"
)


@pytest.fixture
def catalog(database: Database) -> Database:
    """A catalog with tables s.t and s.u, whose pointers are at OLD."""
    with database.session() as connection:
        for table in ("t", "u"):
            insert_pointer(connection, "s", table, OLD)
    return database


def _statement(new: str, old: str, table: str) -> bytes:
    """What Iceberg's client sends as a simple query."""
    texts = ["('" + value.replace("'", "''") + "')" for value in (new, old, "lake", "s", table, old)]
    return (_COMMIT % tuple(texts)).encode()


def _commit(database: Database, new: str, old: str, table: str = "t") -> int:
    """Sends it. Returns the number of rows that the client is told."""
    with database.connect() as connection:
        connection.execute("SET search_path = modak")
        return connection.execute(_statement(new, old, table)).rowcount


def _commit_hidden(database: Database, new: str, old: str, namespace: str, table: str) -> int:
    """The same with parameters, as its driver does by default."""
    with database.connect() as connection:
        connection.execute("SET search_path = modak")
        return connection.execute(_COMMIT, (new, old, "lake", namespace, table, old)).rowcount


def _moves(database: Database, *locations: str, table: str = "t") -> None:
    """Our own commits, one upon the other."""
    with database.session() as connection:
        for location in locations:
            old = load_pointer(connection, "s", table)
            assert old is not None
            assert swap_pointer(connection, "s", table, old, location)


def test_a_commit_that_was_done_is_in_doubt_when_it_is_repeated(catalog: Database) -> None:
    assert _commit(catalog, NEW, OLD) == 1
    with pytest.raises(errors.StatementCompletionUnknown, match=r"the commit of s\.t was done"):
        _commit(catalog, NEW, OLD)


@pytest.mark.parametrize("later", [(OTHER,), (OTHER, NEWEST)])
def test_so_it_is_below_commits_that_came_since(catalog: Database, later: tuple[str, ...]) -> None:
    assert _commit(catalog, NEW, OLD) == 1
    _moves(catalog, *later)
    with pytest.raises(errors.StatementCompletionUnknown):
        _commit(catalog, NEW, OLD)


def test_so_it_is_when_its_table_has_another_name_now_or_is_gone(catalog: Database) -> None:
    assert _commit(catalog, NEW, OLD) == 1
    catalog.execute("UPDATE modak.iceberg_tables SET table_name = 'renamed' WHERE table_name = 't'")
    with pytest.raises(errors.StatementCompletionUnknown):
        _commit(catalog, NEW, OLD)
    catalog.execute("DELETE FROM modak.iceberg_tables WHERE table_name = 'renamed'")
    with pytest.raises(errors.StatementCompletionUnknown):
        _commit(catalog, NEW, OLD)


@pytest.mark.parametrize("others", [(OTHER,), (OTHER, NEWEST)])
def test_a_commit_that_was_not_done_has_failed(catalog: Database, others: tuple[str, ...]) -> None:
    """Iceberg tries it again on the table's new state, as it has to while a pump commits every second."""
    _moves(catalog, *others)
    assert _commit(catalog, NEW, OLD) == 0
    assert _commit(catalog, NEW, others[-1]) == 1
    assert _commit(catalog, NEW, OLD, "u") == 1, "a table of its own"


def test_commits_are_remembered_for_a_day(catalog: Database) -> None:
    assert _commit(catalog, NEW, OLD) == 1
    catalog.execute("UPDATE modak.mirror_engine_commits SET committed_at = committed_at - interval '25 hours'")
    assert _commit(catalog, OTHER, OLD, "u") == 1
    assert catalog.rows("SELECT location FROM modak.mirror_engine_commits") == [(OTHER,)]


def test_a_repetition_that_waits_for_its_first_attempt_is_in_doubt(catalog: Database) -> None:
    """The client may have lost a connection on which the server still works."""
    outcomes: list[BaseException | int] = []

    def repeat() -> None:
        try:
            outcomes.append(_commit(catalog, NEW, OLD))
        except errors.Error as error:
            outcomes.append(error)

    with catalog.connect(autocommit=False) as first:
        first.execute("SET LOCAL search_path = modak")
        assert first.execute(_statement(NEW, OLD, "t")).rowcount == 1
        thread = threading.Thread(target=repeat)
        thread.start()
        waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE iceberg_tables%'"
        await_true(lambda: catalog.rows(waiting), 20, "the repetition waits")
        first.commit()
    thread.join()
    assert [type(outcome) for outcome in outcomes] == [errors.StatementCompletionUnknown]


def test_a_client_whose_statements_hide_the_commit_is_refused_for_mirrored_tables(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    mirror = Mirror.create(database, warehouse, tasks)
    database.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
    mirror.register("public.t")
    mirror.catch_up()
    location = mirror.location("public.t")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match=r"public\.t") as refused:
        _commit_hidden(database, NEW, location, "public", "t")
    assert "jdbc.preferQueryMode" in str(refused.value.diag.message_hint)
    assert mirror.location("public.t") == location
    with database.session() as connection:
        insert_pointer(connection, "s", "t", OLD)
    assert _commit_hidden(database, NEW, OLD, "s", "t") == 1, "other tables are their engine's own"
    assert _commit_hidden(database, NEW, OLD, "s", "t") == 0
