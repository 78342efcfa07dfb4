"""What tests of `resync` share: the command as a function, lost slots, and a record of what readers were promised."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mirror_pump.ops.resync.resync import Resync, resync
from mirror_pump.ops.verify.requested_repairs import TableRepair, repair_where_different
from mirror_pump.settings.config import Settings
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import GatedCopies

_AUDIT = """
CREATE TABLE audit.promises (seen bigserial, xid xid8, table_id bigint, former bigint, present bigint, snapshot bigint);
CREATE FUNCTION audit.promise() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO audit.promises (xid, table_id, former, present, snapshot)
  VALUES (pg_current_xact_id(), NEW.table_id, OLD.replicated_lsn, NEW.replicated_lsn, NEW.lake_snapshot_id);
  RETURN NULL; END $$;
CREATE TRIGGER audit AFTER UPDATE ON modak.cutline FOR EACH ROW EXECUTE FUNCTION audit.promise();
CREATE TABLE audit.pointers (seen bigserial, xid xid8, table_id bigint);
CREATE FUNCTION audit.pointer() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO audit.pointers (xid, table_id)
  SELECT pg_current_xact_id(), t.table_id FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)
   WHERE (t.schema_name, m.lake_table) = (NEW.table_namespace, NEW.table_name);
  RETURN NULL; END $$;
CREATE TRIGGER audit AFTER UPDATE OF metadata_location ON modak.iceberg_tables
  FOR EACH ROW EXECUTE FUNCTION audit.pointer();
"""


def resynced(mirror: Mirror | Settings, *names: str, wait: bool = False, where_different: bool = False) -> Resync:
    """Runs `mirror-pump resync` for these tables, or for all."""
    settings = mirror if isinstance(mirror, Settings) else mirror.settings
    return resync(
        settings,
        names,
        wait=wait,
        say=lambda _: None,
        on_progress=lambda _: None,
        where_different=where_different,
    )


def repairs(mirror: Mirror, *names: str) -> tuple[TableRepair, ...]:
    """Runs `mirror-pump resync --where-different` for these tables, or for all."""
    return repair_where_different(mirror.settings, names, say=lambda _: None, on_progress=lambda _: None).tables


def drop_slot(mirror: Mirror) -> None:
    """Somebody drops the slot."""
    _await_inactive(mirror)
    with mirror.database.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (mirror.settings.slot,))


def move_slot(mirror: Mirror) -> None:
    """Somebody takes changes from the slot."""
    _await_inactive(mirror)
    with mirror.database.connect() as connection:
        connection.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (mirror.settings.slot,))


def _await_inactive(mirror: Mirror) -> None:
    """The server notices that a pump was killed."""
    active = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND active"
    await_true(lambda: not mirror.database.rows(active, (mirror.settings.slot,)), 30, "nobody reads the slot")


def audit_promises(database: Database) -> None:
    """Records from now on what each table's readers are promised and shown, and in which transaction."""
    with database.connect() as connection:
        connection.execute(_AUDIT)


def forget_promises(database: Database) -> None:
    """Begins the record anew."""
    database.execute("TRUNCATE audit.promises, audit.pointers")


def promises(database: Database) -> list[tuple[int, int, int | None, int | None]]:
    """Each change since then: transaction, table, former and new frontier. A change of the snapshot alone counts."""
    return database.rows("SELECT xid::text::bigint, table_id, former, present FROM audit.promises ORDER BY seen")


def assert_one_swap(database: Database, tables: Sequence[str], kept: int) -> None:
    """Fails unless the first thing that readers of these tables were shown after the frontier `kept` came for all of
    them in one transaction, at one frontier beyond it."""
    ids = {table_id for name in tables for (table_id,) in database.rows("SELECT %s::regclass::oid::bigint", (name,))}
    shown: dict[int, dict[int, int | None]] = {table_id: {} for table_id in ids}
    for xid, table_id, former, present in promises(database):
        assert former is None or (present is not None and present >= former), "a promised frontier moved back"
        if table_id in ids:
            # A transaction shows what it did last.
            shown[table_id][xid] = present
    first = {next(iter(transactions.items()), None) for transactions in shown.values()}
    assert len(first) == 1, f"one publish shows all tables, at one frontier: {shown}"
    (publish,) = first
    assert publish is not None, "no table was shown"
    assert publish[1] is not None
    assert publish[1] > kept, "it is beyond what readers had"
    pointers: dict[int, int] = {}
    for xid, table_id in database.rows("SELECT xid::text::bigint, table_id FROM audit.pointers ORDER BY seen"):
        pointers.setdefault(table_id, xid)
    assert {pointers.get(table_id) for table_id in ids} == {publish[0]}, "that publish moves the pointers, none before"


@contextmanager
def dying_in_the_catalog(database: Database, table: str, condition: str) -> Iterator[Callable[[], None]]:
    """A session that updates a row of `modak.<table>` for which the condition holds loses its connection, as if its
    process or the server had crashed there. The value ends that before the block."""

    def mend() -> None:
        with database.connect() as connection:
            connection.execute(f"DROP TRIGGER IF EXISTS crash ON modak.{table}".encode())

    with database.connect() as connection:
        connection.execute(
            "CREATE OR REPLACE FUNCTION audit.crash() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$"
        )
        connection.execute(
            f"CREATE TRIGGER crash BEFORE UPDATE ON modak.{table} FOR EACH ROW WHEN ({condition})"
            " EXECUTE FUNCTION audit.crash()".encode()
        )
    try:
        yield mend
    finally:
        mend()


def copy_all_but_one_chunk(mirror: Mirror, gate: GatedCopies) -> None:
    """Lets held copies go, until one chunk is left of all. Tables that wait for their owner do not count."""
    unplanned = (
        "SELECT FROM modak.mirror_tables m WHERE state IN ('waiting', 'copying') AND live_after_lsn IS NULL"
        "   AND error IS NULL AND NOT EXISTS (SELECT FROM modak.copy_chunks c"
        "                                      WHERE c.table_id = m.table_id AND c.generation = m.generation)"
    )
    left = "SELECT count(*) FROM modak.copy_chunks WHERE done_at IS NULL"

    def one_left() -> bool:
        more = bool(mirror.database.rows(unplanned))
        if not more and mirror.database.rows(left) == [(1,)]:
            return True
        if gate.waiting > 1 or (more and gate.waiting):
            gate.let_go(1)
        return False

    await_true(one_left, 30, "all chunks but one")
