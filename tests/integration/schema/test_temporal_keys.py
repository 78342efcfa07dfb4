"""Temporal keys (WITHOUT OVERLAPS, PostgreSQL 18), and what UPDATE and DELETE FOR PORTION OF (19) make of rows."""

from __future__ import annotations

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.installation import major_version
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from mirror_pump.testing.verification import assert_verified

pytestmark = pytest.mark.skipif(major_version() < 18, reason="temporal keys exist since PostgreSQL 18")

_YEAR = "'[2026-01-01,2027-01-01)'"


def _portion(change: str) -> tuple[str, ...]:
    """What FOR PORTION OF validity FROM '2026-04-01' TO '2026-07-01' does to the row of a year: the part is updated or
    deleted, and the rest is inserted as rows of their own."""
    if major_version() >= 19:
        part = "FOR PORTION OF validity FROM '2026-04-01' TO '2026-07-01'"
        return (
            f"UPDATE price {part} SET amount = 7 WHERE id = 1"
            if change == "update"
            else f"DELETE FROM price {part} WHERE id = 1",
        )
    first = (
        "UPDATE price SET validity = '[2026-04-01,2026-07-01)', amount = 7 WHERE id = 1"
        if change == "update"
        else "DELETE FROM price WHERE id = 1"
    )
    rest = "INSERT INTO price VALUES (1, '[2026-01-01,2026-04-01)', 1), (1, '[2026-07-01,2027-01-01)', 1)"
    return first, rest


@pytest.mark.parametrize("change", ["update", "delete"])
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_portion_of_a_row(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, change: str, identity: str
) -> None:
    database.execute(
        "CREATE EXTENSION btree_gist",
        "CREATE TABLE price (id int, validity daterange, amount numeric(10,2),"
        " PRIMARY KEY (id, validity WITHOUT OVERLAPS))",
        f"ALTER TABLE price REPLICA IDENTITY {identity}",
        f"INSERT INTO price SELECT g, {_YEAR}, 1 FROM generate_series(1, 20) g",
    )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("price")
    with mirror.pumping():
        mirror.await_live("public.price")
        with database.session(autocommit=False) as connection:
            for statement in _portion(change):
                connection.execute(statement.encode())
        database.execute(
            "UPDATE price SET amount = 3 WHERE id = 2",
            "UPDATE price SET validity = '[2026-02-01,)' WHERE id = 3",
            "DELETE FROM price WHERE id = 4",
        )
        mirror.await_frontier()
    assert_verified(database)
    assert len(database.rows("SELECT FROM price WHERE id = 1")) == (3 if change == "update" else 2)
