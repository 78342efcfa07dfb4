"""Reads the change feed of a mirrored table into Spark, through Iceberg: the changes of an interval, exactly."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import TableError
from mirror_pump.model import TableId, format_lsn
from mirror_pump.ops.changes.pinned_feeds import BEGIN_FEED, PinnedChanges
from mirror_pump.ops.changes.points import change_points
from mirror_pump.ops.setup.stored_settings import complete
from mirror_pump.settings.config import Settings, load_settings
from mirror_pump.source.catalog.consistent_snapshot import mirrored_ids
from mirror_pump.source.catalog.tables import load_table
from mirror_pump.source.connect import connect
from mirror_pump.spark.reader import about_its_mirror, metadata_frame

if TYPE_CHECKING:
    from collections.abc import Callable

_TRANSACTIONS = "modak.transactions"


class ChangesDataFrame(ClassicDataFrame):  # type: ignore[misc]
    """A DataFrame of changes that, like all DataFrames derived from it, can be read until `release`.

    A context manager. Otherwise it is released when its Spark session stops, or with the process.
    """

    since: str
    """The frontier after which the changes begin, as PostgreSQL writes positions."""
    until: str
    """The frontier with which they end: what the next `since` is."""
    _changes: PinnedChanges
    _release: Callable[[], None]

    def release(self) -> None:
        """Releases the pins."""
        self._release()

    def check(self) -> None:
        """Raises SourceError if a pin was lost while in use, because the database was away for longer than pins
        last."""
        self._changes.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@about_its_mirror
def read_changes(
    spark: SparkSession,
    table: str,
    since: str | int,
    until: str | int = "latest",
    *,
    dsn: str | None = None,
    mirror: str | None = None,
    settings: Settings | None = None,
) -> ChangesDataFrame:
    """The changes of a mirrored table after one frontier, up to and including another, pinned until the release.

    `table` is a name as Postgres reads names, or `modak.transactions`. `since` and `until`: a WAL position
    (`16/B374D848`, or bytes), a time, or the name of a kept moment; `until` may be `latest`. The DataFrame's own
    `until` is the `since` of the next call: nothing is missing between the two, and nothing comes twice. The database
    is that of `settings`, of `dsn`, or of the environment, as for the program, and so is the name of its `mirror`.

    The session needs Iceberg's runtime (`mirror-pump connect --engine spark`). Raises UsageError, TableError if the
    table has no feed or changes have expired, SourceError, LakeError.
    """
    complete_settings = complete(settings or load_settings({"dsn": dsn, "mirror": mirror}))
    points = change_points(*(format_lsn(end) if isinstance(end, int) else end for end in (since, until)))
    storage = lake_storage(complete_settings, fsync=False)
    context = spark.sparkContext
    with connect(complete_settings.require_dsn(), autocommit=True, application_name="mirror-pump-read") as connection:
        feed_id = TableId(0) if table == _TRANSACTIONS else mirrored_ids(connection, [table])[0]
        registration = load_table(connection, feed_id)
    with ExitStack() as stack:

        def stopped() -> bool:
            # SparkContext.stop() sets it to None.
            return context._jsc is None

        now_ms = time.time_ns() // 1_000_000
        changes = stack.enter_context(
            PinnedChanges(
                complete_settings.require_dsn(), complete_settings.slot, points, storage, now_ms, stopped=stopped
            )
        )
        name = next((name for name, feed in changes.feeds.items() if feed.feed_id == feed_id), None)
        if name is None:
            full_name = "TABLE" if registration is None else registration.name.shell
            raise TableError(f"{table} has no change feed", BEGIN_FEED.replace("TABLE", full_name))
        location = changes.locate(changes.feeds[name], changes.interval)
        frame = metadata_frame(spark, location, storage).where(changes.interval.condition)
        pinned = ChangesDataFrame(frame._jdf, frame.sparkSession)
        pinned.since, pinned.until = format_lsn(changes.interval.since), format_lsn(changes.interval.until)
        pinned._changes = changes
        pinned._release = stack.pop_all().close
    return pinned
