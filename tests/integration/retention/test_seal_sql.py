"""Sealing, how the cut-line passes partitions, and waiting for the frontier, in the database alone."""

from __future__ import annotations

import threading
from typing import Any, LiteralString

import psycopg
import pytest

from mirror_pump.model import TableId
from mirror_pump.source.retention import partitions as source
from mirror_pump.testing.mirror import await_true
from tests.support.retention_sql import LOW, SqlTable, hasty, repeatable_read


def test_no_change_slips_between_the_seal_and_the_cutline(table: SqlTable) -> None:
    """A writer whose transaction began before the seal, in whatever isolation level, delays it or is captured."""
    with table.database.connect(autocommit=False) as early:
        early.execute("UPDATE ev SET v = 'early' WHERE id = 1")
        with hasty(table) as connection, pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute("SELECT modak.seal('ev'::regclass::oid::bigint, 'ev0')")
        early.commit()
    with repeatable_read(table) as old:
        table.seal("ev0")
        old.execute("INSERT INTO ev (id, at) VALUES (11, 11)")
        with hasty(table) as connection, pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute("SELECT modak.advance('ev'::regclass::oid::bigint, 'ev0', 100, 99999999999)")
        old.commit()
    assert table.captured() == {"11 11": 0}
    with repeatable_read(table) as old:
        assert table.advance("ev0", 100) is None
        # In its snapshot, the partition is still above the cut-line.
        old.execute("INSERT INTO ev (id, at) VALUES (12, 12)")
        old.execute("UPDATE ev SET v = 'late' WHERE id = 1")
        old.commit()
    assert {key: op for key, (op, _, _) in table.delta().items()} == {"11 11": 0, "12 12": 0, "1 50": 0}
    assert table.value("SELECT count(*) FROM modak.mirror_captured") == 0


def test_a_transaction_that_is_older_than_the_partition_is_told_to_begin_again(table: SqlTable) -> None:
    """Its snapshot lacks the partition's columns, of which its changes are made. A younger one may write."""
    with (
        repeatable_read(table) as first,
        repeatable_read(table) as second,
        repeatable_read(table) as third,
    ):
        table.database.execute(
            "CREATE TABLE young PARTITION OF ev FOR VALUES FROM (-100) TO (0);"
            "INSERT INTO modak.partitions (table_id, partition_id, tier_key_lo, tier_key_hi, state, relation_id)"
            " VALUES ('ev'::regclass::oid::bigint, 'young', -100, 0, 'hot', 'young'::regclass::oid::bigint)"
        )
        table.seal("young")
        with pytest.raises(psycopg.errors.SerializationFailure, match=r"partition public\.young is younger than"):
            first.execute("INSERT INTO ev (id, at) VALUES (11, -11)")
        assert table.advance("young", 0) is None
        with pytest.raises(psycopg.errors.SerializationFailure, match=r"partition public\.young is younger than"):
            second.execute("INSERT INTO ev (id, at) VALUES (12, -12)")
        table.database.execute("DROP TABLE ev_default")
        with table.database.session() as connection:
            table.make_default(connection)
            table.retain_default(connection)
        with pytest.raises(psycopg.errors.SerializationFailure, match=r"partition public\.ev_default is younger than"):
            third.execute("INSERT INTO ev (id, at) VALUES (13, -500)")
        for old in (first, second, third):
            old.rollback()
    with repeatable_read(table) as connection:
        connection.execute("INSERT INTO ev (id, at) VALUES (12, -12), (13, -500)")
        connection.commit()
    assert table.delta().keys() == {"12 -12", "13 -500"}


def test_what_a_truncate_took_is_not_captured_any_more(table: SqlTable) -> None:
    table.seal("ev0")
    with repeatable_read(table) as old:
        table.database.execute("INSERT INTO ev (id, at) VALUES (11, 11)")
        assert table.captured() == {"11 11": 0}
        # This one sees neither the row nor the captured change of it.
        old.execute("TRUNCATE ev0")
        old.execute("INSERT INTO ev (id, at) VALUES (12, 12)")
        old.commit()
    assert table.captured() == {"12 12": 0}
    assert table.advance("ev0", 100) == "partition ev0 is not sealed", "the frontier has to pass the TRUNCATE too"
    table.database.execute(
        "UPDATE modak.partitions SET sealed_lsn = (pg_current_wal_insert_lsn() - '0/0')::bigint WHERE state = 'sealing'"
    )
    assert table.advance("ev0", 100) is None
    assert table.delta().keys() == {"12 12"}


def test_a_truncate_below_the_cutline_takes_nothing_from_the_lake(table: SqlTable) -> None:
    table.pass_by("ev0", 100)
    for truncate in ("TRUNCATE ev", "TRUNCATE ev0"):
        table.database.execute("INSERT INTO ev (id, at) VALUES (1, 99) ON CONFLICT DO NOTHING")
        with table.database.connect() as connection:
            connection.execute(truncate.encode())
    assert table.value("SELECT truncated FROM modak.partitions WHERE partition_id = 'ev0'")
    assert {key: op for key, (op, _, _) in table.delta().items()} == {"1 99": 0}


def test_the_cutline_passes_partitions_in_order_and_only_up_to_the_frontier(table: SqlTable) -> None:
    assert table.advance("ev0", 100) == "partition ev0 is not sealed"
    table.seal("ev0")
    table.seal("ev1")
    assert table.advance("ev1", 200) == "partition public.ev0 comes first"
    assert table.advance("ev1", 150) == "partition ev1 is not waiting for the cut-line to reach 150"
    behind = table.value("SELECT modak.advance('ev'::regclass::oid::bigint, 'ev0', 100, 1)")
    assert behind == "the frontier has not passed the position at which partition ev0 was sealed"
    # A partition that the pump has not noticed yet.
    table.database.execute("CREATE TABLE before PARTITION OF ev FOR VALUES FROM (-100) TO (0)")
    assert table.advance("ev0", 100) == "partition public.before comes first"
    table.database.execute("ALTER TABLE ev DETACH PARTITION before")
    table.database.execute("UPDATE modak.mirror_tables SET state = 'copying'")
    assert "is being copied" in str(table.advance("ev0", 100))
    table.database.execute("UPDATE modak.mirror_tables SET state = 'live', start_lsn = 9223372036854775807")
    assert "was since partition ev0 was sealed" in str(table.advance("ev0", 100))
    table.database.execute("UPDATE modak.mirror_tables SET start_lsn = 0")
    table.database.execute("ALTER TABLE ev0 DISABLE TRIGGER zz_modak_row")
    assert table.advance("ev0", 100) == "changes of partition ev0 are not captured"
    table.database.execute("ALTER TABLE ev0 ENABLE ALWAYS TRIGGER zz_modak_row")
    assert table.advance("ev0", 100) is None
    assert table.advance("ev1", 200) is None
    assert table.value("SELECT tier_key_hi FROM modak.cutline") == 200


def test_the_cutline_waits_for_a_new_seal_if_much_was_captured(table: SqlTable) -> None:
    """Writers wait while captured changes become corrections, all at once. So their number is limited."""
    table.database.execute("UPDATE modak.partitions SET capture_limit = 2")
    table.seal("ev0")
    table.database.execute("INSERT INTO ev (id, at) VALUES (11, 11), (12, 12), (13, 13)")
    assert table.advance("ev0", 100) == "more than 2 changes of partition ev0 were captured"
    with table.database.connect() as connection:
        where = {"table_id": table.value("SELECT 'ev'::regclass::oid::bigint"), "partition_id": "ev0"}
        assert source.run(connection, "crowded", where) == 1
        table.seal("ev0")
        assert source.run(connection, "crowded", where) == 0, "what was captured before is void"
        table.database.execute(
            "INSERT INTO ev (id, at) VALUES (21, 21), (22, 22)",
            "UPDATE ev SET v = 'again' WHERE id IN (13, 21)",
            # Another session did it first.
            "INSERT INTO modak.delta SELECT table_id, pk, 1, 1, 21, 0, payload, now(), 3 FROM modak.mirror_captured"
            " WHERE tier_key = 21",
        )
        assert source.run(connection, "crowded", where) == 0, "the limit has doubled: it ends some time"
        connection.execute("SET track_functions = 'all'")
        with connection.transaction():
            connection.execute(
                "SELECT modak.advance('ev'::regclass::oid::bigint, 'ev0', 100, %s)", (table.database.lsn(),)
            )
            one_by_one = connection.execute("SELECT pg_stat_get_xact_function_calls('modak.put_delta'::regproc)")
            assert one_by_one.fetchone() == (None,)
    assert {key: (op, payload["v"]) for key, (op, _, payload) in table.delta().items()} == {
        "13 13": (0, "again"),
        "21 21": (0, "again"),
        "22 22": (0, "none"),
    }
    assert table.database.rows("SELECT old_tier_key, folded_sequence FROM modak.delta") == [(None, None)] * 3
    assert table.value("SELECT count(*) FROM modak.mirror_captured") == 0


def test_the_cutline_passes_a_partition_that_its_owner_dropped(table: SqlTable) -> None:
    table.seal("ev0")
    table.database.execute("INSERT INTO ev (id, at) VALUES (11, 11)", "DROP TABLE ev0")
    assert table.gone("ev0")
    assert table.advance("ev0", 100) is None
    assert table.delta() == {}, "the stream has what was captured of it"
    assert table.value("SELECT state FROM modak.partitions WHERE partition_id = 'ev0'") == "dropped"


@pytest.mark.parametrize("away", ["DROP TABLE ev0", "ALTER TABLE ev DETACH PARTITION ev0"])
def test_the_cutline_waits_for_the_last_changes_of_a_partition_that_is_gone(
    table: SqlTable, away: LiteralString
) -> None:
    """Only the stream has them, and changes in the stream below the cut-line are ignored. So the frontier has to pass
    them first."""

    def change() -> int:
        table.database.execute("UPDATE ev SET v = v || ' and changed' WHERE id = 1")
        return table.database.lsn()

    table.seal("ev0")
    before = table.database.lsn()
    behind = change()
    table.database.execute(away)
    # It was attached when the pump checked whether the frontier had passed its seal.
    assert table.advance("ev0", 100, before) == "partition ev0 was altered meanwhile"
    assert table.gone("ev0")
    assert not table.gone("ev0"), "once is enough"
    assert "the frontier has not passed" in str(table.advance("ev0", 100, before))
    assert "the frontier has not passed" in str(table.advance("ev0", 100, behind)), "passed the owner's last act"
    if "DETACH" in away:
        known = table.database.lsn()
        table.database.execute("ALTER TABLE ev ATTACH PARTITION ev0 FOR VALUES FROM (0) TO (100)")
        change()
        table.database.execute(away)
        assert table.advance("ev0", 100, known) == "partition ev0 was altered meanwhile"
        assert table.gone("ev0"), "it was there again"
        assert "the frontier has not passed" in str(table.advance("ev0", 100, known))
    assert table.advance("ev0", 100) is None
    assert table.delta() == {}
    assert table.value("SELECT count(*) FROM modak.mirror_captured") == 0


def test_the_cutline_does_not_move_between_the_statements_by_which_a_reader_pins(table: SqlTable) -> None:
    """The protocol reads the cut-line together with the pin, and the file of the published snapshot in the next
    statement."""
    pin: LiteralString = (
        "INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)"
        " SELECT table_id, lake_snapshot_id, tier_key_hi, now() + interval '15 minutes' FROM modak.cutline"
        " RETURNING pinned_tier_key_hi"
    )
    advance = "SELECT modak.advance('ev'::regclass::oid::bigint, 'ev0', 100, 99999999999)"
    table.seal("ev0")
    with table.database.connect(autocommit=False) as reader, hasty(table) as pump:
        pid = reader.info.backend_pid
        reader.execute(pin)
        output = (f"process {pid} is putting a pin in place",)
        assert pump.execute(advance).fetchone() == output
        assert source.reader_in_the_way(pump, TableId(table.table_id), 100) == output[0]
        assert table.value("SELECT tier_key_hi FROM modak.cutline") == LOW
        assert table.value("SELECT modak.pinning()") == f"process {pid}"
        assert table.value("SELECT modak.pinning('1 hour')") == f"process {pid}"
        assert table.value("SELECT modak.pinning('0')") is None
        # However often it is tried: the reader may need it until its transaction ends.
        table.database.execute("UPDATE modak.partitions SET attempts = 5")
        assert pump.execute(advance).fetchone() == output
        reader.rollback()
        with pump.transaction(force_rollback=True):
            assert pump.execute(advance).fetchone() == (None,)
            reader.execute("SET lock_timeout = '50ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                reader.execute(pin)
            reader.rollback()


def test_the_cutline_waits_for_the_pins_of_readers_until_they_are_released_or_expire(table: SqlTable) -> None:
    """A reader that follows the protocol takes every correction of the table. If the cut-line passed a partition while
    it had its pin, it would find corrected rows in the heap and in the delta."""
    advance = "SELECT modak.advance('ev'::regclass::oid::bigint, 'ev0', 100, 99999999999)"
    table.seal("ev0")

    def answer() -> str | None:
        with hasty(table) as pump, pump.transaction(force_rollback=True):
            row = pump.execute(advance).fetchone()
            assert row is not None
            assert source.reader_in_the_way(pump, TableId(table.table_id), 100) == row[0]
            return None if row[0] is None else str(row[0])

    with table.database.connect() as reader:
        reader.execute("SET application_name = 'reports'")
        row = reader.execute("SELECT pin_id FROM modak.pin('ev')").fetchone()
        pid = reader.info.backend_pid
    assert row is not None
    output = str(answer())
    assert output.startswith(f"pin {row[0]} of a reader (")
    assert f"in process {pid}, reports) lasts until " in output
    table.database.execute("UPDATE modak.read_pins SET expires_at = now()")
    assert answer() is None, "it expired"
    table.database.execute("UPDATE modak.read_pins SET expires_at = now() + interval '1 minute'")
    assert answer() is not None
    assert table.value("SELECT modak.release(%s)", row[0])
    assert answer() is None, "it was released"
    table.value("SELECT pin_id FROM modak.pin('ev', in_one_snapshot => true)")
    assert answer() is None, "a reader that reads the delta once, below its cut-line, holds nothing up"
    table.value("SELECT pin_id FROM modak.pin('ev')")
    table.database.execute("UPDATE modak.read_pins SET pinned_tier_key_hi = 100")
    assert answer() is None, "its cut-line is where this one is to go"


def test_the_cutline_waits_for_a_pin_that_was_prepared(table: SqlTable) -> None:
    table.seal("ev0")
    with table.database.connect() as reader, hasty(table) as pump:
        reader.execute("BEGIN")
        reader.execute("SELECT modak.pin('ev')")
        reader.execute("PREPARE TRANSACTION 'a reader''s'")
        try:
            answer = pump.execute("SELECT modak.advance('ev'::regclass::oid::bigint, 'ev0', 100, 99999999999)")
            assert answer.fetchone() == ("prepared transaction 'a reader''s' is putting a pin in place",)
        finally:
            reader.execute("ROLLBACK PREPARED 'a reader''s'")
    assert table.advance("ev0", 100) is None


def test_a_partition_that_is_sealed_no_more_pays_nothing(table: SqlTable) -> None:
    table.seal("ev0")
    table.database.execute("INSERT INTO ev (id, at) VALUES (11, 11)")
    with table.database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO ev (id, at) VALUES (12, 12)")
        with hasty(table) as connection, pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute("SELECT modak.unseal('ev'::regclass::oid::bigint, 'ev0')")
        writer.commit()
    with table.database.connect(autocommit=False) as reader, hasty(table) as connection:
        reader.execute("SELECT FROM ev")
        released = connection.execute("SELECT modak.unseal('ev'::regclass::oid::bigint, 'ev0')").fetchone()
        assert released == (None,), "readers hold nothing up"
    table.database.execute("INSERT INTO ev (id, at) VALUES (13, 13)", "UPDATE ev SET v = 'free' WHERE id = 11")
    assert table.value("SELECT count(*) FROM modak.mirror_captured") == 0
    assert table.database.rows("SELECT state, sealed_lsn FROM modak.partitions WHERE partition_id = 'ev0'") == [
        ("hot", None)
    ]
    assert table.advance("ev0", 100) == "partition ev0 is not sealed"
    assert table.value("SELECT modak.unseal('ev'::regclass::oid::bigint, 'ev0')") == "partition ev0 is not being sealed"
    table.seal("ev0")
    table.database.execute("UPDATE ev SET v = 'again' WHERE id = 13")
    assert table.captured() == {"13 13": 0}
    assert table.advance("ev0", 100) is None
    assert table.value("SELECT modak.unseal('ev'::regclass::oid::bigint, 'ev0')") == "partition ev0 is not being sealed"


def test_triggers_survive_renames_and_leave_detached_partitions_alone(table: SqlTable) -> None:
    table.pass_by("ev0", 100)
    table.database.execute(
        "ALTER TABLE ev RENAME COLUMN at TO moment",
        "ALTER TABLE ev0 RENAME TO first",
        "ALTER TABLE ev ADD COLUMN w jsonb",
        "INSERT INTO ev (id, moment, w) VALUES (21, 21, '{}')",
    )
    assert table.delta()["21 21"][2] == {"id": 21, "moment": 21, "v": "none", "n": 7, "w": "{}"}
    table.database.execute("ALTER TABLE ev DETACH PARTITION first", "UPDATE first SET n = 0", "TRUNCATE first")
    assert table.delta().keys() == {"21 21"}
    assert not table.value("SELECT truncated FROM modak.partitions WHERE partition_id = 'ev0'")


def test_another_servers_positions_are_not_waited_for_in_vain(table: SqlTable) -> None:
    """Its frontier may be far beyond what is written here."""
    assert table.value("SELECT modak.wait_for('0/A', '1 second')")
    table.database.execute("UPDATE modak.mirror_slots SET system_identifier = '1'")
    assert not table.value("SELECT modak.wait_for('0/A', '0.1 seconds')")


def test_waiting_for_the_frontier_wakes_the_pump_and_ends_in_time(table: SqlTable) -> None:
    table.database.execute("SELECT pg_create_logical_replication_slot('watch', 'test_decoding')")
    assert table.value("SELECT modak.wait_for('0/A', '1 second')"), "the frontier is there already"
    assert not table.value("SELECT modak.wait_for(NULL, '0.1 seconds')")
    # Before PostgreSQL 17 nothing flushes the message but a commit that writes, or a pump.
    table.database.execute("CREATE TABLE flush ()")
    messages = table.database.rows(
        "SELECT data FROM pg_logical_slot_get_changes('watch', NULL, NULL) WHERE data LIKE '%modak.wait%'"
    )
    table.database.execute("SELECT pg_drop_replication_slot('watch')")
    assert len(messages) == 1
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(table.value("SELECT modak.wait_for('0/FFFF', '60 seconds')")))
    waiter.start()
    await_true(
        lambda: table.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT modak.wait_for(%60 s%'"),
        30,
        "it waits",
    )
    table.database.execute(
        "UPDATE modak.cutline SET replicated_lsn = 65536", "UPDATE modak.mirror_slots SET applied_lsn = 65536"
    )
    waiter.join(60)
    assert found == [True]
    with repeatable_read(table) as reader, pytest.raises(psycopg.errors.ActiveSqlTransaction):
        reader.execute("SELECT modak.wait_for()")
