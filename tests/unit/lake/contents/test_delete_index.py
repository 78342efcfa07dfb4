"""Which deletes apply to files whose partitions are real numbers."""

from __future__ import annotations

import math

from mirror_pump.lake.contents.delete_index import DeleteFile, DeleteIndex
from mirror_pump.lake.format.data_files import FileContent


def _delete(content: FileContent, number: int, value: float) -> DeleteFile:
    return DeleteFile(content, f"file:///{number}", "PARQUET", 1, 1, number, 0, (value,))


def test_deletes_apply_within_their_partition_of_real_numbers() -> None:
    """NaN equals itself as a partition, and the two zeros are two partitions, as in Java."""
    values = (math.nan, 0.0, -0.0, 0.1)
    for content in (FileContent.POSITION_DELETES, FileContent.EQUALITY_DELETES):
        files = [_delete(content, number, value) for number, value in enumerate(values, 1)]
        index = DeleteIndex(files, frozenset())
        for file, value in zip(files, values, strict=True):
            # Read from another entry: another object.
            partition = (float(repr(value)),)
            found = (
                index.position_deletes("file:///a", 0, 0, partition)
                if content is FileContent.POSITION_DELETES
                else index.equality_deletes(0, 0, partition)
            )
            assert found == (file,), value
