"""Gives many lake tables other tags in one short transaction: what is written is written before it.

A file may take a store half a minute, and publishes wait while another session holds the slot's lock. So the next
metadata of all tables is written without the lock, side by side. The transaction looks only whether the tables are
where they were read. Tables that have moved are staged again, on what came in between: right after a publish, so that
the next one finds them done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from mirror_pump.errors import CommitConflict, FileDamaged, FileMissing
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.model import TableId
from mirror_pump.pipeline.landing.published_tables import RewrittenTable, land_rewritten, read_published
from mirror_pump.pipeline.landing.slot_lock import SlotLock
from mirror_pump.pipeline.landing.table_landing import with_metadata
from mirror_pump.pipeline.landing.written_files import WrittenFiles
from mirror_pump.source.catalog.published_state import PublishedState
from mirror_pump.source.connect import PgConnection

_PARALLEL = 16
"""Tables whose files are read and written at a time."""

ChangeTags = Callable[[PublishedState, LakeTable, int], TableMetadata | None]
"""Makes the next metadata of a table, at a time in milliseconds since 1970 UTC; None: its tags stay as they are."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def side_by_side(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """The results of work that waits for the storage, in the order of the items. Raises what the work raises, when no
    work is under way any more."""
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="moment") as pool:
        return list(pool.map(work, items))


@dataclass(frozen=True)
class _TableTags:
    """A table whose next metadata is durable."""

    candidate: PublishedState
    base: LakeTable
    after: LakeTable | None
    """None: nothing changes."""


class StagedTags:
    """The next metadata of lake tables. Belongs to one thread."""

    def __init__(self, connection: PgConnection, files: WrittenFiles, *, without_damaged: bool = False) -> None:
        """`without_damaged`: tables whose metadata is lost or damaged keep their tags. Otherwise they are an error."""
        self._connection = connection
        self._files = files
        self._without_damaged = without_damaged
        self._damaged: dict[TableId, str | None] = {}
        """The metadata files that could not be read."""
        self._tables: dict[TableId, _TableTags] = {}

    def stage(
        self, candidates: Sequence[PublishedState], change: ChangeTags, lakes: Mapping[TableId, LakeTable]
    ) -> None:
        """Writes the next metadata of those tables that are not staged on their present one. `lakes`: tables that are
        loaded already. Raises LakeError, and what `change` raises."""

        def staged(candidate: PublishedState) -> _TableTags | None:
            base = lakes.get(candidate.table_id)
            if base is None or base.metadata_location != candidate.metadata_location:
                base = self._load(candidate)
                if base is None:
                    return None
            metadata = change(candidate, base, time.time_ns() // 1_000_000)
            after = None if metadata is None else with_metadata(base, lambda *_: metadata, self._files)
            return _TableTags(candidate, base, after)

        moved = self.moved(candidates)
        superseded = [self._tables[table.table_id].after for table in moved if table.table_id in self._tables]
        self._files.supersede(after.metadata_location for after in superseded if after is not None)
        self._tables |= {table.candidate.table_id: table for table in side_by_side(staged, moved) if table is not None}

    def _load(self, candidate: PublishedState) -> LakeTable | None:
        assert candidate.metadata_location is not None
        try:
            return LakeTable.load(candidate.metadata_location, self._files.storage)
        except (FileMissing, FileDamaged):
            if not self._without_damaged:
                raise
            self._damaged[candidate.table_id] = candidate.metadata_location
            return None

    def moved(self, candidates: Collection[PublishedState]) -> list[PublishedState]:
        """Those tables that are not staged on their present metadata."""
        staged = self._damaged | {table_id: table.base.metadata_location for table_id, table in self._tables.items()}
        return [each for each in candidates if staged.get(each.table_id) != each.metadata_location]

    def base(self, table_id: TableId) -> LakeTable | None:
        """The state that a table was staged on; None if it was not."""
        table = self._tables.get(table_id)
        return None if table is None else table.base

    def land(self, lock: SlotLock, candidates: Collection[PublishedState]) -> None:
        """Moves the pointers of these tables, all by a few statements. Raises CommitConflict if another writer has
        committed since, psycopg.Error."""
        changed = [
            (candidate, after)
            for candidate in candidates
            if (table := self._tables.get(candidate.table_id)) is not None and (after := table.after) is not None
        ]
        published = read_published(self._connection, {each.table_id: each.start_lsn for each, _ in changed})
        rewritten = []
        for candidate, after in changed:
            base = published.get(candidate.table_id)
            if base is None or base.metadata_location != candidate.metadata_location:
                raise CommitConflict(f"{candidate.lake_name} has moved since its tags were staged")
            rewritten.append(RewrittenTable(candidate.lake_name, base, after))
        land_rewritten(lock, rewritten)

    def clear(self) -> None:
        """All tables are staged again."""
        self._tables.clear()
