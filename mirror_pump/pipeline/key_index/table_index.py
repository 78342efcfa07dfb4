"""One table's key index through its life: wanted, built, ready, behind another engine's rewrite, and built again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from mirror_pump.lake.commit.merged_files import MergedFile
from mirror_pump.lake.key_index.index_plan import FileNumbers, IndexPlan, KeyedSegment, apply_plan, plan_commit
from mirror_pump.lake.key_index.key_index import KeyIndex, place_of
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.model import Lsn
from mirror_pump.pipeline.key_index.index_builder import BuiltIndex, FollowedFiles


class IndexPhase(StrEnum):
    """Where a table's index stands."""

    WANTED = "wanted"
    """The next segments hand their keys over; the first commit that has them all begins the building."""
    BUILDING = "building"
    READY = "ready"
    FOLLOWING = "following"
    """Files were rewritten: some places are of files that are gone, until the new ones are read."""


@dataclass
class TableIndex:
    """The index, or what there is of it.

    In READY its places are those of the table at `location`. In FOLLOWING its keys are, and places in files that were
    not rewritten. In BUILDING neither is there yet: `log` has what happened since the state that is being read.
    """

    start_lsn: Lsn
    packing: KeyPacking
    estimate: int
    """Bytes that a complete index will take."""
    phase: IndexPhase = IndexPhase.WANTED
    index: KeyIndex = field(default_factory=lambda: KeyIndex(1))
    numbers: FileNumbers = field(default_factory=FileNumbers)
    location: str = ""
    """The metadata file that index and log together describe."""
    snapshot_id: int = 0
    job: int = 0
    """The reading under way; answers to others do not count."""
    log: list[tuple[KeyedSegment, ...] | MergedFile] = field(default_factory=list)
    """Oldest first."""
    log_bytes: int = 0

    @property
    def known(self) -> bool:
        """Whether it has the table's keys."""
        return self.phase in (IndexPhase.READY, IndexPhase.FOLLOWING)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, or will."""
        return (self.index.nbytes if self.phase is IndexPhase.READY else self.estimate) + self.log_bytes

    def restart(self, job: int) -> None:
        """Forget everything: the index is built anew from the next commit on."""
        self.job, self.phase = job, IndexPhase.WANTED
        self._clear()

    def begin_empty(self, job: int, segments: Sequence[KeyedSegment]) -> None:
        """The table has no rows but those of these segments."""
        self.job, self.phase = job, IndexPhase.READY
        self._clear()
        apply_plan(self.index, plan_commit(self.index, self.numbers, segments))

    def note(self, happened: tuple[KeyedSegment, ...] | MergedFile) -> None:
        """Remember what happened while files are being read."""
        self.log.append(happened)
        if isinstance(happened, MergedFile):
            keys = 0 if happened.keys is None else happened.keys.nbytes
            self.log_bytes += keys + happened.source.nbytes + happened.position.nbytes
        else:
            self.log_bytes += sum(segment.keys.nbytes for segment in happened)

    def landed(self, plan: IndexPlan) -> None:
        """A commit that was planned with this index is published."""
        apply_plan(self.index, plan)

    def merged(self, merged: MergedFile) -> None:
        """Files were merged into one, which names its rows' keys; what has changed since that began is not touched."""
        if self.phase is not IndexPhase.READY:
            self.note(merged)
        if self.known:
            self._move(merged)

    def built(self, built: BuiltIndex) -> None:
        """The state that was being read is read: what happened since is repeated on it."""
        self.index, self.numbers = built.index, built.numbers
        for happened in self.log:
            if isinstance(happened, MergedFile):
                self._move(happened)
            else:
                apply_plan(self.index, plan_commit(self.index, self.numbers, happened))
        self.log, self.log_bytes, self.phase = [], 0, IndexPhase.READY

    def followed(self, followed: FollowedFiles) -> bool:
        """Keys whose files are gone take the first places that the new files have for them. False: not all are there.

        A key that has changed or gone since the rewrite is not in a file that is gone any more, and stays as it is.
        """
        numbered = [(self.numbers.number(file.path), file) for file in followed.added]
        gone = self.numbers.mask(followed.gone)
        for number, file in numbered:
            self.index.adopt(file.keys, place_of(number, file.positions), gone)
        if self.index.any_in(gone):
            return False
        self.numbers.forget(followed.gone)
        for happened in self.log:
            if isinstance(happened, MergedFile):
                # From files that were not known when it happened.
                self._move(happened)
        self.log, self.log_bytes, self.phase = [], 0, IndexPhase.READY
        return True

    def _move(self, merged: MergedFile) -> None:
        if merged.path is not None and merged.keys is not None:
            sources = np.array([self.numbers.number(path) for path in merged.sources], np.int64)
            number = self.numbers.number(merged.path)
            old = place_of(sources[merged.source], merged.position)
            self.index.move(merged.keys, old, place_of(number, np.arange(len(merged.keys))))
        if self.phase is IndexPhase.READY:
            self.numbers.forget(merged.sources)

    def _clear(self) -> None:
        self.index, self.numbers = KeyIndex(self.packing.words), FileNumbers()
        self.log, self.log_bytes = [], 0
