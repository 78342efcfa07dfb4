"""The check at the end of tests: it does without a pump where nothing is under way, and finds what is wrong all the
same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from mirror_pump.ops.verify import compare_duckdb
from mirror_pump.ops.verify.comparison_engines import ComparisonEngine
from mirror_pump.testing.database import Database
from mirror_pump.testing.lake import duckdb_connection
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified, equal_at_rest


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    """A mirror with a live table of three rows, and no pump."""
    mirror = Mirror.create(database, warehouse, tasks)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT n, 'v' FROM generate_series(1, 3) n"
    )
    mirror.register("public.t")
    mirror.catch_up()
    return mirror


@pytest.fixture
def at_rest(mirror: Mirror, tasks: ThreadTaskRunner) -> Iterator[Callable[[], int | None]]:
    """equal_at_rest() for the mirror."""
    with duckdb_connection() as duckdb:
        engine = ComparisonEngine(tasks, partial(compare_duckdb.compare, duckdb))

        def ask() -> int | None:
            with mirror.database.session() as connection:
                return equal_at_rest(connection, mirror.settings, engine)

        yield ask


def test_a_pump_is_started_only_if_the_lake_is_behind(mirror: Mirror, at_rest: Callable[[], int | None]) -> None:
    """Each kind of thing that a pump would still have to do is noticed, and is no failure."""
    database = mirror.database
    assert at_rest() == 1
    led = _epoch(database)
    assert assert_verified(database) == 1
    assert _epoch(database) == led
    # Changes of tables that are not mirrored are nobody's.
    database.execute("CREATE TABLE other AS SELECT 1 AS n")
    assert at_rest() == 1

    def behind() -> None:
        assert at_rest() is None
        assert assert_verified(database) == 1
        assert at_rest() == 1

    # A change that leaves the rows as they were is one as well.
    database.execute("UPDATE t SET v = v WHERE id = 1")
    behind()
    assert _epoch(database) > led
    # The event trigger notes this one in the stream ...
    database.execute("ALTER TABLE t ADD COLUMN w int")
    behind()
    # ... and nothing does this one.
    database.execute("ALTER EVENT TRIGGER mirror_pump_ddl DISABLE", "ALTER TABLE t ADD COLUMN x int")
    assert at_rest() is None
    database.execute("ALTER TABLE t DROP COLUMN x", "ALTER EVENT TRIGGER mirror_pump_ddl ENABLE")
    # No row of the stream tells of what somebody does to the publication.
    name = mirror.settings.publication
    database.execute(f"ALTER PUBLICATION {name} DROP TABLE t", f"ALTER PUBLICATION {name} ADD TABLE t")
    assert at_rest() is None
    # A table that is being copied cannot be compared yet.
    database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    mirror.register("public.u")
    assert at_rest() is None


@pytest.mark.unverified("rows are lost on purpose")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param("INSERT INTO t VALUES (4, 'v')", id="row missing", marks=pytest.mark.further),
        pytest.param("DELETE FROM t WHERE id = 2", id="row left over", marks=pytest.mark.further),
        pytest.param("UPDATE t SET v = 'w' WHERE id = 3", id="former value"),
    ],
)
def test_what_the_frontier_claims_and_the_lake_lacks_is_found(
    mirror: Mirror, at_rest: Callable[[], int | None], change: str
) -> None:
    """A change that was never applied, of which neither the slot nor the frontier tells any more."""
    database = mirror.database
    database.execute(change)
    database.execute(
        "UPDATE modak.mirror_slots SET applied_lsn = (pg_current_wal_insert_lsn() - '0/0')::bigint",
        "UPDATE modak.cutline SET replicated_lsn = s.applied_lsn FROM modak.mirror_slots s",
    )
    assert at_rest() is None
    with pytest.raises(AssertionError, match="heap and lake differ"):
        assert_verified(database)


def _epoch(database: Database) -> int:
    """How often a pump has begun to lead."""
    ((epoch,),) = database.rows("SELECT leader_epoch FROM modak.mirror_slots")
    return int(epoch)
