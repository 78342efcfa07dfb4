"""Pins belong to who made them: a reader's role changes no other's, pins nothing for ever, and holds up no table that
it may not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest

from mirror_pump.ops.status.retention_state import RetentionState, retention_states
from mirror_pump.source.retention import partitions as source
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import await_true
from sql import reader_role
from tests.support.readers import ReaderRole, role_of
from tests.support.retention_sql import SqlTable

PIN: LiteralString = (
    "INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)"
    " SELECT c.table_id, c.lake_snapshot_id, c.tier_key_hi, now() + %s::interval FROM modak.cutline c"
    " RETURNING pin_id, pinned_tier_key_hi AS t, pinned_lake_snapshot_id AS s"
)
"""As it is published, with another interval."""
RELEASE: LiteralString = "DELETE FROM modak.read_pins WHERE pin_id = %s"
_NEVER = 2**63 - 1
"""The cut-line of a pin that holds the lake alone."""


@pytest.fixture
def table(database: Database) -> SqlTable:
    return SqlTable(database)


def _reader(database: Database, *, reads: bool = True) -> Iterator[ReaderRole]:
    with role_of(database) as role:
        with psycopg.connect(database.dsn, autocommit=True) as admin:
            quoted = psycopg.sql.Identifier(role.name).as_string(admin)
            admin.execute(reader_role(quoted).encode())
            if reads:
                admin.execute(f"GRANT SELECT ON public.ev TO {quoted}".encode())
        yield role


@pytest.fixture
def reader(table: SqlTable) -> Iterator[ReaderRole]:
    yield from _reader(table.database)


@pytest.fixture
def other(table: SqlTable) -> Iterator[ReaderRole]:
    yield from _reader(table.database)


@pytest.fixture
def stranger(table: SqlTable) -> Iterator[ReaderRole]:
    """A reader of the lake alone: it may not read public.ev."""
    yield from _reader(table.database, reads=False)


def _pin(dsn: str, interval: str = "15 minutes") -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(PIN, (interval,)).fetchone()
    assert row is not None
    return int(row[0])


def _run(role: ReaderRole, statement: LiteralString, *parameters: Any) -> int:
    with psycopg.connect(role.dsn) as connection:
        return connection.execute(statement, parameters).rowcount


def test_a_reader_changes_its_pins_and_no_others(table: SqlTable, reader: ReaderRole, other: ReaderRole) -> None:
    pin, theirs, ours = _pin(reader.dsn), _pin(other.dsn), _pin(table.database.dsn)
    assert table.database.rows("SELECT pin_id, made_by FROM modak.read_pins WHERE pin_id < %s ORDER BY 1", (ours,)) == [
        (pin, reader.name),
        (theirs, other.name),
    ]
    for changed in (theirs, ours):
        for statement in (
            RELEASE,
            "UPDATE modak.read_pins SET expires_at = now() WHERE pin_id = %s",
            "UPDATE modak.read_pins SET made_by = current_user WHERE pin_id = %s",
            "SELECT modak.release(%s)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match=f"pin {changed} belongs to"):
                _run(reader, statement, changed)
    # What changes all changes nothing.
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        _run(reader, "DELETE FROM modak.read_pins")
    assert len(table.database.rows("SELECT FROM modak.read_pins")) == 3
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not be given away"):
        _run(reader, "UPDATE modak.read_pins SET made_by = %s WHERE pin_id = %s", other.name, pin)
    assert _run(reader, "UPDATE modak.read_pins SET expires_at = now() + interval '1 hour' WHERE pin_id = %s", pin) == 1
    assert _run(reader, RELEASE, pin) == 1


def test_an_expired_pin_is_anybodys(table: SqlTable, reader: ReaderRole, other: ReaderRole) -> None:
    """It protects nothing."""
    pin = _pin(other.dsn)
    table.database.execute("UPDATE modak.read_pins SET expires_at = now() - interval '1 second'")
    assert _run(reader, "DELETE FROM modak.read_pins WHERE expires_at < now() AND pin_id = %s", pin) == 1


def test_who_maintains_the_mirror_deletes_any(table: SqlTable, reader: ReaderRole) -> None:
    with role_of(table.database) as pump:
        with psycopg.connect(table.database.dsn, autocommit=True) as admin:
            quoted = psycopg.sql.Identifier(pump.name).as_string(admin)
            admin.execute(f"GRANT USAGE ON SCHEMA modak TO {quoted}".encode())
            admin.execute(f"GRANT SELECT, UPDATE ON modak.cutline TO {quoted}".encode())
            admin.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON modak.read_pins TO {quoted}".encode())
            admin.execute(f"GRANT SELECT, INSERT ON modak.read_pin_rows TO {quoted}".encode())
        pin = _pin(reader.dsn)
        longer: LiteralString = "UPDATE modak.read_pins SET expires_at = now() + interval '2 days' WHERE pin_id = %s"
        assert _run(pump, longer, pin) == 1
        assert _run(pump, RELEASE, pin) == 1


def test_members_of_a_role_share_its_pins(table: SqlTable, reader: ReaderRole, other: ReaderRole) -> None:
    with psycopg.connect(table.database.dsn, autocommit=True) as admin:
        admin.execute(psycopg.sql.SQL("GRANT {} TO {}").format(*map(psycopg.sql.Identifier, (reader.name, other.name))))
    pin = _pin(reader.dsn)
    assert _run(other, RELEASE, pin) == 1


@pytest.mark.parametrize("interval", ["25 hours", "infinity"])
def test_a_pin_has_an_end(table: SqlTable, reader: ReaderRole, interval: str) -> None:
    until: LiteralString = "UPDATE modak.read_pins SET expires_at = 'now'::timestamptz + %s::interval WHERE pin_id = %s"
    if interval == "infinity":
        until = "UPDATE modak.read_pins SET expires_at = %s::timestamptz WHERE pin_id = %s"
    else:
        with pytest.raises(psycopg.errors.CheckViolation, match="lasts 24:00:00 at most"):
            _pin(reader.dsn, interval)
        with pytest.raises(psycopg.errors.CheckViolation, match="lasts 24:00:00 at most"):
            _run(reader, "SELECT modak.pin('ev', %s::interval)", interval)
    pin = _pin(reader.dsn, "23 hours")
    with pytest.raises(psycopg.errors.CheckViolation, match="lasts 24:00:00 at most"):
        _run(reader, until, interval, pin)


def test_the_administrator_sets_how_long_pins_last(table: SqlTable, reader: ReaderRole) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        _run(reader, "UPDATE modak.schema_meta SET max_pin_seconds = 1000000")
    table.database.execute("UPDATE modak.schema_meta SET max_pin_seconds = 1200")
    with pytest.raises(psycopg.errors.CheckViolation, match="lasts 00:20:00 at most") as caught:
        _pin(reader.dsn, "21 minutes")
    assert "modak.schema_meta" in str(caught.value.diag.message_hint)
    _pin(reader.dsn)
    with pytest.raises(psycopg.errors.CheckViolation):
        # Consumers pin for 15 minutes, as it is published.
        table.database.execute("UPDATE modak.schema_meta SET max_pin_seconds = 899")


def test_a_role_that_may_not_read_a_table_holds_up_none_of_it(table: SqlTable, stranger: ReaderRole) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"may not read public\.ev"):
        _pin(stranger.dsn)
    # The function pins what such a role reads: the lake alone. Neither the cut-line nor a partition waits for that.
    ((cut,),) = table.database.rows("SELECT tier_key_hi FROM modak.cutline")
    with psycopg.connect(stranger.dsn) as connection:
        row = connection.execute("SELECT t, s FROM modak.pin('ev')").fetchone()
    assert row == (cut, 5)
    pinned: LiteralString = "SELECT pinned_tier_key_hi, pinned_lake_snapshot_id FROM modak.read_pins"
    assert table.database.rows(pinned) == [(_NEVER, 5)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"may not read public\.ev"):
        _run(stranger, "UPDATE modak.read_pins SET pinned_tier_key_hi = 0")


def test_a_pin_from_before_an_upgrade_is_still_its_readers(table: SqlTable, reader: ReaderRole) -> None:
    pin = _pin(reader.dsn)
    with table.database.session() as connection:
        connection.execute("UPDATE modak.read_pin_rows SET made_by = NULL")
    assert _run(reader, "UPDATE modak.read_pins SET expires_at = now() + interval '1 hour' WHERE pin_id = %s", pin) == 1
    assert _run(reader, RELEASE, pin) == 1


def test_unregistering_removes_pins_of_all(table: SqlTable, reader: ReaderRole) -> None:
    _pin(reader.dsn)
    table.database.execute("DELETE FROM modak.tables")
    assert table.database.rows("SELECT FROM modak.read_pins") == []


def test_a_pin_ends_soon_after_its_session_if_it_is_tied_to_it(table: SqlTable, reader: ReaderRole) -> None:
    tie: LiteralString = "UPDATE modak.read_pins SET ends_with = pg_backend_pid() WHERE pin_id = %s"
    untied, ended, alive = (_pin(reader.dsn) for _ in range(3))
    _run(reader, tie, ended)
    with psycopg.connect(reader.dsn, autocommit=True) as session:
        session.execute(tie, (alive,))
        # A session ends a moment after its client.
        await_true(lambda: _ending(table) == [ended], 20, "the pin ends soon")
    await_true(lambda: _ending(table) == [ended, alive], 20, f"and so does the other one, but not {untied}")


def _ending(table: SqlTable) -> list[int]:
    """Pins that end soon, once the pump has looked."""
    with table.database.connect() as pump:
        source.run(pump, "end_pins", {"slot": "s"})
    soon: LiteralString = "SELECT pin_id FROM modak.read_pins WHERE expires_at < now() + interval '7 min' ORDER BY 1"
    return [pin for (pin,) in table.database.rows(soon)]


def test_pins_of_the_lake_alone_are_no_readers_in_the_way(table: SqlTable) -> None:
    """Leases of the REST catalog, for example."""
    _pin(table.database.dsn)
    lease: LiteralString = (
        "SELECT * FROM modak.pin_tables(ARRAY['ev'::regclass::oid::bigint], interval '1 hour', cut => %s)"
    )
    for _ in range(3):
        table.database.rows(lease, (_NEVER,))

    def state() -> RetentionState:
        with table.database.connect() as connection:
            (state,) = retention_states(connection, "s").values()
        return state

    assert (state().pins, state().lake_pins, state().has_cutline) == (1, 3, True)
    table.database.execute("DELETE FROM modak.read_pins WHERE pinned_tier_key_hi < 0")
    assert (state().pins, state().lake_pins, state().oldest_pin_age) == (0, 3, None)
    assert table.value("SELECT lake_pins FROM modak.status") == 3
    table.database.execute("UPDATE modak.mirror_tables SET retention = NULL")
    assert state().has_cutline is False
