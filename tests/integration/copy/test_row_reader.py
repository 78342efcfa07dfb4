"""Files of tables without a key are read in the background: the loop goes on, and a batch that needs them waits."""

from __future__ import annotations

import time

import numpy as np
import pytest

from mirror_pump.engine.comparison.whole_rows import HashedFile, hash_files
from mirror_pump.lake.format.schema import LakeSchema
from mirror_pump.lake.key_index.leaf_store import LeafStore
from mirror_pump.model import Lsn
from mirror_pump.ops.verify.verification import verify
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.key_index.row_hashes import RowHashes, file_key
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import QUICK, Mirror, Steps, await_true
from mirror_pump.testing.tasks import GatedCopies, ThreadTaskRunner

SOME = "ctid = ANY (ARRAY(SELECT ctid FROM bag ORDER BY random() LIMIT 3))"


@pytest.fixture
def readers(tasks: ThreadTaskRunner) -> GatedCopies:
    """Runs tasks, and holds those back that hash rows, on request."""
    return GatedCopies(tasks, hash_files)


@pytest.fixture
def mirror(database: Database, warehouse: str, readers: GatedCopies) -> Mirror:
    """With a table `bag` of many equal rows, and another one with a key. The loop reads a few rows itself."""
    database.execute(
        "CREATE TABLE bag (n int, v text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag SELECT g % 5, 'v' FROM generate_series(1, 20000) g",
        "CREATE TABLE keyed (id int PRIMARY KEY)",
        "CREATE TABLE later (id int PRIMARY KEY)",
        "INSERT INTO later SELECT generate_series(1, 1000)",
    )
    mirror = Mirror.create(database, warehouse, readers, limits=QUICK.model_copy(update={"rows_read_at_once": 5000}))
    mirror.register("bag")
    mirror.register("keyed")
    mirror.catch_up()
    return mirror


def assert_right(mirror: Mirror) -> None:
    mirror.assert_equal("public.bag", "public.keyed")
    (report,) = verify(mirror.settings, ["bag"]).tables
    assert report.comparison is not None, report
    assert report.comparison.different_rows == 0, report
    mirror.assert_sound()


def test_a_batch_waits_and_the_loop_goes_on(mirror: Mirror, readers: GatedCopies) -> None:
    """The batch's deletes, and all that the stream brings after it, wait for the reader. Chunks of a copy are published
    meanwhile, and a stop does not wait."""
    database, steps = mirror.database, Steps()
    readers.hold()
    with mirror.pumping(steps):
        mirror.await_frontier()
        before = Lsn(mirror.frontier())
        database.execute(f"DELETE FROM bag WHERE {SOME}", "INSERT INTO keyed VALUES (1)")
        await_true(lambda: readers.waiting, 60, "the rows are being read")
        assert steps.count(Step.ROWS_READING) == 1
        lake = mirror.lake("public.bag")
        database.execute("INSERT INTO keyed VALUES (2)", f"UPDATE bag SET v = 'w' WHERE {SOME}")
        mirror.register("later")
        await_true(
            lambda: database.rows("SELECT 1 FROM modak.copy_chunks WHERE done_at IS NOT NULL AND rows = 1000"),
            60,
            "the chunk of another table is published",
        )
        assert mirror.state("public.later") == "copying"
        assert mirror.frontier() == before
        assert (mirror.lake("public.bag"), mirror.lake("public.keyed")) == (lake, [])
        asked = time.monotonic()
    assert time.monotonic() - asked < 30
    with mirror.pumping(steps):
        await_true(lambda: readers.waiting, 60, "the rows are being read again")
        readers.let_go()
        mirror.await_live("public.later")
        mirror.await_frontier()
        assert_right(mirror)
    assert mirror.lake("public.keyed") == [(1,), (2,)]


@pytest.mark.further
@pytest.mark.parametrize("altered", [False, True])
def test_rows_are_read_ahead(mirror: Mirror, readers: GatedCopies, altered: bool) -> None:
    """A table that has had deletes is read when a session begins, before there is another one, and after a commit that
    brings much. Then a delete waits for nothing."""
    database, steps = mirror.database, Steps()
    if altered:
        # The lake table's schema has another number then.
        database.execute(
            "ALTER TABLE bag ADD COLUMN a text", "ALTER TABLE bag DROP COLUMN v", "ALTER TABLE bag ADD v text"
        )
    database.execute(f"DELETE FROM bag WHERE {SOME}")
    mirror.catch_up()
    readers.hold()
    with mirror.pumping(steps):
        await_true(lambda: readers.waiting, 60, "the rows are being read")
        readers.let_go()
        hashes = steps.count(Step.ROWS_READING)
        for number in range(3):
            database.execute(f"INSERT INTO keyed VALUES ({number})")
            mirror.await_frontier()
        # In the order of the queue, this comes after all files that were to be read.
        database.execute(f"DELETE FROM bag WHERE {SOME}")
        mirror.await_frontier()
        readers.hold()
        database.execute(f"DELETE FROM bag WHERE {SOME}", f"UPDATE bag SET v = NULL WHERE {SOME}")
        mirror.await_frontier()
        assert not readers.waiting
        assert steps.count(Step.ROWS_READING) <= hashes + 1
        database.execute("INSERT INTO bag (n, v) SELECT 9, 'new' FROM generate_series(1, 9000)")
        await_true(lambda: readers.waiting, 60, "the new rows are being read")
        readers.let_go()
        assert_right(mirror)


def test_only_files_that_may_have_the_row_are_read(mirror: Mirror, readers: GatedCopies) -> None:
    """By the bounds of their numbers and times. So the first delete waits for a part of the table only."""
    database, steps = mirror.database, Steps()
    with mirror.pumping():
        for day in range(6):
            database.execute(f"INSERT INTO bag SELECT 100 + {day}, 'v' FROM generate_series(1, 6000)")
            mirror.await_frontier()
    with mirror.pumping(steps):
        database.execute("DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE n = 102)")
        mirror.await_frontier()
        assert steps.details(Step.ROWS_READING, "rows") == [6000]
        assert_right(mirror)


@pytest.mark.further
def test_rows_of_former_columns_are_found_after_an_alter(mirror: Mirror, readers: GatedCopies) -> None:
    """Every file is read again under the new columns, some of it while further changes wait."""
    database = mirror.database
    with mirror.pumping():
        for column in ("a int DEFAULT 7", "b text"):
            database.execute(
                f"DELETE FROM bag WHERE {SOME}",
                f"ALTER TABLE bag ADD COLUMN {column}",
                f"DELETE FROM bag WHERE {SOME}",
                f"UPDATE bag SET n = n + 1 WHERE {SOME}",
            )
            mirror.await_frontier()
        mirror.await_live("public.bag")
        database.execute(f"DELETE FROM bag WHERE {SOME}")
        mirror.await_frontier()
        assert_right(mirror)


def test_hashes_move_to_the_disk_and_the_oldest_go() -> None:
    """What was kept is what was put, wherever it is."""
    rows = [_hashed(number) for number in range(6)]
    size, schema = rows[0].nbytes, LakeSchema(0, (), ())
    hashes = RowHashes(LeafStore(2 * size), memory_bytes=2 * size)
    complete = [hashes.put(file_key(str(number), schema), hashed) for number, hashed in enumerate(rows)]
    assert complete == [True] * 4 + [False] * 2
    for number, hashed in enumerate(rows):
        kept = hashes.get(file_key(str(number), schema))
        if number < 2:
            assert kept is None
            continue
        assert kept is not None
        assert np.array_equal(kept.first, hashed.first)
        assert np.array_equal(kept.second, hashed.second)
        assert np.array_equal(kept.order, hashed.order)


def _hashed(number: int) -> HashedFile:
    words = np.sort(np.random.default_rng(number).integers(0, 1 << 63, 60_000).astype(np.uint64))
    return HashedFile(words, words ^ np.uint64(number), np.arange(60_000))
