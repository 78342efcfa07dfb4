"""The objects that a publish of one table writes, counted in the warehouse: at most six, whatever its deletes are.

The rule is in docs/design/publish.md. Every publish is counted, until manifests have been merged many times.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from mirror_pump.engine.ingest.chunk_copy import copy_chunk
from mirror_pump.lake.key_index.key_index import KeyIndex
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, RunningPump, Steps, await_true
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner
from tests.support.events_table import RetentionTables
from tests.support.pending_deletes import await_index

MOST = 6
ROWS = 400
UNDISTURBED: dict[str, Any] = {"merge_bytes": 0, "convert_age": 3600}
"""One publish for each transaction, and no merges and conversions that write files too."""
CHANGES = (
    "UPDATE t SET n = n + 1 WHERE id % 17 = {0} % 17",
    "INSERT INTO t SELECT {1} + {0} * 3 + g, 0, 'new' FROM generate_series(1, 3) g",
    "DELETE FROM t WHERE id = {1} + {0} * 3 - 2",
)


def kind(path: Path) -> str:
    """What an object of a table is, by its name."""
    if path.name.endswith(".metadata.json"):
        return "metadata"
    if path.suffix == ".avro":
        return "list" if path.name.startswith("snap-") else "manifest"
    if path.suffix == ".puffin":
        return "positions"
    return next((word for word in ("positions", "deletes") if f"-{word}." in path.name), "data")


@dataclass
class WrittenObjects:
    """Counts what the publishes of a mirror of one table write."""

    mirror: Mirror
    steps: Steps
    _seen: set[str] = field(default_factory=set)

    def new(self) -> Counter[str]:
        """What was written since the last call, by kind."""
        there = self._there()
        new = there - self._seen
        self._seen = there
        return Counter(kind(Path(path)) for path in new)

    def _there(self) -> set[str]:
        root = self.mirror.settings.require_warehouse().removeprefix("file://")
        return {f"{directory}/{name}" for directory, _, names in os.walk(root) for name in names}

    def of_transaction(self, *statements: str) -> Counter[str]:
        """What the publish of a transaction writes; nothing if files of deletes were put together meanwhile, which
        writes files as well, some of them under another name at first."""
        merges = self._merges()
        self._seen = self._there()
        with self.mirror.database.session(autocommit=False) as connection:
            for statement in statements:
                connection.execute(statement.encode())
        self.mirror.await_frontier()
        found = self.new()
        begun, ended = merges
        return found if begun == ended and self._merges() == merges else Counter()

    def _merges(self) -> tuple[int, int]:
        """How many have begun, which they say before they write, and how many have ended."""
        ended = sum(map(self.steps.count, (Step.MERGED, Step.MERGE_REFUSED, Step.MERGE_FAILED)))
        return self.steps.count(Step.MERGING), ended

    def of_transactions(self, transactions: Iterable[Sequence[str]]) -> list[Counter[str]]:
        """What each publish of a transaction writes, in order."""
        return [self.of_transaction(*statements) for statements in transactions]


def undisturbed(found: Sequence[Counter[str]]) -> list[int]:
    """The places of the counts that are of one publish alone. Fails if few are left."""
    places = [place for place, counted in enumerate(found) if counted]
    assert len(places) * 2 >= len(found)
    return places


@contextmanager
def pumping(
    database: Database, warehouse: str, format_version: int = 2, **options: Any
) -> Iterator[tuple[WrittenObjects, RunningPump]]:
    """A mirror of a live table `t`, with a pump that only does what transactions ask for. Compares the rows at the
    end."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, v text)",
        f"INSERT INTO t SELECT g, 0, 'v' FROM generate_series(1, {ROWS}) g",
    )
    mirror = Mirror.create(database, warehouse, GatedCopies(ThreadTaskRunner()), **{**UNDISTURBED, **options})
    mirror.register("t", format_version=format_version)
    with mirror.pumping(Steps()) as running:
        mirror.await_live("public.t")
        mirror.await_frontier()
        yield WrittenObjects(mirror, running.steps), running
        mirror.assert_equal("public.t")
    mirror.assert_sound()


def until_indexed(objects: WrittenObjects, running: RunningPump) -> None:
    """Changes rows until the table's deletes are written by position."""
    # Of the rows of the last update some change, so that their file loses rows, but not all.
    statements = cycle(f"UPDATE t SET n = -n - 1 WHERE id % {number} = 0" for number in (7, 14))
    await_true(lambda: objects.of_transaction(next(statements))["positions"], 60, "a key index")
    assert running.steps.count(Step.INDEX_READY)


def changes(number: int) -> list[str]:
    """Updates, inserts and a delete; the latter two find their rows, whatever the number is."""
    return [statement.format(number, ROWS) for statement in CHANGES]


@pytest.mark.parametrize("format_version", [pytest.param(2, marks=pytest.mark.further), 3])
def test_deletes_by_position(database: Database, warehouse: str, format_version: int) -> None:
    """Deletion vectors take no more objects than position-delete files, but for files that lose their last row: a third
    manifest tells of these."""
    with pumping(database, warehouse, format_version) as (objects, running):
        until_indexed(objects, running)
        # Manifests are merged by tens: as often as by key is the matter of test_deletes_by_key.
        found = objects.of_transactions(changes(number) for number in range(1, 25))
        for place in undisturbed(found):
            manifests = 2 if format_version == 2 else min(found[place]["manifest"], 3)
            assert found[place] == {"data": 1, "positions": 1, "manifest": manifests, "list": 1, "metadata": 1}
        assert any(counted["manifest"] == 2 for counted in found)
        found = objects.of_transactions([f"DELETE FROM t WHERE id = {key}"] for key in range(1, 8))
        for place in undisturbed(found):
            assert found[place] == {"positions": 1, "manifest": 1, "list": 1, "metadata": 1}
        found = objects.of_transactions([f"INSERT INTO t VALUES ({-key}, 0, 'alone')"] for key in range(1, 8))
        for place in undisturbed(found):
            assert found[place] == {"data": 1, "manifest": 1, "list": 1, "metadata": 1}


@pytest.mark.further
def test_deletes_by_key(database: Database, warehouse: str) -> None:
    with pumping(database, warehouse, index_memory=0) as (objects, _):
        # The first delete by key needs a data file as old as it is: a placeholder.
        found = objects.of_transaction("DELETE FROM t WHERE id = 1")
        assert found == {"data": 1, "deletes": 1, "manifest": 2, "list": 1, "metadata": 1}
        for number in range(1, 115):
            found = objects.of_transaction(*changes(number))
            assert found == {"data": 1, "deletes": 1, "manifest": 2, "list": 1, "metadata": 1}


def test_keys_that_the_index_lacks(database: Database, warehouse: str) -> None:
    """Then all deletes of the commit are by key, and none is lost."""
    with pumping(database, warehouse, convert_age=0) as (objects, running):
        mirror = objects.mirror
        await_index(mirror, running.steps, "public.t", "UPDATE t SET n = -n - 1 WHERE id % 7 = 0")
        converted = running.steps.count(Step.CONVERTED)
        (tracked,) = running.pump._indexes._tracked.values()
        tracked.index = KeyIndex(tracked.packing.words)
        mirror.database.execute("UPDATE t SET n = 77 WHERE id BETWEEN 20 AND 29")
        mirror.await_frontier()
        await_true(lambda: running.steps.count(Step.CONVERTED) > converted, 60, "deletes by key are converted")
        (mode,) = mirror.database.rows("SELECT key_index ->> 'mode' FROM modak.mirror_tables")
        assert mode == ("equality",)


@pytest.mark.further
@pytest.mark.parametrize("by_position", [True, False])
def test_each_further_segment_adds_its_own_files_only(database: Database, warehouse: str, by_position: bool) -> None:
    memory = 1 << 24 if by_position else 0
    with pumping(database, warehouse, segment_bytes=4096, index_memory=memory) as (objects, running):
        if by_position:
            until_indexed(objects, running)
        seen = running.steps.count(Step.RECEIVED)
        found = objects.of_transactions(
            [f"UPDATE t SET n = n + 1, v = repeat('{number % 10}', 200) WHERE id % 4 = 0"] for number in range(12)
        )
        segments = running.steps.details(Step.RECEIVED, "segments")[seen:]
        assert len(segments) == len(found)
        assert min(segments) > 3
        for place in undisturbed(found):
            deletes = {"positions": 1} if by_position else {"deletes": segments[place]}
            assert found[place] == {"data": segments[place], **deletes, "manifest": 2, "list": 1, "metadata": 1}


@pytest.mark.further
def test_a_table_that_is_being_copied(database: Database, warehouse: str) -> None:
    """What the stream brings meanwhile, and a chunk, which is a file more if it comes together with a batch."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, v text)",
        f"INSERT INTO t SELECT g, 0, 'v' FROM generate_series(1, {ROWS}) g",
    )
    gate = GatedCopies(ThreadTaskRunner(), copy_chunk)
    gate.hold()
    mirror = Mirror.create(database, warehouse, gate, **UNDISTURBED)
    mirror.register("t")
    steps = Steps()
    objects = WrittenObjects(mirror, steps)
    with mirror.pumping(steps):
        await_true(lambda: gate.waiting, 60, "a chunk waits")
        mirror.await_frontier()
        for number in range(1, 25):
            assert objects.of_transaction(*changes(number)).total() <= MOST
        gate.let_go()
        mirror.await_live("public.t")
        found = objects.new()
        # The chunk's publish, and the one with which the table goes live.
        assert found["metadata"] in (1, 2)
        assert found.total() <= MOST * found["metadata"]
        for number in range(25, 30):
            seen = steps.count(Step.RECEIVED)
            found = objects.of_transaction(*changes(number))
            # A new segment begins where the table is live.
            (segments,) = steps.details(Step.RECEIVED, "segments")[seen:]
            assert found.total() <= MOST + 2 * (segments - 1)
        mirror.assert_equal("public.t")
    mirror.assert_sound()


@pytest.mark.further
def test_a_partitioned_table_has_its_files_in_each_partition(retention_tables: RetentionTables) -> None:
    """One data file and one of deletes in each lake partition that a batch touches, and four files of metadata."""
    events = retention_tables.automatic(
        partitions=4, rows=40, lag="100000", lake_partition="50", index_memory=0, **UNDISTURBED
    )
    steps = Steps()
    objects = WrittenObjects(events.mirror, steps)
    with events.mirror.pumping(steps):
        events.mirror.await_live("public.events")
        events.mirror.await_frontier()
        rows = events.mirror.database.rows("SELECT count(*), count(DISTINCT at / 50) FROM public.events")
        assert rows[0][0] >= 40
        for number in range(1, 13):
            found = objects.of_transaction(f"UPDATE public.events SET n = {number}")
            partitions = rows[0][1]
            assert partitions > 1
            assert found == {
                "data": partitions, "deletes": partitions, "manifest": 2, "list": 1, "metadata": 1
            }  # fmt: skip
        events.mirror.assert_equal("public.events")


def test_a_tables_row_stays_in_its_page_however_often_it_is_published(database: Database, warehouse: str) -> None:
    """Whatever the row's size is: a table that grows with each publish makes each take longer than the one before."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mirror = Mirror.create(database, warehouse, ThreadTaskRunner())
    mirror.register("t")
    with database.connect() as connection:
        for size in range(0, 1600, 200):
            for number in range(40):
                # As a publish does: it reads the row, and updates it in a later transaction.
                connection.execute("SELECT lake_head FROM modak.mirror_tables").fetchall()
                connection.execute(
                    "UPDATE modak.mirror_tables SET key_index = jsonb_build_object('n', %s::int, 'size',"
                    " (SELECT string_agg(md5(g::text), '') FROM generate_series(1, %s) g))",
                    (number, size // 32),
                )
            row = connection.execute("SELECT pg_relation_size('modak.mirror_tables')").fetchone()
            assert row is not None
            assert row[0] <= 3 * 8192, f"{size} more bytes"
