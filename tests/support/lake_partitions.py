"""Lake partitions of public.events: which one a row belongs to, and that every file has rows of one only."""

from __future__ import annotations

from collections import Counter

import pyarrow.parquet as pq

from mirror_pump.lake.commit.row_delta import LakeTable
from mirror_pump.lake.storage import StorageOptions, local_path

WIDTH = 30
"""Of the lake partitions. Those of the heap are 100 wide: the cut-line lies within a lake partition."""


def partition_of(at: int) -> int:
    """The lake partition of a tier key."""
    return at // WIDTH * WIDTH


def assert_divided(location: str) -> Counter[int]:
    """Fails unless each data file of the table with this metadata file has rows of its own lake partition only. Returns
    the number of files with rows by lake partition."""
    found: Counter[int] = Counter()
    for file in LakeTable.load(location, StorageOptions()).live_data_files():
        partition = int(file.partition[0])
        keys = pq.read_table(local_path(file.path), columns=["at"]).column("at").to_pylist()
        assert {partition_of(at) for at in keys} <= {partition}
        if keys:
            found[partition] += 1
    return found
