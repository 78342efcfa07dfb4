"""The key index of one table, with its phases: wanted, building, ready, and following another engine's rewrite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from mirror_pump.lake.commit.merged_files import MergedFile
from mirror_pump.lake.key_index.index_plan import FileNumbers, KeyedSegment, apply_plan, plan_commit
from mirror_pump.lake.key_index.key_index import KeyIndex, place_of
from mirror_pump.lake.key_index.leaf_store import LeafStore
from mirror_pump.lake.key_index.packed_keys import KeyPacking
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.model import Lsn
from mirror_pump.pipeline.key_index.index_builder import BuiltIndex, SucceededFiles


class IndexPhase(StrEnum):
    """The phase of a table's index."""

    REQUESTED = "requested"
    """Segments return their keys from now on. The building begins with the first commit that has the keys of all its
    segments."""
    BUILDING = "building"
    """The keys of one state of the table are being read."""
    READY = "ready"
    """The index is exact."""
    FOLLOWING = "following"
    """Another engine rewrote files. Some places refer to removed files until the new files are read."""


@dataclass
class TableIndex:
    """The index of one table, complete or not.

    In phase READY, keys and places are those of the table at `location`. In FOLLOWING, so are all keys, and the places
    in files that were not rewritten. In BUILDING the index is empty, and `log` holds the commits since the state that
    is being read.
    """

    start_lsn: Lsn
    packing: KeyPacking
    estimate: int
    """Estimated size of the complete index in bytes."""
    phase: IndexPhase = IndexPhase.REQUESTED
    index: KeyIndex = field(default_factory=lambda: KeyIndex(1))
    numbers: FileNumbers = field(default_factory=FileNumbers)
    location: str = ""
    """The metadata file that index and log together describe."""
    snapshot_id: int = 0
    """The current snapshot in that file."""
    job: int = 0
    """Number of the current job. Answers to other jobs are ignored."""
    log: list[tuple[KeyedSegment, ...] | MergedFile] = field(default_factory=list)
    """Commits and merges to apply once the job is done, oldest first."""
    log_bytes: int = 0
    """Memory of the log in bytes."""
    former_manifests: tuple[Manifest, ...] = ()
    """In FOLLOWING, the manifests from before the rewrite; none in tables without row lineage."""
    store: LeafStore | None = None
    """Where the index keeps its leaves. None: in memory."""

    @property
    def has_keys(self) -> bool:
        """Whether the index has the table's keys."""
        return self.phase in (IndexPhase.READY, IndexPhase.FOLLOWING)

    @property
    def nbytes(self) -> int:
        """Memory and files in bytes, estimated while the index is incomplete."""
        size = self.index.nbytes + self.index.disk_bytes if self.phase is IndexPhase.READY else self.estimate
        return size + self.log_bytes

    def spill(self, store: LeafStore) -> None:
        """Move the index into files. One that is being built is moved once it is taken over."""
        self.store = store
        self.index.spill(store)

    def restart(self, job: int) -> None:
        """Discard the index. It is built again from the next commit on."""
        self.job, self.phase = job, IndexPhase.REQUESTED
        self._clear()

    def begin_empty(self, job: int, segments: Sequence[KeyedSegment]) -> None:
        """Start with a table that has only the rows of these segments."""
        self.job, self.phase = job, IndexPhase.READY
        self._clear()
        apply_plan(self.index, plan_commit(self.index, self.numbers, segments).touched)

    def note(self, happened: tuple[KeyedSegment, ...] | MergedFile) -> None:
        """Log a commit or a merge while files are being read."""
        self.log.append(happened)
        if isinstance(happened, MergedFile):
            keys = 0 if happened.keys is None else happened.keys.nbytes
            self.log_bytes += keys + happened.source.nbytes + happened.position.nbytes
        else:
            self.log_bytes += sum(segment.keys.nbytes for segment in happened)

    def merged(self, merged: MergedFile) -> None:
        """Move the keys of a merged file's rows to their new places. Keys that have changed since the merge began stay
        as they are."""
        if self.phase is not IndexPhase.READY:
            self.note(merged)
        if self.has_keys:
            self._move(merged)

    def built(self, built: BuiltIndex) -> None:
        """Take over the built index, and apply the logged commits to it."""
        self.index, self.numbers = built.index, built.numbers
        if self.store is not None:
            self.index.spill(self.store)
        for happened in self.log:
            if isinstance(happened, MergedFile):
                self._move(happened)
            else:
                apply_plan(self.index, plan_commit(self.index, self.numbers, happened).touched)
        self.log, self.log_bytes, self.phase = [], 0, IndexPhase.READY

    def followed(self, followed: SucceededFiles) -> bool:
        """Give keys whose files are gone their places in the new files. Returns False if some keys are not in the new
        files.

        If a new file has several rows of a key, the first one counts. A key that was changed or deleted since the
        rewrite has no place in a removed file any more, and stays as it is.
        """
        numbered = [(self.numbers.number(file.path, followed.partitions[file.path]), file) for file in followed.added]
        gone = self.numbers.mask(followed.gone)
        for number, file in numbered:
            self.index.adopt(file.keys, place_of(number, file.positions), gone)
        if self.index.any_in(gone):
            return False
        self.numbers.forget(followed.gone)
        for happened in self.log:
            if isinstance(happened, MergedFile):
                # Its sources may be files that were unknown when the merge was logged.
                self._move(happened)
        self.log, self.log_bytes, self.phase = [], 0, IndexPhase.READY
        self.former_manifests = ()
        return True

    def _move(self, merged: MergedFile) -> None:
        if merged.file is not None and merged.keys is not None:
            sources = np.array([self.numbers.number(path) for path in merged.sources], np.int64)
            number = self.numbers.number(merged.file.path, merged.file.partition)
            old = place_of(sources[merged.source], merged.position)
            self.index.move(merged.keys, old, place_of(number, merged.rows))
        if self.phase is IndexPhase.READY:
            self.numbers.forget(merged.sources)

    def _clear(self) -> None:
        self.index, self.numbers = KeyIndex(self.packing.words, store=self.store), FileNumbers()
        self.log, self.log_bytes, self.former_manifests = [], 0, ()
