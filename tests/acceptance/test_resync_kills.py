"""kill -9 of the pump at every step of a resync: readers see the old content of all tables, or the new of all."""

from __future__ import annotations

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, lake_rows
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.changed_tables import published
from tests.support.killed_pump import die
from tests.support.resyncs import assert_one_swap, audit_promises, drop_slot, resynced

_TABLES = ("a", "b", "c")

_STEPS = (
    ("streaming", 1),
    # The first publish empties the staged tables.
    ("staged", 1),
    ("published", 1),
    ("acknowledged", 1),
    ("copy-planned", 1),
    ("copy-planned", 2),
    ("chunk-copied", 2),
    ("chunk-copied/staged", 1),
    ("chunk-copied/published", 1),
)
_STEPS_OF_DIFFERENCES = (
    ("published", 1),
    ("copy-planned", 1),
    ("copy-planned", 2),
    ("rows-compared", 1),
    ("rows-compared", 2),
    ("rows-compared/staged", 1),
    ("rows-compared/published", 1),
)


def _write(database: Database) -> None:
    """Some rows of all tables change, in every way, as often as it is called."""
    with database.connect(autocommit=False) as connection:
        for table in _TABLES:
            run = connection.execute
            run(f"UPDATE {table} SET n = n + 1 WHERE id % 7 = (SELECT count(*) FROM b) % 7".encode())
            run(f"DELETE FROM {table} WHERE id IN (SELECT min(id) FROM {table})".encode())
            run(f"INSERT INTO {table} SELECT max(id) + 1, 0, 'new' FROM {table}".encode())


@pytest.mark.soak
@pytest.mark.parametrize("where_different", [False, True], ids=["all rows", "where different"])
def test_a_pump_killed_at_every_step_of_a_resync(database: Database, warehouse: str, where_different: bool) -> None:
    for table in _TABLES:
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int, v text)")
    database.execute(
        "INSERT INTO a SELECT g, 0, repeat('v', 200) FROM generate_series(1, 300) g",
        "INSERT INTO b SELECT g, 0, 'v' FROM generate_series(1, 9) g",
        "INSERT INTO c SELECT g, 0, 'v' FROM generate_series(1, 9) g",
    )
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register(*_TABLES)
    mirror.catch_up()
    kept = mirror.frontier()
    old = {table: (published(mirror, table)[:2], mirror.lake(f"public.{table}")) for table in _TABLES}
    audit_promises(database)
    for step, nth in _STEPS_OF_DIFFERENCES if where_different else _STEPS:
        # The slot is lost again each time, in the middle of the resync before.
        drop_slot(mirror)
        _write(database)
        resynced(mirror, where_different=where_different)
        for killed in ((step, nth), ("published", 1)):
            _write(database)
            die(mirror, *killed, meanwhile=lambda: _write(database), copy_chunk_bytes=8192, copy_workers=1)
            mirror.assert_sound()
            for table in _TABLES:
                assert published(mirror, table)[:2] == old[table][0], f"{table} after {step} {nth}"
                assert lake_rows(mirror.location(f"public.{table}")) == old[table][1]
    # The publish that shows all tables.
    die(mirror, "live", 1, meanwhile=lambda: _write(database), copy_chunk_bytes=8192)
    assert {mirror.state(f"public.{table}") for table in _TABLES} == {"live"}
    assert_one_swap(database, _TABLES, kept)
    mirror.catch_up()
    mirror.assert_equal(*(f"public.{table}" for table in _TABLES))
    mirror.assert_sound()
