"""Sealing, the cut-line's way past partitions, and waiting for the frontier, by the database alone."""

from __future__ import annotations

import threading
from typing import Any, LiteralString

import psycopg
import pytest

from mirror_pump.model import TableId
from mirror_pump.source.retention import partitions as source
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from tests.support.retention_heap import LOW, Heap, hasty, repeatable_read


@pytest.fixture
def heap(database: Database) -> Heap:
    return Heap(database)


def test_no_change_slips_between_the_seal_and_t(heap: Heap) -> None:
    """A writer whose transaction began before the seal, in whatever isolation, holds it up or is captured."""
    with heap.database.connect(autocommit=False) as early:
        early.execute("UPDATE ev SET v = 'early' WHERE id = 1")
        with hasty(heap) as connection, pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute("SELECT modak.seal('ev'::regclass::oid::bigint, 'ev0')")
        early.commit()
    with repeatable_read(heap) as old:
        heap.seal("ev0")
        old.execute("INSERT INTO ev (id, at) VALUES (11, 11)")
        with hasty(heap) as connection, pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute("SELECT modak.advance('ev'::regclass::oid::bigint, 'ev0', 100, 99999999999)")
        old.commit()
    assert heap.captured() == {"11 11": 0}
    with repeatable_read(heap) as old:
        assert heap.advance("ev0", 100) is None
        # By its snapshot the partition is above the cut-line still.
        old.execute("INSERT INTO ev (id, at) VALUES (12, 12)")
        old.execute("UPDATE ev SET v = 'late' WHERE id = 1")
        old.commit()
    assert {key: op for key, (op, _, _) in heap.delta().items()} == {"11 11": 0, "12 12": 0, "1 50": 0}
    assert heap.value("SELECT count(*) FROM modak.mirror_captured") == 0


def test_what_a_truncate_took_is_not_captured_any_more(heap: Heap) -> None:
    heap.seal("ev0")
    with repeatable_read(heap) as old:
        heap.database.execute("INSERT INTO ev (id, at) VALUES (11, 11)")
        assert heap.captured() == {"11 11": 0}
        # This one does not see the row, nor what was captured of it.
        old.execute("TRUNCATE ev0")
        old.execute("INSERT INTO ev (id, at) VALUES (12, 12)")
        old.commit()
    assert heap.captured() == {"12 12": 0}
    assert heap.advance("ev0", 100) == "partition ev0 is not sealed", "F has to pass the TRUNCATE too"
    heap.database.execute(
        "UPDATE modak.partitions SET sealed_lsn = (pg_current_wal_insert_lsn() - '0/0')::bigint WHERE state = 'sealing'"
    )
    assert heap.advance("ev0", 100) is None
    assert heap.delta().keys() == {"12 12"}


def test_a_truncate_below_t_takes_nothing_from_the_lake(heap: Heap) -> None:
    heap.pass_by("ev0", 100)
    for truncate in ("TRUNCATE ev", "TRUNCATE ev0"):
        heap.database.execute("INSERT INTO ev (id, at) VALUES (1, 99) ON CONFLICT DO NOTHING")
        with heap.database.connect() as connection:
            connection.execute(truncate.encode())
    assert heap.value("SELECT truncated FROM modak.partitions WHERE partition_id = 'ev0'")
    assert {key: op for key, (op, _, _) in heap.delta().items()} == {"1 99": 0}


def test_t_passes_partitions_in_their_order_and_only_where_f_is(heap: Heap) -> None:
    assert heap.advance("ev0", 100) == "partition ev0 is not sealed"
    heap.seal("ev0")
    heap.seal("ev1")
    assert heap.advance("ev1", 200) == "partition public.ev0 comes first"
    assert heap.advance("ev1", 150) == "partition ev1 is not waiting for the cut-line to reach 150"
    behind = heap.value("SELECT modak.advance('ev'::regclass::oid::bigint, 'ev0', 100, 1)")
    assert behind == "the frontier has not passed the position at which partition ev0 was sealed"
    # A partition that nobody has noticed yet.
    heap.database.execute("CREATE TABLE before PARTITION OF ev FOR VALUES FROM (-100) TO (0)")
    assert heap.advance("ev0", 100) == "partition public.before comes first"
    heap.database.execute("ALTER TABLE ev DETACH PARTITION before")
    heap.database.execute("UPDATE modak.mirror_tables SET state = 'copying'")
    assert "is being copied" in str(heap.advance("ev0", 100))
    heap.database.execute("UPDATE modak.mirror_tables SET state = 'live', start_lsn = 9223372036854775807")
    assert "was since partition ev0 was sealed" in str(heap.advance("ev0", 100))
    heap.database.execute("UPDATE modak.mirror_tables SET start_lsn = 0")
    heap.database.execute("ALTER TABLE ev0 DISABLE TRIGGER zz_modak_row")
    assert heap.advance("ev0", 100) == "changes of partition ev0 are not captured"
    heap.database.execute("ALTER TABLE ev0 ENABLE ALWAYS TRIGGER zz_modak_row")
    assert heap.advance("ev0", 100) is None
    assert heap.advance("ev1", 200) is None
    assert heap.value("SELECT tier_key_hi FROM modak.cutline") == 200


def test_t_waits_for_a_new_seal_if_much_was_captured(heap: Heap) -> None:
    """Writers wait while captured changes become corrections: all at once, and never more than so many."""
    heap.database.execute("UPDATE modak.partitions SET capture_limit = 2")
    heap.seal("ev0")
    heap.database.execute("INSERT INTO ev (id, at) VALUES (11, 11), (12, 12), (13, 13)")
    assert heap.advance("ev0", 100) == "more than 2 changes of partition ev0 were captured"
    with heap.database.connect() as connection:
        where = {"table_id": heap.value("SELECT 'ev'::regclass::oid::bigint"), "partition_id": "ev0"}
        assert source.run(connection, "crowded", where) == 1
        heap.seal("ev0")
        assert source.run(connection, "crowded", where) == 0, "what was captured before is void"
        heap.database.execute(
            "INSERT INTO ev (id, at) VALUES (21, 21), (22, 22)",
            "UPDATE ev SET v = 'again' WHERE id IN (13, 21)",
            # Somebody else was there first.
            "INSERT INTO modak.delta SELECT table_id, pk, 1, 1, 21, 0, payload, now(), 3 FROM modak.mirror_captured"
            " WHERE tier_key = 21",
        )
        assert source.run(connection, "crowded", where) == 0, "the limit has doubled: it ends some time"
        connection.execute("SET track_functions = 'all'")
        with connection.transaction():
            connection.execute(
                "SELECT modak.advance('ev'::regclass::oid::bigint, 'ev0', 100, %s)", (heap.database.lsn(),)
            )
            one_by_one = connection.execute("SELECT pg_stat_get_xact_function_calls('modak.put_delta'::regproc)")
            assert one_by_one.fetchone() == (None,)
    assert {key: (op, payload["v"]) for key, (op, _, payload) in heap.delta().items()} == {
        "13 13": (0, "again"),
        "21 21": (0, "again"),
        "22 22": (0, "none"),
    }
    assert heap.database.rows("SELECT old_tier_key, folded_sequence FROM modak.delta") == [(None, None)] * 3
    assert heap.value("SELECT count(*) FROM modak.mirror_captured") == 0


def test_t_passes_a_partition_that_its_owner_dropped(heap: Heap) -> None:
    heap.seal("ev0")
    heap.database.execute("INSERT INTO ev (id, at) VALUES (11, 11)", "DROP TABLE ev0")
    assert heap.gone("ev0")
    assert heap.advance("ev0", 100) is None
    assert heap.delta() == {}, "the stream has what was captured of it"
    assert heap.value("SELECT state FROM modak.partitions WHERE partition_id = 'ev0'") == "dropped"


@pytest.mark.parametrize("away", ["DROP TABLE ev0", "ALTER TABLE ev DETACH PARTITION ev0"])
def test_t_waits_for_the_last_changes_of_a_partition_that_is_gone(heap: Heap, away: LiteralString) -> None:
    """Nothing but the stream has them, and what the stream brings below the cut-line is dropped: the frontier has to
    pass them before."""

    def change() -> int:
        heap.database.execute("UPDATE ev SET v = v || ' and changed' WHERE id = 1")
        return heap.database.lsn()

    heap.seal("ev0")
    before = heap.database.lsn()
    behind = change()
    heap.database.execute(away)
    # It was attached when somebody looked whether the frontier had passed its seal.
    assert heap.advance("ev0", 100, before) == "partition ev0 was altered meanwhile"
    assert heap.gone("ev0")
    assert not heap.gone("ev0"), "once is enough"
    assert "the frontier has not passed" in str(heap.advance("ev0", 100, before))
    assert "the frontier has not passed" in str(heap.advance("ev0", 100, behind)), "passed the owner's last act"
    if "DETACH" in away:
        known = heap.database.lsn()
        heap.database.execute("ALTER TABLE ev ATTACH PARTITION ev0 FOR VALUES FROM (0) TO (100)")
        change()
        heap.database.execute(away)
        assert heap.advance("ev0", 100, known) == "partition ev0 was altered meanwhile"
        assert heap.gone("ev0"), "it was there again"
        assert "the frontier has not passed" in str(heap.advance("ev0", 100, known))
    assert heap.advance("ev0", 100) is None
    assert heap.delta() == {}
    assert heap.value("SELECT count(*) FROM modak.mirror_captured") == 0


def test_t_does_not_move_between_the_statements_by_which_a_reader_pins(heap: Heap) -> None:
    """The protocol reads the cut-line with the pin, and the file of the published snapshot by the next statement."""
    pin: LiteralString = (
        "INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)"
        " SELECT table_id, lake_snapshot_id, tier_key_hi, now() + interval '15 minutes' FROM modak.cutline"
        " RETURNING pinned_tier_key_hi"
    )
    advance = "SELECT modak.advance('ev'::regclass::oid::bigint, 'ev0', 100, 99999999999)"
    heap.seal("ev0")
    with heap.database.connect(autocommit=False) as reader, hasty(heap) as pump:
        pid = reader.info.backend_pid
        reader.execute(pin)
        output = (f"process {pid} is putting a pin in place",)
        assert pump.execute(advance).fetchone() == output
        assert source.reader_in_the_way(pump, TableId(heap.table_id), 100) == output[0]
        assert heap.value("SELECT tier_key_hi FROM modak.cutline") == LOW
        assert heap.value("SELECT modak.pinning()") == f"process {pid}"
        assert heap.value("SELECT modak.pinning('1 hour')") == f"process {pid}"
        assert heap.value("SELECT modak.pinning('0')") is None
        # However often it was tried: the reader may be at it for as long as its transaction lasts.
        heap.database.execute("UPDATE modak.partitions SET attempts = 5")
        assert pump.execute(advance).fetchone() == output
        reader.rollback()
        with pump.transaction(force_rollback=True):
            assert pump.execute(advance).fetchone() == (None,)
            reader.execute("SET lock_timeout = '50ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                reader.execute(pin)
            reader.rollback()


def test_t_waits_for_the_pins_of_readers_until_they_are_released_or_expire(heap: Heap) -> None:
    """A reader by the protocol takes every correction of the table. Of a partition that the cut-line passed under its
    pin it would find corrected rows in the heap and in the delta."""
    advance = "SELECT modak.advance('ev'::regclass::oid::bigint, 'ev0', 100, 99999999999)"
    heap.seal("ev0")

    def answer() -> str | None:
        with hasty(heap) as pump, pump.transaction(force_rollback=True):
            row = pump.execute(advance).fetchone()
            assert row is not None
            assert source.reader_in_the_way(pump, TableId(heap.table_id), 100) == row[0]
            return None if row[0] is None else str(row[0])

    with heap.database.connect() as reader:
        reader.execute("SET application_name = 'reports'")
        row = reader.execute("SELECT pin_id FROM modak.pin('ev')").fetchone()
        pid = reader.info.backend_pid
    assert row is not None
    output = str(answer())
    assert output.startswith(f"pin {row[0]} of a reader (")
    assert f"in process {pid}, reports) lasts until " in output
    heap.database.execute("UPDATE modak.read_pins SET expires_at = now()")
    assert answer() is None, "it expired"
    heap.database.execute("UPDATE modak.read_pins SET expires_at = now() + interval '1 minute'")
    assert answer() is not None
    assert heap.value("SELECT modak.release(%s)", row[0])
    assert answer() is None, "it was released"
    heap.value("SELECT pin_id FROM modak.pin('ev', in_one_snapshot => true)")
    assert answer() is None, "who reads the delta once, below his T, is in nobody's way"
    heap.value("SELECT pin_id FROM modak.pin('ev')")
    heap.database.execute("UPDATE modak.read_pins SET pinned_tier_key_hi = 100")
    assert answer() is None, "its T is where this one is to go"


def test_t_waits_for_a_pin_that_was_prepared(heap: Heap) -> None:
    heap.seal("ev0")
    with heap.database.connect() as reader, hasty(heap) as pump:
        reader.execute("BEGIN")
        reader.execute("SELECT modak.pin('ev')")
        reader.execute("PREPARE TRANSACTION 'a reader''s'")
        try:
            answer = pump.execute("SELECT modak.advance('ev'::regclass::oid::bigint, 'ev0', 100, 99999999999)")
            assert answer.fetchone() == ("prepared transaction 'a reader''s' is putting a pin in place",)
        finally:
            reader.execute("ROLLBACK PREPARED 'a reader''s'")
    assert heap.advance("ev0", 100) is None


def test_a_partition_that_is_sealed_no_more_pays_nothing(heap: Heap) -> None:
    heap.seal("ev0")
    heap.database.execute("INSERT INTO ev (id, at) VALUES (11, 11)")
    with heap.database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO ev (id, at) VALUES (12, 12)")
        with hasty(heap) as connection, pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute("SELECT modak.unseal('ev'::regclass::oid::bigint, 'ev0')")
        writer.commit()
    with heap.database.connect(autocommit=False) as reader, hasty(heap) as connection:
        reader.execute("SELECT FROM ev")
        released = connection.execute("SELECT modak.unseal('ev'::regclass::oid::bigint, 'ev0')").fetchone()
        assert released == (None,), "readers hold nothing up"
    heap.database.execute("INSERT INTO ev (id, at) VALUES (13, 13)", "UPDATE ev SET v = 'free' WHERE id = 11")
    assert heap.value("SELECT count(*) FROM modak.mirror_captured") == 0
    assert heap.database.rows("SELECT state, sealed_lsn FROM modak.partitions WHERE partition_id = 'ev0'") == [
        ("hot", None)
    ]
    assert heap.advance("ev0", 100) == "partition ev0 is not sealed"
    assert heap.value("SELECT modak.unseal('ev'::regclass::oid::bigint, 'ev0')") == "partition ev0 is not being sealed"
    heap.seal("ev0")
    heap.database.execute("UPDATE ev SET v = 'again' WHERE id = 13")
    assert heap.captured() == {"13 13": 0}
    assert heap.advance("ev0", 100) is None
    assert heap.value("SELECT modak.unseal('ev'::regclass::oid::bigint, 'ev0')") == "partition ev0 is not being sealed"


def test_triggers_survive_renames_and_leave_detached_partitions_alone(heap: Heap) -> None:
    heap.pass_by("ev0", 100)
    heap.database.execute(
        "ALTER TABLE ev RENAME COLUMN at TO moment",
        "ALTER TABLE ev0 RENAME TO first",
        "ALTER TABLE ev ADD COLUMN w jsonb",
        "INSERT INTO ev (id, moment, w) VALUES (21, 21, '{}')",
    )
    assert heap.delta()["21 21"][2] == {"id": 21, "moment": 21, "v": "none", "n": 7, "w": "{}"}
    heap.database.execute("ALTER TABLE ev DETACH PARTITION first", "UPDATE first SET n = 0", "TRUNCATE first")
    assert heap.delta().keys() == {"21 21"}
    assert not heap.value("SELECT truncated FROM modak.partitions WHERE partition_id = 'ev0'")


def test_waiting_for_f_wakes_the_pump_and_ends_in_time(heap: Heap) -> None:
    heap.database.execute("SELECT pg_create_logical_replication_slot('watch', 'test_decoding')")
    assert heap.value("SELECT modak.wait_for('0/A', '1 second')"), "F is there already"
    assert not heap.value("SELECT modak.wait_for(NULL, '0.1 seconds')")
    told = heap.database.rows(
        "SELECT data FROM pg_logical_slot_get_changes('watch', NULL, NULL) WHERE data LIKE '%modak.wait%'"
    )
    heap.database.execute("SELECT pg_drop_replication_slot('watch')")
    assert len(told) == 1
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(heap.value("SELECT modak.wait_for('0/FFFF', '60 seconds')")))
    waiter.start()
    await_true(
        lambda: heap.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT modak.wait_for(%60 s%'"),
        30,
        "it waits",
    )
    heap.database.execute("UPDATE modak.cutline SET replicated_lsn = 65536")
    waiter.join(60)
    assert found == [True]
    with repeatable_read(heap) as reader, pytest.raises(psycopg.errors.ActiveSqlTransaction):
        reader.execute("SELECT modak.wait_for()")
