"""One table's damaged metadata takes no other table away from clients of a moment."""

from __future__ import annotations

import pytest

from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.damage import DamageKind
from tests.support.local_files import path_of
from tests.support.moments import by_pyiceberg, change, two_tables
from tests.support.rest_catalog import served


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    return two_tables(database, warehouse, tasks)


@pytest.mark.unverified("one of the two tables cannot be read")
def test_the_other_table_is_read_at_a_past_frontier(mirror: Mirror) -> None:
    with mirror.pumping():
        frontier = change(mirror, 1)
        change(mirror, 2)
    point = f"mirror@{frontier >> 32:X}-{frontier & 0xFFFFFFFF:X}"
    path = path_of(mirror.location("public.a"))
    content = path.read_bytes()
    with served(mirror.settings) as catalog:
        for damage in (DamageKind.CUT, DamageKind.ANOTHER, DamageKind.GONE):
            path.write_bytes(content)
            damage.apply(path, path_of(mirror.location("public.b")))
            assert by_pyiceberg(catalog, point)("b") == 1
            prefix = catalog.attach(point)
            answer = catalog.ask(f"/v1/{prefix}/namespaces/public/tables/a")
            assert answer.status >= 400
            assert "the metadata of public.a is lost or damaged" in answer.error[2]
