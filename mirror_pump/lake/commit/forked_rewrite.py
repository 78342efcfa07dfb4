"""Carries a rewrite that another engine committed to a fork of the table over to the table itself.

A fork is a pointer of its own to one of the table's metadata files, the base. The engine works and commits there alone,
for as long as it takes. What it did, files removed and files added, lands in one commit of the mirror on the state that
is current by then.

Invariant: a rewrite that passes `checked` changes no row that any reader sees. Terms: n is the base's sequence number.

- In the fork, base and result hold the same rows: `fork_difference` refuses a result that does not descend from the
  base by rewrites alone. So the added files hold the rows of the removed data files without those that the base's
  deletes hide, and what else the rewrite removes are deletes that hide nothing in the data files that stay.
- Added data files have the data sequence number n (`use-starting-sequence-number`), which `fork_difference` checks.
  Equality deletes that came since have higher numbers, as those of all later commits: they reach the added files as
  they reached the removed ones. Those of the base do not reach them, since their numbers are at most n.
- A position delete that came since must not name a removed data file, whose rows have other places now: `checked`
  refuses it. The pump writes none while a rewrite is announced (mirror_pump.source.catalog.maintenance).
- No row appears twice: `checked` ensures that all removed files are live in the current state.
- Data files that came since have numbers above n, which `checked` ensures. A removed delete does not reach them.
- Older snapshots keep their manifests, so time travel is unaffected.
- In a table of format version 3 the engine carries the rows' IDs over into columns of the added files. If the base's
  rows have none yet, as the table has just got that version, it fits only as long as they have none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from mirror_pump.lake.commit.file_rewrite import FileRewriteSuperseded, examined, require_live
from mirror_pump.lake.commit.replacement import Replaced
from mirror_pump.lake.deletes.delete_form import PresentFiles
from mirror_pump.lake.deletes.hidden_rows import NO_ROWS, HiddenRows
from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.manifests.manifest_files import entries_of
from mirror_pump.lake.manifests.manifest_list import Manifest, rows_have_ids
from mirror_pump.lake.storage import StagedFiles, StorageOptions


@dataclass(frozen=True)
class ForkedRewrite:
    """The files that the rewrite adds and removes, and the state that this was found for."""

    data: tuple[WrittenFile, ...]
    """New data files."""
    positions: tuple[WrittenFile, ...]
    """New position-delete files. They hide rows by their places, so any number that is not below n will do."""
    removed: frozenset[str]
    """URIs of the files to remove."""
    removed_data: frozenset[str]
    """Those of them that are data files."""
    data_number: int
    """The data sequence number of the new data files: n."""
    drops_deletes: bool
    """Whether it removes every delete of the base."""
    live_paths: Mapping[str, frozenset[str]]
    """A state that the rewrite may land on: by manifest URI, the URIs of its live files."""
    had_row_ids: bool = False
    """Whether the base's rows had IDs."""

    @property
    def size_bytes(self) -> int:
        """Size of the new files in bytes."""
        return sum(file.size_bytes for file in (*self.data, *self.positions))

    def checked(self, manifests: Sequence[Manifest], storage: StorageOptions) -> ForkedRewrite:
        """The rewrite for a later state, with these manifests. Reads what came since the former one, so that the next
        check finds less to read. Raises FileRewriteSuperseded if it must not land there, and LakeError."""
        if not self.had_row_ids and rows_have_ids(manifests):
            raise FileRewriteSuperseded("the table's rows have got IDs while it was rewritten")
        since, live = examined(self.live_paths, self.data_number, manifests, storage)
        require_live(self.removed, live)
        named = HiddenRows.read(since, self.removed_data, storage) if self.removed_data else NO_ROWS
        if named:
            raise FileRewriteSuperseded(f"rows of {min(named)} were deleted by position while it was rewritten")
        return replace(self, live_paths=_live(manifests, self.live_paths, storage))

    def replaced(self, base_state: PresentFiles, _written: StagedFiles, /) -> Replaced:
        """Writes nothing. Raises FileRewriteSuperseded, and LakeError."""
        landing = self.checked(base_state.manifests, base_state.storage)
        return Replaced(
            lambda entry: entry.path in self.removed,
            lambda manifest: not landing.live_paths.get(manifest.path, frozenset()).isdisjoint(self.removed),
            data=tuple((file, self.data_number) for file in self.data),
            positions=self.positions,
            rewritten_bytes=self.size_bytes,
            uncounted=True,
            only_rewrites=True,
            converted_to=self.data_number if self.drops_deletes else None,
        )


def _live(
    manifests: Sequence[Manifest], live_paths: Mapping[str, Collection[str]], storage: StorageOptions
) -> dict[str, frozenset[str]]:
    """The URIs of the live files of a state by manifest URI, as far as possible from those of a former state."""
    return {
        manifest.path: frozenset(live_paths[manifest.path])
        if manifest.path in live_paths
        else frozenset(entry.path for entry in entries_of(manifest, storage))
        for manifest in manifests
        if manifest.live_files
    }
