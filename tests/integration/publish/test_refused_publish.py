"""What the server refuses in a publish is told as what it is. Only a session that ended is a lost connection."""

from __future__ import annotations

import pytest

from mirror_pump.errors import ConnectionLost, MirrorPumpError
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.tables.catalogs.postgres_catalog import PostgresCatalog
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner

pytestmark = pytest.mark.further

_REFUSE = """
CREATE SEQUENCE refusals;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF nextval('public.refusals') < 3 THEN
    RAISE EXCEPTION USING ERRCODE = TG_ARGV[0], MESSAGE = 'refused by the test';
  END IF;
  RETURN NULL;
END $$;
"""


def test_what_the_server_refuses_is_no_lost_connection(database: Database, warehouse: str) -> None:
    """In the middle of the transaction, or by its COMMIT."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", _REFUSE)
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("t")
    steps = Steps()
    refused = 0
    with mirror.pumping(steps):
        mirror.await_live("public.t")
        for code in ("disk_full", "deadlock_detected", "lock_not_available", "out_of_memory"):
            for deferred in (False, True):
                refused += assert_refused(mirror, steps, code, deferred)
    assert steps.count(Step.RETRYING) == refused, "nothing else was tried again"
    mirror.assert_sound()


def assert_refused(mirror: Mirror, steps: Steps, code: str, deferred: bool) -> int:
    """Has the server refuse the next publish with this code. Returns how often it was tried again."""
    kind, rest = ("CONSTRAINT TRIGGER", "DEFERRABLE INITIALLY DEFERRED") if deferred else ("TRIGGER", "")
    what = f"{code}, {'by COMMIT' if deferred else 'in the transaction'}"
    mirror.await_frontier()
    begun = steps.count(Step.RETRYING)
    with mirror.database.session(autocommit=False) as connection:
        connection.execute("ALTER SEQUENCE refusals RESTART")
        connection.execute(
            f"CREATE {kind} refuse AFTER UPDATE ON modak.iceberg_tables {rest}"
            f" FOR EACH ROW EXECUTE FUNCTION refuse('{code}')".encode()
        )
    mirror.database.execute("INSERT INTO t SELECT (SELECT count(*) FROM t) + g FROM generate_series(1, 10) g")
    await_true(lambda: steps.count(Step.RETRYING) >= begun + 2, 20, f"the publish is refused: {what}")
    mirror.await_frontier()
    mirror.assert_equal("public.t")
    errors = steps.details(Step.RETRYING, "error")[begun:]
    for error in errors:
        assert "refused by the test" in error, what
        assert "Postgres refused while publishing" in error, what
        assert "connection" not in error, what
    mirror.database.execute("DROP TRIGGER refuse ON modak.iceberg_tables")
    return len(errors)


@pytest.mark.parametrize("code", ["disk_full", "deadlock_detected"])
def test_a_lake_catalog_tells_it_too(database: Database, warehouse: str, code: str) -> None:
    database.execute(_REFUSE)
    with database.session() as connection:
        connection.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON modak.iceberg_namespace_properties"
            f" FOR EACH ROW EXECUTE FUNCTION refuse('{code}')".encode()
        )
    catalog = PostgresCatalog(database.dsn, warehouse, StorageOptions(fsync=False))
    with pytest.raises(MirrorPumpError, match="refused by the test") as refused:
        catalog.create_namespace("s")
    assert not isinstance(refused.value, ConnectionLost)
    assert "try again" in refused.value.remedy
