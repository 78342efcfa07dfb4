"""Finds the files of the lake that may hold rows of a range of tier keys, in groups for tasks."""

from __future__ import annotations

from collections.abc import Iterator

from mirror_pump.engine.comparison.live_rows import LakeFile, TierRange
from mirror_pump.errors import LakeError
from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.contents.file_listing import Listing, LiveFile, naming
from mirror_pump.lake.format.bounds import ordered
from mirror_pump.lake.format.data_files import FileContent
from mirror_pump.lake.format.position_deletes import PATH_ID
from mirror_pump.lake.storage import StorageOptions
from mirror_pump.model import Column

NO_END = 1 << 63
"""A bound of tier values that is beyond all of them."""


def tier_ranges(
    tier: Column | None,
    lake: LakeTable,
    lo: int,
    hi: int,
    storage: StorageOptions,
    task_bytes: int,
    before: int | None = None,
) -> Iterator[TierRange]:
    """The files with rows in [lo, hi), by their bounds, in groups of about `task_bytes`. `tier` is the tier key's
    column; without one, these are all files. `before`: only files with a lower data sequence number. Raises
    LakeError if a file is not of a kind that can be read."""
    tier_id = None if tier is None else tier.field_id
    bounded = [PATH_ID] if tier_id is None else [tier_id, PATH_ID]
    data, positions, deletes = _by_content(Listing(storage, bounded), lake, before)
    for delete in deletes:
        if set(delete.equality_ids) != set(lake.schema.key_ids):
            raise LakeError(
                f"{delete.path} deletes rows by other columns than the key", "compact the table: mirror-pump maintain"
            )
    group: list[LakeFile] = []
    size = 0

    def grouped() -> TierRange:
        named = naming(positions, [file.path for file in group])
        return TierRange(tuple(group), named, lake.schema, tier_id, lo, hi, storage)

    for file in data:
        if tier is not None:
            low = ordered(tier.type, file.lower_bounds.get(tier.field_id))
            high = ordered(tier.type, file.upper_bounds.get(tier.field_id))
            if (low is not None and low >= hi) or (high is not None and high < lo):
                continue
        younger = tuple(delete.path for delete in deletes if delete.sequence_number > file.sequence_number)
        group.append(LakeFile(file.path, younger))
        size += file.size_bytes
        if size >= task_bytes:
            yield grouped()
            group, size = [], 0
    if group:
        yield grouped()


def _by_content(
    listing: Listing, lake: LakeTable, before: int | None
) -> tuple[list[LiveFile], list[LiveFile], list[LiveFile]]:
    """Returns the data files, position-delete files and equality-delete files that a reader of the snapshot sees."""
    groups: dict[FileContent, list[LiveFile]] = {content: [] for content in FileContent}
    for files in listing.files(lake.manifests).values():
        for file in files:
            if before is None or file.sequence_number < before:
                groups[file.content].append(file)
    if any(file.format != "PARQUET" for file in groups[FileContent.DATA]):
        raise LakeError("a data file of the table is not Parquet", "rewrite the table's files: mirror-pump maintain")
    return groups[FileContent.DATA], groups[FileContent.POSITION_DELETES], groups[FileContent.EQUALITY_DELETES]
