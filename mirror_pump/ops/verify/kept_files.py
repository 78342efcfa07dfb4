"""Looks for the files of change feeds and of kept moments, which no comparison with the heap reads."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

from mirror_pump.errors import LakeError, TableError
from mirror_pump.json_documents import JsonDocument
from mirror_pump.lake.commit.readable_files import DescriptionCheck
from mirror_pump.model import Lsn
from mirror_pump.ops.status.feed_status import FeedStatus, feed_states
from mirror_pump.runtime.table_work import REPORT, work_for
from mirror_pump.source.catalog.change_feeds import feed_repair
from mirror_pump.source.catalog.kept_moments import moment_repair, read_moments
from mirror_pump.source.connect import PgConnection, source_errors

ShownLook: TypeAlias = Callable[[str], AbstractContextManager[None]]
"""Shows, for the time of a block, that the files of a feed or a moment are looked at."""


@dataclass(frozen=True)
class FeedReport(JsonDocument):
    """The result for one change feed."""

    table: str
    """The mirrored table; `modak.transactions` for the mirror's transactions."""
    lake_table: str
    """The feed in the lake."""
    problem: str | None = None
    """Which of its files are lost or damaged, why it lacks changes, or why it could not be replayed. None: it has all
    files."""
    since: Lsn | None = None
    """The frontier from which `--feeds` has replayed it. None: it was not."""
    until: Lsn | None = None
    """The frontier up to which it was replayed."""
    changes: int | None = None
    """Changes in between."""
    different_rows: int | None = None
    """Rows in which the replay differs from the mirror. None if it was not replayed."""
    note: str | None = None
    """Why there is nothing to replay."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.problem is None and not self.different_rows


@dataclass(frozen=True)
class MomentReport(JsonDocument):
    """The result for one kept moment."""

    name: str
    problem: str | None = None
    """Which of its files are lost or damaged. None: it has all of them."""


def look_at_feeds(
    connection: PgConnection, slot: str, footers: DescriptionCheck, looking: ShownLook, tables: Collection[str] | None
) -> tuple[FeedReport, ...]:
    """A report on each feed of these tables, or on all feeds. Raises SourceError."""
    with source_errors("reading the change feeds"):
        feeds = feed_states(connection, slot)
    return tuple(
        FeedReport(feed.table, feed.lake_table, _problem_of(feed, footers, looking))
        for feed in feeds
        if tables is None or feed.table in tables
    )


def look_at_moments(
    connection: PgConnection, slot: str, footers: DescriptionCheck, looking: ShownLook, tables: Collection[str] | None
) -> tuple[MomentReport, ...]:
    """A report on each moment, or on what moments have of these tables. Raises SourceError."""
    reports = []
    for moment in read_moments(connection, slot):
        chosen = [table for table in moment.tables if tables is None or str(table.table) in tables]
        if chosen:
            locations = {location for table in chosen for location in (table.metadata_location, table.main_location)}
            owner = f"moment {moment.name}"
            with looking(owner):
                problem = _wrong(owner, sorted(locations), footers, moment_repair(moment.name))
            reports.append(MomentReport(moment.name, problem))
    return tuple(reports)


def _problem_of(feed: FeedStatus, footers: DescriptionCheck, looking: ShownLook) -> str | None:
    if feed.error is not None:
        return f"it gets no changes: {feed.error}"
    if feed.metadata_location is None:
        repair = feed_repair(feed.table, feed.mode, feed.keep, of_file=False)
        return f"the Iceberg catalog does not have it any more: {repair}"
    repair = feed_repair(feed.table, feed.mode, feed.keep)
    owner = f"change feed {feed.lake_table}"
    with looking(owner):
        return _wrong(owner, [feed.metadata_location], footers, repair)


def _wrong(owner: str, locations: Collection[str], footers: DescriptionCheck, repair: str) -> str | None:
    """`owner`: the feed or the moment, for an error that no code expects."""
    try:
        with work_for(owner, remedy=REPORT):
            errors = {error.location: str(error) for location in locations for error in footers.wrong_files(location)}
    except (LakeError, TableError) as error:
        return f"{error}: {error.remedy}"
    if not errors:
        return None
    more = f", and {len(errors) - 1} more files are lost or damaged" if len(errors) > 1 else ""
    return f"{next(iter(errors.values()))}{more}. To repair it, {repair}"
