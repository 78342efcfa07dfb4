"""Files of a table that go in the same snapshot in which a commit brings others: every file, those above the cut-line,
or those of a copy that begins again. (`mirror_pump.lake.commit.file_rewrite` exchanges files without a change of rows.)

Each kind says what it takes out of one state of the table (`replaced`), and what it writes for that; the commit does
not ask which kind it has in hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirror_pump.lake.contents.cutline import CutLine, divide
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.position_deletes import write_position_deletes
from mirror_pump.lake.metadata.manifest_entries import ManifestEntry
from mirror_pump.lake.metadata.manifest_list import Manifest
from mirror_pump.lake.storage import StagedFiles, StorageOptions


@dataclass(frozen=True)
class PresentFiles:
    """The state of a table that a commit builds on."""

    manifests: Sequence[Manifest]
    location: str
    """Root URI of the table's files."""
    storage: StorageOptions


@dataclass(frozen=True)
class Replaced:
    """What a replacement comes to on one state of a table."""

    doomed: Callable[[ManifestEntry], bool]
    """Whether a live file goes."""
    may_hold: Callable[[Manifest], bool]
    """Whether a manifest may name such a file; the others are carried over unread."""
    data: tuple[tuple[WrittenFile, int], ...] = ()
    """Data files that come in place of others, with their data sequence numbers."""
    positions: tuple[WrittenFile, ...] = ()
    """Position deletes that come with it."""
    rewritten_bytes: int | None = None
    """Size of files whose rows were in the table before; None if nothing was rewritten."""
    empties: bool = False
    """Nothing of before is left."""
    only_rewrites: bool = False
    """No row changes: a commit that adds no delete file may call itself a rewrite."""
    converted_to: int | None = None
    """Equality deletes up to this sequence number are all gone; None if any may be left."""


@dataclass(frozen=True)
class EveryFile:
    """All of them: TRUNCATE, or a copy that begins again."""

    def replaced(self, present: PresentFiles, written: StagedFiles) -> Replaced:
        """Writes nothing."""
        return Replaced(lambda _: True, lambda _: True, empties=True)


@dataclass(frozen=True)
class FilesAbove:
    """Those with no row below the cut-line. A file with rows on both sides stays, and the others of its rows are
    deleted by position: what is below stays readable with every file that it or its deletes are in."""

    cutline: CutLine

    def replaced(self, present: PresentFiles, written: StagedFiles) -> Replaced:
        """Reads the tier key of files that may have rows on both sides. Raises LakeError."""
        listing = Listing(present.storage, (self.cutline.field_id,))
        division = divide(present.manifests, self.cutline, listing, present.storage)
        above = division.above
        positions: tuple[WrittenFile, ...] = ()
        if division.hidden:
            positions = (write_position_deletes(division.hidden, present.location, present.storage),)
            written.own(positions[0].path)
        return Replaced(
            lambda entry: entry.path in above,
            lambda manifest: any(file.path in above for file in division.files.get(manifest.path, ())),
            positions=positions,
        )


@dataclass(frozen=True)
class CopiedFiles:
    """The chunks of a copy that begins again: the data files of this data sequence number. What the stream has brought
    meanwhile stays."""

    data_sequence_number: int

    def replaced(self, present: PresentFiles, written: StagedFiles) -> Replaced:
        """Writes nothing."""
        number = self.data_sequence_number
        return Replaced(
            lambda entry: entry.sequence_number == number, lambda manifest: manifest.may_hold_data_of(number)
        )
