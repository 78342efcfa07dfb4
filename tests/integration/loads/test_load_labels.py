"""A label commits with its rows, once: replays, other content, clients at once, connections cut at every message."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest

from mirror_pump.errors import ConnectionLost, UsageError
from mirror_pump.ops.load.load_job import LoadRequest, LoadResult, LoadStep
from mirror_pump.ops.row_files.file_format import FileFormat
from mirror_pump.source.loads.filtered_rows import TooManyFiltered
from mirror_pump.source.loads.labels import LabelBusy, LabelTaken
from mirror_pump.testing.mirror import await_true
from tests.support.killed_ingest import signalled_load
from tests.support.loads import LoadedTable, Loader
from tests.support.message_proxy import cutting_messages
from tests.support.retention_sql import repeatable_read

TEXT = "id,at,v\n1,50,x\n2,150,y\n3,250,z\n"


def versions(table: LoadedTable) -> list[tuple[object, ...]]:
    """What changes with each write: versions of corrections, and the rows' transactions."""
    return table.database.rows(
        "SELECT pk, version::text FROM modak.delta UNION ALL SELECT id::text, xmin::text FROM ev ORDER BY 1, 2"
    )


def test_the_same_load_again_returns_the_result_and_changes_nothing(table: LoadedTable) -> None:
    first = table.load("a", TEXT)
    before = versions(table)
    again = table.load("a", TEXT)
    assert (first.replayed, again.replayed) == (False, True)
    assert again.outcome == first.outcome
    assert versions(table) == before
    assert table.value("SELECT count(*) FROM modak.op_log WHERE op_kind = 'load'") == 1
    # Labels are those of a table.
    assert table.value("SELECT modak.recorded_load('ev', 'b', NULL)") is None


def test_other_content_under_the_label_is_refused(table: LoadedTable) -> None:
    table.load("a", TEXT)
    before = versions(table)
    with pytest.raises(LabelTaken, match="digest was sha256:"):
        table.load("a", TEXT + "4,260,w\n")
    with pytest.raises(LabelTaken, match="mode was upsert, and is insert"):
        table.load("a", TEXT, "insert")
    with pytest.raises(LabelTaken, match="columns was not given, and is"):
        table.load("a", TEXT, columns=("id", "at", "v"))
    assert versions(table) == before
    assert table.labels() == {"a": "committed"}


@pytest.mark.further
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_load_that_gets_a_signal_at_each_step(table: LoadedTable, number: signal.Signals) -> None:
    """All of its rows are there with the label, or nothing is; the same load again completes it."""
    for round_, step in enumerate(LoadStep):
        label, text = str(step), f"id,at,v\n1,50,{step}\n3,250,{step}\n{round_ + 10},260,{step}\n"
        before = versions(table)
        process = signalled_load(
            table.database.dsn, LoadRequest("ev", label, FileFormat.CSV), text.encode(), step, number
        )
        process.join(60)
        assert process.exitcode == (130 if number is signal.SIGINT else -number), step
        await_true(lambda: not table.database.rows(_LOADING), 30, "the session of the interrupted load has ended")
        landed = step is LoadStep.COMMITTED
        assert (label in table.labels(), versions(table) != before) == (landed, landed)
        assert table.load(label, text).replayed is landed
        assert table.value("SELECT count(*) FROM ev WHERE v = %s", step) == 2


_LOADING = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'mirror-pump-load'"


def test_a_label_of_a_failed_load_is_free(table: LoadedTable) -> None:
    with pytest.raises(TooManyFiltered):
        table.load("a", "id,at\nx,50\n")
    assert table.labels() == {"a": "failed"}
    (failure,) = table.database.rows("SELECT result ->> 'error', result -> 'filtered' FROM modak.load_labels")
    assert 'row 1: column id: invalid input syntax for type integer: "x"' in failure[0]
    assert not table.load("a", "id,at\n1,50\n").replayed
    with pytest.raises(LabelTaken):
        table.load("a", "id,at\nx,50\n")
    assert table.labels() == {"a": "committed"}


@pytest.mark.parametrize("label", ["", "x" * 201, "a\nb", "a\x00"])
def test_labels_that_cannot_be_told_apart_are_refused(table: LoadedTable, label: str) -> None:
    with pytest.raises(UsageError, match="a label has 1 to 200 characters"):
        table.load(label, TEXT)


@pytest.mark.parametrize("ends", ["committed", "rolled back"])
def test_a_second_client_waits_for_the_first_one(table: LoadedTable, ends: str) -> None:
    with table.database.session(autocommit=False) as first, ThreadPoolExecutor(1) as threads:
        content = table.load("b", TEXT).outcome["content"]
        table.database.execute("DELETE FROM modak.load_labels")
        before = versions(table)
        first.execute("SELECT modak.begin_load('ev', 'b', '{}')")
        with pytest.raises(LabelBusy, match="another client"):
            table.load("b", TEXT, lock_timeout=0.05)
        second: Future[LoadResult] = threads.submit(table.load, "b", TEXT)
        table.await_blocked_by(first)
        if ends == "committed":
            outcome = psycopg.types.json.Jsonb({"content": content, "filtered": [], "rows_loaded": 7})
            first.execute("SELECT modak.finish_load('ev', 'b', %s)", (outcome,))
            first.commit()
        else:
            first.rollback()
        result = second.result(60)
    assert result.replayed is (ends == "committed")
    assert result.outcome["rows_loaded"] == (7 if result.replayed else 3)
    assert (versions(table) == before) is result.replayed


def test_of_clients_at_once_one_loads(table: LoadedTable) -> None:
    barrier = threading.Barrier(3)

    def together(label: str) -> LoadResult:
        barrier.wait(60)
        return table.load(label, TEXT)

    for number in range(5):
        with ThreadPoolExecutor(3) as threads:
            futures = [threads.submit(together, f"l{number}") for _ in range(3)]
            results = [future.result(60) for future in futures]
        assert sorted(result.replayed for result in results) == [False, True, True]
        assert results[0].outcome == results[1].outcome == results[2].outcome
    assert table.value("SELECT count(*) FROM modak.op_log WHERE op_kind = 'load'") == 5


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.soak), 11])
def test_a_connection_cut_at_any_message_leaves_all_or_nothing(table: LoadedTable, step: int) -> None:
    """Inserts count: a second one of a row that is there would be filtered, and so fail."""
    with cutting_messages(table.database.dsn, b"mirror-pump-load") as proxy:

        def attempt(number: int) -> int:
            """Cuts at this message. Returns the number of messages that have passed."""
            key = 1000 + number
            text = f"id,at\n{key},250\n{key},50\n{key},150\n"
            proxy.cut_at(number)
            with contextlib.suppress(ConnectionLost):
                table.load(f"l{number}", text, "insert", dsn=proxy.proxied)
            passed = len(proxy.passed)
            proxy.cut_at(None)
            _await_end_of_loads(table)
            heap = table.value("SELECT count(*) FROM ev WHERE id = %s", key)
            delta = table.value("SELECT count(*) FROM modak.delta WHERE payload ->> 'id' = %s", str(key))
            committed = f"l{number}" in table.labels()
            assert (heap, delta) == ((2, 2) if committed else (0, 0)), (number, proxy.cuts)
            again = table.load(f"l{number}", text, "insert", dsn=proxy.proxied)
            assert again.replayed is committed
            assert again.outcome["rows_loaded"] == 3
            return passed

        total = attempt(100_000)
        assert total > 50
        # All of the last ones: the COMMIT is among them.
        for number in sorted({*range(3, total, step), *range(total - 10, total)}):
            attempt(number)
    assert len(proxy.cuts) > 10
    assert table.value("SELECT count(*) FROM ONLY ev_default") == 0


def _await_end_of_loads(table: LoadedTable) -> None:
    """The server may still be at work for a client that is gone."""
    await_true(
        lambda: not table.database.rows("SELECT FROM pg_stat_activity WHERE application_name = 'mirror-pump-load'"),
        30,
        "the session of the load ends",
    )


@pytest.mark.further
def test_a_load_that_is_not_finished_cannot_be_committed(table: LoadedTable) -> None:
    def begin(connection: psycopg.Connection[object]) -> None:
        connection.execute("SELECT modak.begin_load('ev', 'a', '{}')")
        connection.execute("INSERT INTO ev (id, at) VALUES (1, 50)")
        # The row waits in the DEFAULT partition, where nobody else sees it.
        assert connection.execute("SELECT count(*) FROM ONLY ev_default").fetchone() == (1,)
        assert table.value("SELECT count(*) FROM ev WHERE at < 100") == 0

    ends: list[Callable[[psycopg.Connection[object]], object]] = [
        lambda connection: connection.commit(),
        lambda connection: connection.execute("SET CONSTRAINTS ALL IMMEDIATE"),
        lambda connection: connection.execute("SELECT modak.finish_load('ev', 'b', '{}')"),
    ]
    for end in ends:
        with table.database.connect(autocommit=False) as connection:
            begin(connection)
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
                end(connection)
    assert table.labels() == {}
    # After the load, and without one, rows are moved one by one.
    with table.database.session(autocommit=False) as connection:
        begin(connection)
        connection.execute("SELECT modak.finish_load('ev', 'a', '{}')")
        connection.execute("INSERT INTO ev (id, at) VALUES (2, 51)")
    table.database.execute("INSERT INTO ev (id, at) VALUES (3, 52)")
    assert sorted(table.delta()) == ["1 50", "2 51", "3 52"]
    assert table.value("SELECT count(*) FROM ONLY ev_default") == 0


def test_nobody_without_rights_on_the_table_learns_or_claims_a_label(table: LoadedTable, loader: Loader) -> None:
    table.load("a", TEXT)
    for call in (
        "recorded_load('ev', 'a', NULL)",
        "begin_load('ev', 'b', '{}')",
        "fail_load('ev', 'c', '{}')",
        "finish_load('ev', 'c', '{}')",
        "settled_rows('ev'::regclass, 1, '{1}')",
    ):
        with psycopg.connect(loader.dsn) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"SELECT modak.{call}".encode())
    with psycopg.connect(loader.dsn) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("SELECT * FROM modak.load_labels")
    assert table.labels() == {"a": "committed"}


def test_a_load_in_a_snapshot_without_the_default_partition_is_told_to_begin_again(table: LoadedTable) -> None:
    """Its rows would stay there, where no reader looks below the cut-line."""
    with repeatable_read(table) as old:
        table.database.execute("DROP TABLE ev_default")
        with table.database.session() as connection:
            table.make_default(connection)
            table.retain_default(connection)
        old.execute("SELECT modak.begin_load('ev', 'old', '{}')")
        with pytest.raises(psycopg.errors.SerializationFailure, match="ev_default is younger than"):
            old.execute("INSERT INTO ev (id, at) VALUES (11, 11)")
        old.rollback()
    with repeatable_read(table) as connection:
        connection.execute("SELECT modak.begin_load('ev', 'young', '{}')")
        connection.execute("INSERT INTO ev (id, at) VALUES (11, 11)")
        connection.execute("SELECT modak.finish_load('ev', 'young', '{\"content\": {}}')")
        connection.commit()
    assert table.delta().keys() == {"11 11"}
    assert table.value("SELECT count(*) FROM ev_default") == 0
