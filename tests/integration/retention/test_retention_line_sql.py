"""The retention line in the database alone: when it is due, what holds it up, and what is refused below it."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg
import pytest

from mirror_pump.testing.database import Database
from tests.support.retention_sql import SqlTable, hasty, repeatable_read


@pytest.fixture
def ev(database: Database) -> SqlTable:
    """Three partitions below the cut-line 300, of which two have left the heap; the lake keeps 150."""
    table = SqlTable(database)
    for number in range(3):
        table.pass_by(f"ev{number}", 100 * (number + 1))
    for name in ("ev0", "ev1"):
        assert table.drop(name) is None
    database.execute(
        "UPDATE modak.tables SET mode = 'tiered', heap_retention_lag = NULL, lake_retention_lag = 150",
        "UPDATE modak.mirror_tables SET retention = '{\"lag\": 0}'",
    )
    return table


DUE: LiteralString = "SELECT modak.due_retention_line('ev'::regclass::oid::bigint)"
LINE: LiteralString = "SELECT retention_line FROM modak.cutline"


def _expire(ev: SqlTable, line: int) -> str | None:
    with hasty(ev) as connection:
        row = connection.execute("SELECT modak.expire('ev'::regclass::oid::bigint, %s)", (line,)).fetchone()
    assert row is not None
    reason: str | None = row[0]
    return reason


def test_the_line_follows_the_cutline_and_only_grows(ev: SqlTable) -> None:
    assert ev.value(DUE) == 150
    assert _expire(ev, 151) == "the retention line need not move to 151 any more"
    assert _expire(ev, 150) is None
    assert ev.value(LINE) == 150
    assert ev.value(DUE) is None
    assert _expire(ev, 150) is not None
    for lag in ("200", "NULL", "9223372036854775807"):
        ev.database.execute(f"UPDATE modak.tables SET lake_retention_lag = {lag}")
        assert ev.value(DUE) is None
        assert _expire(ev, 100) is not None
    assert ev.value(LINE) == 150
    # The partition that the heap still holds is compared with the lake before it is dropped.
    ev.database.execute("UPDATE modak.tables SET lake_retention_lag = 50")
    assert ev.value(DUE) == 200
    ev.database.execute("UPDATE modak.partitions SET state = 'dropped' WHERE partition_id = 'ev2'")
    assert ev.value(DUE) == 250
    # One that was attached below the cut-line is not: the lake never had its rows.
    ev.database.execute("UPDATE modak.partitions SET state = 'tiering', sealed_lsn = NULL WHERE partition_id = 'ev2'")
    assert ev.value(DUE) == 250
    assert _expire(ev, 250) is None


def test_only_tiered_tables_that_shed_their_rows_have_a_lag(ev: SqlTable) -> None:
    for change in ("mode = 'mirrored'", "keep_heap = true"):
        with pytest.raises(psycopg.errors.CheckViolation):
            ev.database.execute(f"UPDATE modak.tables SET {change}")


@pytest.mark.parametrize("in_one_snapshot", [True, False])
def test_a_reader_that_may_look_at_the_delta_again_holds_the_line(ev: SqlTable, in_one_snapshot: bool) -> None:
    with ev.database.session(autocommit=False) as reader:
        pinned = reader.execute(
            "SELECT pin_id FROM modak.pin('ev', in_one_snapshot => %s)", (in_one_snapshot,)
        ).fetchone()
        assert pinned is not None
        # Nobody sees yet what it has promised.
        assert "is putting a pin in place" in str(_expire(ev, 150))
        reader.commit()
        if in_one_snapshot:
            assert _expire(ev, 150) is None
            return
        assert "of a reader" in str(_expire(ev, 150))
        assert ev.value(LINE) is None
        reader.execute("UPDATE modak.read_pins SET expires_at = now() - interval '1 s'")
        reader.commit()
        assert _expire(ev, 150) is None


def test_every_kind_of_write_below_the_line_is_refused_with_the_reason(ev: SqlTable) -> None:
    assert _expire(ev, 150) is None
    # Attached below the cut-line, with a row from before.
    ev.database.execute(
        "CREATE TABLE late (LIKE ev INCLUDING ALL)",
        "INSERT INTO late (id, at) VALUES (7, 120), (8, 160)",
        "ALTER TABLE ev ATTACH PARTITION late FOR VALUES FROM (100) TO (200)",
    )
    ev.value("SELECT modak.retain_triggers('ev'::regclass, 'late'::regclass, 'late', 'cold')")
    below: tuple[LiteralString, ...] = (
        "INSERT INTO ev (id, at) VALUES (1, 20)",
        "INSERT INTO ev (id, at) VALUES (1, 20) ON CONFLICT (id, at) DO UPDATE SET v = 'again'",
        "INSERT INTO ev (id, at) VALUES (1, 120)",
        "UPDATE ev SET v = 'changed' WHERE at = 120",
        "UPDATE ev SET at = 120 WHERE at = 160",
        "UPDATE ev SET at = 160 WHERE at = 120",
        "UPDATE ev SET at = 20 WHERE at = 250",
        "DELETE FROM ev WHERE at = 120",
        """SELECT modak.upsert('ev', '{"id": 1, "at": 20}')""",
        """SELECT modak.upsert('ev', '{"id": 1, "at": 149}')""",
        """SELECT modak.delete('ev', '{"id": 1, "at": 50}')""",
        """SELECT modak.delete('ev', '{"id": 9, "at": 149}')""",
    )
    before = ev.delta()
    for statement in below:
        with pytest.raises(psycopg.errors.CheckViolation, match="rows below 150 do not stay") as refused:
            ev.database.execute(statement)
        assert refused.value.diag.message_hint is not None, statement
        assert "lake_retention" in refused.value.diag.message_hint
        assert refused.value.diag.message_detail is not None
    assert ev.delta() == before
    # At the line and above it nothing has changed.
    ev.database.execute(
        "INSERT INTO ev (id, at) VALUES (2, 150)",
        "UPDATE ev SET v = 'changed' WHERE at = 160",
        """SELECT modak.upsert('ev', '{"id": 3, "at": 199}')""",
        """SELECT modak.delete('ev', '{"id": 4, "at": 151}')""",
        "DELETE FROM ev WHERE at = 250",
    )
    assert {key.split()[0] for key in ev.delta()} - {key.split()[0] for key in before} == {"2", "8", "3", "4"}


NAMED = (
    ("date", 20_000, "2024-10-04"),
    ("timestamp", 1_728_000_000_000_001, "2024-10-04 00:00:00.000001"),
    ("timestamptz", 1_728_000_000_000_000, "2024-10-04 00:00:00+00"),
    ("date", 9_000_000_000, "9000000000"),
    ("bigint", -5, "-5"),
)


def test_the_line_is_named_as_the_tier_key_is_written(ev: SqlTable) -> None:
    for kind, line, shown in NAMED:
        ev.database.execute(
            f"UPDATE modak.tables SET tier_key_type = '{kind}'", f"UPDATE modak.cutline SET retention_line = {line}"
        )
        with pytest.raises(psycopg.errors.CheckViolation, match="rows below ") as refused:
            ev.value("SELECT modak.refuse_expired('ev'::regclass::oid::bigint, %s)", line - 1)
        assert f"rows below {shown} do" in str(refused.value)


def test_corrections_below_the_line_are_purged_folded_or_not(ev: SqlTable) -> None:
    """Not those that somebody has locked: a publish waits for no user."""
    for number in range(10):
        ev.value("""SELECT modak.upsert('ev', jsonb_build_object('id', 50, 'at', %s::int))""", number * 20)
    ev.database.execute("UPDATE modak.delta SET folded_sequence = 3 WHERE tier_key IN (0, 20, 180)")
    purge: LiteralString = "SELECT modak.purge_expired('ev'::regclass::oid::bigint)"
    assert ev.value(purge) == 0
    with ev.database.session(autocommit=False) as user:
        user.execute("""SELECT modak.upsert('ev', '{"id": 50, "at": 40, "v": "again"}')""")
        assert _expire(ev, 150) is None
        assert ev.value(purge) == 7
        assert sorted(row[1] for row in ev.delta().values()) == [40, 160, 180]
        user.commit()
    assert ev.value(purge) == 1
    assert sorted(row[1] for row in ev.delta().values()) == [160, 180]


def test_a_snapshot_from_before_the_line_moved_writes_what_the_next_purge_removes(ev: SqlTable) -> None:
    """Its transaction is as if it had come before the expiry."""
    rows: Any
    with repeatable_read(ev) as old:
        assert _expire(ev, 150) is None
        old.execute("""SELECT modak.upsert('ev', '{"id": 50, "at": 40}'), modak.delete('ev', '{"id": 1, "at": 50}')""")
        old.commit()
    rows = [row[1] for row in ev.delta().values() if row[1] < 150]
    assert sorted(rows) == [40, 50]
    assert ev.value("SELECT modak.purge_expired('ev'::regclass::oid::bigint)") == 2
    with repeatable_read(ev) as young, pytest.raises(psycopg.errors.CheckViolation):
        young.execute("""SELECT modak.upsert('ev', '{"id": 50, "at": 40}')""")
