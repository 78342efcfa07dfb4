"""Exchanges or removes files of a table to which rows are only added: what keeps change feeds short and cheap to read.

Invariant: a rewrite changes no row that stays. A change feed has no deletes, and a file of it is never changed, so
files hold the same rows in every state that names them. What a merge adds has exactly the rows of what it removes, so
both land together or not at all: `replaced` refuses a state in which one of the removed files is not live.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.manifest import ManifestContent

from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded
from mirror_pump.lake.commit.replacement import Replaced
from mirror_pump.lake.contents.file_listing import Listing
from mirror_pump.lake.deletes.delete_form import PresentFiles
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.storage import StagedFiles
from mirror_pump.model import Lsn


@dataclass(frozen=True)
class FeedRewrite:
    """Files that replace others with the same rows; without new files, files that leave the table with their rows."""

    removed: frozenset[str]
    """URIs of data files."""
    listing: Listing
    """It has read most manifests of the state that the rewrite lands on."""
    added: tuple[tuple[WrittenFile, int], ...] = ()
    """New data files with their data sequence numbers."""
    removed_rows: int = 0
    """How many rows leave the table."""
    expired_lsn: Lsn | None = None
    """The position below which changes may be gone with the removed files. None: no row goes."""

    @property
    def written(self) -> tuple[WrittenFile, ...]:
        """All files that were written for it."""
        return tuple(file for file, _ in self.added)

    def replaced(self, base_state: PresentFiles, _written: StagedFiles, /) -> Replaced:
        """Writes nothing. Raises FileRewriteSuperseded if a removed file is not live, and LakeError."""
        data = [manifest for manifest in base_state.manifests if manifest.content == ManifestContent.DATA]
        holding = {
            path: named
            for path, files in self.listing.files(data).items()
            if (named := self.removed.intersection(file.path for file in files))
        }
        missing = self.removed.difference(*holding.values())
        if missing:
            raise FileRewriteSuperseded(f"{min(missing)} is not part of the table any more")
        return Replaced(
            lambda entry: entry.path in self.removed,
            lambda manifest: manifest.path in holding,
            data=self.added,
            rewritten_bytes=sum(file.size_bytes for file, _ in self.added) if self.added else None,
            only_rewrites=bool(self.added),
        )
