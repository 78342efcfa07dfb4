"""Tables that an earlier version registered without their rows are copied after the upgrade."""

from __future__ import annotations

import sql
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, assert_same
from mirror_pump.testing.tasks import ThreadTaskRunner

_COPY = sql.queries("copy")


def _upgrade(database: Database) -> None:
    """The migration, in a catalog with the column of before."""
    (step,) = (step for step in sql.migrations() if step.name == "all_rows")
    database.execute(
        "ALTER TABLE modak.mirror_tables ADD COLUMN no_copy boolean NOT NULL DEFAULT false",
        "UPDATE modak.mirror_tables SET no_copy = table_id IN ('t'::regclass, 'u'::regclass)",
        step.text,
    )


def test_a_table_without_its_rows_is_copied_after_an_upgrade(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    for name in ("t", "u", "whole"):
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, n int)",
            f"INSERT INTO {name} SELECT g, 0 FROM generate_series(1, 100) g",
        )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("t", "whole")
    with database.connect() as connection:
        # As the earlier version planned such a copy: without a chunk.
        (copy,) = database.rows(
            "SELECT table_id, start_lsn, generation FROM modak.mirror_tables WHERE table_id = 't'::regclass"
        )
        given = dict(zip(("table_id", "start_lsn", "generation"), copy, strict=True))
        connection.execute(_COPY["plan"].encode(), given)
        connection.execute(_COPY["nothing_to_copy"].encode(), given)
    database.execute("UPDATE t SET n = 1 WHERE id <= 10")
    mirror.catch_up()
    before = mirror.lake("public.t")
    assert sorted(row[0] for row in before) == list(range(1, 11))
    mirror.register("u")
    _upgrade(database)
    assert [mirror.state(f"public.{name}") for name in ("t", "u", "whole")] == ["waiting", "waiting", "live"]
    assert_same(before, mirror.lake("public.t"), "until it is copied")
    steps = Steps()
    with mirror.pumping(steps):
        database.execute("UPDATE t SET n = 2 WHERE id % 10 = 0", "DELETE FROM t WHERE id = 5")
        mirror.await_live("public.t", "public.u")
        mirror.await_frontier()
    mirror.assert_equal("public.t", "public.u", "public.whole")
    assert set(steps.details(Step.CHUNK_COPIED, "table")) == {"public.t", "public.u"}
    mirror.assert_sound()
