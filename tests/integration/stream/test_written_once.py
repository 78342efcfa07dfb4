"""Files whose rows get the IDs of those that they replace are written once, however large they are: in a table of
format version 3, also with a change feed and with large values that the stream leaves out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from mirror_pump.lake.document.metadata_files import read_metadata
from mirror_pump.lake.storage import storage_of
from mirror_pump.model import FeedMode
from mirror_pump.ops.register.feed_registration import FeedOptions
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.tables.read_plan.plan import read_plan
from mirror_pump.tables.read_plan.scan import Scan
from mirror_pump.testing.database import Database
from mirror_pump.testing.mirror import Mirror, Steps, await_true
from mirror_pump.testing.tasks import ThreadTaskRunner
from tests.support.s3_server import S3Server

LARGE = 1 << 20
ROWS = 40
TEXT = "(SELECT string_agg(md5(random()::text || id || n), '') FROM generate_series(1, {0}) n)"


class RecordedObjects(dict[str, bytes]):
    """An object store's content, the size of all that was ever put there, by key, and what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[str, int] = {}
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __setitem__(self, key: str, content: bytes) -> None:
        super().__setitem__(key, content)
        self.sizes[key] = len(content)


@pytest.fixture
def s3() -> Iterator[S3Server]:
    server = S3Server()
    server.objects = RecordedObjects()
    with server.serving():
        yield server


def row_ids(mirror: Mirror) -> dict[int, int]:
    """By key."""
    storage = storage_of(mirror.settings)
    metadata = read_metadata(mirror.location("public.t"), storage)
    rows = Scan(read_plan(metadata, storage, columns=["id", "_row_id"])).to_arrow(1).to_pylist()
    return {row["id"]: row["_row_id"] for row in rows}


@pytest.mark.further
@pytest.mark.unverified("DuckDB, as it verifies other lakes, has no access to this one; rows are read by the library")
@pytest.mark.parametrize("feed", [None, FeedOptions(FeedMode.ROWS)])
def test_large_files(database: Database, s3: S3Server, tasks: ThreadTaskRunner, feed: FeedOptions | None) -> None:
    recorded = s3.objects
    assert isinstance(recorded, RecordedObjects)
    mirror = Mirror.create(database, "s3://lake/shop", tasks, merge_bytes=0, **s3.storage_settings)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, large text)",
        "ALTER TABLE t ALTER large SET STORAGE EXTERNAL, ALTER v SET STORAGE PLAIN",
        f"INSERT INTO t SELECT id, 'v', {TEXT.format(2000)} FROM generate_series(1, {ROWS}) id",
    )
    mirror.register("t", format_version=3, feed=feed)
    steps = Steps()
    with mirror.pumping(steps):
        mirror.await_live("public.t")

        def is_indexed() -> bool:
            database.execute("UPDATE t SET v = v || 'i' WHERE id = 1")
            mirror.await_frontier()
            return steps.count(Step.INDEX_READY) > 0

        await_true(is_indexed, 60, "an index")
        before = row_ids(mirror)
        for statement, written_once in (
            (f"UPDATE t SET large = {TEXT.format(4000)}", True),
            ("UPDATE t SET v = 'large values that do not change'", True),
            # Large values are looked up in the segment's own file, which has to be there for that.
            (f"UPDATE t SET large = CASE WHEN id % 2 = 0 THEN {TEXT.format(4000)} ELSE large END", False),
        ):
            recorded.sizes.clear()
            database.execute(statement)
            mirror.await_frontier()
            files = {key: size for key, size in recorded.sizes.items() if re.search(r"/t-\w+/data/\w+\.parquet$", key)}
            assert max(files.values()) > LARGE
            assert not written_once or files.keys() <= recorded.keys(), "no file took the place of another one"
            assert row_ids(mirror) == before


@pytest.mark.further
@pytest.mark.unverified("DuckDB, as it verifies other lakes, has no access to this one; rows are read by the library")
def test_the_ids_are_read_with_the_index(database: Database, s3: S3Server, tasks: ThreadTaskRunner) -> None:
    """No commit of a pump that was just started waits for them: its first one by position reads no data file."""
    recorded = s3.objects
    assert isinstance(recorded, RecordedObjects)
    mirror = Mirror.create(database, "s3://lake/shop", tasks, merge_bytes=0, convert_age=3600.0, **s3.storage_settings)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t SELECT g, 0 FROM generate_series(1, 99) g"
    )
    mirror.register("t", format_version=3)
    before: dict[int, int] = {}
    for run in range(2):
        steps = Steps()
        with mirror.pumping(steps):
            mirror.await_live("public.t")

            def is_indexed(steps: Steps = steps) -> bool:
                database.execute(
                    "INSERT INTO t SELECT max(id) + 1, 0 FROM t", "DELETE FROM t WHERE id = (SELECT max(id) FROM t)"
                )
                mirror.await_frontier()
                return steps.count(Step.INDEX_READY) > 0

            await_true(is_indexed, 60, "an index")
            for number in range(9):
                recorded.read.clear()
                database.execute(f"UPDATE t SET v = v + 1 WHERE id % 9 = {number}")
                mirror.await_frontier()
                assert not {key for key in recorded.read if key.endswith(".parquet")}, (run, number)
            before = before or row_ids(mirror)
            assert row_ids(mirror) == before
