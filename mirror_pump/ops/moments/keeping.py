"""Keeps a moment: the snapshots of all tables at one frontier stay until it is dropped.

Invariant: once the transaction that enters a moment is committed, every snapshot that it names is in its table's
history, and stays there with all of its files until the moment is dropped or the registration's files are removed,
which is refused while a moment needs them.

- *It is there.* The transaction holds the lock of the slot's row, under which alone publishes, expiries and what
  maintenance lands move a pointer. So the histories that it reads are those of its COMMIT. A snapshot in the history
  has all of its files: expiry takes a snapshot out of the history before it deletes files.
- *It stays.* The same transaction gives each lake table a tag that names the snapshot, and so moves the pointer. A
  publish or a landing that was staged on the former metadata, before the moment was known, is a conflict and is staged
  again on one that has the tag. Thinning and expiry spare what a tag names, those of other engines too, and the rows of
  `modak.moment_tables` besides, should an engine remove the tag. A copy keeps the tags of its table when it is shown.
- *All or nothing.* Files that were written before the process died are named by nothing, and a sweep removes them.

Each snapshot gets a metadata file of its own, in which it is the current and only one, with the schema of its time: it
is what readers open, whatever becomes of the table. Sweeps know it from the moment's row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum

from mirror_pump.engine.lake_storage import lake_storage
from mirror_pump.errors import CommitConflict, ConnectionLost, TableError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.metadata_files import moment_location, next_location
from mirror_pump.lake.document.next_metadata import moment_metadata, with_tags
from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.storage import StorageOptions, discard, write_all
from mirror_pump.model import Lsn, TableId, TableName, format_lsn
from mirror_pump.ops.moments.choice import (
    ChosenTable,
    MomentChoice,
    chosen_now,
    chosen_past,
    newest_frontier,
    why_left_out,
)
from mirror_pump.ops.reads.time_travel import PastPoint
from mirror_pump.pipeline.publish.landing import Landing, hold_slot
from mirror_pump.settings.config import Settings
from mirror_pump.source.catalog.catalog_slot import catalog_slot
from mirror_pump.source.catalog.kept_moments import (
    CandidateTable,
    KeptTable,
    candidate_tables,
    insert_moment,
    moment_name,
    read_moments,
    tag_names,
)
from mirror_pump.source.connect import PgConnection, connect, source_errors

_TRIES = 16
"""How often the transaction is tried, if other engines commit to the lake tables at the same time."""
_PARALLEL = 16
"""Tables whose files are read and written at a time, since the pump's publishes wait meanwhile."""
_STOPPED_SECONDS = 60
"""If this process is stopped while it holds the lock, the server ends its session after this time."""


class KeepStep(StrEnum):
    """What has just been done."""

    CHOSEN = "chosen"
    WRITTEN = "written"
    ENTERED = "entered"
    TAGGED = "tagged"
    COMMITTED = "committed"


@dataclass(frozen=True)
class MomentWish:
    """What is to be kept."""

    name: str
    when: PastPoint | None = None
    """None: the present frontier."""
    note: str | None = None
    partial: bool = False
    """Tables that cannot be shown at the frontier are left out. Otherwise nothing is kept if there is one."""


@dataclass(frozen=True)
class MomentOutcome:
    """A moment that was kept."""

    frontier: Lsn
    tables: tuple[KeptTable, ...]
    left_out: Mapping[TableName, str]
    """Mirrored tables that are not part of it, and why."""


@dataclass(frozen=True)
class _TaggedTable:
    """A table of a moment whose files are durable."""

    chosen: ChosenTable
    entry: KeptTable
    after: LakeTable
    """The lake table with the moment's tags."""


def keep(
    settings: Settings, wish: MomentWish, observer: Callable[[KeepStep], None] = lambda _step: None
) -> MomentOutcome:
    """Keep a moment. The pump's publishes wait for it, as they do for one another.

    Raises UsageError for a name that none may have, and for a future; TableError if there is a moment of that name, or
    a table cannot be shown at the frontier; SourceError and LakeError.
    """
    moment_name(wish.name)
    storage = lake_storage(settings)
    with connect(settings.require_dsn(), autocommit=True, application_name="mirror-pump-moment") as connection:
        keeping = _Keeping(connection, settings.slot, storage, wish, observer)
        for _ in range(_TRIES):
            try:
                return keeping.attempt()
            except CommitConflict:
                continue
    raise TableError(
        f"the moment {wish.name} was not kept: other engines commit to the lake tables all the time",
        "try again when they are done",
    )


@dataclass(frozen=True)
class _Keeping:
    connection: PgConnection
    slot: str
    storage: StorageOptions
    wish: MomentWish
    observer: Callable[[KeepStep], None]

    def attempt(self) -> MomentOutcome:
        """Raises CommitConflict if another engine has committed meanwhile."""
        files: list[str] = []
        try:
            with source_errors(f"keeping the moment {self.wish.name}"), self.connection.transaction():
                hold_slot(self.connection, self.slot, _STOPPED_SECONDS)
                outcome = self._entered(files)
        except ConnectionLost:
            # It may have been committed, and name the files.
            raise
        except BaseException:
            discard(files, self.storage)
            raise
        self.observer(KeepStep.COMMITTED)
        return outcome

    def _entered(self, files: list[str]) -> MomentOutcome:
        """Does all of it in the transaction. `files` gets those that are written."""
        if read_moments(self.connection, self.slot, self.wish.name):
            raise self._there_already()
        choice = self._choice()
        self.observer(KeepStep.CHOSEN)
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="moment") as pool:
            tagged = list(pool.map(lambda table: self._written(table, files), choice.tables))
        self.observer(KeepStep.WRITTEN)
        entries = tuple(table.entry for table in tagged)
        insert_moment(self.connection, self.slot, self.wish.name, choice.frontier, self.wish.note, entries)
        self.observer(KeepStep.ENTERED)
        for table in tagged:
            self._landing(table.chosen.candidate).land_staged(table.chosen.lake, table.after)
            self.observer(KeepStep.TAGGED)
        return MomentOutcome(choice.frontier, entries, choice.left_out)

    def _there_already(self) -> TableError:
        return TableError(
            f"there is a moment {self.wish.name} already",
            f"choose another name, or give it up first: mirror-pump moment drop {self.wish.name}",
        )

    def _choice(self) -> MomentChoice:
        candidates = candidate_tables(self.connection, self.slot)
        frontier = newest_frontier(candidates, catalog_slot(self.connection, self.slot).applied)
        lakes = self._lakes([table for table in candidates if why_left_out(table, frontier) is None])
        if self.wish.when is None:
            choice = chosen_now(lakes, candidates, frontier)
        else:
            now_ms = time.time_ns() // 1_000_000
            choice = chosen_past(lakes, candidates, self.wish.when, frontier, now_ms)
        reasons = "; ".join(f"{name} {reason}" for name, reason in choice.left_out.items())
        if not choice.tables:
            raise TableError(f"no table can be kept{f': {reasons}' if reasons else ': none is mirrored'}")
        if choice.left_out and not self.wish.partial:
            raise TableError(
                f"not all tables can be kept at frontier {format_lsn(choice.frontier)}: {reasons}",
                "wait until `mirror-pump status` shows them live, or keep the others with --partial",
            )
        for table in choice.tables:
            self._refuse_tags(table)
        return choice

    def _lakes(self, tables: Collection[CandidateTable]) -> dict[TableId, LakeTable]:
        def load(table: CandidateTable) -> LakeTable:
            assert table.metadata_location is not None
            return LakeTable.load(table.metadata_location, self.storage)

        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="moment") as pool:
            return dict(zip([table.table_id for table in tables], pool.map(load, tables), strict=True))

    def _refuse_tags(self, table: ChosenTable) -> None:
        """Raise TableError if a branch or tag of another engine has the name that the moment's would have. One that a
        dropped moment of that name left behind is replaced."""
        for tag in tag_names(self.wish.name):
            ref = table.lake.metadata.refs.get(tag)
            if ref is not None and ref.is_branch:
                raise TableError(
                    f"{table.candidate.lake_name} has a branch {tag} in the lake", "choose another name for the moment"
                )

    def _written(self, chosen: ChosenTable, files: list[str]) -> _TaggedTable:
        """Writes a table's files, and adds them to `files`."""
        lake, metadata = chosen.lake, chosen.lake.metadata
        tag, main_tag = tag_names(self.wish.name)
        tags = {tag: chosen.snapshot.snapshot_id}
        if chosen.main != chosen.snapshot:
            tags[main_tag] = chosen.main.snapshot_id
        after = with_tags(metadata, tags, lake.metadata_location, time.time_ns() // 1_000_000)
        location = next_location(metadata, lake.metadata_location)
        snapshot_file = self._own_file(lake, chosen.snapshot)
        main = snapshot_file if chosen.main == chosen.snapshot else self._own_file(lake, chosen.main)
        contents = dict([snapshot_file, main, (location, after.to_json())])
        write_all(list(contents.items()), self.storage)
        files.extend(contents)
        entry = KeptTable(
            chosen.candidate.table_id,
            chosen.candidate.lake_name,
            chosen.snapshot.snapshot_id,
            snapshot_file[0],
            chosen.main.snapshot_id,
            main[0],
        )
        return _TaggedTable(chosen, entry, replace(lake, metadata=after, metadata_location=location))

    def _own_file(self, lake: LakeTable, snapshot: Snapshot) -> tuple[str, bytes]:
        """Location and content of the metadata file in which the snapshot is the current one."""
        return moment_location(lake.metadata), moment_metadata(lake.metadata, snapshot).to_json()

    def _landing(self, table: CandidateTable) -> Landing:
        return Landing(
            self.connection, self.slot, table.table_id, table.start_lsn, table.lake_name, self.storage, _STOPPED_SECONDS
        )
