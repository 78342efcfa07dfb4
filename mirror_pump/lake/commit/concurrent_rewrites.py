"""What our commits owe to Iceberg's rewrite_data_files, which plans, works for minutes, and commits on top of ours.

Three things in Iceberg's Java code (seen in 1.12) would make a rewrite fail, or worse, beside a writer that commits
every second, and are met here:

1. A rewrite's commit walks the history back to the snapshot that it began from, and fails at a gap (MergingSnapshot-
   Producer.validationHistory). So while a rewrite runs, no snapshot since its beginning is thinned out.
2. A commit that is tried again counts the delete files that its first try dropped as files that it has to find,
   but opens no delete manifest that it did not see then (ManifestFilterManager.filterManifests,
   canContainDroppedFiles); and a rewrite of manifests has to find those that it replaces. So manifests from before
   a rewrite's beginning are not merged while it runs.
3. It drops every delete file whose sequence number is lower than that of all data files it does not rewrite
   (MergingSnapshotProducer.apply, dropDeleteFilesOlderThan). The rewritten files keep the number that they started
   from, and it does not count them. So when a rewrite covers the whole table, and the commits that landed
   meanwhile begin with one that only deletes, these deletes vanish, and the rows that they removed come back. A
   data file as old as the deletes, even an empty one, keeps the bound where it has to be. Commits bring one
   always, not only while we know of a rewrite: users run such jobs too, and the loss would be silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.format.manifest_list import Manifest

_PLANNING = 100
"""Commits that may land between the announcement of a rewrite and the snapshot that it takes as its beginning."""


def needed_snapshots(metadata: Mapping[str, Any], since: int) -> frozenset[int]:
    """Snapshots in the history that a rewrite announced at this sequence number needs (1)."""
    return frozenset(int(one["snapshot-id"]) for one in metadata["snapshots"] if one["sequence-number"] >= since)


def needed_manifests(manifests: Sequence[Manifest], since: int | None) -> tuple[list[Manifest], list[Manifest]]:
    """Manifests that have to stay as they are for the rewrite announced at this sequence number (2), and the others."""
    if since is None:
        return [], list(manifests)
    needed: list[Manifest] = []
    others: list[Manifest] = []
    for manifest in manifests:
        old = manifest.min_sequence_number <= since + _PLANNING
        # Also one without live files, which a commit drops otherwise: a rewrite of manifests may have chosen it.
        (needed if old else others).append(manifest)
    return needed, others


def placeholder_number(
    data: Iterable[tuple[WrittenFile, int]], deletes: Iterable[tuple[WrittenFile, int]]
) -> int | None:
    """The data sequence number at which a commit of these files, with their numbers, needs an empty data file; None if
    it brings a data file that is no younger than its first equality delete (3).

    Position deletes need none: a rewrite fails when one appeared for a file that it replaces.
    """
    first = min((number for file, number in deletes if file.content is FileContent.EQUALITY_DELETES), default=None)
    if first is None or any(number <= first for _, number in data):
        return None
    return first
