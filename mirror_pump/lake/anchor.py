"""Keeps other engines' compactions from dropping equality deletes that their new files still need.

Iceberg's Java code, when it commits a rewrite of data files, drops every delete file whose sequence number is lower
than that of all data files it does not rewrite (MergingSnapshotProducer.apply, dropDeleteFilesOlderThan; seen in
1.12). The rewritten files keep the number that they started from, and it does not count them. So when a rewrite covers
the whole table, and the commits that landed meanwhile begin with one that only deletes, these deletes vanish, and the
rows that they removed come back. A data file as old as the deletes, even an empty one, keeps the bound in its place.
"""

from __future__ import annotations

from collections.abc import Iterable

from mirror_pump.lake.files import FileContent, WrittenFile


def anchor_number(data: Iterable[tuple[WrittenFile, int]], deletes: Iterable[tuple[WrittenFile, int]]) -> int | None:
    """The data sequence number at which a commit of these files, with their numbers, needs an empty data file; None if
    it brings a data file that is no younger than its first equality delete.

    Position deletes need none: a rewrite fails when one appeared for a file that it replaces.
    """
    first = min((number for file, number in deletes if file.content is FileContent.EQUALITY_DELETES), default=None)
    if first is None or any(number <= first for _, number in data):
        return None
    return first
