"""What the mirror's commits respect so that a rewrite_data_files of Iceberg loses no deletes: it plans, works for
minutes, and then commits on top of the mirror's commits. Users run such jobs; `mirror-pump maintain` has Spark commit
to a fork instead (mirror_pump.lake.commit.forked_rewrite).

Iceberg's Java code (seen in 1.12) drops every delete file whose sequence number is lower than that of all data files
that the rewrite does not rewrite (MergingSnapshotProducer.apply, dropDeleteFilesOlderThan). Rewritten files keep their
starting sequence number, but are not counted. So if a rewrite covers the whole table, and the first commit that landed
meanwhile only deletes, these deletes vanish and the rows that they removed come back, in silence. A data file as old as
the deletes, even an empty one (a placeholder file), prevents this. Commits always add one if needed.
"""

from __future__ import annotations

from collections.abc import Iterable

from mirror_pump.lake.format.data_files import FileContent, WrittenFile


def placeholder_number(
    data: Iterable[tuple[WrittenFile, int]], deletes: Iterable[tuple[WrittenFile, int]]
) -> int | None:
    """Data sequence number of the placeholder file that a commit of these files needs; None if it needs none.

    It needs none if one of its data files is no newer than its first equality delete. Files come with their data
    sequence numbers. Position deletes need no placeholder: a rewrite fails if one appeared for a file that it replaces.
    """
    first = min((number for file, number in deletes if file.content is FileContent.EQUALITY_DELETES), default=None)
    if first is None or any(number <= first for _, number in data):
        return None
    return first
