"""What the mirror's commits respect so that Iceberg's rewrite_data_files succeeds: it plans, works for minutes, and
then commits on top of the mirror's commits.

Three behaviours of Iceberg's Java code (seen in 1.12) would make such a rewrite fail, or lose deletes, while another
writer commits every second. The mirror's commits avoid them:

1. A rewrite's commit walks the history back to the snapshot that it began from, and fails at a gap (MergingSnapshot-
   Producer.validationHistory). So while a rewrite runs, no snapshot since its beginning is thinned out.
2. A commit that is retried has to find the delete files that its first attempt dropped, but opens no delete manifest
   that it did not see then (ManifestFilterManager.filterManifests, canContainDroppedFiles). A rewrite of manifests also
   has to find those that it replaces. So manifests from before a rewrite's beginning are not merged while it runs.
3. A rewrite drops every delete file whose sequence number is lower than that of all data files that it does not
   rewrite (MergingSnapshotProducer.apply, dropDeleteFilesOlderThan). Rewritten files keep their starting sequence
   number, but are not counted. So if a rewrite covers the whole table, and the first commit that landed meanwhile only
   deletes, these deletes vanish and the rows that they removed come back. A data file as old as the deletes, even an
   empty one (a placeholder file), prevents this. Commits always add one if needed, not only during known rewrites:
   users run such jobs too, and the loss would be silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mirror_pump.lake.format.data_files import FileContent, WrittenFile
from mirror_pump.lake.metadata.manifest_list import Manifest
from mirror_pump.lake.metadata.table_metadata import TableMetadata

_PLANNING = 100
"""Maximum number of commits between the announcement of a rewrite and the snapshot that it begins from."""


def needed_snapshots(metadata: TableMetadata, since: int) -> frozenset[int]:
    """IDs of the snapshots that a rewrite announced at this sequence number needs in the history (rule 1)."""
    return frozenset(snapshot.snapshot_id for snapshot in metadata.snapshots if snapshot.sequence_number >= since)


def needed_manifests(manifests: Sequence[Manifest], since: int | None) -> tuple[list[Manifest], list[Manifest]]:
    """Manifests that must stay unchanged for a rewrite announced at this sequence number (rule 2), and all others."""
    if since is None:
        return [], list(manifests)
    needed: list[Manifest] = []
    others: list[Manifest] = []
    for manifest in manifests:
        old = manifest.min_sequence_number <= since + _PLANNING
        # This includes manifests without live files, which commits usually drop: a rewrite of manifests may use them.
        (needed if old else others).append(manifest)
    return needed, others


def placeholder_number(
    data: Iterable[tuple[WrittenFile, int]], deletes: Iterable[tuple[WrittenFile, int]]
) -> int | None:
    """Data sequence number of the placeholder file that a commit of these files needs (rule 3); None if it needs none.

    It needs none if one of its data files is no newer than its first equality delete. Files come with their data
    sequence numbers. Position deletes need no placeholder: a rewrite fails if one appeared for a file that it replaces.
    """
    first = min((number for file, number in deletes if file.content is FileContent.EQUALITY_DELETES), default=None)
    if first is None or any(number <= first for _, number in data):
        return None
    return first
