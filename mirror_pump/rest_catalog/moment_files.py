"""Metadata files in which a snapshot of the past is the current one.

Engines take a table's state from the metadata that a catalog answers, but for ClickHouse, which opens the file that
`metadata-location` names. So each state that is shown has a file. It is written once for each lease, beside those of
archive snapshots, under a name that follows from the pin; whoever writes it again writes the same state.

The sweep leaves it as long as the pin lasts, since it is younger than the pinned snapshot, and deletes it as any file
that nothing refers to once that is over. The name is the pin's, and not the snapshot's, because of a sweep that is
under way when somebody pins the snapshot again: it may be about to delete the file of the former pin.
"""

from __future__ import annotations

import uuid

from mirror_pump.lake.metadata.metadata_files import seam_directory
from mirror_pump.lake.metadata.table_metadata import TableMetadata
from mirror_pump.lake.storage import join


def moment_location(metadata: TableMetadata, pin_id: int) -> str:
    """Where that file is. ClickHouse opens files only that are named as Iceberg's own: N-uuid.metadata.json. The sweep
    takes a number above the table's newest for that of a publish under way, so it is 0."""
    name = uuid.uuid5(uuid.UUID(metadata.table_uuid), f"pin {pin_id}")
    return join(seam_directory(metadata), f"00000-{name}.metadata.json")
