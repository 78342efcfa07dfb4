"""What each role can lock, and who waits for it: no role but the owner, a superuser and the pump's stops the mirror."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from mirror_pump.errors import MirrorPumpError, TransientRefusal
from mirror_pump.ops.status.status_reader import StatusReader
from mirror_pump.ops.status.status_report import Alert, Severity
from mirror_pump.source.catalog.lock_holders import naming_lock_holders
from mirror_pump.source.connect import connect, source_errors
from mirror_pump.source.retention import partitions as source
from mirror_pump.source.stream.leader import lock_key
from mirror_pump.source.stream.standby import standby_key
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from sql import functions, migrations, reader_role
from tests.support.cli import RunCommand
from tests.support.loads import new_loader
from tests.support.pipeline import in_thread
from tests.support.readers import ReaderRole, role_of
from tests.support.retention_sql import SqlTable

_RELATIONS = (
    "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'modak'::regnamespace AND relkind IN ('r', 'p', 'v')"
    " ORDER BY 1"
)
_WRITABLE = {"modak.read_pins", "modak.read_pin_rows", "modak.feed_pins", "modak.feed_pin_rows"}
"""What readers may write to, so that they may lock it as a writer does."""

_GRANTED = (
    "SELECT array_agg(p ORDER BY n) FROM unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE}'::text[])"
    " WITH ORDINALITY AS u(p, n) WHERE has_table_privilege(%s, %s::text, p)"
)


@contextmanager
def _reader(database: Database, table: str = "") -> Iterator[ReaderRole]:
    with role_of(database) as role:
        with psycopg.connect(database.dsn, autocommit=True) as admin:
            quoted = Identifier(role.name).as_string(admin)
            admin.execute(reader_role(quoted).encode())
            if table:
                admin.execute(f"GRANT SELECT ON {table} TO {quoted}".encode())
        yield role


@contextmanager
def _monitor(database: Database) -> Iterator[ReaderRole]:
    with role_of(database) as role:
        with psycopg.connect(database.dsn, autocommit=True) as admin:
            quoted = Identifier(role.name).as_string(admin)
            admin.execute(f"GRANT pg_monitor TO {quoted}; GRANT USAGE ON SCHEMA modak TO {quoted}".encode())
            admin.execute(f"GRANT SELECT ON modak.status TO {quoted}".encode())
        yield role


def _lockable(dsn: str, relations: list[str], lock: str) -> set[str]:
    """The relations that a role can lock: by LOCK TABLE in a mode, or by a query that locks rows."""
    locked = set()
    with psycopg.connect(dsn) as connection:
        for relation in relations:
            try:
                connection.execute(lock.format(relation).encode())
                locked.add(relation)
            except (psycopg.errors.InsufficientPrivilege, psycopg.errors.FeatureNotSupported):
                pass
            connection.rollback()
    return locked


def test_no_reader_locks_what_the_mirror_needs(database: Database) -> None:
    """Each weakest mode that conflicts with a read or a write of the pump, and the weakest lock of rows."""
    database.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
    relations = [relation for (relation,) in database.rows(_RELATIONS)]
    assert set(relations) > _WRITABLE
    relations.append("public.t")
    with _reader(database, "public.t") as reader, _monitor(database) as monitor, new_loader(database) as loader:
        loader.grant("SELECT, INSERT", "public.t")
        for dsn in (reader.dsn, monitor.dsn, loader.dsn):
            for mode in ("SHARE UPDATE EXCLUSIVE", "SHARE"):
                assert not _lockable(dsn, relations, f"LOCK TABLE {{}} IN {mode} MODE NOWAIT")
            assert not _lockable(dsn, relations, "SELECT FROM {} FOR KEY SHARE NOWAIT")
        assert _lockable(reader.dsn, relations, "LOCK TABLE {} IN ROW EXCLUSIVE MODE NOWAIT") == _WRITABLE
        for dsn in (monitor.dsn, loader.dsn):
            assert _lockable(dsn, relations, "LOCK TABLE {} IN ROW EXCLUSIVE MODE NOWAIT") <= {"public.t"}
    # The same, from the grants: whoever may do one of these may lock the relation in any mode.
    assert not database.rows(
        "SELECT c.oid::regclass, a.grantee, a.privilege_type FROM pg_class c, aclexplode(c.relacl) a"
        " WHERE c.relnamespace = 'modak'::regnamespace AND a.grantee <> c.relowner"
        " AND a.privilege_type IN ('UPDATE', 'DELETE', 'TRUNCATE', 'MAINTAIN')"
    )


def test_a_reader_chooses_no_number_of_a_pin(database: Database) -> None:
    """Another one with that number would wait for its transaction."""
    SqlTable(database)
    with _reader(database, "public.ev") as reader, psycopg.connect(reader.dsn) as connection:
        for relation in ("read_pins", "read_pin_rows"):
            row = connection.execute(
                f"INSERT INTO modak.{relation} (pin_id, table_id, pinned_lake_snapshot_id, pinned_tier_key_hi,"
                " expires_at) OVERRIDING SYSTEM VALUE SELECT 99, table_id, lake_snapshot_id, tier_key_hi, now()"
                " FROM modak.cutline RETURNING pin_id".encode()
            ).fetchone()
            assert row is not None
            assert row[0] != 99


def _upgraded(admin: psycopg.Connection, rights: str, role: ReaderRole) -> None:
    """Migration 19 in a transaction, of a database in which the role had `rights` on the tables of pins."""
    for kind in ("read", "feed"):
        # As it was before: a table of that name.
        admin.execute(f"DROP VIEW modak.{kind}_pins".encode())
        admin.execute(f"ALTER TABLE modak.{kind}_pin_rows RENAME TO {kind}_pins".encode())
    quoted = Identifier(role.name).as_string(admin)
    admin.execute(f"GRANT {rights} ON modak.read_pins, modak.feed_pins TO {quoted}".encode())
    (migration,) = (step for step in migrations() if step.version == 19)
    (triggers,) = (file for file in functions() if file.name == "pin_rights")
    admin.execute(migration.text.encode())
    admin.execute(triggers.text.encode())


def test_rights_of_before_are_kept_on_the_views(database: Database) -> None:
    """What a role could do with the pins before the upgrade it can still do, without a lock that others wait for."""
    with role_of(database) as role, psycopg.connect(database.dsn) as admin:
        _upgraded(admin, "SELECT, INSERT, UPDATE, DELETE, TRUNCATE", role)
        for kind in ("read", "feed"):
            granted = {
                relation: admin.execute(_GRANTED, (role.name, f"modak.{relation}")).fetchone()
                for relation in (f"{kind}_pins", f"{kind}_pin_rows")
            }
            assert granted == {
                f"{kind}_pins": (["SELECT", "INSERT", "UPDATE", "DELETE"],),
                f"{kind}_pin_rows": (["SELECT", "INSERT"],),
            }
        admin.rollback()


@pytest.mark.parametrize(
    "rights", ["SELECT (pin_id, expires_at), UPDATE (expires_at)", "SELECT, UPDATE (expires_at), REFERENCES (pin_id)"]
)
def test_rights_of_before_on_columns_are_kept_on_the_views(database: Database, rights: str) -> None:
    SqlTable(database)
    with role_of(database) as role, psycopg.connect(database.dsn) as admin:
        _upgraded(admin, rights, role)
        admin.execute(
            SQL("GRANT USAGE ON SCHEMA modak TO {0}; GRANT SELECT ON public.ev TO {0}").format(Identifier(role.name))
        )
        pins = admin.execute(
            "INSERT INTO modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at)"
            " SELECT table_id, lake_snapshot_id, tier_key_hi, now() + interval '1 hour' FROM modak.cutline,"
            " generate_series(1, 2) RETURNING pin_id"
        ).fetchall()
        ((its_pin,), (other_pin,)) = pins
        admin.execute(
            "UPDATE modak.read_pin_rows SET made_by = CASE pin_id WHEN %s THEN %s ELSE 'postgres' END",
            (its_pin, role.name),
        )
        admin.execute(SQL("SET LOCAL ROLE {}").format(Identifier(role.name)))
        renew = "UPDATE modak.{} SET expires_at = now() + interval '2 hours' WHERE pin_id = {}"
        assert admin.execute(renew.format("read_pins", its_pin).encode()).rowcount == 1
        for refused in (
            renew.format("read_pins", other_pin),
            renew.format("read_pin_rows", other_pin),
            f"UPDATE modak.read_pins SET reader = 'x' WHERE pin_id = {its_pin}",
            f"SELECT FROM modak.read_pin_rows WHERE pin_id = {other_pin} FOR UPDATE",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), admin.transaction():
                admin.execute(refused.encode())
        admin.rollback()


def test_rights_on_the_rows_of_pins_change_no_pin_of_others(database: Database) -> None:
    """A role that was granted them by hand."""
    SqlTable(database)
    with _reader(database, "public.ev") as reader, _reader(database, "public.ev") as other:
        for role, right in ((reader, "UPDATE (expires_at)"), (reader, "DELETE")):
            quoted = Identifier(role.name).as_string(None)
            database.execute(f"GRANT {right} ON modak.read_pin_rows TO {quoted}")
        pins = []
        for dsn in (reader.dsn, other.dsn):
            with psycopg.connect(dsn) as session:
                pins += session.execute("SELECT pin_id FROM modak.pin('ev')").fetchall()
        ((its_pin,), (other_pin,)) = pins
        with psycopg.connect(reader.dsn, autocommit=True) as session:
            for change in ("UPDATE modak.read_pin_rows SET expires_at = now()", "DELETE FROM modak.read_pin_rows"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match=f"pin {other_pin} belongs to"):
                    session.execute(f"{change} WHERE pin_id = {other_pin}".encode())
                assert session.execute(f"{change} WHERE pin_id = {its_pin}".encode()).rowcount == 1


@pytest.fixture
def mirror(database: Database, warehouse: str) -> Mirror:
    database.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("public.t")
    mirror.catch_up()
    return mirror


def _alerts(mirror: Mirror) -> tuple[Alert, ...]:
    with StatusReader(mirror.settings) as reader:
        return reader.read().alerts


def test_who_keeps_the_mirror_waiting_is_named(mirror: Mirror) -> None:
    """The owner locks what the pump writes to."""
    with mirror.pumping(), psycopg.connect(mirror.database.dsn, application_name="owner's psql") as owner:
        owner.execute("LOCK TABLE modak.cutline IN EXCLUSIVE MODE")
        mirror.database.execute("INSERT INTO public.t VALUES (1)")
        named = f"process {owner.info.backend_pid} of role postgres (owner's psql"

        def alerted() -> list[Alert]:
            return [alert for alert in _alerts(mirror) if named in alert.message]

        await_true(alerted, 60, "the holder is named")
        (alert,) = alerted()
        assert "for a lock on modak.cutline" in alert.message
        assert alert.remedy.endswith(f"SELECT pg_terminate_backend({owner.info.backend_pid})")
        owner.rollback()
        mirror.await_frontier()
    assert not alerted()


def test_a_read_of_the_catalog_that_waits_in_vain_names_who_it_waited_for(mirror: Mirror) -> None:
    """In the words that status prints instead of a hang, after a shorter time."""
    dsn = mirror.settings.require_dsn()
    with psycopg.connect(mirror.database.dsn, application_name="owner's psql") as owner:
        owner.execute("LOCK TABLE modak.mirror_tables IN ACCESS EXCLUSIVE MODE")
        with (
            pytest.raises(TransientRefusal) as caught,
            connect(dsn, autocommit=True, lock_timeout="10ms") as connection,
            source_errors("reading the mirror's status"),
        ):
            connection.execute("SELECT FROM modak.mirror_tables")
        named = naming_lock_holders(caught.value, dsn)
        assert f"modak.mirror_tables is locked by process {owner.info.backend_pid} of role postgres" in str(named)
        assert named.remedy.endswith(f"SELECT pg_terminate_backend({owner.info.backend_pid})")
    other = MirrorPumpError("another error")
    assert naming_lock_holders(other, dsn) is other


@pytest.mark.further
def test_who_locks_a_table_that_a_pump_reads_is_named(mirror: Mirror) -> None:
    """Who may write to a mirrored table may lock it. A lookup of values during its copy waits for that."""

    def look_up(_stop: threading.Event) -> None:
        with connect(mirror.settings.require_dsn(), lock_timeout="0") as connection:
            connection.execute("LOCK TABLE public.t IN ACCESS SHARE MODE")

    with psycopg.connect(mirror.database.dsn, application_name="a writer's psql") as writer:
        writer.execute("LOCK TABLE public.t IN ACCESS EXCLUSIVE MODE")
        named = f"lock on public.t, which process {writer.info.backend_pid} of role postgres (a writer's psql"
        with in_thread(look_up, "lookup"):
            await_true(lambda: any(named in alert.message for alert in _alerts(mirror)), 60, "the writer is named")
            writer.rollback()


@pytest.mark.further
def test_status_does_not_hang(mirror: Mirror, run: RunCommand) -> None:
    """Where it cannot read, it says because of whom."""
    with psycopg.connect(mirror.database.dsn, application_name="owner's psql") as owner:
        owner.execute("LOCK TABLE modak.read_pin_rows IN ACCESS EXCLUSIVE MODE")
        result = run("status", "--check")
        assert result.exit_code == 1
        assert f"modak.read_pin_rows is locked by process {owner.info.backend_pid} of role postgres" in result.stderr
        assert f"SELECT pg_terminate_backend({owner.info.backend_pid})" in result.stderr
    result = run("status", "--check")
    assert "no pump leads" in result.stderr + result.stdout


def test_a_reader_that_stands_in_the_place_of_a_pump_is_named(mirror: Mirror) -> None:
    """Any role can take any advisory lock."""
    with _reader(mirror.database) as reader:
        for key in (lock_key(mirror.settings.slot), standby_key(mirror.settings.slot)):
            with psycopg.connect(reader.dsn) as connection:
                connection.execute("SELECT pg_advisory_lock(%s)", (key,))
                (alert,) = (alert for alert in _alerts(mirror) if "advisory lock" in alert.message)
                assert f"process {connection.info.backend_pid} of role {reader.name}" in alert.message
                assert alert.severity is Severity.CRITICAL
                with StatusReader(mirror.settings) as status:
                    assert status.read().leader is None


@pytest.mark.parametrize("change", ["UPDATE modak.read_pins SET expires_at = now()", "DELETE FROM modak.read_pins"])
def test_nobody_waits_for_a_reader_that_changes_its_pin_and_stays(mirror: Mirror, change: str) -> None:
    """An open transaction keeps the row of the pin locked. The pump's upkeep of pins leaves that row out."""
    with _reader(mirror.database, "public.t") as reader:
        pin = "SELECT pin_id FROM modak.pin('public.t')"
        with psycopg.connect(reader.dsn, autocommit=True) as connection:
            ((changed,), (expired,)) = (connection.execute(pin.encode()).fetchone() or () for _ in range(2))
        mirror.database.execute("UPDATE modak.read_pin_rows SET expires_at = now() - interval '2 hours'")
        with psycopg.connect(reader.dsn) as connection:
            connection.execute(f"{change} WHERE pin_id = {changed}".encode())
            with connect(mirror.settings.require_dsn(), autocommit=True, lock_timeout="5s") as pump:
                for query in ("sweep_pins", "end_pins"):
                    source.run(pump, query, {"slot": mirror.settings.slot})
            left = {pin_id for (pin_id,) in mirror.database.rows("SELECT pin_id FROM modak.read_pins")}
            assert (changed in left, expired in left) == (True, False)
