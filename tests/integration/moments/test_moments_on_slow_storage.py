"""A moment is written beside the pump's publishes, whatever its storage takes, and leaves nothing if it is not kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mirror_pump.errors import ConnectionLost, TableError
from mirror_pump.model import Lsn
from mirror_pump.ops.moments.dropping import drop
from mirror_pump.ops.moments.keeping import KeepStep, MomentOptions, keep
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.held_writes import holding_s3_server
from tests.support.landings import KINDS
from tests.support.moments import assert_moment, change, kept_moment, two_tables
from tests.support.pipeline import in_thread
from tests.support.proxy import Loss, proxied

TABLES = ("public.a", "public.b")


def _is_next_metadata(key: str) -> bool:
    return "/metadata/" in key and key.endswith(".metadata.json")


@pytest.mark.unverified("DuckDB, as it verifies other lakes, has no access to this one")
def test_publishes_go_on_while_others_write(database: Database, tasks: ThreadTaskRunner) -> None:
    """And as the tables have moved meanwhile, what was written for them is written again."""
    with holding_s3_server() as s3:
        for name in ("a", "b"):
            database.execute(f"CREATE TABLE {name} (v int PRIMARY KEY)", f"INSERT INTO {name} VALUES (0)")
        # The pump writes metadata for changes alone.
        mirror = Mirror.create(
            database, "s3://lake/shop", tasks, merge_bytes=0, convert_age=3600, **s3.storage_settings
        )
        mirror.register("a", "b")
        works: list[Callable[[], object]] = [
            lambda: keep(mirror.settings, MomentOptions("closing")),
            lambda: drop(mirror.settings, "closing"),
            *(
                partial(KINDS[kind].work, mirror.settings, 1)
                for kind in ("metadata change", "properties", "merged manifests")
            ),
        ]
        with mirror.pumping():
            mirror.await_live(*TABLES)
            mirror.await_frontier()
            frontier = Lsn(mirror.frontier())
            for number, work in enumerate(works, 1):
                s3.hold(_is_next_metadata)
                with in_thread(lambda _stop, work=work: work(), "moment"):  # type: ignore[misc]
                    s3.await_held()
                    assert change(mirror, number) > frontier
                    s3.release()
                if number == 1:
                    moment = kept_moment(mirror, "closing")
                    assert moment.frontier == frontier
                    assert [str(table.table) for table in moment.tables] == list(TABLES)
        with pytest.raises(TableError, match="there is no moment closing"):
            kept_moment(mirror, "closing")


def _files(warehouse: str) -> set[Path]:
    return {path for path in Path(warehouse.removeprefix("file://")).rglob("*") if path.is_file()}


def _no_pins(database: Database) -> bool:
    return database.rows("SELECT count(*) FROM modak.read_pins WHERE expires_at > now()") == [(0,)]


def test_a_moment_that_is_not_kept_leaves_nothing(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """After Ctrl-C at each step, and after its connection was ended."""
    mirror = two_tables(database, warehouse, tasks)
    before = _files(warehouse)

    def interrupted_at(step: KeepStep) -> Callable[[KeepStep], None]:
        def observe(taken: KeepStep) -> None:
            if taken is step:
                raise KeyboardInterrupt

        return observe

    def disconnected(taken: KeepStep) -> None:
        if taken is KeepStep.ENTERED:
            database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mirror-pump-moment'"
            )

    for step in set(KeepStep) - {KeepStep.COMMITTED}:
        with pytest.raises(KeyboardInterrupt):
            keep(mirror.settings, MomentOptions("closing"), interrupted_at(step))
        assert _files(warehouse) == before, step
        assert _no_pins(database), step
    with pytest.raises(ConnectionLost):
        keep(mirror.settings, MomentOptions("closing"), disconnected)
    assert _files(warehouse) == before
    assert database.rows("SELECT count(*) FROM modak.moments") == [(0,)]
    keep(mirror.settings, MomentOptions("closing"))
    assert_moment(mirror, "closing", {table: mirror.heap(table) for table in TABLES})


@pytest.mark.further
@pytest.mark.parametrize("loss", Loss)
def test_an_answer_to_the_commit_that_is_lost(
    database: Database, warehouse: str, tasks: ThreadTaskRunner, loss: Loss
) -> None:
    mirror = two_tables(database, warehouse, tasks)
    before = _files(warehouse)
    with proxied(database.dsn) as proxy:
        settings = mirror.settings.model_copy(update={"dsn": proxy.dsn})

        def lose(taken: KeepStep) -> None:
            if taken is KeepStep.TAGGED:
                proxy.lose(loss)

        if loss is Loss.AFTER:
            keep(settings, MomentOptions("closing"), lose)
            assert_moment(mirror, "closing", {table: mirror.heap(table) for table in TABLES})
        else:
            with pytest.raises(ConnectionLost):
                keep(settings, MomentOptions("closing"), lose)
            assert _files(warehouse) == before
    mirror.assert_equal(*TABLES)


def test_tables_that_move_all_the_time(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> None:
    """A publish lands between the writing of the tags and the lock, at each try: the last one writes them under it."""
    mirror = two_tables(database, warehouse, tasks)
    rows = {table: mirror.heap(table) for table in TABLES}
    frontier = mirror.frontier()
    values = iter(range(1, 1000))
    written = 0
    with mirror.pumping():

        def move(taken: KeepStep) -> None:
            nonlocal written
            if taken is KeepStep.WRITTEN:
                written += 1
                change(mirror, next(values))

        keep(mirror.settings, MomentOptions("closing"), move)
    assert written > 2
    assert kept_moment(mirror, "closing").frontier == frontier
    assert_moment(mirror, "closing", rows)
    named = {table.metadata_location.rsplit("/", 1)[-1] for table in kept_moment(mirror, "closing").tables}
    assert {path.name for path in _files(warehouse) if path.name.startswith("00000-")} >= named
