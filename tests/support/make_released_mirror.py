"""`make fixture`: writes a mirror with the present version of the program and freezes it (released_mirror.py).

Run it once for each release, with the version that pyproject.toml names, and keep the archives of all former ones.
"""

from __future__ import annotations

import random
import sys
from importlib.metadata import version
from typing import Any

from mirror_pump.engine.rewrite.file_merge import merge_files
from mirror_pump.ops.maintenance.policies import change
from mirror_pump.source.relations.column_choices import ColumnChoices
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, await_true
from mirror_pump.testing.postgres import EmbeddedPostgres
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.changed_tables import DEFAULTS
from tests.support.events_table import EventsTable, upsert
from tests.support.pending_deletes import pending
from tests.support.released_mirror import (
    DATABASE,
    LAKE,
    SERVER,
    UNFOLDED,
    Description,
    describe_states,
    freeze,
    place,
    server_kind,
)

_SETTINGS: dict[str, Any] = {"index_memory": 0, "merge_bytes": 0, "copy_chunk_bytes": 8192, "retention_interval": 0.1}

_TABLES = (
    "CREATE TYPE mood AS ENUM ('ok', 'it''s, \"bad\"')",
    "CREATE DOMAIN positive AS int CHECK (value > 0)",
    f"CREATE TABLE kinds (id int PRIMARY KEY, {', '.join(f'c{n} {kind}' for n, kind in enumerate(DEFAULTS))})",
    f"INSERT INTO kinds VALUES (1, {', '.join(DEFAULTS.values())})",
    "INSERT INTO kinds (id) VALUES (2)",
    "CREATE TABLE converted (id int PRIMARY KEY, v text)",
    "INSERT INTO converted SELECT g, 'first' FROM generate_series(1, 60) g",
    "CREATE TABLE pending (id int PRIMARY KEY, v text)",
    "INSERT INTO pending SELECT g, 'first' FROM generate_series(1, 60) g",
    "CREATE TABLE filling (id int PRIMARY KEY, v text)",
    "INSERT INTO filling SELECT g, 'first' FROM generate_series(1, 60) g",
    "CREATE TABLE partial (id int PRIMARY KEY, v text, hidden text)",
    "INSERT INTO partial SELECT g, 'first', 'hidden' FROM generate_series(1, 20) g",
    "CREATE TABLE copying (id int PRIMARY KEY, v text)",
    "INSERT INTO copying SELECT g, lpad(g::text, 100, '.') FROM generate_series(1, 300) g",
)

_NOT_HELD = (
    "INSERT INTO kinds (id, c10, c4, c12, c13)"
    " VALUES (3, 'infinity', 'NaN', '-infinity', '294276-12-31 23:59:59.999999')"
)
"""Values that are kept as text, beside the typed columns."""


_CHUNKS = (
    "SELECT count(*) FROM modak.copy_chunks WHERE done_at IS NOT NULL AND table_id = 'copying'::regclass::oid::bigint"
)


def _first_life(mirror: Mirror) -> tuple[EventsTable, int, list[list[object]]]:
    """All but the copying table become live; a partition leaves the heap; deletes are converted; readers pin."""
    database = mirror.database
    chance = random.Random(1)
    with mirror.with_options(convert_age=0, fold_age=0.05).pumping():
        mirror.register("kinds", "converted", "pending", "filling")
        mirror.register("partial", choices=ColumnChoices(excluded=frozenset({"hidden"})))
        events = EventsTable.automatic(mirror, partitions=3, rows=10)
        mirror.await_live(
            *(f"public.{name}" for name in ("kinds", "converted", "pending", "filling", "partial", "events"))
        )
        events.await_state(p0="dropped")
        change(mirror.settings, "converted", {"snapshot_retention_hours": 48})
        database.execute(
            _NOT_HELD, "UPDATE converted SET v = 'second' WHERE id % 3 = 0", "DELETE FROM converted WHERE id % 7 = 0"
        )
        mirror.await_frontier()
        await_true(lambda: not pending(mirror, "public.converted"), 30, "deletes are converted")
        with database.connect() as connection:
            row = connection.execute("SELECT snapshot_id FROM modak.pin('converted', '1000 years')").fetchone()
            assert row is not None
            pinned = int(row[0])
            connection.execute("SELECT modak.pin('events', '1000 years', in_one_snapshot => true)")
        rows = [list(row) for row in mirror.heap("converted")]
        with database.connect(autocommit=False) as connection:
            for number in range(6):
                upsert(connection, number * 7, number, "corrected")
        await_true(lambda: database.rows(UNFOLDED) == [(0,)], 30, "corrections are folded")
        # The reader that has pinned p0's end still needs p1 in the heap.
        events.grow()
        events.await_state(p1="tiered")
        for _ in range(15):
            with database.connect(autocommit=False) as connection:
                events.write(connection, chance)
        mirror.await_frontier()
    return events, pinned, rows


def _second_life(mirror: Mirror, events: EventsTable) -> None:
    """What the pump has in hand when it ends: a copy, a fill, deletes by key, and corrections that are not folded."""
    database = mirror.database
    copies = GatedCopies(mirror.runner)
    fills = GatedCopies(copies, merge_files)
    last = Mirror(database, mirror.settings, fills).with_options(convert_age=3600, fold_age=3600)
    copies.hold()
    fills.hold()
    with last.pumping():
        last.register("copying")
        for number in (1, 2):
            await_true(lambda: copies.waiting, 30, "a chunk is to be copied")
            copies.let_go(1)
            await_true(lambda: database.rows(_CHUNKS) == [(number,)], 30, "it is published")  # noqa: B023 - at once
        database.execute(
            "ALTER TABLE filling ADD COLUMN d int DEFAULT 9",
            "UPDATE filling SET v = 'second', d = id WHERE id < 10",
            "UPDATE pending SET v = 'second' WHERE id % 4 = 0",
            "DELETE FROM pending WHERE id % 5 = 0",
            "UPDATE converted SET v = 'third' WHERE id < 5",
            "INSERT INTO copying SELECT g, 'meanwhile' FROM generate_series(1001, 1010) g",
        )
        with database.connect(autocommit=False) as connection:
            for number in range(4):
                upsert(connection, number * 31, number, "not folded")
        await_true(lambda: fills.waiting, 30, "a file waits to be filled")
        last.await_frontier()
    events.assert_exact()


def _describe(mirror: Mirror) -> Description:
    database = mirror.database
    events, pinned, rows = _first_life(mirror)
    _second_life(mirror, events)
    states = describe_states(database)
    assert (states["public.copying"], states["public.filling"]) == ("copying", "filling"), states
    assert pending(mirror, "public.pending")
    return Description(
        version("mirror-pump"), server_kind(), mirror.frontier(), states, pinned, rows, events.partitions
    )


def main() -> int:
    with place():
        with EmbeddedPostgres(SERVER) as server:
            server.create_database(DATABASE)
            database = Database(server, DATABASE)
            for statement in _TABLES:
                with database.connect() as connection:
                    connection.execute(statement.encode())
            tasks = ThreadTaskRunner()
            description = _describe(Mirror.create(database, LAKE.as_uri(), tasks, slot="released", **_SETTINGS))
            tasks.close()
        archive = freeze(description)
    print(f"{archive}: {archive.stat().st_size:,} bytes; {description.states}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
