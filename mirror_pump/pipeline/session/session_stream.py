"""The stream of a session, as its loop sees it: the receiver, or the absence of a stream in a mirror of tiered tables.

A mirror without a stream has no table whose content depends on received changes. Such a session is caught up at any
time, so each question for a position has the present end of the WAL as its answer, and each publish may move the
frontier there. It promises nothing to readers, but it orders what was published, by which a session tells later that
the database went back (mirror_pump.pipeline.session.without_stream), and it is never beyond a slot that is made later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from mirror_pump.model import MirroredTable
from mirror_pump.pipeline.flow.events import CaughtUp, StreamAdded
from mirror_pump.pipeline.flow.session_context import SessionContext, SharedConnection
from mirror_pump.pipeline.flow.steps import Step
from mirror_pump.pipeline.operations.requests import PublishRequest
from mirror_pump.pipeline.publish.publisher import LandedPublish
from mirror_pump.source.catalog.catalog_slot import catalog_slot
from mirror_pump.source.connect import PgConnection
from mirror_pump.source.stream.slot import wal_end


class SessionStream(Protocol):
    """What a session asks of its stream. The loop's thread calls all of it but `registered`."""

    @property
    def begins(self) -> Step:
        """The step to report when the session begins."""

    def start(self) -> None:
        """Begin to put batches and positions into the inbox."""

    def stop(self) -> None:
        """End, and discard what is not published."""

    def registered(self) -> None:
        """A table was registered, or `init` has run. Called by the listener's thread."""

    def want_position(self) -> None:
        """Ask how far the stream is. The answer arrives as CaughtUp, after everything before it."""

    def positioned(self, request: PublishRequest) -> PublishRequest:
        """The request, with the frontier that its publish moves to."""

    def batch_done(self, landed: LandedPublish) -> None:
        """The batch that was taken from the inbox is published."""

    def acknowledge(self, landed: LandedPublish) -> None:
        """The frontier of this publish may be reported to the slot."""

    def refresh(self, tables: tuple[MirroredTable, ...]) -> None:
        """Use these descriptions from the next segment on."""

    def drop(self, table: MirroredTable) -> None:
        """Ignore the changes of this registration from the next segment on."""


class NoStream:
    """The stream of a mirror without one: nothing is received, acknowledged or described."""

    begins = Step.WITHOUT_STREAM

    def __init__(self, context: SessionContext, connection: PgConnection, lookups: SharedConnection) -> None:
        """`connection` is the loop's. `lookups`: for short queries of other threads."""
        self._inbox = context.inbox
        self._slot = context.slot
        self._connection = connection
        self._lookups = lookups

    def start(self) -> None:
        """Nothing begins."""

    def stop(self) -> None:
        """Nothing ends."""

    def registered(self) -> None:
        """Ends the session if `init` has given the mirror a stream. Also called when the listener begins, so that no
        notification from before is missed."""
        with self._lookups.use() as connection:
            streams = catalog_slot(connection, self._slot).streams
        if streams:
            self._inbox.put(StreamAdded())

    def want_position(self) -> None:
        """Everything up to the present end of the WAL is received: nothing."""
        self._inbox.put(CaughtUp(wal_end(self._connection)))

    def positioned(self, request: PublishRequest) -> PublishRequest:
        """Moves the frontier to the present end of the WAL with each publish. No earlier answer is beyond it."""
        return replace(request, frontier=wal_end(self._connection))

    def batch_done(self, landed: LandedPublish) -> None:
        """There are no batches."""

    def acknowledge(self, landed: LandedPublish) -> None:
        """There is no slot."""

    def refresh(self, tables: tuple[MirroredTable, ...]) -> None:
        """There are no segments."""

    def drop(self, table: MirroredTable) -> None:
        """There are no changes."""
