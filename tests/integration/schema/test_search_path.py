"""A change of the search path alone is no change of a table, whatever it does to the names of types."""

from __future__ import annotations

from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner


def test_names_of_types_without_their_schema_are_no_change(
    database: Database, warehouse: str, tasks: ThreadTaskRunner
) -> None:
    """The table was registered, and noted, while the types' schema was in the path, as any client may have had it."""
    database.execute(
        "CREATE TYPE mood AS ENUM ('ok', 'bad')",
        "CREATE TABLE t (id int PRIMARY KEY, m mood, all_moods mood[])",
        "INSERT INTO t VALUES (1, 'ok', '{ok}')",
    )
    mirror = Mirror.create(database, warehouse, tasks)
    mirror.register("t")
    with mirror.pumping() as pump:
        mirror.await_live("public.t")
    database.execute(
        "UPDATE modak.mirror_tables SET columns = replace(columns::text, 'public.mood', 'mood')::jsonb,"
        " shape = replace(shape::text, 'public.mood', 'mood')::jsonb",
        "UPDATE modak.mirror_shapes SET shape = replace(shape::text, 'public.mood', 'mood')::jsonb",
    )
    with mirror.pumping() as pump:
        database.execute("ALTER TABLE t SET (fillfactor = 90)", "INSERT INTO t VALUES (2, 'bad', '{bad,ok}')")
        mirror.await_frontier()
        await_true(
            lambda: "public.mood" in str(database.rows("SELECT columns FROM modak.mirror_tables")), 20, "spelled anew"
        )
        assert pump.steps.count(Step.TABLE_CHANGED) == 0
        assert pump.steps.count(Step.TABLE_COPIED_AGAIN) == 0
        database.execute("ALTER TYPE mood RENAME TO feeling", "ALTER TABLE t ADD COLUMN n int")
        await_true(lambda: pump.steps.count(Step.TABLE_CHANGED), 20, "what is a change is told")
    mirror.assert_sound()
