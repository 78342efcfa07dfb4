"""The one body of a snapshot: in which order its manifests, its summary and the document that names it are made.

Kinds of commits are subclasses of NewSnapshot. Their hooks say what a snapshot adds, what it removes, what its summary
states, and what names it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pyiceberg.manifest import ManifestContent

from mirror_pump.lake.document.snapshot import Snapshot
from mirror_pump.lake.document.snapshot_summary import FileCounts, summarise
from mirror_pump.lake.document.table_metadata import TableMetadata
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.manifests.manifests import ManifestWriter, Removal
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.lake.storage.options import Content

SequencedFile: TypeAlias = tuple[WrittenFile, int]
"""A file with its data sequence number."""


@dataclass(frozen=True)
class AddedFiles:
    """The files that a snapshot adds."""

    data: list[SequencedFile] = field(default_factory=list)
    deletes: list[SequencedFile] = field(default_factory=list)
    """Equality deletes."""
    positions: list[SequencedFile] = field(default_factory=list)
    """Position-delete files or deletion vectors."""

    @property
    def placeholder_number(self) -> int | None:
        """Data sequence number of the placeholder file, a data file without rows, that a commit of these files needs.
        None if it needs none.

        It is needed so that a rewrite_data_files of Iceberg loses no deletes: it plans, works for minutes, and then
        commits on top of the mirror's commits. Users run such jobs; `mirror-pump maintain` has Spark commit to a fork
        instead (mirror_pump.lake.commit.forked_rewrite). Iceberg's Java code (seen in 1.12) drops every delete file
        whose sequence number is lower than that of all data files that the rewrite does not rewrite
        (MergingSnapshotProducer.apply, dropDeleteFilesOlderThan). Rewritten files keep their starting sequence number,
        but are not counted. So if a rewrite covers the whole table, and the first commit that landed meanwhile only
        deletes, these deletes vanish and the rows that they removed come back, in silence. A data file that is no newer
        than the first equality delete prevents this. Position deletes need none: a rewrite fails if one appeared for a
        file that it replaces.
        """
        first = min((number for _, number in self.deletes), default=None)
        return None if first is None or any(number <= first for _, number in self.data) else first

    @property
    def files(self) -> Iterator[WrittenFile]:
        return (file for file, _ in (*self.data, *self.deletes, *self.positions))


@dataclass(frozen=True)
class MadeSnapshot:
    """A snapshot, and its files, which the kind of commit writes."""

    snapshot: Snapshot
    manifests: tuple[Manifest, ...]
    metadata: TableMetadata
    """The document that names it."""
    files: Sequence[tuple[str, Content]]
    """URI and content of the files that it needs: manifests, their list, and what the hooks left in `files`."""

    @property
    def locations(self) -> tuple[str, ...]:
        """URIs of the files."""
        return tuple(location for location, _ in self.files)


@dataclass
class NewSnapshot(ABC):
    """A snapshot on top of one state of a table, which is made once."""

    writer: ManifestWriter
    storage: StorageOptions
    now_ms: int
    """Milliseconds since 1970 UTC."""
    entries: Mapping[str, str]
    """What its summary states besides counts, such as the frontier."""

    def __post_init__(self) -> None:
        self.metadata = self.writer.metadata
        """The document that it is made under."""
        self.parent = self.metadata.current_snapshot
        self.timestamp_ms = max(self.now_ms, self.metadata.last_updated_ms)
        """Never before its parent's time, whatever the clock says."""
        self.files: list[tuple[str, Content]] = []
        """URI and content of the files to write besides manifests. The hooks add to it."""
        self.counts = FileCounts()
        """Of the files that it adds; `added` may count others."""
        self.only_rewrites = False
        """Whether no row changes."""

    def added(self) -> AddedFiles:
        """The files that it adds. Runs first, and what it returns is `self.new` from then on. By default none."""
        return AddedFiles()

    @abstractmethod
    def removed(self) -> Removal:
        """The manifests that are left of the table's, afterwards `self.removal`. New vectors may join one of them."""

    def summary(self) -> dict[str, str]:
        """The entries of its summary. The new snapshot has `self.manifests`."""
        parent = None if self.parent is None else self.parent.summary
        return summarise(self.counts, self.removal.removed, parent, self.entries, only_rewrites=self.only_rewrites)

    @abstractmethod
    def named(self, snapshot: Snapshot) -> TableMetadata:
        """The table's document with the snapshot."""

    def make(self) -> MadeSnapshot:
        """Encodes the snapshot. Writes nothing but what the hooks write. Raises LakeError, and what the hooks raise."""
        new = self.new = self.added()
        self.counts.add_files(new.files)
        removal = self.removal = self.removed()
        deletes = new.deletes if removal.joined else [*new.deletes, *new.positions]
        files = {ManifestContent.DATA: new.data, ManifestContent.DELETES: deletes}
        self.manifests = (*self.writer.next(removal.untouched, files, self.storage), *removal.rewritten)
        summary = self.summary()
        snapshot, manifests = self.writer.snapshot(self.parent, self.manifests, summary, self.timestamp_ms)
        return MadeSnapshot(snapshot, manifests, self.named(snapshot), (*self.files, *self.writer.files))
