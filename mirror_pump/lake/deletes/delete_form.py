"""The form in which a table's files say which rows are hidden by position: chosen once for a table, by its format
version (`mirror_pump.lake.deletes.forms`).

What hides rows hands over row numbers by data file URI, in every form. What differs is here: the files in which a
commit and the archive branch say so, which of the deletes that are there these supersede, and which wait to be merged.
A new form is a subclass, and an entry of `forms`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from mirror_pump.lake.contents.file_listing import LiveFile
from mirror_pump.lake.deletes.commit_cache import CommitCache
from mirror_pump.lake.deletes.hidden_rows import HiddenRows
from mirror_pump.lake.deletes.row_deletes import NO_DELETES, RowDeletes
from mirror_pump.lake.document.snapshot_stats import SnapshotStats
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.partitioning import PartitionTuple
from mirror_pump.lake.format.position_deletes import Positions
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.storage import StorageOptions

OWN_POSITIONS = 4096
"""With this many deleted rows of a data file, a merge has them written to a position-delete file of their own:
pyiceberg reads a whole position-delete file for each data file that it refers to. With fewer, opening another file
would cost more."""


@dataclass(frozen=True)
class PresentFiles:
    """The state of a table that a commit builds on."""

    manifests: Sequence[Manifest]
    location: str
    """Root URI of the table's files."""
    storage: StorageOptions
    cache: CommitCache = field(default_factory=CommitCache, repr=False)
    spec_id: int = 0
    """ID of the partition spec of files that the commit adds."""


@dataclass(frozen=True)
class RowsToHide:
    """Rows that a commit hides."""

    rows: Mapping[str, Positions]
    """Sorted row numbers by data file URI. Many are HiddenRows: a form does not make all numbers at a time."""
    partitions: Mapping[str, PartitionTuple]
    """The lake partitions of these data files, by URI; those of an unpartitioned table may be left out."""
    own_positions: int | None = None
    """A data file with this many of them gets a delete file of its own, if the form has delete files. None: none
    does."""


@dataclass(frozen=True)
class Hiding:
    """Files that hide rows, and what becomes of the deletes that are there."""

    files: tuple[WrittenFile, ...] = ()
    """Their manifest entries."""
    contents: tuple[tuple[str, bytes], ...] = ()
    """URI and content of what is still to be written for them."""
    deletes: RowDeletes = NO_DELETES
    """What goes besides what the commit removes itself."""
    joins: bool = False
    """Whether the entries belong into the manifest in which those that they supersede are marked as deleted."""
    rewritten_bytes: int = 0
    """Size of those of the files that say what files before them said."""


@dataclass(frozen=True)
class MergeScope:
    """The position deletes of a state, of which some may wait to be merged."""

    positions: Sequence[LiveFile]
    """Readable files and vectors."""
    data: Collection[str]
    """URIs of the data files that stay."""
    partitions: Collection[PartitionTuple]
    """Lake partitions of the data files that a merge replaces."""
    crowded: bool
    """Whether more rows are deleted than there are."""
    on_its_own: bool
    """Whether position deletes are merged for their own sake."""
    fanout: int
    """This many files of one size class are merged into one."""
    own_positions: int = OWN_POSITIONS


@dataclass(frozen=True)
class PositionsToMerge:
    """What a merge does to the position-delete files of a state."""

    files: tuple[str, ...]
    """URIs of those to merge: what they say about data files that stay is said anew."""
    dangling: frozenset[str]
    """URIs of those that refer to no data file which stays."""
    relied_on: frozenset[str]
    """URIs of those that have to be there when the merge lands."""


class DeleteForm(ABC):
    """The form of a table's position deletes. Has no state."""

    adds_files: bool
    """Whether a commit adds position-delete files to those that a data file has, so that they become many and are
    merged. Otherwise a data file has one delete at most, which a commit replaces."""

    @abstractmethod
    def of_commit(
        self,
        base: PresentFiles,
        hidden: RowsToHide,
        replaced: RowsToHide,
        added: Sequence[tuple[WrittenFile, int]],
        removed: Callable[[], frozenset[str]],
        /,
    ) -> Hiding:
        """The files by which a commit upon `base` hides rows: those that its own changes hide, and those that its
        replacement of files does. `added`: its data files, with their data sequence numbers. `removed` finds the URIs
        of the data files that it removes. Raises LakeError."""

    @abstractmethod
    def of_archive(
        self,
        base: PresentFiles,
        files: Sequence[LiveFile],
        rows: HiddenRows,
        left_out: Collection[str],
        /,
    ) -> Hiding:
        """The files by which the archive branch hides `rows` of these data files of `base`, besides what is hidden.
        `left_out`: URIs of the data files that it does not have. Raises LakeError."""

    @abstractmethod
    def unrepeated(self, positions: Sequence[LiveFile], paths: Sequence[str], /) -> tuple[str, ...]:
        """URIs of those of the files with position deletes whose rows in the data files `paths` a conversion must not
        hide again."""

    @abstractmethod
    def waiting(self, scope: MergeScope) -> PositionsToMerge:
        """The position-delete files to merge."""

    @abstractmethod
    def counted(
        self, before: SnapshotStats, after: SnapshotStats, base: PresentFiles, manifests: Sequence[Manifest], /
    ) -> SnapshotStats:
        """The figures of a new snapshot, which has these `manifests`: `after`, with what the form knows better.
        `before`: those of the state `base` that it builds on. Raises LakeError."""
