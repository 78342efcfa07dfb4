"""Files exchanged for others without a change of rows: what a resolve or a merge wants, and whether it still may.

Data files that are merged are argued about in `mirror_pump.lake.commit.merged_files`; this is about deletes.

Invariant: a resolution that `check` lets pass changes no row that any reader sees. Let S0 be the state that it was
computed against, n its sequence number, S1 the state that it is published on, R the equality deletes that it removes,
and P the positions that it adds.

- A data file of S1 that was not in S0: `check` makes sure that its data sequence number is above n. No delete of R
  reaches it, for R was in S0, so its numbers are n at most, and an equality delete reaches strictly lower numbers. P
  does not name it. What the stream brings after S0 is of this kind.
- A data file of S1 that was in S0: the rows that R hides in it were found by comparing whole keys with the deletes of
  higher numbers; each is in P, or in a position-delete file of S0, which `check` makes sure is still live.
- Position deletes hide a row by its place, so P hides nothing else. P reaches its data files, because its own data
  sequence number is the new snapshot's, and none is higher (Iceberg spec, scan planning: a position delete reaches data
  files of its own number and lower).
- A position-delete file that is removed was merged: what it says of data files of S0 that stay is in an added file, and
  it can say nothing of younger ones. Or it was about one data file, which goes too, or was not part of S0.
- Older snapshots keep their manifests, so time travel sees what it saw.

A rewrite by another engine that runs meanwhile and lands first: its new files have an older number (that of the
snapshot it started from), or the files that P names are gone, so `check` refuses. One that lands later: Iceberg refuses
its commit, because a delete file for a data file that it replaces has appeared; but it looks for those only in
snapshots whose operation is `overwrite` or `delete`, so what adds a delete file must never call itself `replace`. A
merge that adds none is a `replace`, and has to be: who reads a table's appends as a stream (Spark's structured
streaming) passes over these, and fails on an `overwrite`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyiceberg.manifest import ManifestContent

from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.merged_files import MergedFile, followed
from mirror_pump.lake.commit.replacement import PresentFiles, Replaced
from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.position_deletes import write_position_deletes
from mirror_pump.lake.metadata.manifest_entries import StoredEntry
from mirror_pump.lake.metadata.manifest_list import Manifest
from mirror_pump.lake.metadata.manifests import entries_of
from mirror_pump.lake.storage import StagedFiles, StorageOptions


class FileRewriteSuperseded(LakeError):
    """The table has changed in a way that the resolution does not account for: throw it away and compute it again."""


@dataclass(frozen=True)
class FileRewrite:
    """Files to exchange, and everything that makes the exchange right."""

    added: tuple[WrittenFile, ...]
    """Position-delete files."""
    removed: frozenset[str]
    """URIs of the files that go: resolved equality deletes, position deletes merged into `added`, the sources of
    `merged` and position deletes that are about nothing else."""
    relied_on: frozenset[str]
    """URIs of files that have to be live beside `removed`: data files that `added` names, position-delete files whose
    rows were not repeated."""
    seen: Mapping[str, frozenset[str]]
    """The state it was computed against (S0): by manifest URI, the URIs of its live files."""
    sequence_number: int
    """S0's own (n)."""
    complete: bool
    """Whether it removes every equality delete of S0."""
    merged: tuple[MergedFile, ...] = ()
    """Data files that take the place of others; what was deleted in these meanwhile is deleted in them too."""
    drops_rows: bool = False
    """The merged files are without rows that went with their partition: no other engine may take it for a rewrite."""

    @property
    def written(self) -> tuple[WrittenFile, ...]:
        """Every file that it brings."""
        return (*self.added, *(one.file for one in self.merged if one.file is not None))

    @property
    def size_bytes(self) -> int:
        """Of these files."""
        return sum(file.size_bytes for file in self.written)

    def concerns(self, manifest: Manifest) -> bool:
        """Whether the manifest may name a file that is to be removed."""
        if manifest.content == ManifestContent.DATA and not self.merged:
            return False
        seen = self.seen.get(manifest.path)
        return seen is None or not seen.isdisjoint(self.removed)

    def replaced(self, present: PresentFiles, written: StagedFiles) -> Replaced:
        """Writes the deletes that came since it was computed, by the new places of the rows. Raises LakeError, and
        Superseded if it does not fit the table any more."""
        moved = deletes_moved(self, present.manifests, present.location, present.storage)
        written.own(*(file.path for file in moved))
        return Replaced(
            lambda entry: entry.path in self.removed,
            self.concerns,
            data=tuple((merged.file, merged.sequence_number) for merged in self.merged if merged.file is not None),
            positions=(*self.added, *moved),
            rewritten_bytes=self.size_bytes + sum(file.size_bytes for file in moved),
            only_rewrites=bool(self.merged) and not self.drops_rows,
            converted_to=self.sequence_number if self.complete else None,
        )


def check(resolution: FileRewrite, manifests: Sequence[Manifest], storage: StorageOptions) -> tuple[str, ...]:
    """Raises Superseded unless the resolution may be published on top of a state (S1) with these manifests. Returns the
    URIs of the position-delete files that S0 did not have.

    Reads the manifests that S0 did not have, unless their entries are in memory.
    """
    known = frozenset(chain.from_iterable(resolution.seen.values()))
    live: set[str] = set()
    positions: list[str] = []
    for manifest in manifests:
        if not manifest.live_files:
            continue
        seen = resolution.seen.get(manifest.path)
        if seen is not None:
            live |= seen
            continue
        for entry in entries_of(manifest, storage):
            live.add(entry.path)
            if entry.path in known:
                continue
            if entry.content == FileContent.POSITION_DELETES:
                if resolution.merged and isinstance(entry, StoredEntry) and entry.format != "PARQUET":
                    raise FileRewriteSuperseded(f"{entry.path} is a position-delete file of format {entry.format}")
                positions.append(entry.path)
            elif entry.sequence_number <= resolution.sequence_number:
                raise FileRewriteSuperseded(
                    f"{entry.path}, of sequence number {entry.sequence_number}, has come since snapshot"
                    f" {resolution.sequence_number} was looked at"
                )
    missing = (resolution.removed | resolution.relied_on) - live
    if missing:
        raise FileRewriteSuperseded(f"{min(missing)} is not part of the table any more")
    return tuple(positions)


def deletes_moved(
    resolution: FileRewrite, manifests: Sequence[Manifest], location: str, storage: StorageOptions
) -> tuple[WrittenFile, ...]:
    """Checks as `check` does, and writes what position deletes that came since S0 say of rows that the resolution
    moves, by their new places: one file, or none.

    Raises Superseded also if one of them cannot be read: the table goes on without the resolution.
    """
    since = check(resolution, manifests, storage)
    try:
        moved = followed(resolution.merged, since, storage)
    except (LakeError, pa.ArrowException) as error:
        raise FileRewriteSuperseded(f"a position-delete file cannot be read: {error}") from error
    return (write_position_deletes(moved, location, storage),) if moved else ()
