"""PostgreSQL may send a logical message after the row change that follows it. Notes of schema changes stay in order.

A message has the position at which its WAL record ends, and a row change the one at which its record begins. So a
message and the change whose record follows at once have the same position. If they belong to different subtransactions,
the server sends either first. A note is emitted in a subtransaction, that of the event trigger's exception block. The
row change came first whenever another transaction that changed the catalogs had committed while the note was made.
"""

from __future__ import annotations

import threading

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified

_LOCK = 7_300_417
"""An advisory lock that holds up the making of a note."""


def test_rows_after_a_partition_was_detached_stay(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    database.execute(
        "CREATE TABLE p (id int, part int, v text, PRIMARY KEY (id, part)) PARTITION BY LIST (part)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)",
        "CREATE TABLE other PARTITION OF p DEFAULT",
        "INSERT INTO p SELECT g, g % 2 + 1, 'v' FROM generate_series(1, 40) g",
    )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("public.p")
    with mirror.pumping():
        mirror.await_live("public.p")
        database.execute(
            "CREATE FUNCTION public.hold_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" PERFORM pg_advisory_xact_lock({_LOCK}); RETURN NULL; END $$",
            "CREATE TRIGGER hold_up AFTER UPDATE ON modak.mirror_shapes"
            " FOR EACH STATEMENT EXECUTE FUNCTION public.hold_up()",
        )
        with database.connect() as holder:
            holder.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
            change = threading.Thread(
                target=database.execute,
                args=("ALTER TABLE p DETACH PARTITION p1; INSERT INTO p SELECT id, part, 'again' FROM p1",),
            )
            change.start()
            await_true(
                lambda: (
                    database.rows("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == [(1,)]
                ),
                20,
                "the note is being made",
            )
            # Each transaction that is decoded at this moment takes note of the changed catalogs.
            holder.execute("CREATE TABLE public.meanwhile ()")
            holder.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))
            change.join(60)
        mirror.await_frontier()
        mirror.await_live("public.p")
        mirror.await_frontier()
        mirror.assert_equal("public.p")
        assert_verified(database)
