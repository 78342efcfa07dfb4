"""Looks at the catalogs are left out only if no write has committed since one that left nothing to do."""

from __future__ import annotations

from contextlib import closing

import pytest

from mirror_pump.pipeline.flow.session_context import SharedConnection
from mirror_pump.source.connect import connect
from mirror_pump.source.unchanged_server import UnchangedServer
from mirror_pump.testing.database import Database


@pytest.mark.empty_database
def test_no_commit_of_a_write_is_passed_over(database: Database) -> None:
    database.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
    unchanged = UnchangedServer()
    with (
        closing(SharedConnection(lambda: connect(database.dsn, autocommit=True))) as shared,
        connect(database.dsn) as first,
        connect(database.dsn) as second,
    ):

        def passes() -> bool:
            """Whether the next round is left out; one that is made leaves nothing to do."""
            passed = unchanged.skips(shared.snapshot(0.0))
            if not passed:
                unchanged.nothing_left()
            return passed

        assert [passes(), passes()] == [False, True]
        first.execute("ALTER TABLE public.t ADD COLUMN early int")
        second.execute("CREATE TABLE public.late ()")
        passes()
        # The later transaction ends first, then the earlier one.
        second.commit()
        assert [passes(), passes()] == [False, True]
        first.commit()
        assert [passes(), passes()] == [False, True]
        second.execute("SAVEPOINT s")
        second.execute("ALTER TABLE public.t ADD COLUMN nested int")
        second.execute("RELEASE s")
        passes()
        second.commit()
        assert [passes(), passes()] == [False, True]
        first.execute("SELECT * FROM public.t")
        first.commit()
        assert passes()
        database.execute("CREATE ROLE passing", "DROP ROLE passing")
        assert not unchanged.skips(shared.snapshot(0.0))
        # A round that leaves something to do is followed by another.
        assert not unchanged.skips(shared.snapshot(0.0))


@pytest.mark.empty_database
def test_threads_that_look_together_ask_the_server_once(database: Database) -> None:
    with closing(SharedConnection(lambda: connect(database.dsn, autocommit=True))) as shared:
        before = shared.snapshot(60.0)
        database.execute("CREATE TABLE public.t ()")
        assert shared.snapshot(60.0) == before
        assert shared.snapshot(60.0, woken=True) != before, "what woke it may be a later write"
        assert shared.snapshot(0.0) != before
