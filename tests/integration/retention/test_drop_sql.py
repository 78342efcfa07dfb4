"""What prevents the drop of a partition, in the database alone: readers, pins, foreign keys, lost proofs."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, LiteralString

import psycopg
import pytest

from mirror_pump.model import TableName, TierKind
from mirror_pump.partition_life import TAKEN, StepResult
from mirror_pump.source.retention import new_partitions
from mirror_pump.source.retention import partitions as source
from tests.support.pipeline import in_thread
from tests.support.repacking import repack
from tests.support.retention_sql import LOW, SqlTable, repeatable_read


def test_nothing_is_dropped_under_a_reader(table: SqlTable) -> None:
    with repeatable_read(table) as reader:
        reader.execute("SELECT tier_key_hi FROM modak.cutline")
        table.pass_by("ev0", 100)
        assert "reads a snapshot" in str(table.drop("ev0"))
        pin = reader.execute("SELECT pin_id, t FROM modak.pin('ev')").fetchone()
        assert pin is not None
        assert pin[1] == LOW, "the cut-line as of its snapshot"
        with pytest.raises(psycopg.errors.LockNotAvailable):
            table.drop("ev0")
        reader.commit()
    assert f"pin {pin[0]} of a reader" in str(table.drop("ev0"))
    with table.database.connect() as later:
        later.execute("SELECT modak.pin('ev')")
        assert table.value("SELECT modak.release(%s)", pin[0])
        assert not table.value("SELECT modak.release(%s)", pin[0])
        assert table.drop("ev0") is None, "a pin at or above its upper bound needs nothing of it"
    assert table.value("SELECT to_regclass('ev0')::text") is None


def test_an_expired_pin_protects_nothing(table: SqlTable) -> None:
    table.value("SELECT pin_id FROM modak.pin('ev', interval '0')")
    table.pass_by("ev0", 100)
    assert table.drop("ev0") is None
    assert table.database.rows("SELECT read_pins, expired_pins, oldest_pin FROM modak.status") == [(1, 1, None)]


@pytest.mark.parametrize(
    ("obstacle", "message"),
    [
        ("CREATE VIEW dependent AS SELECT * FROM ev0", "depend"),
        ("CREATE TABLE child (id int, at bigint, FOREIGN KEY (id, at) REFERENCES ev0)", "depend"),
    ],
)
def test_what_depends_on_a_partition_keeps_it(table: SqlTable, obstacle: LiteralString, message: str) -> None:
    table.pass_by("ev0", 100)
    table.database.execute(obstacle)
    with pytest.raises(psycopg.errors.DependentObjectsStillExist, match=message):
        table.drop("ev0")
    assert table.value("SELECT count(*) FROM ev0") == 1


def test_rows_that_are_referred_to_keep_their_partition_and_others_do_not(table: SqlTable) -> None:
    table.database.execute(
        "CREATE TABLE child (id int, at bigint, FOREIGN KEY (id, at) REFERENCES ev)", "INSERT INTO child VALUES (1, 50)"
    )
    table.pass_by("ev0", 100)
    table.prove()
    with table.database.connect(autocommit=False) as connection:
        answer = connection.execute("SELECT modak.drop_proven('ev'::regclass::oid::bigint, 'ev0')").fetchone()
        assert answer == ("rows of public.child refer to rows of it, by the foreign key child_id_at_fkey",)
        held = connection.execute(
            "SELECT DISTINCT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = ANY"
            " ('{ev,ev0,ev_default,child,modak.read_pins}'::regclass[]::oid[])"
        ).fetchall()
        assert held == [("AccessShareLock",)], "nobody waits while the rows are looked for"
    table.database.execute("UPDATE child SET id = 3, at = 250")
    assert table.drop("ev0") is None
    assert table.value("SELECT to_regclass('ev0')::text") is None


@pytest.mark.parametrize("columns", ["id int, at bigint", "id bigint, at int"])
def test_a_drop_that_takes_long_is_given_up(table: SqlTable, columns: str) -> None:
    """Postgres searches a referring table while everybody else is locked out."""
    with table.database.connect() as connection:
        connection.execute(f"CREATE TABLE child ({columns}, FOREIGN KEY (id, at) REFERENCES ev)".encode())
        connection.execute("INSERT INTO child SELECT 3, 250 FROM generate_series(1, 1000)")
        table.pass_by("ev0", 100)
        table.prove()
        where = {"table_id": table.value("SELECT 'ev'::regclass::oid::bigint"), "partition_id": "ev0", "detach": False}
        assert "takes longer than 1ms" in str(source.attempt(connection, "drop", where, drop_timeout="1ms"))
        assert source.attempt(connection, "drop", where) is TAKEN
        assert connection.execute("SHOW statement_timeout").fetchone() == ("0",)


def _waits_briefly(table: SqlTable, act: Callable[[psycopg.Connection[Any]], StepResult]) -> None:
    """If another session holds the second lock that `act` needs, `act` gives up soon, so that others are locked out
    briefly only."""
    with table.database.connect(autocommit=False) as reader, table.database.connect() as connection:
        reader.execute("SELECT FROM ev_default")
        began = time.monotonic()
        assert "other sessions held the locks" in str(act(connection))
        assert time.monotonic() - began < 30


def test_nobody_waits_for_long_once_the_table_is_locked(table: SqlTable) -> None:
    """While we wait for the first lock, everybody queues behind us; while we wait for another one, they do as well."""
    table.pass_by("ev0", 100)
    table.prove()
    where = {"table_id": table.table_id, "partition_id": "ev0", "detach": False}
    parent, name = TableName("public", "ev"), TableName("public", "ev3")
    make = partial(new_partitions.make_partition, table=parent, name=name, kind=TierKind.BIGINT, lo=300, hi=400)
    patient = {"lock_timeout": "60s", "drop_timeout": "60s"}
    _waits_briefly(table, lambda connection: source.attempt(connection, "drop", where, **patient))
    _waits_briefly(table, partial(make, lock_timeout="60s"))
    with table.database.connect() as connection:
        assert "takes longer than 1ms" in str(make(connection, make_timeout="1ms"))
        assert make(connection) is TAKEN
        assert source.attempt(connection, "drop", where) is TAKEN


def test_a_trigger_that_was_switched_off_means_another_proof(table: SqlTable) -> None:
    table.pass_by("ev0", 100)
    table.database.execute("ALTER TABLE ev0 DISABLE TRIGGER ALL")
    assert "proven again" in str(table.drop("ev0"))
    assert table.database.rows("SELECT state FROM modak.partitions WHERE partition_id = 'ev0'") == [("tiering",)]
    table.database.execute("UPDATE ev SET n = 1 WHERE id = 1")
    assert table.delta().keys() == {"1 50"}, "it is on again"


@pytest.mark.parametrize(
    ("away", "back"),
    [
        (
            "ALTER TABLE ev DETACH PARTITION ev0",
            "ALTER TABLE ev ATTACH PARTITION ev0 FOR VALUES FROM (0) TO (100)",
        ),
        ("ALTER TABLE above ATTACH PARTITION ev DEFAULT", "ALTER TABLE above DETACH PARTITION ev"),
    ],
    ids=["the partition", "the table"],
)
def test_a_partition_that_was_away_since_its_proof_is_proven_again(
    table: SqlTable, away: LiteralString, back: LiteralString
) -> None:
    table.database.execute(
        "CREATE TABLE above (v text, n int NOT NULL, at bigint NOT NULL, id int NOT NULL,"
        " doubled int GENERATED ALWAYS AS (n * 2) STORED) PARTITION BY RANGE (at)"
    )
    table.pass_by("ev0", 100)
    table.prove()
    with table.database.connect(autocommit=False) as owner:
        owner.execute(away)
        owner.execute("UPDATE ev0 SET v = 'mended'")
        owner.execute(back)
    assert table.delta() == {}, "no trigger saw it"
    assert "proven again" in str(table.drop("ev0"))
    assert table.database.rows("SELECT state, v FROM modak.partitions, ev0 WHERE partition_id = 'ev0'") == [
        ("tiering", "mended")
    ]
    assert table.drop("ev0") is None


def test_a_partition_that_was_attached_elsewhere_is_not_dropped(table: SqlTable) -> None:
    """It is empty, so any proof passes. It is its owner's, for rows to come."""
    table.pass_by("ev0", 100)
    table.prove()
    with table.database.session(autocommit=False) as owner:
        owner.execute("TRUNCATE ev0")
        owner.execute("ALTER TABLE ev DETACH PARTITION ev0")
        owner.execute("ALTER TABLE ev ATTACH PARTITION ev0 FOR VALUES FROM (500) TO (600)")
    table.database.execute("UPDATE modak.partitions SET state = 'tiering' WHERE partition_id = 'ev0'")
    assert "other bounds" in str(table.drop("ev0"))
    table.database.execute("INSERT INTO ev VALUES (9, 550, 'new')")


@pytest.mark.parametrize(
    "rewritten",
    ["ALTER TABLE ev ALTER n TYPE bigint USING n * 2", "VACUUM FULL ev0", repack("ev0")],
    ids=["another type", "vacuum", "repack"],
)
def test_a_partition_that_was_rewritten_since_its_proof_is_proven_again(
    table: SqlTable, rewritten: LiteralString
) -> None:
    """No trigger sees what USING does to the rows, and the lake's rows below the cut-line do not change. Only another
    proof can tell whether the partition still equals them."""
    table.database.execute("ALTER TABLE ev DROP COLUMN doubled")
    table.pass_by("ev0", 100)
    table.prove()
    table.database.execute(rewritten)
    assert table.delta() == {}
    with table.database.connect() as connection:
        refused = connection.execute("SELECT modak.drop_proven('ev'::regclass::oid::bigint, 'ev0')").fetchone()
    assert refused == (
        "it was altered since it was proven, or its trigger zz_modak_row switched off: it is proven again",
    )
    assert table.value("SELECT state FROM modak.partitions WHERE partition_id = 'ev0'") == "tiering"


def test_housekeeping_means_no_other_proof(table: SqlTable) -> None:
    table.pass_by("ev0", 100)
    table.prove()
    for statement in (
        "CREATE TABLE ev3 PARTITION OF ev FOR VALUES FROM (300) TO (400)",
        "DROP TABLE ev3",
        "CREATE INDEX ON ev (v)",
        "ALTER TABLE ev RENAME COLUMN n TO number",
        "ALTER TABLE ev0 RENAME TO first",
        "UPDATE ev SET number = 1",
        "VACUUM (FREEZE, ANALYZE) ev",
        "VACUUM FREEZE pg_class, pg_inherits, pg_trigger",
        "VACUUM FULL pg_class, pg_inherits, pg_trigger",
    ):
        with table.database.connect() as connection:
            connection.execute(statement.encode())
    assert table.drop("ev0") is None


@pytest.mark.parametrize(
    ("meanwhile", "message", "kept"),
    [
        (
            (
                "ALTER TABLE ev0 DISABLE TRIGGER ALL",
                "UPDATE ev0 SET v = 'unseen'",
                "ALTER TABLE ev0 ENABLE ALWAYS TRIGGER zz_modak_row",
            ),
            "proven again",
            "unseen",
        ),
        (
            (
                "CREATE TABLE fixed (LIKE ev0 INCLUDING ALL)",
                "INSERT INTO fixed (id, at, v, n) VALUES (1, 50, 'fixed', 7)",
                "ALTER TABLE ev DETACH PARTITION ev0",
                "ALTER TABLE ev0 RENAME TO former",
                "ALTER TABLE fixed RENAME TO ev0",
                "ALTER TABLE ev ATTACH PARTITION ev0 FOR VALUES FROM (0) TO (100)",
            ),
            "altered meanwhile",
            "fixed",
        ),
    ],
    ids=["trigger off and on", "another table of its name"],
)
def test_what_is_dropped_is_what_was_proven(
    table: SqlTable, meanwhile: tuple[LiteralString, ...], message: str, kept: str
) -> None:
    """Changes of a partition between the check and the lock."""
    table.pass_by("ev0", 100)
    table.prove()
    found: list[str | None] = []
    with table.database.connect(autocommit=False) as reader:
        # A pin that is being created; the drop waits for it in between.
        reader.execute("LOCK TABLE modak.read_pins IN ROW EXCLUSIVE MODE")
        with in_thread(lambda _: found.append(table.drop("ev0", "20s")), "drop"):
            table.await_blocked_by(reader)
            with table.database.connect(autocommit=False) as owner:
                for statement in meanwhile:
                    owner.execute(statement)
            reader.commit()
    assert message in str(found[0])
    assert table.database.rows("SELECT v FROM ev0") == [(kept,)]


@pytest.mark.parametrize(
    "pin",
    [
        "SELECT t, s FROM modak.pin('ev')",
        "SELECT tier_key_hi, lake_snapshot_id FROM modak.pin_tables(ARRAY['ev'::regclass::oid::bigint], '1 min')",
    ],
)
def test_a_pin_that_waits_while_the_cutline_moves_is_of_the_new_cutline(table: SqlTable, pin: LiteralString) -> None:
    """It takes its lock before it reads the cut-line and the published snapshot. Otherwise it would pin what the
    cut-line has passed, and the advance would not see the pin."""
    found: list[list[tuple[int, int]]] = []
    with table.database.connect(autocommit=False) as publish:
        publish.execute("LOCK TABLE modak.read_pins IN SHARE MODE")
        publish.execute("UPDATE modak.cutline SET tier_key_hi = 100, lake_snapshot_id = 6")
        with in_thread(lambda _: found.append(table.database.rows(pin)), "pin"):
            table.await_blocked_by(publish)
            publish.commit()
    assert found == [[(100, 6)]]
    assert table.database.rows("SELECT pinned_tier_key_hi, pinned_lake_snapshot_id FROM modak.read_pins") == [(100, 6)]
