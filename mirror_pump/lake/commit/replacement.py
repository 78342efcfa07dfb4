"""Kinds of files that a commit removes in the snapshot in which it adds others: every file, those above the cut-line,
or those of a restarted copy.

Each kind has a method `replaced`, which determines what it removes from one state of the table and writes what it needs
for that. So the commit does not distinguish the kinds. A rewrite that changes no row is another kind
(`mirror_pump.lake.commit.file_rewrite`), and so is the removal of expired rows
(`mirror_pump.lake.commit.expired_rows`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyiceberg.manifest import ManifestContent

from mirror_pump.lake.contents.cutline import CutLine, divide
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.deletes.delete_form import Hiding, PresentFiles, RowsToHide
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.manifests.manifest_entries import ManifestEntry, StoredEntry
from mirror_pump.lake.manifests.manifest_files import entries_of
from mirror_pump.lake.manifests.manifest_list import Manifest
from mirror_pump.lake.storage import StagedFiles

NOTHING_HIDDEN = RowsToHide({}, {})


@dataclass(frozen=True)
class Replaced:
    """What a replacement does to one state of a table."""

    removes: Callable[[ManifestEntry | StoredEntry], bool]
    """Whether a live file is removed."""
    may_contain: Callable[[Manifest], bool]
    """Whether a manifest may name such a file. Other manifests are kept without reading them."""
    data: tuple[tuple[WrittenFile, int], ...] = ()
    """Data files that replace others, with their data sequence numbers."""
    positions: tuple[WrittenFile, ...] = ()
    """Position-delete files of another engine to add."""
    hidden: RowsToHide = NOTHING_HIDDEN
    """Rows to hide."""
    dangling: int = 0
    """Rows of removed position-delete files that had nothing to hide any more."""
    uncounted: bool = False
    """Whether position deletes whose rows are gone may be left, or rows go with a rewrite."""
    rewritten_bytes: int | None = None
    """Size in bytes of new files with rows that were in the table before. None if nothing was rewritten."""
    empties: bool = False
    """Whether no earlier file is left."""
    only_rewrites: bool = False
    """Whether no row changes. Then a commit that adds no delete file may call itself a rewrite."""
    converted_to: int | None = None
    """No equality delete with a sequence number up to this one is left. None if some may be left."""

    def removed_data(self, base_state: PresentFiles) -> frozenset[str]:
        """URIs of the data files that it removes. Raises LakeError."""
        return frozenset(
            entry.path
            for manifest in base_state.manifests
            if manifest.content == ManifestContent.DATA and manifest.live_files and self.may_contain(manifest)
            for entry in entries_of(manifest, base_state.storage)
            if self.removes(entry)
        )

    def with_hiding(self, hiding: Hiding) -> Replaced:
        """What goes if rows are hidden so, too."""
        deletes = hiding.deletes

        def removes(entry: ManifestEntry | StoredEntry) -> bool:
            if deletes.supersede(entry):
                return True
            if entry.content == FileContent.DATA:
                return entry.path in deletes.emptied or self.removes(entry)
            # Several vectors share a Puffin file, so the path does not identify one.
            return (entry.blob is None or self.empties) and self.removes(entry)

        def may_contain(manifest: Manifest) -> bool:
            return manifest.path in deletes.changed or self.may_contain(manifest)

        again = self.rewritten_bytes
        return replace(
            self,
            removes=removes,
            may_contain=may_contain,
            data=tuple((file, number) for file, number in self.data if file.path not in deletes.emptied),
            rewritten_bytes=None if again is None else again + hiding.rewritten_bytes,
            dangling=self.dangling - deletes.repeated,
        )


@dataclass(frozen=True)
class EveryFile:
    """All files, for a TRUNCATE or a new initial copy."""

    def replaced(self, base_state: PresentFiles, written: StagedFiles) -> Replaced:
        """Writes nothing."""
        return Replaced(lambda _: True, lambda _: True, empties=True)


@dataclass(frozen=True)
class FilesAbove:
    """The files with no row below the cut-line. A file with rows on both sides stays, and its rows at or above the
    cut-line get position deletes. So the rows below the cut-line and their deletes keep their files."""

    cutline: CutLine

    def replaced(self, base_state: PresentFiles, written: StagedFiles) -> Replaced:
        """Reads the tier key of files that may have rows on both sides of the cut-line. Raises LakeError."""
        listing = Listing(base_state.storage, (self.cutline.field_id,))
        division = divide(base_state.manifests, self.cutline, listing, base_state.storage)
        above = division.above
        return Replaced(
            lambda entry: entry.path in above,
            lambda manifest: any(file.path in above for file in division.files.get(manifest.path, ())),
            hidden=RowsToHide(division.hidden, division.partitions),
            uncounted=True,
        )


@dataclass(frozen=True)
class CopiedFiles:
    """The chunks of a restarted copy: the data files with this data sequence number. Files of stream changes stay."""

    data_sequence_number: int

    def replaced(self, base_state: PresentFiles, written: StagedFiles) -> Replaced:
        """Writes nothing."""
        number = self.data_sequence_number
        return Replaced(
            lambda entry: entry.sequence_number == number,
            lambda manifest: manifest.may_contain_data_of(number),
            uncounted=True,
        )
