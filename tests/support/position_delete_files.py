"""Position-delete files that tests write themselves."""

from __future__ import annotations

from collections.abc import Mapping

from mirror_pump.lake.format.data_files import WrittenFile
from mirror_pump.lake.format.partitioning import UNPARTITIONED, PartitionTuple
from mirror_pump.lake.format.position_deletes import ROW_GROUP_ROWS, Positions, encoded_position_deletes
from mirror_pump.lake.storage import StorageOptions, write_bytes


def write_position_deletes(
    positions: Mapping[str, Positions],
    location: str,
    storage: StorageOptions,
    partition: PartitionTuple = UNPARTITIONED,
    *,
    row_group_rows: int = ROW_GROUP_ROWS,
) -> WrittenFile:
    """Writes one file below `location`/data, as `encoded_position_deletes` has it."""
    file, content = encoded_position_deletes(
        sorted(positions.items()), location, partition, row_group_rows=row_group_rows
    )
    write_bytes(file.path, content, storage)
    return file
