"""Which states of a table need a data file, and when each of them ends. Does no I/O.

A file goes once no state needs it. Nothing here says when: a maintainer has to run, and expiry and sweeps wait until
enough is due (docs/maintenance.md). A time is the earliest at which one may end the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property

from mirror_pump.json_documents import JsonDocument
from mirror_pump.lake.contents.snapshot_history import ages_by_branch
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.table_metadata import ARCHIVE_BRANCH, MAIN, TableMetadata
from mirror_pump.model import TableName
from mirror_pump.settings.policy import Policy
from mirror_pump.source.catalog.kept_moments import TAG_PREFIX

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StateKind(StrEnum):
    """What needs a row, or a file that has it."""

    HEAP = "heap"
    """The table itself, in PostgreSQL."""
    DELTA = "delta"
    """A correction of a row below the cut-line that waits in PostgreSQL to be folded."""
    CURRENT = "current"
    """What readers see: the head of `main`, or the published snapshot."""
    ARCHIVE = "archive"
    """The rows below the cut-line: the head of the archive branch."""
    PIN = "pin"
    """A reader of a former snapshot."""
    MOMENT = "moment"
    """A moment that is kept."""
    REFERENCE = "reference"
    """A branch or tag that another engine made."""
    HISTORY = "history"
    """Former snapshots, for time travel."""
    FEED = "feed"
    """The changes of a change feed."""
    ENDED = "former"
    """A registration that has ended, and left its files."""
    UNREFERENCED = "unreferenced"
    """Nothing refers to the file: a sweep deletes it."""


class RootKind(StrEnum):
    """Whose files are below a directory."""

    TABLE = "table"
    FEED = "feed"
    ENDED = "former"


@dataclass(frozen=True)
class RowState(JsonDocument):
    """A state that has the row, and what ends it."""

    kind: StateKind
    name: str | None
    """Of a moment, of a branch or tag, of the feed whose state it is; the location of a former registration."""
    ends_at: datetime | None
    """From when on a maintainer may end the state, of the last of the files. None: no time ends it."""
    ends_by: str
    """The setting or limit that ends it; of one that does not end by itself, why."""
    command: str | None = None
    """What ends it by hand, or does what is due. None: no command of mirror-pump does."""
    rows: int | None = None
    """In PostgreSQL: of the heap, or corrections. None of the lake."""
    files: int | None = None
    """Files of the lake that have the row and that the state needs. None in PostgreSQL."""


@dataclass(frozen=True)
class ReachedFile:
    """A data or delete file, and the snapshots that need it."""

    location: str
    snapshots: int
    """A bit for each of `SearchedRoot.snapshots`."""
    modified: float | None
    """When it was written, seconds since 1970 UTC; None if it is not below the table's location."""
    day: int | None = None
    """Of a feed's file the day of its changes, counted from 1970."""


@dataclass(frozen=True)
class SearchedRoot:
    """A directory with files of a table: its own, its feed's, or those of a registration that has ended."""

    kind: RootKind
    table: TableName
    """The mirrored table, for commands."""
    name: TableName
    """In the lake."""
    location: str
    """URI of the directory."""
    metadata: TableMetadata | None
    """None: the catalog does not know it, or it is gone. Nothing is known of the files then."""
    policy: Policy
    pins: Mapping[int, datetime] = field(default_factory=dict)
    """The snapshots that readers have pinned, each with the time at which the last pin expires unless it is renewed."""
    moments: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Names of kept moments, by their snapshots."""
    kept_snapshots: tuple[Snapshot, ...] = ()
    """Those of moments."""
    published: int | None = None
    """The snapshot that readers are given."""
    keep: timedelta | None = None
    """How long a feed keeps changes. None: for ever."""

    @cached_property
    def snapshots(self) -> Sequence[Snapshot]:
        """Those of the history, and those of moments that it does not have."""
        listed = () if self.metadata is None else tuple(self.metadata.snapshots.oldest_first())
        ids = {snapshot.snapshot_id for snapshot in listed}
        return (*listed, *(snapshot for snapshot in self.kept_snapshots if snapshot.snapshot_id not in ids))

    def reaching(self, file: ReachedFile) -> Iterator[RowState]:
        """The states that need the file, each as often as snapshots do."""
        if self.kind is RootKind.ENDED:
            command = f"mirror-pump unregister --former {self.table.shell}"
            yield RowState(StateKind.ENDED, self.location, None, "its registration has ended", command)
        elif not file.snapshots:
            yield self._unreferenced(file)
        for place, snapshot in enumerate(self.snapshots):
            if file.snapshots >> place & 1:
                yield from self._of_snapshot(snapshot, file)

    def _of_snapshot(self, snapshot: Snapshot, file: ReachedFile) -> Iterator[RowState]:
        states = [*self._moments(snapshot)]
        if self.kind is not RootKind.ENDED:
            states += [*self._references(snapshot, file), *self._pins(snapshot)]
            states = states or [self._history(snapshot), *self._older_pins(snapshot)]
        yield from states

    def _moments(self, snapshot: Snapshot) -> Iterator[RowState]:
        for name in self.moments.get(snapshot.snapshot_id, ()):
            yield RowState(StateKind.MOMENT, name, None, "it is kept", f"mirror-pump moment drop {name}")

    def _references(self, snapshot: Snapshot, file: ReachedFile) -> Iterator[RowState]:
        assert self.metadata is not None
        snapshot_id = snapshot.snapshot_id
        if snapshot_id == self.metadata.current_snapshot_id or snapshot_id == self.published:
            yield self._changes(file) if self.kind is RootKind.FEED else self._rewritten(StateKind.CURRENT)
        for name, ref in self.metadata.refs.items():
            if ref.snapshot_id != snapshot_id or name == MAIN or name.startswith(TAG_PREFIX):
                continue
            if name == ARCHIVE_BRANCH:
                yield self._rewritten(StateKind.ARCHIVE)
                continue
            kind = "branch" if ref.is_branch else "tag"
            yield RowState(
                StateKind.REFERENCE, name, None, f"another engine made the {kind}: drop it with that engine", None
            )

    def _rewritten(self, kind: StateKind) -> RowState:
        """Of a file that readers of the present open: whether the row is deleted in it does not count."""
        return RowState(
            kind,
            None,
            None,
            "the row has to be deleted, and the file written again without it",
            self._maintain,
        )

    def _changes(self, file: ReachedFile) -> RowState:
        if self.keep is None or file.day is None:
            command = f"mirror-pump register {self.table.shell} --alter --no-changes"
            return RowState(StateKind.FEED, self._feed, None, "the feed keeps its changes for ever", command)
        # What was committed on a day goes once the whole day is that long ago.
        ends_at = _EPOCH + timedelta(days=file.day + 1) + self.keep
        return RowState(StateKind.FEED, self._feed, ends_at, f"--keep-changes of {self.keep}", self._maintain)

    def _pins(self, snapshot: Snapshot) -> Iterator[RowState]:
        expires_at = self.pins.get(snapshot.snapshot_id)
        if expires_at is not None:
            yield RowState(StateKind.PIN, self._feed, expires_at, "a reader renews it, or is done before", None)

    def _older_pins(self, snapshot: Snapshot) -> Iterator[RowState]:
        """Snapshots of the archive branch stay from the oldest pinned one on."""
        assert self.metadata is not None
        if snapshot.is_archive:
            for other in self.metadata.snapshots.oldest_first():
                if other.is_archive and other.sequence_number < snapshot.sequence_number:
                    yield from self._pins(other)

    def _history(self, snapshot: Snapshot) -> RowState:
        assert self.metadata is not None
        policy = self.policy
        # As lake.contents.snapshot_history.expirable has it.
        alike = [one for one in self.metadata.snapshots.oldest_first() if one.is_archive is snapshot.is_archive]
        newer = [one for one in alike if one.sequence_number > snapshot.sequence_number]
        ends_at = None
        if not policy.snapshot_expiry_enabled or self.metadata.properties.get("gc.enabled") == "false":
            ends_by = "snapshot_expiry_enabled, or the table property gc.enabled, is false"
        elif ages_by_branch(self.metadata):
            ends_by = "a branch has a snapshot age of its own: drop the branch with the engine that made it"
        elif len(newer) < policy.snapshot_min_retained:
            more = policy.snapshot_min_retained - len(newer)
            ends_by = f"snapshot_min_retained = {policy.snapshot_min_retained}: after {more} more commits"
        else:
            ends_by = f"snapshot_retention_hours = {policy.snapshot_retention_hours:g}"
            ends_at = _EPOCH + timedelta(milliseconds=newer[0].timestamp_ms + policy.retention_ms)
        return RowState(StateKind.HISTORY, self._feed, ends_at, ends_by, self._maintain)

    def _unreferenced(self, file: ReachedFile) -> RowState:
        ends_at = None
        if not self.policy.orphan_sweep_enabled:
            ends_by = "orphan_sweep_enabled is false"
        elif file.modified is None or not self._is_swept(file.location):
            ends_by = "no sweep looks there: remove the file by hand"
            return RowState(StateKind.UNREFERENCED, self._feed, None, ends_by, None)
        else:
            ends_by = f"orphan_grace_hours = {self.policy.orphan_grace_hours:g}"
            ends_at = _EPOCH + timedelta(seconds=file.modified + self.policy.orphan_grace_hours * 3600)
        return RowState(StateKind.UNREFERENCED, self._feed, ends_at, ends_by, self._maintain)

    def _is_swept(self, location: str) -> bool:
        """A feed's directory has no other files than the mirror's; of a table, sweeps look at these."""
        within = location.removeprefix(self.location.rstrip("/") + "/")
        return self.kind is RootKind.FEED or within.startswith(("data/", "metadata/", "seam/"))

    @property
    def _feed(self) -> str | None:
        return str(self.name) if self.kind is RootKind.FEED else None

    @property
    def _maintain(self) -> str:
        return f"mirror-pump maintain {self.table.shell}"
