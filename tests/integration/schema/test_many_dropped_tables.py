"""Very many mirrored tables that are dropped by one statement, while another one is written to."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified

pytestmark = pytest.mark.further

_MANY = """
DO $$ BEGIN
  FOR n IN 1..{count} LOOP
    EXECUTE format('CREATE TABLE many.t%s (id int PRIMARY KEY, v int)', n);
  END LOOP;
END $$
"""

_STATES = (
    "SELECT m.state, count(*) FROM modak.mirror_tables m JOIN modak.tables t USING (table_id)"
    " WHERE t.schema_name = 'many' GROUP BY 1"
)


@pytest.mark.parametrize(
    ("tables", "mirrored"),
    [
        pytest.param(60, 50, id="60"),
        # To register a table takes a fifth of a second.
        pytest.param(10_000, 1_000, id="10000", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_many_tables_are_dropped_at_once(tmp_path: Path, tables: int, mirrored: int) -> None:
    """On a server of its own: a transaction that drops so many takes more locks than a server allows by default."""
    # The server's default suffices for some thousand relations.
    with EmbeddedPostgres(settings={"max_locks_per_transaction": "1024", "max_wal_size": "16GB"}) as server:
        server.create_database("many")
        database = Database(server, "many")
        warehouse = tmp_path / "warehouse"
        warehouse.mkdir()
        mirror = Mirror.create(database, warehouse.as_uri(), ThreadTaskRunner(), copy_workers=2)
        database.execute("CREATE SCHEMA many", "CREATE TABLE other (id int PRIMARY KEY, v text)")
        with database.connect() as connection:
            connection.execute(_MANY.format(count=tables).encode())
        steps = Steps()
        with mirror.pumping(steps):
            began = time.monotonic()
            mirror.register("other", *(f"many.t{number}" for number in range(1, mirrored + 1)))
            print(f"{mirrored} tables registered after {time.monotonic() - began:.1f} s", flush=True)
            await_true(lambda: database.rows(_STATES) == [("live", mirrored)], mirrored / 5 + 60, "all tables are live")
            print(f"and live after {time.monotonic() - began:.1f} s", flush=True)
            with database.connect(autocommit=False) as connection:
                connection.execute("INSERT INTO other VALUES (1, 'with the drop')")
                connection.execute("DROP SCHEMA many CASCADE")
            dropped = time.monotonic()
            database.execute("INSERT INTO other VALUES (2, 'after the drop')")
            mirror.await_frontier(seconds=60 + tables / 20)
            print(f"the frontier passed the drop after {time.monotonic() - dropped:.1f} s", flush=True)
            await_true(lambda: database.rows(_STATES) == [("dropped", mirrored)], 60 + tables / 20, "all are dropped")
            print(f"all tables are known to be dropped after {time.monotonic() - dropped:.1f} s", flush=True)
            # The pump is as quick as before.
            for number in range(3, 6):
                began = time.monotonic()
                database.rows("INSERT INTO other VALUES (%s, 'later') RETURNING id", (number,))
                mirror.await_frontier(seconds=30)
                print(f"a commit with {mirrored} dropped tables takes {time.monotonic() - began:.2f} s", flush=True)
            mirror.assert_equal("public.other")
        assert steps.count(Step.RETRYING) == 0, steps.details(Step.RETRYING, "error")
        assert assert_verified(database) == 1
        mirror.unregister("many.t1")
        assert database.rows(_STATES) == [("dropped", mirrored - 1)]
        mirror.assert_sound()
