"""A change feed that others commit to meanwhile, and its upkeep as pump and maintainer do it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

from mirror_pump.engine.rewrite.conversion_plan import listing_for
from mirror_pump.engine.rewrite.feed_merge import FeedFile, feed_files
from mirror_pump.errors import MirrorPumpError
from mirror_pump.lake.commit.catalog import load_pointer
from mirror_pump.lake.commit.row_delta import LakeTable, RowDelta
from mirror_pump.lake.contents.referenced_files import referenced_files
from mirror_pump.lake.storage import discard, exists, list_files
from mirror_pump.model import Lsn, TableId
from mirror_pump.ops.changes.pinned_feeds import PinnedFeed, pin_interval
from mirror_pump.ops.changes.points import ChangeInterval
from mirror_pump.ops.maintenance.feed_pass import FeedMaintenance
from mirror_pump.pipeline.flow.events import Event, FileRewriteReady, StopRequested
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection
from mirror_pump.pipeline.key_index.key_indexes import KeyIndexes
from mirror_pump.pipeline.operations.requests import FeedRequest, PublishRequest
from mirror_pump.pipeline.publish.publisher import Publisher
from mirror_pump.pipeline.upkeep.feed_upkeep import FeedUpkeep
from mirror_pump.runtime.backoff import RetryPolicy
from mirror_pump.settings.policy import Policy
from mirror_pump.source.catalog.change_feeds import ChangeFeed, writable_feeds
from mirror_pump.source.catalog.feed_reads import read_feeds
from mirror_pump.source.connect import connect
from mirror_pump.source.stream.leader import Leader
from mirror_pump.testing.lake import read_duckdb
from mirror_pump.testing.mirror import Mirror, Steps
from tests.support.made_feeds import STORAGE, MadeFeed, Row

LSN_OF_A_DAY = 72_000
"""By how much positions grow in a day of commits."""
FIRST_DAY = 20_000
"""The day of the first commits, counted from 1970."""
_PAUSES = 0.2
AT_ONCE = Policy().model_copy(
    update={
        "orphan_grace_hours": 0.0,
        "metadata_grace_hours": 0.0,
        "snapshot_retention_hours": 0.0,
        "snapshot_min_retained": 1,
    }
)
"""A policy by which everything goes as soon as it may."""


class SharedFeed(MadeFeed):
    """A feed to which the upkeep commits as well: an append that finds another pointer is staged again."""

    def __init__(self, mirror: Mirror, table: str, rng: random.Random) -> None:
        super().__init__(mirror, table, rng)
        self.conflicts = 0
        self.landed: Callable[[Mapping[TableId, LakeTable]], None] = lambda _: None
        """Gets the new state after each append, as the upkeep does after a publish."""

    def _commit(self, delta: RowDelta) -> None:
        while True:
            with self._mirror.database.session() as connection:
                location = load_pointer(connection, self._name.schema, self._name.name)
                assert location is not None
                table = LakeTable.load(location, STORAGE)
                staged = table.stage(delta, self._now, frozenset(self.catalog_row().pinned))
                if self._swap(connection, staged):
                    self._table = staged.table
                    self.landed({TableId(self.feed_id): staged.table})
                    return
            discard(staged.files, STORAGE)
            self.conflicts += 1

    def change(self, transactions: int) -> None:
        """Publishes this many transactions more; now and then after a pause of some days."""
        if self._rng.random() < _PAUSES:
            self._next_lsn += self._rng.randint(1, 2 * LSN_OF_A_DAY)
        super().change(transactions)

    def append_within_a_day(self) -> None:
        """Publishes a few transactions more, of the day of those before."""
        super().change(3)

    def catalog_row(self) -> ChangeFeed:
        """The feed in the catalog."""
        with self._mirror.database.session() as connection:
            (feed,) = writable_feeds(connection, self._mirror.settings.slot, self.feed_id)
        return feed

    def state(self) -> LakeTable:
        """The feed in the lake."""
        return LakeTable.load(self.catalog_row().pointer, STORAGE)

    def files(self) -> list[FeedFile]:
        """Its files, in order."""
        state = self.state()
        return feed_files(state, listing_for(state))

    def keep_from(self, day: int) -> None:
        """Has the catalog say that changes from this day on, counted from 1970, have to stay."""
        self._mirror.database.execute(
            f"UPDATE modak.change_feeds SET keep = now() - (to_timestamp(0) + interval '{day} days 1 s')"
            f" WHERE feed_id = {self.feed_id}"
        )

    def present(self) -> list[Row]:
        """The changes that have not expired."""
        expired = self.catalog_row().expired_lsn
        return [row for row in self.rows if row["_lsn"] >= expired]

    def pin(self, since: int, until: int) -> PinnedFeed:
        """Pins the changes between two positions."""
        slot = self._mirror.settings.slot
        with self._mirror.database.session() as connection:
            (feed,) = [feed for feed in read_feeds(connection, slot) if feed.feed_id == self.feed_id]
            interval = ChangeInterval(Lsn(since), Lsn(until))
            lease = f"lease {uuid.uuid4().hex}"
            return pin_interval(lambda: nullcontext(connection), slot, feed, interval, STORAGE, 600, lease)

    def unpin(self, pinned: PinnedFeed) -> None:
        (pin,) = pinned.pins.pins
        self._mirror.database.execute(f"DELETE FROM modak.feed_pins WHERE pin_id = {pin.pin_id}")

    def maintain(self) -> list[str]:
        """All maintenance there is, without any grace."""
        with self._mirror.database.session() as connection:
            maintenance = FeedMaintenance(
                connection, self._mirror.settings.slot, STORAGE, AT_ONCE, clock_skew=0.0, pin_margin=0.0
            )
            return maintenance.maintain(self.feed_id, requested=True)

    def garbage(self) -> set[str]:
        """Files that nothing refers to, without those of pins."""
        listed = {file.location for file in list_files(self.location, STORAGE)}
        state = self.state()
        named = {state.metadata_location, *referenced_files(state.metadata, STORAGE)}
        missing = {path for path in named if not exists(path, STORAGE)} - set(state.metadata.former_locations)
        assert not missing, missing
        return {path for path in listed - named if "/intervals/" not in path}

    def intervals(self) -> set[str]:
        """What readers of intervals have written."""
        return {file.location for file in list_files(self.location, STORAGE) if "/intervals/" in file.location}


def identities(metadata_location: str) -> list[tuple[int, int]]:
    """Position and number of each change that DuckDB reads, in order."""
    rows = read_duckdb(metadata_location, "SELECT _lsn, _seq FROM lake ORDER BY ALL").to_pylist()
    return [(row["_lsn"], row["_seq"]) for row in rows]


@contextmanager
def publisher_of(mirror: Mirror, staged: Callable[[PublishRequest], None] = lambda _: None) -> Iterator[Publisher]:
    """The publisher of a pump that leads, without the rest of it."""
    ((timeline,),) = mirror.database.rows("SELECT timeline FROM modak.mirror_slots")
    slot, opened = mirror.settings.slot, partial(connect, mirror.database.dsn, autocommit=True)
    retry, indexes = RetryPolicy(attempts=1000, longest_pause=0.1), KeyIndexes(0, STORAGE)
    with (
        Leader.acquire(mirror.database.dsn, slot) as leader,
        closing(Publisher(opened, slot, leader.epoch, STORAGE, retry, indexes, staged, timeline)) as publisher,
    ):
        yield publisher


@contextmanager
def kept_up(mirror: Mirror, steps: Steps, feed: SharedFeed) -> Iterator[None]:
    """The pump's upkeep of feeds within the block, and its publishes of what that computes, without the rest of a pump.
    Their errors fail the block."""
    inbox: SimpleQueue[Event] = SimpleQueue()
    context = SessionContext(mirror.settings, STORAGE, mirror.runner, steps, inbox)
    shared = SharedConnection(context.connect)
    errors: list[Any] = []
    with closing(shared), publisher_of(mirror) as publisher:
        upkeep = FeedUpkeep(context, shared)
        loop = Thread(target=_publish_rewrites, args=(publisher, context, upkeep, errors), name="loop")
        loop.start()
        upkeep.start()
        feed.landed = upkeep.published
        try:
            yield
        finally:
            feed.landed = lambda _: None
            upkeep.stop()
            inbox.put(StopRequested())
            loop.join()
    assert not errors, errors


def _publish_rewrites(publisher: Publisher, context: SessionContext, upkeep: FeedUpkeep, errors: list[Any]) -> None:
    """The loop's part, until it is to stop."""
    while not isinstance(event := context.inbox.get(), StopRequested):
        if not isinstance(event, FileRewriteReady):
            errors.append(event)
            continue
        request = event.request
        assert isinstance(request, FeedRequest)
        try:
            landed = publisher.publish(PublishRequest(feeds=(request,), written_since=event.written_since))
        except MirrorPumpError as error:
            errors.append(error)
            return
        is_landed = request.feed_id not in landed.refused_feeds
        context.observer(event.landed if is_landed else event.refused, table=event.name, **event.details)
        upkeep.published(landed.feeds)
        upkeep.finished(request.feed_id, landed=is_landed)
