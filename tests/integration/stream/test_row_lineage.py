"""Rows of mirrored tables of format version 3 keep their IDs: random transactions, merges, restarts, fills and an
upgrade against a model."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.ops.resync.format_upgrade import upgrade
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, RunningPump, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.pending_deletes import assert_read, await_converted, await_index
from tests.support.row_lineage import MirroredLineage
from tests.support.table_wishes import parse_choices

TABLE = "public.t"


@pytest.fixture
def mirror(database: Database, warehouse: str, tasks: ThreadTaskRunner) -> Mirror:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, large text)",
        "ALTER TABLE t ALTER large SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, 'row ' || g, CASE WHEN g % 9 = 0 THEN repeat('x', 3000) END"
        " FROM generate_series(1, 300) g",
    )
    return Mirror.create(database, warehouse, tasks, convert_age=0.5)


@contextmanager
def indexed(mirror: Mirror, model: MirroredLineage) -> Iterator[RunningPump]:
    """A pump that has an index of the table. Until it has one, rows that are updated are new ones."""
    with mirror.pumping(Steps()) as pump:
        mirror.await_live(TABLE)
        if model.lineage:
            changes = model.transaction()
            mirror.await_frontier()
            model.check(changes, by_position=False)
        await_index(mirror, pump.steps, TABLE, "UPDATE t SET v = v WHERE id = (SELECT min(id) FROM t)")
        model.take()
        yield pump


@pytest.mark.parametrize(
    ("key_type", "layout"),
    [
        ("int", None),
        pytest.param("int", "truncate(100, id)", marks=pytest.mark.further),
        pytest.param("text", None, marks=pytest.mark.further),
        pytest.param("text", "bucket(3, id)", marks=pytest.mark.further),
    ],
)
def test_random_transactions(mirror: Mirror, database: Database, key_type: str, layout: str | None) -> None:
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"SEED={seed}")
    database.execute(f"ALTER TABLE t ALTER id TYPE {key_type}")
    model = MirroredLineage(mirror, TABLE, random.Random(seed))
    mirror.register("t", format_version=3, choices=parse_choices([], [], partition_by=layout))
    merges = 0
    for run in range(2):
        with indexed(mirror, model) as pump:
            for number in range(100):
                changes = model.transaction(most=model.drawn.choice((5, 40, 200)))
                mirror.await_frontier()
                model.check(changes)
                if number == 5:
                    database.execute(f"ALTER TABLE t ADD COLUMN c{run} int DEFAULT 7")
                    mirror.await_frontier()
                    mirror.await_live(TABLE)
                    model.check({})
                if number > 15 and pump.steps.count(Step.MERGED) > 1:
                    break
            merges += pump.steps.count(Step.MERGED)
            await_converted(mirror, TABLE)
            assert_read(mirror, pump, TABLE)
    assert merges
    assert model.updated
    mirror.assert_equal(TABLE)


@pytest.mark.further
def test_without_an_index_other_rows_keep_their_lineage(mirror: Mirror) -> None:
    """Rows that are updated by key may be new ones. Conversions and merges change no row."""
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"SEED={seed}")
    mirror = mirror.with_options(index_memory=0)
    model = MirroredLineage(mirror, TABLE, random.Random(seed))
    mirror.register("t", format_version=3)
    with mirror.pumping(Steps()) as pump:
        mirror.await_live(TABLE)
        model.take()
        for number in range(150):
            changes = model.transaction()
            mirror.await_frontier()
            model.check(changes, by_position=False)
            if number > 20 and pump.steps.count(Step.MERGED) and pump.steps.count(Step.CONVERTED) > 1:
                break
        await_converted(mirror, TABLE)
        model.check({})
        assert pump.steps.count(Step.MERGED)
    mirror.assert_equal(TABLE)


@pytest.mark.further
def test_a_table_that_is_upgraded(mirror: Mirror, database: Database) -> None:
    """Its rows get IDs with the next snapshot, and keep them from then on. A merge puts vectors in the place of its
    position-delete files, also of files that no commit touches."""
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"SEED={seed}")
    model = MirroredLineage(mirror, TABLE, random.Random(seed))
    mirror.register("t", format_version=2)
    with mirror.pumping(Steps()) as pump:
        mirror.await_live(TABLE)
        await_index(mirror, pump.steps, TABLE, "UPDATE t SET v = v WHERE id = 1")
        for number in range(5):
            database.execute(f"UPDATE t SET v = 'old ' || id WHERE id % 7 = {number}")
            mirror.await_frontier()
        assert upgrade(mirror.settings, "t", 3, confirmed=True)
        database.execute("UPDATE t SET v = 'new ' || id WHERE id % 7 = 5", "DELETE FROM t WHERE id % 7 = 6")
        mirror.await_frontier()
        await_converted(mirror, TABLE)
        model.take()
        for number in range(60):
            changes = model.transaction()
            mirror.await_frontier()
            model.check(changes)
            if number > 15 and pump.steps.count(Step.MERGED):
                break
        await_true(lambda: delete_formats(mirror) == {"PUFFIN"}, 30, "no position-delete file is left")
        model.check({})
    assert model.updated
    mirror.assert_equal(TABLE)


def delete_formats(mirror: Mirror) -> set[str]:
    lake = LakeTable.load(mirror.location(TABLE), StorageOptions())
    by_manifest = Listing(lake.storage).files(lake.manifests)
    return {
        file.format for files in by_manifest.values() for file in files if file.content is FileContent.POSITION_DELETES
    }
